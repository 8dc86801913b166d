# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A scheduler rank: loads (that is, logs and waits), then generates. Also the detokenizer and the DP controller."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from sglang.stand_in import processes, text
from sglang.stand_in.channel import Channel
from sglang.stand_in.faults import DECODE, Raised
from sglang.stand_in.http import HttpServer, Request, Response, json_response
from sglang.stand_in.log import Log
from sglang.stand_in.resolve import Model, Settings
from sglang.stand_in.times import Steps

SPAWN_CODE = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=9, pipe_handle=11)"


@dataclass(frozen=True)
class Rank:
    """Place of one scheduler process."""

    index: int
    dp: int
    pp: int
    tp: int
    ep: int
    prefix: str  # as in the log: "" or " TP0 EP0"

    @property
    def title(self) -> str:
        return "sglang::scheduler" + self.prefix.replace(" ", "_")

    @property
    def leads(self) -> bool:
        """Whether this rank of its replica takes the requests and logs the batches."""
        return self.tp == 0 and self.pp == 0


def ranks_of(resolved: dict[str, Any], always_tp: bool = False) -> list[Rank]:
    """All ranks of this node (managers/scheduler.py:6260-6290: only dimensions above 1 are shown).

    With `always_tp` (0.4.6) the prefix is `TPn`, with replicas `DPn TPn`.
    """
    tp_size, pp_size, dp_size = resolved["tp_size"], resolved["pp_size"], resolved["dp_size"]
    ep_size, attn_dp = resolved["ep_size"], resolved["attn_dp_size"]
    share = tp_size // resolved["nnodes"]
    node = range(share * resolved["node_rank"], share * (resolved["node_rank"] + 1))
    ranks: list[Rank] = []
    for dp in range(dp_size):
        for pp in range(pp_size):
            for tp in node:
                ep = tp // (tp_size // ep_size)
                prefix = ""
                if dp_size > 1:
                    prefix += f" DP{dp}"
                elif attn_dp > 1:
                    prefix += f" DP{tp // (tp_size // attn_dp)}"
                if pp_size > 1:
                    prefix += f" PP{pp}"
                if tp_size > 1 or always_tp:
                    prefix += f" TP{tp}"
                if ep_size > 1 and not always_tp:
                    prefix += f" EP{ep}"
                ranks.append(Rank(index=len(ranks), dp=dp, pp=pp, tp=tp, ep=ep, prefix=prefix))
    return ranks


def fresh_child() -> None:
    """What a spawned interpreter would have: default signals."""
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Scheduler:
    """One rank. `run` loads, tells main, and serves until told to stop."""

    def __init__(self, rank: Rank, settings: Settings, channel: Channel, steps: Steps) -> None:
        self.rank = rank
        self.settings = settings
        self.channel = channel
        self.steps = steps
        self.log = Log(settings.resolved["log_level"], prefix=rank.prefix)
        self.message = settings.profile.message
        self.says = settings.profile.says
        self.available = settings.free_memory_gb
        self.seconds: dict[str, float] = {"load_weight": 0.0, "kv_cache_allocation": 0.0}
        self.memory: dict[str, float] = {"weight": 0.0, "kvcache": 0.0}
        self.graph_seconds = dict.fromkeys(
            ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend"), 0.0
        )
        self.graph_memory = dict(self.graph_seconds)

    # Start-up

    def run(self) -> None:
        parent = os.getppid()
        processes.set_spawn_title(SPAWN_CODE)
        with self.steps.run("rank_imports"):
            pass
        processes.die_with_parent(parent)
        processes.set_title(self.rank.title)
        begin = time.monotonic()
        for stage in self.settings.profile.rank_stages:
            name, _, model = stage.partition(":")
            getattr(self, "_stage_" + name)(*([model] if model else []))
        self.channel.send(
            {
                "op": "ready",
                "startup_time": {
                    **self.seconds,
                    "scheduler_e2e": time.monotonic() - begin,
                    "cuda_graph": self.graph_seconds,
                },
                "memory": {**self.memory, "available": self.available, "graph": self.graph_memory},
            }
        )
        if self.rank.leads:
            Generator(self).loop()
        else:
            self._follow()

    def _barrier(self, name: str) -> None:
        """No rank goes on before all of its replica are here (load_model_utils.py:380-395)."""
        self.channel.send({"op": "at", "stage": name})
        self.receive()

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message of main. Raises `Raised` when another node was lost."""
        message = self.channel.receive(timeout)
        if message is not None and message["op"] == "peer_lost":
            raise Raised(message["text"])
        return message

    def _stage_init_parallel(self) -> None:
        self._init_parallel()

    def _init_parallel(self, again: bool = False) -> None:
        """Releases that load the draft last say it once more for its runner, over the groups that are there."""
        self.log.info(self.message("init_parallel_begin"))
        begin = time.monotonic()
        if not again:
            with self.steps.run("init_parallel"):
                pass
            if self.settings.resolved["nnodes"] > 1:
                self._barrier("init_parallel")
        self.log.info(self.message("init_parallel_end", elapsed=time.monotonic() - begin, usage=0.0))
        gate = self.settings.resolved.get("gated_launch_port")
        if gate and not again:
            self._wait_at_gate(self.settings.resolved["host"], gate)
        self._say("memory_baseline", usage=0.0)

    def _wait_at_gate(self, host: str, port: int) -> None:
        """No rank takes memory before `POST /gate/activate` (distributed/gated_launch.py)."""
        number = self.rank.tp
        gate = Gate(host, port) if number == 0 else None
        if gate:
            self.log.info(f"Gated launch control server started on {host}:{port}")
        self.log.info(f"Gated launch waiting for activation. rank={number}")
        self.steps.truth.note("gate_waiting", who=self.steps.who)
        begin = time.monotonic()
        told = begin
        if gate is None:
            self.channel.send({"op": "at", "stage": "gate"})
        while not (gate.activated.is_set() if gate else self.receive(0.0)):
            if time.monotonic() - told >= self.steps.times.seconds("gate_log"):
                told = time.monotonic()
                self.log.info(f"Gated launch still waiting for activation. rank={number} elapsed={told - begin:.0f} s")
            time.sleep(self.steps.times.seconds("gate_poll"))
        if gate:
            self._barrier("gate")
        self.steps.truth.note("gate_activated", who=self.steps.who)
        self.log.info(f"Gated launch activated. elapsed={time.monotonic() - begin:.2f} s")

    def _say(self, key: str, **values: Any) -> None:
        """A line that not every release logs."""
        if self.says(key):
            self.log.info(self.message(key, **values))

    def _stage_load_target(self) -> None:
        self._load("load_target", self.settings.target)

    def _stage_load_draft(self) -> None:
        if self.settings.draft is not None:
            if self.settings.draft_last:
                self._init_parallel(again=True)
            else:
                self._say("memory_baseline", usage=0.0)
            self._load("load_draft", self.settings.draft)
            if self.settings.resolved["speculative_algorithm"] == "DFLASH" and self.rank.tp == 0:
                self._dflash_lines(self.settings.draft)

    def _load(self, step: str, model: Model) -> None:
        self.log.info(self.message("load_begin", avail=self.available))
        begin = time.monotonic()
        with self.steps.run(step, model=model.architecture) as seconds:
            if self.rank.tp == 0:
                self._progress(model.shards, seconds, begin)
        elapsed = time.monotonic() - begin
        usage = model.size_gb / (self.settings.resolved["tp_size"] * self.settings.resolved["pp_size"])
        self.available -= usage
        self.memory["weight"] += usage
        self.seconds["load_weight"] += elapsed
        self.log.info(
            self.message(
                "load_end",
                elapsed=elapsed,
                type=model.architecture,
                quant=f"quant={model.quantization}, " if model.quantization else "",
                avail=self.available,
                usage=usage,
            )
        )
        self._barrier(step)

    def _progress(self, shards: int, seconds: float, begin: float) -> None:
        """A tqdm bar as a pipe shows it: carriage returns, a line feed only at the end."""
        for done in range(shards + 1):
            if done:
                time.sleep(max(0.0, begin + seconds * 0.95 * done / shards - time.monotonic()))
            spent = time.monotonic() - begin
            left = spent / done * (shards - done) if done else 0.0
            self.log.raw(
                "\r"
                + self.message(
                    "load_progress",
                    percent=100 * done // shards,
                    done=done,
                    total=shards,
                    spent=_clock(spent),
                    left=_clock(left) if done else "?",
                    rate=f"{done / max(spent, 1e-6):5.2f}it/s" if done else "?it/s",
                )
            )
        self.log.raw("\n")

    def _dflash_lines(self, draft: Model) -> None:
        resolved = self.settings.resolved
        backend = resolved["speculative_draft_attention_backend"] or resolved["attention_backend"]
        self._say(
            "dflash_runner",
            backend=backend,
            model=draft.architecture,
            block=self.settings.block_size,
            window=resolved["speculative_draft_window_size"],
        )
        self._say("dflash_ready")
        self._say("dflash_fused")

    def _stage_kv_cache(self, only: str = "") -> None:
        """Pools of both models, or of `only` one (`target`, `draft`)."""
        begin = time.monotonic()
        models = {"target": self.settings.target, "draft": self.settings.draft}
        chosen = [model for role, model in models.items() if model is not None and only in ("", role)]
        if not chosen:
            return
        with self.steps.run("kv_cache", **({"of": only} if only else {})):
            pass
        for model in chosen:
            share = 0.5 * self.available if self.settings.cuda else 0.002
            self.memory["kvcache"] += share
            self.available -= share
            key = "kv_cache_latent" if model.latent_attention else "kv_cache_pair"
            self.log.info(
                self.message(
                    key, dtype="torch.bfloat16", tokens=self.settings.max_total_tokens, size=share, half=share / 2
                )
            )
            self.log.info(self.message("memory_pool_end", avail=self.available))
        self.seconds["kv_cache_allocation"] += time.monotonic() - begin

    def _stage_capture(self, only: str = "") -> None:
        settings = self.settings
        if only:
            self._capture_in_turn(only)
            return
        speculative = settings.block_size > 0
        models = 1 if settings.draft is None else 2
        if self.rank.tp == 0 and not settings.graph_enabled("prefill"):
            for _ in range(models):
                self.log.info(self.message("prefill_graph_disabled"))
        config = settings.resolved["cuda_graph_config"]
        captures = []
        if settings.graph_enabled("prefill"):
            captures.append(("prefill", "target prefill", f"num_tokens={config['prefill']['bs']}", None))
        if settings.graph_enabled("decode"):
            name = "target verify" if speculative else "target decode"
            per_request = settings.block_size or 1
            size = f"num_tokens_per_req={per_request}"
            captures.append(("target_verify" if speculative else "decode", name, size, config["decode"]["bs"]))
            if settings.draft is not None:
                captures.append(("draft_decode", "draft verify", size, config["decode"]["bs"]))
        for phase, name, size, sizes in captures:
            backend = config["prefill" if phase == "prefill" else "decode"]["backend"]
            self._capture(phase, "CUDA graph", sizes, name=name, size=size, backend=backend)

    def _capture_in_turn(self, only: str) -> None:
        """Up to 0.5.13: the graphs of one model before the other is loaded; of the draft as its worker names them."""
        settings = self.settings
        if not settings.graph_enabled("decode") or (only == "draft" and settings.draft is None):
            return
        named = settings.profile.traits["draft_captures"]
        labels = ["cuda graph"]
        phases = ["target_verify" if settings.block_size else "decode"]
        if only == "draft":
            labels = named.get(settings.resolved["speculative_algorithm"], named["*"])
            phases = ["draft_decode", "draft_extend"]
        for phase, label in zip(phases, labels):
            self._capture(phase, label, None)

    def _capture(self, phase: str, label: str, sizes: Any, **details: Any) -> None:
        begin = time.monotonic()
        self.log.info(self.message("capture_begin", label=label, avail=self.available, **details))
        with self.steps.run("capture", phase=phase):
            pass
        self.graph_seconds[phase] = time.monotonic() - begin
        self.graph_memory[phase] = 0.3
        self.available -= 0.3
        self.log.info(
            self.message(
                "capture_end",
                label=label,
                sizes="" if sizes is None else f"bs={sizes}, ",
                elapsed=self.graph_seconds[phase],
                usage=0.3,
                avail=self.available,
                **details,
            )
        )

    def _stage_scheduler_ready(self) -> None:
        with self.steps.run("scheduler_ready"):
            pass
        if self.rank.tp == 0 or self.settings.profile.traits["rank_prefix"] == "always_tp":
            resolved = self.settings.resolved
            self.log.info(
                self.message(
                    "max_total_num_tokens",
                    tokens=self.settings.max_total_tokens,
                    chunked=resolved["chunked_prefill_size"],
                    prefill=resolved["max_prefill_tokens"],
                    requests=self.settings.max_running_requests,
                    context=self.settings.context_length,
                    memory_name="available_gpu_mem" if self.settings.cuda else "available_cpu_mem",
                    avail=self.available,
                )
            )
        self._say("radix_cache")
        self._say("tree_cache")

    # Serving

    def _follow(self) -> None:
        """A rank that does not lead takes part in each forward pass: without its answer nothing is generated."""
        warm = False
        while True:
            message = self.receive()
            if message is None or message["op"] == "shutdown":
                return
            if not warm:
                warm = True
                try:
                    self.steps.faults.strike("warm_up", self.steps.who, "begin")
                except Raised:
                    # The leading rank runs the same pass, and may fail in it as well.
                    self.channel.send({"op": "joined", "rid": message["rid"]})
                    raise
            self.channel.send({"op": "joined", "rid": message["rid"]})


class Gate:
    """The control server of a gated launch."""

    def __init__(self, host: str, port: int) -> None:
        self.activated = threading.Event()
        server = HttpServer(handler=self._handle, access=lambda *_: None, tls=None, keep_alive=5.0)
        server.bind(host, port)

    def _handle(self, request: Request) -> Response:
        if (request.method, request.path) == ("POST", "/gate/activate"):
            self.activated.set()
        elif (request.method, request.path) != ("GET", "/health"):
            return json_response({"detail": "Not Found"}, 404)
        return Response(200, b"OK", "text/plain; charset=utf-8")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


@dataclass
class _Request:
    rid: str
    prompt_tokens: int
    cached_tokens: int
    limit: int
    ignore_eos: bool
    log_metrics: bool
    stream: text.Stream
    done: int = 0
    verify: int = 0
    correct: int = 0
    histogram: list[int] = field(default_factory=list)


class Generator:
    """Continuous batching: admit, prefill, then one decode (or draft and verify) step after the other."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._settings = scheduler.settings
        self._times = scheduler.steps.times
        self._log = scheduler.log
        self._channel = scheduler.channel
        self._label = "cuda graph" if self._settings.cuda else "cpu graph"
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._cached: set[str] = set()
        self._warm = False
        self._decode_steps = 0
        self._interval_tokens = 0
        self._interval_begin = time.monotonic()
        self._last_prefill = time.monotonic()
        self._interval_verify = 0
        self._interval_correct = 0
        self._total_tokens = 0
        self._total_verify = 0
        self._stats: dict[str, Any] = {"gen_throughput": 0.0, "accept_length": None, "accept_rate": None}

    def loop(self) -> None:
        while True:
            message = self._scheduler.receive(0.0 if self._running or self._waiting else None)
            if message is not None:
                if message["op"] == "shutdown":
                    return
                self._take(message)
                continue
            self._prefill()
            if self._running:
                self._decode()

    def _take(self, message: dict[str, Any]) -> None:
        if message["op"] == "generate":
            prompt = message["prompt"]
            tokens = message["prompt_tokens"]
            cached = tokens - 1 if prompt in self._cached else 0
            self._waiting.append(
                _Request(
                    rid=message["rid"],
                    prompt_tokens=tokens,
                    cached_tokens=cached,
                    limit=message["max_new_tokens"],
                    ignore_eos=message["ignore_eos"],
                    log_metrics=message["log_metrics"],
                    stream=text.Stream(prompt),
                )
            )
            if message["log_metrics"]:
                self._cached.add(prompt)
        elif message["op"] == "abort":
            for queue in (self._waiting, self._running):
                for request in list(queue):
                    if request.rid == message["rid"]:
                        queue.remove(request)
                        self._send(request, [], {"type": "abort", "message": "Abort before prefill"})
        elif message["op"] == "flush":
            idle = not self._waiting and not self._running
            if idle:
                self._cached.clear()
                self._log.info("Cache flushed successfully!")
            elif message["final"]:
                self._log.warning(
                    f"Cache not flushed because there are pending requests. #queue-req: {len(self._waiting)},"
                    f" #running-req: {len(self._running)}"
                )
            self._channel.send({"op": "flush", "rid": message["rid"], "idle": idle})

    def _prefill(self) -> None:
        room = self._settings.max_running_requests - len(self._running)
        batch = self._waiting[: max(0, room)]
        if not batch:
            return
        del self._waiting[: len(batch)]
        if not self._warm:
            self._warm = True
            with self._scheduler.steps.run("warm_up"):
                pass
        time.sleep(self._times.seconds("prefill"))
        now = time.monotonic()
        new = sum(request.prompt_tokens - request.cached_tokens for request in batch)
        self._log.info(
            self._scheduler.message(
                "prefill_batch",
                seqs=len(batch),
                new=new,
                cached=sum(request.cached_tokens for request in batch),
                usage=self._usage(),
                running=len(self._running),
                queued=len(self._waiting),
                graph=self._label,
                graph_on=self._settings.graph_enabled("prefill"),
                throughput=new / max(now - self._last_prefill, 1e-6),
            )
        )
        self._last_prefill = now
        self._interval_begin = now
        self._interval_tokens = 0
        for request in batch:
            self._running.append(request)
            self._advance(request, 1)

    def _decode(self) -> None:
        time.sleep(self._times.seconds("decode_step"))
        self._scheduler.steps.faults.strike(DECODE, self._scheduler.steps.who, "begin")
        block = self._settings.block_size
        for request in list(self._running):
            count = 1
            if block:
                correct = request.stream.correct_drafts(block - 1)
                correct = min(correct, self._left(request) - 1)
                count += correct
                request.verify += 1
                request.correct += correct
                request.histogram += [0] * (correct + 1 - len(request.histogram))
                request.histogram[correct] += 1
                self._interval_verify += 1
                self._interval_correct += correct
            self._advance(request, count)
        self._decode_steps += 1
        if self._decode_steps % self._settings.resolved["decode_log_interval"] == 0:
            self._log_decode(block)

    def _log_decode(self, block: int) -> None:
        now = time.monotonic()
        throughput = self._interval_tokens / max(now - self._interval_begin, 1e-6)
        self._stats["gen_throughput"] = throughput
        accepted = ""
        if block:
            verify = max(1, self._interval_verify)
            length = 1 + self._interval_correct / verify
            rate = self._interval_correct / (verify * max(1, block - 1))
            accepted = self._scheduler.message("accepted", length=length, rate=rate)
            self._total_verify += self._interval_verify
            self._total_tokens += self._interval_verify + self._interval_correct
            self._stats.update(
                accept_length=length,
                accept_rate=rate,
                avg_accept_length=self._total_tokens / max(1, self._total_verify),
            )
        tokens = sum(request.prompt_tokens + request.done for request in self._running)
        self._log.info(
            self._scheduler.message(
                "decode_batch",
                running=len(self._running),
                tokens=tokens,
                usage=self._usage(),
                accepted=accepted,
                graph=self._label,
                graph_on=self._settings.graph_enabled("decode"),
                throughput=throughput,
                queued=len(self._waiting),
            )
        )
        self._interval_begin = now
        self._interval_tokens = self._interval_verify = self._interval_correct = 0

    def _usage(self) -> float:
        used = sum(request.prompt_tokens + request.done for request in self._running)
        return used / self._settings.max_total_tokens

    @staticmethod
    def _left(request: _Request) -> int:
        limit = request.limit if request.ignore_eos else min(request.limit, request.stream.natural_length)
        return limit - request.done

    def _advance(self, request: _Request, count: int) -> None:
        count = min(count, self._left(request))
        ids = request.stream.take(count)
        request.done += count
        self._interval_tokens += count
        reason: dict[str, Any] | None = None
        if self._left(request) <= 0:
            self._running.remove(request)
            if request.done >= request.limit:
                reason = {"type": "length", "length": request.limit}
            else:
                reason = {"type": "stop", "matched": text.END_OF_TEXT}
        self._send(request, ids, reason)

    def _send(self, request: _Request, ids: list[int], reason: dict[str, Any] | None) -> None:
        self._channel.send(
            {
                "op": "output",
                "rid": request.rid,
                "ids": ids,
                "finish_reason": reason,
                "prompt_tokens": request.prompt_tokens,
                "cached_tokens": request.cached_tokens,
                "completion_tokens": request.done,
                "verify": request.verify,
                "correct": request.correct,
                "histogram": request.histogram,
                "stats": {
                    **self._stats,
                    "running": len(self._running),
                    "waiting": len(self._waiting),
                    "token_usage": self._usage(),
                },
            }
        )


def run_detokenizer(channel: Channel, steps: Steps) -> None:
    """Ids in, text out; nothing reaches a client without it."""
    parent = os.getppid()
    processes.set_spawn_title(SPAWN_CODE)
    with steps.run("rank_imports"):
        pass
    processes.die_with_parent(parent)
    processes.set_title("sglang::detokenizer")
    while True:
        message = channel.receive()
        if message is None or message["op"] == "shutdown":
            return
        channel.send({**message, "text": text.decode(message["ids"])})


def run_resource_tracker(pipe: int) -> None:
    """multiprocessing's helper: ignores SIGINT and SIGTERM, ends when main does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    processes.set_spawn_title("from multiprocessing.resource_tracker import main;main(6)")
    while os.read(pipe, 4096):
        pass


def exit_quietly(status: int) -> None:
    """End a forked child: no clean-up of what it shares with main."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
