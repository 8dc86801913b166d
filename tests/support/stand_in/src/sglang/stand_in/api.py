# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The endpoints."""

from __future__ import annotations

import json
import queue
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Callable

from sglang.stand_in import auth, text
from sglang.stand_in.engine import HEALTH_CHECK, Pending
from sglang.stand_in.http import Request, Response, json_response

if TYPE_CHECKING:
    from sglang.stand_in.server import Server

Handler = Callable[[Request], Response]


class ApiError(Exception):
    """A refused request, in the shape of the OpenAI endpoints."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.response = json_response(
            {"object": "error", "message": message, "type": kind, "param": None, "code": status}, status
        )


class NativeError(Exception):
    """A refused `/generate`."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.response = json_response({"error": {"message": message}}, 400)


class Api:
    """Routes of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._settings = server.settings
        self._resolved = server.settings.resolved
        self._created = int(time.time())
        self.counts: dict[tuple[str, str], int] = {}
        self.status_counts: dict[tuple[str, str, int], int] = {}
        get, post, both = ("GET",), ("POST", "PUT"), ("GET", "POST")
        self._routes: dict[str, tuple[tuple[str, ...], str, Handler]] = {
            "/health": (get, auth.NORMAL, self._health),
            "/health_generate": (get, auth.NORMAL, self._health),
            "/ready": (get, auth.NORMAL, self._ready),
            "/get_load": (get, auth.NORMAL, self._load),
            "/ping": (get, auth.NORMAL, lambda _: Response()),
            "/v1/models": (get, auth.NORMAL, self._models),
            "/model_info": (get, auth.NORMAL, self._model_info),
            "/get_model_info": (get, auth.NORMAL, self._deprecated("/get_model_info", self._model_info)),
            "/server_info": (get, auth.NORMAL, self._server_info),
            "/get_server_info": (get, auth.NORMAL, self._deprecated("/get_server_info", self._server_info)),
            "/v1/loads": (get, auth.NORMAL, self._loads),
            "/generate": (post, auth.NORMAL, self._generate),
            "/v1/completions": (post[:1], auth.NORMAL, self._completion),
            "/v1/chat/completions": (post[:1], auth.NORMAL, self._chat),
            "/abort_request": (post[:1], auth.ADMIN_OPTIONAL, self._abort),
            "/flush_cache": (both, auth.ADMIN_OPTIONAL, self._flush),
            "/freeze_gc": (both, auth.ADMIN_OPTIONAL, self._freeze_gc),
        }
        release = server.settings.profile
        self._traits = release.traits
        self._routes = {path: route for path, route in self._routes.items() if release.has(path)}
        if self._traits["health"] == "trivial":
            self._routes["/health"] = (get, auth.NORMAL, lambda _: Response())
        if self._resolved["enable_metrics"]:
            self._routes["/metrics"] = (get, auth.NORMAL, self._metrics)

    def handle(self, request: Request) -> Response:
        """Route, authorise, answer."""
        self._server.wait_while_frozen()
        path = request.path
        key = (path, request.method)
        self.counts[key] = self.counts.get(key, 0) + 1
        response = self._server.faults.answer(request, lambda: self._dispatch(request, path))
        status_key = (path, request.method, response.status)
        self.status_counts[status_key] = self.status_counts.get(status_key, 0) + 1
        return response

    def _dispatch(self, request: Request, path: str) -> Response:
        methods, level, handler = self._routes.get(path, ((), auth.NORMAL, self._not_found))
        if path.startswith("/v1/models/"):
            methods, handler = ("GET",), self._one_model
        status = auth.refusal(
            method=request.method,
            path=path,
            authorization=request.headers.get("authorization"),
            api_key=self._resolved["api_key"],
            admin_api_key=self._resolved["admin_api_key"],
            level=level,
            open_prefixes=tuple(self._traits["open_prefixes"]),
        )
        if status is not None:
            return json_response({"error": "Unauthorized"}, status)
        if methods and request.method not in methods:
            return json_response({"detail": "Method Not Allowed"}, 405)
        try:
            return handler(request)
        except (ApiError, NativeError) as error:
            return error.response

    def _not_found(self, _request: Request) -> Response:
        return json_response({"detail": "Not Found"}, 404)

    def _deprecated(self, path: str, handler: Handler) -> Handler:
        def wrapped(request: Request) -> Response:
            if not self._server.settings.profile.has(f"/{path[len('/get_') :]}"):
                return handler(request)  # it has no other name yet
            self._server.log.warning(
                f"Endpoint '{path}' is deprecated and will be removed in a future version."
                f" Please use '/{path[len('/get_') :]}' instead."
            )
            return handler(request)

        return wrapped

    # State

    def _ready(self, _request: Request) -> Response:
        return Response(200 if self._server.status == "Up" and not self._server.draining else 503)

    def _health(self, _request: Request) -> Response:
        """One token through scheduler and detokenizer; the sleep comes before the check (http_server.py:721-799)."""
        server = self._server
        if server.draining and self._traits["health"] != "trivial":
            server.log.info("Health check request received during shutdown. Returning 503.")
            return Response(503)
        if server.status == "Starting" and self._traits["health"] != "trivial":
            return Response(503)
        begin = time.time()
        limit = server.times.seconds("health_timeout")
        pending = server.engine.submit(
            prompt="",
            prompt_tokens=1,
            max_new_tokens=1,
            log_metrics=False,
            rid=f"{HEALTH_CHECK}_{uuid.uuid4().hex}",
        )
        try:
            while time.time() < begin + limit:
                time.sleep(max(0.001, server.times.seconds("health")))
                server.wait_while_frozen()
                if server.engine.last_receive > begin:
                    server.status = "Up"
                    return Response(200)
        finally:
            server.engine.forget(pending)
        server.status = "UnHealthy"
        server.log.error(
            "Health check failed. Server couldn't get a response from detokenizer for last"
            f" {limit:g} seconds. tic start time: {time.strftime('%H:%M:%S', time.localtime(begin))}."
            f" last_heartbeat time: {time.strftime('%H:%M:%S', time.localtime(server.engine.last_receive))}"
        )
        server.truth.note("unhealthy")
        return Response(503)

    def _card(self) -> dict[str, Any]:
        name = self._resolved["served_model_name"]
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._settings.context_length,
        }

    def _models(self, _request: Request) -> Response:
        return json_response({"object": "list", "data": [self._card()]})

    def _one_model(self, request: Request) -> Response:
        name = request.path[len("/v1/models/") :]
        if name == self._resolved["served_model_name"]:
            return json_response(self._card())
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return json_response({"error": error}, 404)

    def _model_info(self, _request: Request) -> Response:
        target = self._settings.target
        if self._traits["server_info"] != "full":
            return json_response(self._older_model_info())
        keys = ("model_path", "served_model_name", "tokenizer_path")
        later = ("preferred_sampling_params", "weight_version", "load_format", "reasoning_parser", "tool_call_parser")
        embedding = json.loads(json.dumps(self._settings.profile.model_info_embedding))
        prefill = self._resolved["cuda_graph_config"]["prefill"]
        embedding["bcg"]["prefill_backend"] = prefill["backend"]
        embedding["bcg"]["capture_token_budget"] = prefill["max_bs"]
        embedding["bcg"]["capture_batch_sizes"] = prefill["bs"]
        return json_response(
            {
                **{key: self._resolved[key] for key in keys},
                "is_generation": True,
                **{key: self._resolved[key] for key in later},
                "disaggregation_mode": self._resolved["disaggregation_mode"],
                "has_image_understanding": target.vision,
                "has_audio_understanding": False,
                "model_type": target.model_type,
                "architectures": [target.architecture],
                "embedding": embedding,
            }
        )

    def _older_model_info(self) -> dict[str, Any]:
        target = self._settings.target
        info = {key: self._resolved[key] for key in ("model_path", "tokenizer_path")}
        info["is_generation"] = True
        if self._traits["server_info"] == "plain":
            info.update(
                preferred_sampling_params=self._resolved["preferred_sampling_params"],
                weight_version=self._resolved["weight_version"],
                has_image_understanding=target.vision,
                has_audio_understanding=False,
                model_type=target.model_type,
                architectures=[target.architecture],
            )
        return info

    def _older_server_info(self) -> dict[str, Any]:
        """Up to 0.5.12: no launch_command, no times; in 0.4.6 the state lies among the arguments."""
        server, settings = self._server, self._settings
        state: dict[str, Any] = {"last_gen_throughput": server.engine.stats["gen_throughput"]}
        if "avg_accept_length" in server.engine.stats:
            state["avg_spec_accept_length"] = server.engine.stats["avg_accept_length"]
        info = {
            **settings.shown,
            "status": "ready",
            "max_total_num_tokens": settings.max_total_tokens,
            "max_req_input_len": settings.context_length - 6,
        }
        if self._traits["server_info"] == "flat":
            return {**info, **state, "version": settings.profile.version}
        memory = server.memory
        state["memory_usage"] = {
            "weight": round(memory["weight"], 2),
            "kvcache": round(memory["kvcache"], 2),
            "token_capacity": settings.max_total_tokens,
            "graph": round(sum(memory["graph"].values()), 2),
        }
        state["effective_max_running_requests_per_dp"] = settings.max_running_requests
        states = [{**settings.shown, **state} for _ in range(server.engine.replicas)]
        return {**info, "internal_states": states, "version": settings.profile.version}

    def _server_info(self, _request: Request) -> Response:
        server = self._server
        if self._traits["server_info"] != "full":
            server.engine.first_request.set()
            return json_response(self._older_server_info())
        server.engine.first_request.set()
        stats = server.engine.stats
        states = []
        for _ in range(server.engine.replicas):
            state = {
                **{key: value for key, value in self._settings.shown.items() if key != "custom_sigquit_handler"},
                "pp_max_micro_batch_size": self._settings.max_running_requests,
                "world_size": self._resolved["tp_size"] * self._resolved["pp_size"],
                "startup_time": {k: v for k, v in server.startup_time.items() if k != "tokenizer_e2e"},
                "effective_max_running_requests_per_dp": self._settings.max_running_requests,
                "last_gen_throughput": stats["gen_throughput"],
                "memory_usage": {
                    "weight": round(server.memory["weight"], 3),
                    "kvcache": round(server.memory["kvcache"], 3),
                    "startup_available": round(server.memory["available"], 3),
                    "token_capacity": self._settings.max_total_tokens,
                    "token_capacity_swa": None,
                    "graph": server.memory["graph"],
                },
                "decode_cuda_graph_bs": self._resolved["cuda_graph_config"]["decode"]["bs"]
                if self._settings.graph_enabled("decode")
                else [],
                "decode_cuda_graph_memory_gb": sum(
                    value for key, value in server.memory["graph"].items() if key != "prefill"
                ),
            }
            if "avg_accept_length" in stats:
                state["avg_spec_accept_length"] = stats["avg_accept_length"]
            states.append(state)
        return json_response(
            {
                **self._settings.shown,
                "launch_command": self._settings.launch_command,
                "status": "ready",
                "max_total_num_tokens": self._settings.max_total_tokens,
                "max_req_input_len": self._settings.context_length - 6,
                "startup_time": server.startup_time,
                "hicache_object_layout": {
                    "enabled": False,
                    "backend": None,
                    "page_size": self._resolved["page_size"],
                    "hicache_object_layout": {"pools": []},
                    "reason": "Hierarchical cache is disabled",
                },
                "kv_events": None,
                "internal_states": states,
                "version": self._settings.profile.version,
                "frontend": "python",
            }
        )

    def _load(self, _request: Request) -> Response:
        """The forerunner of /v1/loads (0.4.7 to 0.5.20)."""
        stats = self._server.engine.stats
        tokens = int(stats["token_usage"] * self._settings.max_total_tokens)
        running, waiting = stats.get("running", 0), stats.get("waiting", 0)
        return json_response(
            [
                {"dp_rank": dp, "num_reqs": running + waiting, "num_waiting_reqs": waiting, "num_tokens": tokens}
                for dp in range(self._server.engine.replicas)
            ]
        )

    def _loads(self, _request: Request) -> Response:
        server = self._server
        stats = server.engine.stats
        memory = server.memory
        loads = []
        for dp in range(server.engine.replicas):
            load: dict[str, Any] = {
                "timestamp": time.time(),
                "dp_rank": dp,
                "num_running_reqs": stats.get("running", 0),
                "num_waiting_reqs": stats.get("waiting", 0),
                "num_waiting_uncached_tokens": 0,
                "num_used_tokens": int(stats["token_usage"] * self._settings.max_total_tokens),
                "num_total_tokens": int(stats["token_usage"] * self._settings.max_total_tokens),
                "num_active_tokens": 0,
                "num_prealloc_ready_tokens": 0,
                "max_total_num_tokens": self._settings.max_total_tokens,
                "max_running_requests": self._settings.max_running_requests,
                "token_usage": stats["token_usage"],
                "gen_throughput": round(stats["gen_throughput"], 2),
                "cache_hit_rate": 0.0,
                "utilization": 0.0,
                "total_prefill_uncached_tokens": server.engine.totals["prompt"] - server.engine.totals["cached"],
                "total_prefill_busy_us": 0,
                "decode_moments": [0.0] * 6,
                "memory": {
                    "weight_gb": round(memory["weight"], 3),
                    "kv_cache_gb": round(memory["kvcache"], 3),
                    "graph_gb": round(sum(memory["graph"].values()), 3),
                    "token_capacity": self._settings.max_total_tokens,
                },
            }
            if self._settings.block_size:
                load["speculative"] = {
                    "accept_length": stats["accept_length"] or 0.0,
                    "accept_rate": stats.get("accept_rate") or 0.0,
                }
            load["disaggregation"] = {
                "mode": "null",
                "prefill_bootstrap_queue_reqs": 0,
                "prefill_inflight_queue_reqs": 0,
                "decode_prealloc_queue_reqs": 0,
                "decode_transfer_queue_reqs": 0,
                "decode_retracted_queue_reqs": 0,
                "kv_transfer_speed_gb_s": 0.0,
                "kv_transfer_latency_ms": 0.0,
            }
            load["queues"] = {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}
            loads.append(load)
        return json_response(
            {
                "timestamp": datetime.now(timezone.utc).isoformat(),
                "version": self._settings.profile.version,
                "accelerator": "NVIDIA RTX PRO 6000 Blackwell Server Edition" if self._settings.cuda else None,
                "num_accelerators": self._resolved["tp_size"] * self._resolved["pp_size"],
                "loads": loads,
            }
        )

    def _metrics(self, _request: Request) -> Response:
        from sglang.stand_in import metrics

        return Response(200, metrics.render(self._server, self).encode(), "text/plain; version=1.0.0; charset=utf-8")

    def _flush(self, request: Request) -> Response:
        timeout = float(request.query.get("timeout", "0"))
        if self._server.engine.flush(timeout):
            return Response(
                200,
                b"Cache flushed.\nPlease check backend logs for more details. "
                b"(When there are running or waiting requests, the operation will not be performed.)\n",
            )
        return Response(400, b"Timed out waiting for idle state." if timeout else b"Flush cache failed.\n")

    def _freeze_gc(self, _request: Request) -> Response:
        return Response(200, b"Garbage collection frozen.\n")

    def _abort(self, request: Request) -> Response:
        body = self._body(request)
        engine = self._server.engine
        for rid in list(engine.requests):
            if body.get("abort_all") or (body.get("rid") and rid.startswith(body["rid"])):
                engine.abort(rid)
        return Response(200)

    # Generation

    def _body(self, request: Request) -> dict[str, Any]:
        try:
            body = request.json()
        except ValueError as error:
            raise ApiError(
                f"[{{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error: {error}'}}]"
            ) from error
        if not isinstance(body, dict):
            raise ApiError("the request body must be a JSON object")
        return body

    def _tokens(self, prompt: str, error: type[Exception]) -> int:
        tokens = text.count_tokens(prompt)
        if tokens >= self._settings.context_length:
            raise error(
                f"The input ({tokens} tokens) is longer than the model's context length"
                f" ({self._settings.context_length} tokens)."
            )
        return tokens

    def _generate(self, request: Request) -> Response:
        body = self._body(request)
        prompt: Any = body.get("text")
        if prompt is None and body.get("input_ids") is not None:
            prompt = body["input_ids"]
            if prompt and isinstance(prompt[0], list):
                prompt = [" ".join(map(str, ids)) for ids in prompt]
            else:
                prompt = " ".join(map(str, prompt))
        if prompt is None:
            raise NativeError("Either text, input_ids or input_embeds should be provided.")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        sampling = body.get("sampling_params") or {}
        stream = bool(body.get("stream", False))
        pendings = [
            self._server.engine.submit(
                prompt=one,
                prompt_tokens=self._tokens(one, NativeError),
                max_new_tokens=int(sampling.get("max_new_tokens", 128)),
                ignore_eos=bool(sampling.get("ignore_eos", False)),
                log_metrics=bool(body.get("log_metrics", True)),
                rid=body.get("rid") if isinstance(body.get("rid"), str) else None,
            )
            for one in prompts
        ]
        if stream:
            return Response(
                200, content_type="text/event-stream; charset=utf-8", chunks=self._stream_native(pendings[0], request)
            )
        answers = [list(self._outputs(pending, request))[-1] for pending in pendings]
        if body.get("return_logprob"):
            for one, answer in zip(prompts, answers):
                top = text.top_logprobs(text.script_for(one), answer["output_ids"])
                meta = answer["meta_info"]
                chances = [{token: chance for chance, token, _ in row} for row in top]
                meta["output_token_logprobs"] = [
                    [known.get(token, -9.0), token, None] for known, token in zip(chances, answer["output_ids"])
                ]
                if body.get("top_logprobs_num"):
                    meta["output_top_logprobs"] = [row[: int(body["top_logprobs_num"])] for row in top]
        return json_response(answers if isinstance(prompt, list) else answers[0])

    def _outputs(self, pending: Pending, request: Request) -> Iterator[dict[str, Any]]:
        """The growing answer; the last item is complete. The client's leaving aborts the request."""
        so_far, ids = "", []
        first = 0.0
        looked = time.monotonic()
        while True:
            if time.monotonic() - looked > 0.2:
                looked = time.monotonic()
                if request.client_left():
                    self._leave(pending)
                    raise BrokenPipeError("the client has left")
            try:
                message = pending.outputs.get(timeout=0.25)
            except queue.Empty:
                continue
            now = time.time()
            first = first or now
            so_far += message["text"]
            ids += message["ids"]
            yield {
                "text": so_far,
                "output_ids": list(ids),
                "meta_info": self._meta(pending, message, first, now),
            }
            if message["finish_reason"] is not None:
                self._server.truth.note(
                    "served",
                    rid=pending.rid,
                    begin=pending.begin,
                    first=first,
                    end=now,
                    tokens=message["completion_tokens"],
                    verify=message["verify"],
                    correct=message["correct"],
                )
                return

    def _meta(self, pending: Pending, message: dict[str, Any], first: float, now: float) -> dict[str, Any]:
        done = message["completion_tokens"]
        latency = now - pending.begin
        meta: dict[str, Any] = {
            "id": pending.rid,
            "finish_reason": message["finish_reason"],
            "prompt_tokens": message["prompt_tokens"],
            "weight_version": "default",
            "num_retractions": 0,
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
            "forward_entry_time": pending.begin,
            "prefill_finished_time": first,
            "queue_time": 0.0004,
            "reasoning_tokens": 0,
            "completion_tokens": done,
            "cached_tokens": message["cached_tokens"],
            "weight_versions": [{"version": "default", "start": 0, "end": done}],
            "cached_tokens_details": {"device": message["cached_tokens"], "host": 0},
            "dp_rank": pending.dp if self._resolved["dp_size"] > 1 else None,
            "e2e_latency": latency,
        }
        speculation: dict[str, Any] = {}
        if message["verify"]:
            proposed = message["verify"] * (self._settings.block_size - 1)
            figures = {
                "rate": message["correct"] / max(1, proposed),
                "length": done / message["verify"],
                "correct": message["correct"],
                "proposed": proposed,
                "verify": message["verify"],
                "histogram": message["histogram"],
            }
            speculation = {key: figures[meaning] for key, meaning in self._traits["spec_meta"].items()}
            meta.update(speculation)
        if self._traits["meta_info"] is not None:
            meta["total_retractions"] = 0
            return {key: meta[key] for key in self._traits["meta_info"]} | speculation
        meta.update(
            request_received_ts=pending.begin,
            first_token_latency=first - pending.begin,
            api_server_dispatch_finish_ts=pending.begin,
            request_finished_ts=now,
            decode_throughput=done / latency if latency > 0 else 0.0,
            response_sent_to_client_ts=now,
        )
        return meta

    def _stream_native(self, pending: Pending, request: Request) -> Iterator[bytes]:
        try:
            for item in self._outputs(pending, request):
                yield b"data: " + json.dumps(item, separators=(",", ":")).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"
        finally:
            self._leave(pending)

    def _leave(self, pending: Pending) -> None:
        if pending.rid in self._server.engine.requests:
            self._server.engine.abort(pending.rid)
            self._server.engine.forget(pending)

    def _completion(self, request: Request) -> Response:
        return self._openai(request, chat=False)

    def _chat(self, request: Request) -> Response:
        return self._openai(request, chat=True)

    def _openai(self, request: Request, chat: bool) -> Response:
        body = self._body(request)
        if chat:
            messages = body.get("messages")
            if not isinstance(messages, list) or not messages:
                raise ApiError("Messages cannot be empty.")
            prompt = json.dumps(messages)
            tokens_text = "".join(_content(message) for message in messages)
        else:
            prompt = tokens_text = str(body.get("prompt", ""))
        tokens = self._tokens(tokens_text, ApiError) + (8 if chat else 0)
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or (1024 if chat else 16)
        pending = self._server.engine.submit(
            prompt=prompt,
            prompt_tokens=tokens,
            max_new_tokens=int(limit),
            ignore_eos=bool(body.get("ignore_eos", False)),
        )
        # The engine echoes any model name that it is asked for.
        model = body.get("model") or self._resolved["served_model_name"]
        if body.get("stream"):
            options = body.get("stream_options") or {}
            details = chat and self._traits["chat_spec_details"] and bool(body.get("return_spec_tokens_details"))
            chunks = self._stream_openai(pending, request, model, chat, bool(options.get("include_usage")), details)
            return Response(200, content_type="text/event-stream; charset=utf-8", chunks=chunks)
        last = list(self._outputs(pending, request))[-1]
        meta = last["meta_info"]
        choice: dict[str, Any] = {"index": 0}
        if chat:
            thinking, content = self._split_thinking(last["text"])
            choice["message"] = {"role": "assistant", "content": content, "reasoning_content": thinking}
        else:
            choice["text"] = last["text"]
        choice.update(
            logprobs=None,
            finish_reason=meta["finish_reason"]["type"],
            matched_stop=meta["finish_reason"].get("matched"),
        )
        if body.get("return_meta_info"):
            choice["meta_info"] = meta
        return json_response(
            {
                "id": pending.rid,
                "object": "chat.completion" if chat else "text_completion",
                "created": int(pending.begin),
                "model": model,
                "choices": [choice],
                "usage": _usage(meta),
                "metadata": {key: meta[key] for key in ("weight_version", "weight_versions") if key in meta},
            }
        )

    def _split_thinking(self, answer: str) -> tuple[str | None, str]:
        """What --reasoning-parser takes out of the content. Without one it stays there."""
        if not self._resolved.get("reasoning_parser") or not answer.startswith("<think>"):
            return None, answer
        thinking, _, content = answer[len("<think>") :].partition("</think>")
        return thinking, content

    def _stream_openai(
        self, pending: Pending, request: Request, model: str, chat: bool, usage: bool, details: bool
    ) -> Iterator[bytes]:
        def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
            value = {
                "id": pending.rid,
                "object": "chat.completion.chunk" if chat else "text_completion",
                "created": int(pending.begin),
                "model": model,
                "choices": choices,
                **more,
            }
            return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"

        def choice(content: str, reason: dict[str, Any] | None, first: bool = False) -> dict[str, Any]:
            part: dict[str, Any] = {"index": 0}
            if chat:
                delta: dict[str, Any] = {"reasoning_content": None}
                if first:
                    delta["role"] = "assistant"
                part["delta"] = {**delta, "content": content}
            else:
                part["text"] = content
            part.update(
                logprobs=None,
                finish_reason=reason and reason["type"],
                matched_stop=reason and reason.get("matched"),
            )
            return part

        try:
            if chat:
                yield chunk([choice("", None, first=True)])
            sent, meta = "", {}
            for item in self._outputs(pending, request):
                meta = item["meta_info"]
                yield chunk([choice(item["text"][len(sent) :], None)])
                sent = item["text"]
            yield chunk([choice("", meta["finish_reason"])])
            spec = {key: value for key, value in meta.items() if key.startswith("spec_")}
            if details and spec:
                yield chunk([], sglext={"spec_tokens_details": spec})
            if usage:
                yield chunk([], usage=_usage(meta))
            yield b"data: [DONE]\n\n"
        finally:
            self._leave(pending)


def _content(message: Any) -> str:
    content = message.get("content", "") if isinstance(message, dict) else ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)


def _usage(meta: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": meta["prompt_tokens"],
        "total_tokens": meta["prompt_tokens"] + meta["completion_tokens"],
        "completion_tokens": meta["completion_tokens"],
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }
