# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs SGLang's own benchmark client, level after level, and looks over its shoulder. PRIVATE to specdec.serving.

    ENGINE/bin/python _bench_driver.py FOLDER

Runs in the engine's Python as a transient unit of its own; nothing of the collection is there, so this file stands alone. FOLDER holds
``job.json`` (what `_bench_job` wrote) and receives ``progress.json``, replaced about once a second, and ``runs.jsonl``, one line for each
run of the client: warm-up or measured. It ends by itself when ``alive`` in FOLDER has not been touched for ``lease_s``: then nobody
waits for the figures any more.

The client (``sglang.benchmark.serving``, up to 0.5.14 ``sglang.bench_serving``) makes the requests and measures their times. It is called
with a command line, as people call it. What its result leaves out is noted where it passes by: when each request began, the gaps between
chunks, and how many drafts the server accepted (``meta_info``, or ``sglext`` of a chat). So the client's functions for requests are wrapped, and its
decoding of JSON; times are the client's own.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import contextvars
import importlib
import json
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
import typing as t
import urllib.error
import urllib.request

CLIENTS = ("sglang.benchmark.serving", "sglang.bench_serving")
#: What is read of /metrics.
COUNTERS = (
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:num_requests_total",
    "sglang:num_aborted_requests_total",
    "sglang:spec_verify_calls_total",
    "sglang:cached_tokens_total",
)
#: The names of one figure in releases up to 0.5.10, in 0.5.11, and since 0.5.12.
CORRECT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_FLUSH_S = 60
#: Within this time our own last request has left the server.
_IDLE_S = 2
_NOW_S = 10.0
#: Requests whose drafts make the acceptance of now.
_NOW_REQUESTS = 32
_ERROR_SIGNS = 300
_DETAIL_SIGNS = 1000
_LATER_S = 0.1
#: The client takes no longer to begin or to end a run, also on a slow disk.
_PREPARING_S = 600.0

#: The server's keys, which an answer may hold. They are masked before a text is cut: nobody could find half a key later.
_keys: list[str] = []

_current: contextvars.ContextVar[Note | None] = contextvars.ContextVar("note", default=None)


class Note:
    """One request as it passes by."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.tokens = 0
        self.chunks = 0
        self.last = 0.0
        self.gaps: list[float] = []
        self.finish = ""
        self.error = ""
        self.reported = False
        self.spec: t.Mapping[str, t.Any] = {}
        self.asked = 0
        self.output: t.Any = None


class Recorder:
    """The requests of one run. Written by the client's thread, read by the watching one."""

    def __init__(self, clock: t.Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.began = clock()
        self.moved = self.began
        self.in_flight: dict[int, Note] = {}
        self.finished: list[Note] = []
        self._events: collections.deque[tuple[float, float]] = collections.deque()
        self._per_chunk = 1.0

    def enter(self, asked: int) -> Note:
        note = Note(self.clock())
        note.asked = asked
        self.in_flight[id(note)] = note
        return note

    def leave(self, note: Note, output: t.Any) -> None:
        note.output = output
        self.moved = self.clock()
        self.in_flight.pop(id(note), None)
        self.finished.append(note)
        if note.chunks and note.tokens:
            self._per_chunk = note.tokens / note.chunks

    def see(self, value: t.Any) -> None:
        """A chunk that the client decoded. What makes no sense is an error of its request, and never one of the client's."""
        note = _current.get()
        if note is None or not isinstance(value, dict):
            return
        try:
            self._see(note, value)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            note.error = f"an answer that makes no sense ({type(error).__name__}: {error})"

    def _see(self, note: Note, value: dict[str, t.Any]) -> None:
        if value.get("error") or value.get("object") == "error":
            note.error = str(value.get("message") or value["error"])
        before = note.tokens
        meta = value.get("meta_info")
        counted = False
        if isinstance(meta, dict):
            note.reported = counted = True
            note.tokens = int(meta.get("completion_tokens") or 0)
            note.finish = _finish(meta.get("finish_reason")) or note.finish
            if any(key.startswith("spec_") for key in meta):
                note.spec = meta
        usage = value.get("usage")
        if isinstance(usage, dict):
            note.reported = True
            note.tokens = int(usage.get("completion_tokens") or 0)
        details = (value.get("sglext") or {}).get("spec_tokens_details")
        if details:
            note.spec = details[0] if isinstance(details, list) else details
        text = value.get("text")
        for choice in value.get("choices") or ():
            note.finish = _finish(choice.get("finish_reason")) or note.finish
            delta = choice.get("delta") or {}
            text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
        if text and (not counted or note.tokens > before):
            self._chunk(note, note.tokens - before if counted else None)

    def _chunk(self, note: Note, tokens: int | None) -> None:
        now = self.clock()
        if note.last:
            note.gaps.append(round(now - note.last, 5))
        note.last = self.moved = now
        note.chunks += 1
        self._events.append((now, self._per_chunk if tokens is None else tokens))

    def rate(self) -> float:
        """Tokens a second of the last ten seconds; of a chat, whose chunks tell no numbers, it is an estimate."""
        now = self.clock()
        while self._events and self._events[0][0] < now - _NOW_S:
            self._events.popleft()
        span = min(_NOW_S, now - self.began)
        return sum(tokens for _at, tokens in list(self._events)) / span if span > 0 else 0.0

    def acceptance(self) -> float | None:
        """1 + correct / verified of the last requests that ended."""
        rows = [drafts(note.spec) for note in self.finished[-_NOW_REQUESTS:]]
        verify = sum(row["verify"] or 0 for row in rows)
        return 1 + sum(row["correct"] or 0 for row in rows if row["verify"]) / verify if verify else None

    def rows(self) -> list[dict[str, t.Any]]:
        """All requests: those in flight come last and are not ok."""
        unfinished = [row(note, self.began, "unfinished") for note in list(self.in_flight.values())]
        return [row(note, self.began) for note in list(self.finished)] + unfinished


def _finish(value: t.Any) -> str:
    return str(value.get("type") or "") if isinstance(value, dict) else str(value or "")


def drafts(spec: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What one request tells of its drafts, by one name for all releases; None where it does not tell."""
    if not isinstance(spec, dict):
        spec = {}
    counts = (_count(spec.get(name)) for name in CORRECT)
    histograms = (spec[name] for name in HISTOGRAM if spec.get(name))
    return {
        "verify": _count(spec.get("spec_verify_ct")),
        "correct": next((count for count in counts if count is not None), None),
        "histogram": next((one for one in histograms if _is_histogram(one)), None),
    }


def _count(value: t.Any) -> int | None:
    """A whole number of something; None for what is none."""
    found = None if isinstance(value, bool) else _seconds(value)
    return None if found is None else int(value)


def _is_histogram(value: t.Any) -> bool:
    return isinstance(value, list) and all(_count(one) is not None for one in value)


def masked(text: str) -> str:
    """A text without the server's keys."""
    for key in _keys:
        text = text.replace(key, "********")
    return text


def told(problem: str) -> str:
    """What a refusal says of itself (``REASON: {"message": ...}``); the text as it is where it is something else."""
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(problem[problem.index("{") :])
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return str(value["message"])
    return problem


def _seconds(value: t.Any) -> float | None:
    """A time; None for what is none. numpy's numbers, which the client has, are none of Python's."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if 0 <= found < float("inf") else None


def row(note: Note, began: float, error: str = "") -> dict[str, t.Any]:
    """One request as a line of the result shows it; times in seconds, ``start`` since the run began."""
    output = note.output
    problem = error or note.error or ("" if output is None else str(getattr(output, "error", "") or ""))
    ok = output is not None and bool(getattr(output, "success", False)) and not problem
    start, ttft, latency = (_seconds(getattr(output, name, 0.0) or 0.0) for name in ("start_time", "ttft", "latency"))
    prompt_tokens, output_tokens = (_count(getattr(output, name, 0) or 0) for name in ("prompt_len", "output_len"))
    known = None not in (start, ttft, latency, prompt_tokens, output_tokens)
    # The client takes the time of the first token a moment after that of the answer so far.
    if ok and not (known and (latency or 0.0) > 0 and (ttft or 0.0) <= (latency or 0.0) + _LATER_S):
        ok, problem = False, "times or counts of the client that make no sense"
    return {
        "start": round((start or note.began) - began, 6),
        "ttft": round(ttft or 0.0, 6),
        "latency": round(latency or 0.0, 6),
        "prompt_tokens": prompt_tokens or 0,
        "output_tokens": (output_tokens or 0) if ok else note.tokens,
        "asked_tokens": note.asked,
        "ok": ok,
        "error": masked(told(problem))[-_ERROR_SIGNS:],
        "finish": note.finish,
        "reported": note.reported,
        "chunks": note.chunks,
        "gaps": note.gaps,
        **drafts(note.spec),
    }


class Decoder:
    """A module of the client's for JSON, with an eye on what it decodes."""

    def __init__(self, module: t.Any, see: t.Callable[[t.Any], None]) -> None:
        self._module = module
        self._see = see

    def __getattr__(self, name: str) -> t.Any:
        return getattr(self._module, name)

    def loads(self, *args: t.Any, **options: t.Any) -> t.Any:
        value = self._module.loads(*args, **options)
        self._see(value)
        return value


class Client:
    """The installed client, wrapped."""

    def __init__(self, module: t.Any, source: str) -> None:
        self.module = module
        self.source = source
        self.recorder: Recorder | None = None
        self.tokenizer_arguments: dict[str, t.Any] = {}
        self.render = False
        for name in ("json", "orjson"):
            if hasattr(module, name):
                setattr(module, name, Decoder(getattr(module, name), self._see))
        functions = module.ASYNC_REQUEST_FUNCS
        for backend in ("sglang", "sglang-oai-chat"):
            functions[backend] = self._watched(functions[backend])
        self._get_dataset = module.get_dataset
        module.get_dataset = self._dataset

    def _see(self, value: t.Any) -> None:
        if self.recorder is not None:
            self.recorder.see(value)

    def _watched(self, function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
        async def watched(request_func_input: t.Any, pbar: t.Any = None) -> t.Any:
            recorder = self.recorder
            if recorder is None:
                return await function(request_func_input=request_func_input, pbar=pbar)
            note = recorder.enter(int(getattr(request_func_input, "output_len", 0) or 0))
            _current.set(note)
            output = None
            try:
                output = await function(request_func_input=request_func_input, pbar=pbar)
            finally:
                recorder.leave(note, output)
            return output

        return watched

    def _dataset(self, args: t.Any, tokenizer: t.Any, *rest: t.Any, **options: t.Any) -> t.Any:
        """Before the server's chat tells of drafts: apply the chat template here and send tokens, which /generate answers with all of it."""
        rows = self._get_dataset(args, tokenizer, *rest, **options)
        if self.render:
            for item in rows:
                ids = tokenizer.apply_chat_template(
                    item.prompt,
                    tokenize=True,
                    add_generation_prompt=True,
                    return_dict=False,
                    **self.tokenizer_arguments,
                )
                item.prompt, item.prompt_len, item.text_prompt_len = list(ids), len(ids), len(ids)
                item.extra_request_body = {}
        return rows

    def run(self, argv: t.Sequence[str]) -> None:
        """As `python -m CLIENT ARGV` would."""
        sys.argv = [self.module.__name__, *argv]
        if hasattr(self.module, "cli_main"):
            self.module.cli_main()
            return
        # Up to 0.5.14 the parser stands below `if __name__ == "__main__":`, which a fresh copy of the module would run unwatched.
        for node in ast.parse(self.source).body:
            if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
                code = compile(ast.Module(body=node.body, type_ignores=[]), str(self.module.__file__), "exec")
                exec(code, self.module.__dict__)
                return
        raise RuntimeError(f"{self.module.__name__} has no command line that is known here")


def load_client() -> Client:
    """The client of this engine. Raises Refused where there is none."""
    for name in CLIENTS:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and name.startswith(error.name):
                continue
            raise
        with open(str(module.__file__), encoding="utf-8") as file:
            source = file.read()
        return Client(module, source)
    raise Refused(
        f"this engine has no client to measure with (neither {' nor '.join(CLIENTS)}); give a Python of the host that has one as"
        " python (sglang_benchmark_python)"
    )


def chat_tells_drafts() -> bool:
    """Whether the server's chat can be asked for its drafts; read as text, since the import takes seconds."""
    package = next(iter(importlib.import_module("sglang").__path__))
    try:
        with open(f"{package}/srt/entrypoints/openai/protocol.py", encoding="utf-8") as file:
            return "return_spec_tokens_details" in file.read()
    except OSError:
        return False


def argv_of(
    job: t.Mapping[str, t.Any], concurrency: int, requests: int, *, seed: int, dataset: str, output: str
) -> list[str]:
    """The client's command line for one run.

    ``job["api"]`` is ``generate`` or ``chat``. Every option that decides a figure is given, since their defaults changed between releases.
    """
    words = [
        *("--backend", "sglang-oai-chat" if job["api"] == "chat" else "sglang"),
        *("--base-url", job["base_url"]),
        *("--model", job["model_path"], "--served-model-name", job["served_model_name"]),
        *("--tokenizer", job["tokenizer"]),
        *("--num-prompts", str(requests), "--max-concurrency", str(concurrency), "--request-rate", "inf"),
        *("--seed", str(seed)),
        # Ours warms up at the same concurrency and with other prompts, and flushes with the right key.
        *("--warmup-requests", "0", "--ready-check-timeout-sec", "0"),
        *("--output-file", output, "--output-details", "--disable-tqdm"),
    ]
    if job["kind"] == "fixed":
        words += ["--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1.0"]
        words += ["--random-input-len", str(job["input_length"]), "--random-output-len", str(job["output_length"])]
    else:
        words += ["--dataset-name", "openai", "--dataset-path", dataset, "--disable-ignore-eos"]
        if job["output_length"]:
            words += ["--sharegpt-output-len", str(job["output_length"])]
    extra: dict[str, t.Any] = {}
    if job["api"] == "chat":
        extra = {
            "temperature": job["temperature"],
            "stream_options": {"include_usage": True},
            "return_spec_tokens_details": True,
        }
        if job["template_arguments"]:
            extra["chat_template_kwargs"] = dict(job["template_arguments"])
    elif job["temperature"]:
        words += ["--temperature", str(job["temperature"])]
    if extra:
        words += ["--extra-request-body", json.dumps(extra, sort_keys=True)]
    return words


def needed(least: int, most: int | None, *, steady_s: float, rate: float, concurrency: int) -> int:
    """How many requests a level sends: at least ``least``, and enough to be steady for ``steady_s`` at ``rate`` requests a second."""
    wanted = math.ceil(rate * steady_s * 1.1) + concurrency
    return min(max(least, wanted), most) if most else max(least, wanted)


def counters(text: str) -> dict[str, float]:
    """The sums of our counters over all their labels, from Prometheus text."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = re.match(r"(sglang:\w+)(?:\{.*\})?\s+(\S+)", line)
        if match and match.group(1) in COUNTERS:
            with contextlib.suppress(ValueError):
                name, value = match.group(1).partition(":")[2], float(match.group(2))
                if math.isfinite(value):
                    found[name] = found.get(name, 0.0) + value
    return found


class Server:
    """What is asked of the server beside the client's requests. Proxy variables are not heeded."""

    def __init__(self, base_url: str, api_key: str, admin_key: str) -> None:
        self._base = base_url
        self._api_key = api_key
        self._admin_key = admin_key
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def _ask(self, method: str, path: str, key: str, timeout: float) -> tuple[int, str]:
        request = urllib.request.Request(self._base + path, method=method)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with self._open(request, timeout=timeout) as answer:
                return answer.status, answer.read(8 * 1024 * 1024).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read(1000).decode("utf-8", "replace")
        except (OSError, ValueError) as error:
            return 0, f"{type(error).__name__}: {error}"

    def metrics(self) -> dict[str, t.Any]:
        """Our counters, or why there are none."""
        status, text = self._ask("GET", "/metrics", self._api_key, 20)
        if status == 200 and "sglang:" in text:
            # A counter with labels appears with its first increment.
            return dict(counters(text))
        return {"problem": f"/metrics answered {status}" if status else text}

    def flush(self, seconds: int = _FLUSH_S) -> dict[str, t.Any]:
        """Flush the prefix cache, as soon as the server is idle; status 400 when it is not within ``seconds``.

        That is also the only sure way to ask whether requests run: the gauges of /metrics are as old as the last line of the log.
        """
        began = time.monotonic()
        key = self._admin_key or self._api_key
        while True:
            status, text = self._ask("POST", f"/flush_cache?timeout={seconds}", key, seconds + 15)
            waited = time.monotonic() - began
            # A release that knows no timeout answers 400 at once while a request ends.
            if status != 400 or waited >= seconds:
                return {"status": status, "seconds": round(waited, 3), "answer": masked(text.strip())[:120]}
            time.sleep(0.5)


def write_json(path: str, value: t.Any) -> None:
    """Readers find the old content or the new one."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(f"{path}.new", path)


class Refused(RuntimeError):
    """It cannot be measured; the message says all there is to say."""


class Driver:
    """All runs of a job."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(f"{folder}/job.json", encoding="utf-8") as file:
            self.job: dict[str, t.Any] = json.load(file)
        keys: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError):
            with open(f"{folder}/keys.json", encoding="utf-8") as file:
                keys = json.load(file)
            os.unlink(f"{folder}/keys.json")
        _keys[:] = sorted(filter(None, keys.values()), key=len, reverse=True)
        if keys.get("api_key"):
            # The client's only way to a Bearer token that is not its command line.
            os.environ["OPENAI_API_KEY"] = keys["api_key"]
        self.server = Server(self.job["base_url"], keys.get("api_key", ""), keys.get("admin_api_key", ""))
        self.client: Client | None = None
        # Re-entrant: the signal to stop may come while the main thread holds it.
        self.lock = threading.RLock()
        self.phase: dict[str, t.Any] = {"phase": "importing"}
        self.run_head: dict[str, t.Any] = {}
        self.runs_done = 0
        self.over = False

    # --- what others see -------------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, t.Any]:
        recorder = self.client.recorder if self.client else None
        runs = len(self.job["levels"]) * (1 + self.job["repeats"])
        found = {**self.phase, "at": time.time(), "runs_done": self.runs_done, "runs": runs}
        if recorder is not None:
            finished = list(recorder.finished)
            acceptance = recorder.acceptance()
            found.update(
                finished=len(finished),
                failed=sum(1 for note in finished if note.error or not getattr(note.output, "success", False)),
                in_flight=len(recorder.in_flight),
                tokens_per_s=round(recorder.rate(), 2),
                acceptance=None if acceptance is None else round(acceptance, 3),
                still_for=round(recorder.clock() - recorder.moved, 1),
            )
        return found

    def watch(self) -> None:
        """In a thread: tell how far it is, and end it when nobody waits any more or nothing moves."""
        while not self.over:
            self.tell()
            try:
                age = time.time() - os.stat(f"{self.folder}/alive").st_mtime
            except OSError:
                age = float("inf")
            if age > self.job["lease_s"]:
                self.end("abandoned", f"nobody has looked for {self.job['lease_s']:g} s")
            recorder = self.client.recorder if self.client else None
            if recorder is not None:
                # A client that sends nothing may still be reading its tokenizer.
                patience = self.job["stall_s"] if recorder.in_flight else max(self.job["stall_s"], _PREPARING_S)
                if recorder.clock() - recorder.moved > patience:
                    self.end("stalled", f"no request has moved for {patience:g} s")
            time.sleep(1.0)

    def tell(self) -> None:
        # Whatever it is: who watches must go on, else nobody ends a run that stands still.
        with contextlib.suppress(Exception):
            write_json(f"{self.folder}/progress.json", self.progress())

    def end(self, reason: str, detail: str) -> None:
        """End at once with what was measured so far."""
        self.over = True
        with self.lock:
            recorder = self.client.recorder if self.client else None
            if recorder is not None and self.run_head:
                self.append({**self.run_head, "ended": reason, "client": None, "rows": recorder.rows()})
            self.finish(reason, detail)
            os._exit(0)

    def append(self, run: t.Mapping[str, t.Any]) -> None:
        with open(f"{self.folder}/runs.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")

    def finish(self, reason: str, detail: str = "") -> None:
        write_json(f"{self.folder}/end.json", {"reason": reason, "detail": detail})

    # --- the work --------------------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """All levels."""
        client = self.client = load_client()
        job = self.job
        job["api"] = "chat" if job["kind"] == "natural" and chat_tells_drafts() else "generate"
        if job["kind"] == "natural" and job["api"] == "generate":
            client.render, client.tokenizer_arguments = True, dict(job["template_arguments"])
            if job["temperature"] and '"--temperature"' not in client.source:
                raise Refused(
                    f"the client of this release has no --temperature, and the workload asks for {job['temperature']}"
                )
        for index, level in enumerate(job["levels"]):
            concurrency = level["concurrency"]
            warm = self.run("warm_up", level, 0, level["warm_up"], seed=job["seed"] + 1 + index)
            spent = max((row["start"] + row["latency"] for row in warm if row["ok"]), default=0.0)
            rate = sum(1 for row in warm if row["ok"]) / spent if spent else 0.0
            requests = needed(
                level["requests"], level["most"], steady_s=job["steady_state_s"], rate=rate, concurrency=concurrency
            )
            for repeat in range(1, job["repeats"] + 1):
                self.run("measured", level, repeat, requests, seed=job["seed"])
        self.finish("done")

    def run(
        self, kind: str, level: t.Mapping[str, t.Any], repeat: int, requests: int, *, seed: int
    ) -> list[dict[str, t.Any]]:
        """One run of the client; gives its requests."""
        client = self.client
        if client is None:
            raise RuntimeError("no client is loaded")
        concurrency = level["concurrency"]
        dataset = f"{self.folder}/{'warm_up' if kind == 'warm_up' else 'prompts'}.jsonl"
        output = f"{self.folder}/client.jsonl"
        self.phase = {"phase": "flushing", "level": concurrency, "repeat": repeat, "asked": requests}
        flushed = self.server.flush()
        argv = argv_of(self.job, concurrency, requests, seed=seed, dataset=dataset, output=output)
        head = {
            "kind": kind,
            "concurrency": concurrency,
            "repeat": repeat,
            "asked": requests,
            "api": self.job["api"],
            "argv": argv,
            "flush": flushed,
            "before": self.server.metrics(),
            "began_at": time.time(),
        }
        self.phase = {"phase": kind, "level": concurrency, "repeat": repeat, "asked": requests}
        recorder = Recorder()
        client.recorder, self.run_head = recorder, head
        problem = ""
        try:
            client.run(argv)
        except SystemExit as error:
            problem = "" if error.code in (None, 0) else f"the client ended with {error.code}"
        except Exception as error:  # noqa: BLE001 - whatever ended the client is told with the run
            problem = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        with self.lock:
            rows = recorder.rows()
            run = {**head, "ended": "", "problem": problem, "client": self._client_result(output), "rows": rows}
            run["after"] = self.server.metrics()
            run["idle"] = self.server.flush(_IDLE_S)
            self.append(run)
            self.runs_done += 1
            self.run_head = {}
            client.recorder = None
        if not any(item["ok"] for item in rows):
            errors = [item["error"] for item in rows if item["error"]] or [problem or "it sent none"]
            raise Refused(f"no request of the client succeeded with {concurrency} in flight: {errors[0].strip()}")
        return rows

    @staticmethod
    def _client_result(path: str) -> dict[str, t.Any] | None:
        """The client's own figures, without the server's arguments, which hold its keys, and without what was generated."""
        try:
            with open(path, encoding="utf-8") as file:
                result = json.loads(file.read().splitlines()[-1])
            os.unlink(path)
        except (OSError, ValueError, IndexError, RecursionError):
            return None
        if not isinstance(result, dict):
            return None
        details = ("server_info", "generated_texts", "itls", "ttfts", "input_lens", "output_lens", "errors")
        return {key: value for key, value in result.items() if key not in details and not key.startswith("cached_")}


def main() -> None:
    folder = sys.argv[1]
    driver = Driver(folder)
    os.environ.update(driver.job["environment"])
    os.chdir(folder)
    signal.signal(signal.SIGTERM, lambda _number, _frame: driver.end("stopped", "told to stop"))
    threading.Thread(target=driver.watch, daemon=True).start()
    try:
        driver.measure()
    except Refused as error:
        driver.finish("refused", masked(f"{error}")[:_DETAIL_SIGNS])
    except BaseException as error:  # noqa: BLE001 - it is told in the result
        traceback.print_exc()
        driver.finish("failed", masked(f"{type(error).__name__}: {error}")[-_DETAIL_SIGNS:])
    driver.over = True
    driver.tell()


if __name__ == "__main__":
    main()
