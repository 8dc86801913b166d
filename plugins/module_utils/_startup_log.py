# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What SGLang's log tells about one start: phases, weights, bind, drain, exceptions. PRIVATE to specdec.serving.

Fed line by line with the journal entries of one invocation. Every rank logs its own weight lines, in any order:
lines are attributed to ranks by the prefix `[2026-11-29 14:24:24 TP3 EP3] ` and matched at the start of what
follows it, so neither the `server_args=` line nor a logged prompt can pass for a marker.

Texts of SGLang 0.4.6 to 0.5.23: model_executor/model_runner.py:1274,1371, mem_cache/memory_pool.py:2088,
model_runner_components/cuda_graph_setup.py:684, managers/scheduler.py:1269, entrypoints/engine.py:1118,
entrypoints/http_server.py:2600, managers/tokenizer_manager.py:3535,4068 (line numbers of 0.5.23).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry
from ansible_collections.specdec.serving.plugins.module_utils._readiness import PHASES
from ansible_collections.specdec.serving.plugins.module_utils._signatures import look_up

__all__ = [
    "FIRED_UP",
    "SERVING",
    "BindFailure",
    "Clue",
    "Draining",
    "ExceptionInfo",
    "ExitFacts",
    "ModelWeights",
    "PhaseSpan",
    "StartupLog",
    "is_noise",
]

#: `StartupLog.phase` once the server has said that it is up.
SERVING = "serving"
#: What it says then (entrypoints/http_server.py:2600).
FIRED_UP = "The server is fired up and ready to roll!"

# A phase only ever gives way to a later one; a draft that loads starts a second round of pools and graphs.
_ORDER = {phase: index for index, phase in enumerate(PHASES)}
# What such a second round consists of.
_ROUND = ("allocating_kv_cache", "capturing_graphs")

_PREFIX = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: [A-Z_]+\d+)*)\] ?")
# A progress bar is not ended by a newline before 100 %, so another rank's line may follow it (journald splits them from
# systemd 248 on, where the process changes).
_BAR = re.compile(r"[^\[\]{}]{0,80}\d+%[^\[\]{}]{0,80}\|[^\[\]{}]{0,40}\[[^\[\]{}]{0,60}\](?=\[\d{4}-\d\d-\d\d )")
_BAR_WIDTH = 512
_UVICORN_LEVEL = re.compile(r"(?:INFO|WARNING|ERROR|CRITICAL): {2,}")
_UVICORN_LEVELS = ("INFO:", "WARNING:", "ERROR:", "CRITICAL:")
_ACCESS = re.compile(r'\S+ - "(?:GET|POST|HEAD|PUT|DELETE|OPTIONS|PATCH) [^"]*" \d{3}\b')
# The prefill of a health check: one sequence, one new token (there is a line for every idle /health).
_HEALTH = re.compile(
    r"Prefill batch(?: \[\d+\])?[.,] #new-seq: 1, #new-token: 1,|Health check |Endpoint '/[^']*' is deprecated"
)
_HEALTH_STARTS = ("Prefill batch", "Health check ", "Endpoint '")
_CAPTURE_BEGIN = re.compile(r"Capture (?:[\w-]+ )*graphs? begin\b", re.IGNORECASE)
_REMAINING = re.compile(r"Gracefully exiting\.\.\. remaining number of requests:? (\d+)", re.IGNORECASE)
_BIND = re.compile(r"\[Errno (\d+)\] error while attempting to bind on address \('([^']*)', (\d+)")
_UVICORN_RUNNING = re.compile(r"Uvicorn running on (\S+)")
_MAX_TOKENS = re.compile(r"max_total_num_tokens=(\d+)")
_TRACEBACK_TEXT = "Traceback (most recent call last):"
_TRACEBACK = re.compile(r"(?:(.*?): ?)?Traceback \(most recent call last\):\s*$", re.DOTALL)
_ARGUMENT_ERROR = re.compile(r"(?:usage: )?[\w./ -]{1,60}: error: (.+)", re.DOTALL)
_TIMING = re.compile(r"(\w+)=(?:\{([^}]*)\}|([^,{}\s]+))")
_FLOAT = r"(-?\d+(?:\.\d+)?)"
_WEIGHT_FIELDS = {
    "elapsed_s": re.compile(rf"\belapsed={_FLOAT} s"),
    "avail_mem_gb": re.compile(rf"\bavail mem={_FLOAT} GB"),
    "mem_usage_gb": re.compile(rf"\bmem usage={_FLOAT} GB"),
}
_WEIGHT_TYPE = re.compile(r"\btype=([^,\s]+)")
_WEIGHT_QUANT = re.compile(r"\bquant=([^,]+?)(?:,|\.?$)")

_TAIL_LINES = 400
_TAIL_WIDTH = 2000
# What goes from slice to slice.
_KEPT_TAIL = 32768
_TRACE_LINES = 120
_OPEN_TRACES = 64
# Lines outside of tracebacks that the table of failures knows: the first few of each row explain it.
_CLUES_OF_A_ROW = 8
_CLUES = 64
_CLUE_WIDTH = 600
_PIDS = 4096


@dataclass(frozen=True)
class ModelWeights:
    """One loaded model over all ranks of this host.

    `role` is `target` for what a rank loads first, else `draft`. Of the ranks' figures: `elapsed_s` the longest
    and `elapsed_min_s` the shortest time, `mem_usage_gb` the largest use, `avail_mem_gb` the least left (GiB as
    SGLang logs them). None: this release does not log it. `quant` is "" without quantisation.
    """

    type: str
    role: str
    ranks: tuple[str, ...]
    elapsed_s: float | None
    elapsed_min_s: float | None
    quant: str
    mem_usage_gb: float | None
    avail_mem_gb: float | None


@dataclass(frozen=True)
class PhaseSpan:
    """One phase of the start. `start_us` on the monotonic clock; `duration_us` is None while it lasts.

    `model` tells the rounds apart where a release goes through pools and graphs once for the `target`, and once for the
    `draft` that it loads after them (up to 0.5.13); else it is "".
    """

    phase: str
    start_us: int
    duration_us: int | None
    model: str = ""


@dataclass(frozen=True)
class BindFailure:
    """The server could not take its port: `errno` 98 = in use, 99 = not an address of this host, 13 = not allowed."""

    errno: int
    address: str
    port: int
    text: str
    at_us: int


@dataclass(frozen=True)
class Draining:
    """The server was asked to stop and finishes its requests. `remaining` is None until it has told the number."""

    since_us: int
    remaining: int | None


@dataclass(frozen=True)
class ExceptionInfo:
    """One Python traceback: `first_line` the exception at the head of its chain, `final_line` the one that ended it.

    `source` is what SGLang wrote before it (`Scheduler hit an exception`), `rank` as in the line's prefix.
    """

    rank: str
    pid: int
    source: str
    first_line: str
    final_line: str
    lines: tuple[str, ...]
    at_us: int


@dataclass(frozen=True)
class Clue:
    """A line outside of tracebacks that the table of known failures knows. `place` is `log`, or `manager` for PID 1's."""

    id: str
    text: str
    place: str
    rank: str
    pid: int
    at_us: int


@dataclass(frozen=True)
class ExitFacts:
    """How the main process ended, in PID 1's words: `code` is exited, killed or dumped, `result` the unit's Result."""

    code: str
    status: int | None
    result: str
    at_us: int


def _split(message: str) -> tuple[str, str, str]:
    """(writer, rank, text); the writer is `sglang`, `uvicorn` (with or without SGLang's prefix), or "" for anything else."""
    match = _PREFIX.match(message)
    rank, text = (match.group(1).strip(), message[match.end() :]) if match else ("", message)
    level = _UVICORN_LEVEL.match(text) if text.startswith(_UVICORN_LEVELS) else None
    if level:
        return "uvicorn", rank, text[level.end() :]
    return "sglang" if match else "", rank, text


def is_noise(message: str) -> bool:
    """Whether a line comes from being polled (access log, health checks): no sign that the start moves on."""
    writer, _rank, text = _split(message)
    return writer != "" and _is_polling(text)


def _is_polling(text: str) -> bool:
    # The plain comparisons come first: there may be thousands of lines a second.
    if text.startswith(_HEALTH_STARTS):
        return _HEALTH.match(text) is not None
    return "HTTP/" in text and _ACCESS.match(text) is not None


def _timings(text: str) -> dict[str, Any]:
    def number(value: str) -> float | None:
        try:
            return float(value)
        except ValueError:
            return None

    found: dict[str, Any] = {}
    for match in _TIMING.finditer(text):
        name, inner, value = match.groups()
        if inner is not None:
            found[name] = {part.group(1): number(part.group(3) or "") for part in _TIMING.finditer(inner)}
        else:
            found[name] = number(value)
    return found


class _Model:
    """One model while its ranks report."""

    def __init__(self, type_: str, role: str) -> None:
        self.type = type_
        self.role = role
        self.ranks: list[str] = []
        self.quant = ""
        self.figures: dict[str, list[float]] = {name: [] for name in _WEIGHT_FIELDS}

    def add(self, rank: str, text: str) -> None:
        self.ranks.append(rank)
        quant = _WEIGHT_QUANT.search(text)
        if quant and quant.group(1) != "None":
            self.quant = quant.group(1)
        for name, pattern in _WEIGHT_FIELDS.items():
            match = pattern.search(text)
            if match:
                self.figures[name].append(float(match.group(1)) + 0.0)  # -0.00 becomes 0.0

    def frozen(self) -> ModelWeights:
        elapsed = self.figures["elapsed_s"]
        return ModelWeights(
            type=self.type,
            role=self.role,
            ranks=tuple(sorted(self.ranks, key=_rank_key)),
            elapsed_s=max(elapsed, default=None),
            elapsed_min_s=min(elapsed, default=None),
            quant=self.quant,
            mem_usage_gb=max(self.figures["mem_usage_gb"], default=None),
            avail_mem_gb=min(self.figures["avail_mem_gb"], default=None),
        )


def _rank_key(rank: str) -> tuple[Any, ...]:
    return tuple((name, int(digits)) for name, digits in re.findall(r"([A-Z_]+)(\d+)", rank))


class _Trace:
    """A traceback while its lines arrive."""

    def __init__(self, rank: str, pid: int, source: str, at_us: int) -> None:
        self.rank = rank
        self.pid = pid
        self.source = source
        self.at_us = at_us
        self.lines = [_TRACEBACK_TEXT]
        self.exceptions: list[str] = []
        self.in_frames = True

    def add(self, line: str) -> None:
        if len(self.lines) < _TRACE_LINES:
            self.lines.append(line[:_TAIL_WIDTH])
        if _TRACEBACK.match(line):
            self.in_frames = True
        elif self.in_frames and line and not line[0].isspace():
            self.exceptions.append(line[:_TAIL_WIDTH])
            self.in_frames = False

    def frozen(self) -> ExceptionInfo:
        return ExceptionInfo(
            rank=self.rank,
            pid=self.pid,
            source=self.source,
            first_line=self.exceptions[0] if self.exceptions else "",
            final_line=self.exceptions[-1] if self.exceptions else "",
            lines=tuple(self.lines),
            at_us=self.at_us,
        )


class StartupLog:
    """The state of one start, as far as the log tells it. Feed it every entry of the invocation once, in the journal's order.

    `expected` is the number of `Load weight end` lines that are awaited (0: unknown), `started_us` the monotonic time
    of the start (else the first entry's). `began` tells whether the arguments were logged, which every release does before it
    loads anything. Memory is bounded however much is logged. The phases lie end to end: what
    happens between two marked phases (attention backends, kernels that compile) counts to the earlier one.
    """

    def __init__(self, *, expected: int = 0, started_us: int | None = None) -> None:
        self.expected = expected
        self.fired_up_us: int | None = None
        self.uvicorn_running: str | None = None
        self.bind_failed: BindFailure | None = None
        self.draining: Draining | None = None
        self.exit: ExitFacts | None = None
        self.startup_timings: dict[str, Any] = {}
        self.max_total_num_tokens: int | None = None
        self.gated_waiting = False
        self.weights_committed = False
        self.argument_error = ""
        self.first_exception: ExceptionInfo | None = None
        self.last_exception: ExceptionInfo | None = None
        self.exceptions_by_rank: dict[str, ExceptionInfo] = {}
        self.clues: list[Clue] = []
        self.pids: set[int] = set()
        self.last_line = ""
        self.log_incomplete = False
        self.began = False
        self.last_progress_us = started_us or 0
        self.last_us = started_us or 0
        self.lines = 0
        self._spans: list[tuple[str, int]] = [] if started_us is None else [("starting", started_us)]
        self._begins: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._last_weight_end_us = 0
        self._models: list[_Model] = []
        self._open: dict[int, _Trace] = {}
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    # --- what is known

    @property
    def fired_up(self) -> bool:
        """Whether the server said that it is up. No proof: it says so too when another server answered its warm-up."""
        return self.fired_up_us is not None

    @property
    def weights(self) -> list[ModelWeights]:
        """The loaded models in order of appearance. The same class loaded twice by one rank is two models."""
        return [model.frozen() for model in self._models]

    @property
    def markers(self) -> int:
        """The number of `Load weight end` lines so far."""
        return sum(len(model.ranks) for model in self._models)

    @property
    def marker_counts(self) -> dict[str, int]:
        """`Load weight end` lines by `type=`, in order of appearance."""
        counts: dict[str, int] = {}
        for model in self._models:
            counts[model.type] = counts.get(model.type, 0) + len(model.ranks)
        return counts

    @property
    def phase(self) -> str:
        """The phase now, `serving` after the start. Before the first entry `starting`."""
        if self.fired_up and self.bind_failed is None:
            return SERVING
        current = self._spans[-1][0] if self._spans else "starting"
        loaded = self.expected > 0 and self.markers >= self.expected
        if loaded and current in ("loading_weights", "loading_draft"):
            return "allocating_kv_cache"  # it has no begin line
        return current

    @property
    def timeline(self) -> list[PhaseSpan]:
        """All phases so far; the one that lasts has no duration."""
        names = [phase for phase, _start in self._spans]
        draft = names.index("loading_draft") if "loading_draft" in names else len(names)
        in_rounds = draft < len(names) and any(name in _ROUND for name in names[:draft])
        spans: list[PhaseSpan] = []
        for index, (phase, start_us) in enumerate(self._spans):
            end_us = self._spans[index + 1][1] if index + 1 < len(self._spans) else self._end_us()
            duration_us = None if end_us is None else max(0, end_us - start_us)
            model = ("target" if index < draft else "draft") if in_rounds and phase in _ROUND else ""
            spans.append(PhaseSpan(phase, start_us, duration_us, model))
        return spans

    def _end_us(self) -> int | None:
        failed = self.bind_failed.at_us if self.bind_failed else None
        ends = [at for at in (self.fired_up_us, failed, self.exit.at_us if self.exit else None) if at is not None]
        return min(ends) if ends else None

    def tail(self, count: int) -> list[str]:
        """The last `count` lines (at most 400 are kept), without those that come from being polled."""
        return list(self._tail)[-count:] if count > 0 else []

    # --- feeding

    def feed_all(self, entries: Iterable[Entry]) -> None:
        """`feed` for many."""
        for entry in entries:
            self.feed(entry)

    def feed(self, entry: Entry) -> None:
        """Take one entry into account. Any text is fine."""
        # Plain comparisons instead of calls here and below: there may be thousands of lines a second.
        at_us = entry.monotonic_us
        self.lines += 1
        if at_us > self.last_us:
            self.last_us = at_us
        if not self._spans:
            self._spans.append(("starting", at_us))
            self.last_progress_us = max(self.last_progress_us, at_us)
        if entry.suppressed:
            self.log_incomplete = True
        if not entry.own:
            self._feed_manager(entry)
            return
        if len(self.pids) < _PIDS:
            self.pids.add(entry.pid)
        message = entry.message
        if "\n" not in message:
            self._feed_line(message, entry.pid, at_us)
            return
        # Native journal clients may log several lines in one entry.
        for line in message.split("\n"):
            self._feed_line(line, entry.pid, at_us)

    def _feed_manager(self, entry: Entry) -> None:
        self._tail.append(entry.message[:_TAIL_WIDTH])
        self._note_clue(entry.message, "manager", "", entry.pid, entry.monotonic_us)
        if entry.exit_code or entry.unit_result:
            before = self.exit
            self.exit = ExitFacts(
                code=entry.exit_code or (before.code if before else ""),
                status=entry.exit_status if entry.exit_status is not None else (before.status if before else None),
                result=entry.unit_result or (before.result if before else ""),
                at_us=before.at_us if before else entry.monotonic_us,
            )

    def _feed_line(self, line: str, pid: int, at_us: int) -> None:
        if line.find("%", 0, 200) >= 0:
            # A bar stands at the beginning; in a long line the search would take minutes.
            line = _BAR.sub("", line[:_BAR_WIDTH], count=1) + line[_BAR_WIDTH:]
        writer, rank, text = _split(line)
        if writer:
            if _is_polling(text):
                if text.startswith("Health check failed"):
                    self._note_clue(text, "log", rank, pid, at_us)
                return
            self._close_trace(pid)
        blank = not line or line.isspace()
        if not blank:
            self._tail.append(line[:_TAIL_WIDTH])
            self.last_line = text[:_CLUE_WIDTH]
        remaining = self.draining.remaining if self.draining else None
        if not self._feed_trace(line, text, rank, pid, at_us):
            self._note_clue(text, "log", rank, pid, at_us)
            self._feed_marker(writer, line, text, rank, pid, at_us)
        told_again = remaining is not None and self.draining is not None and self.draining.remaining == remaining
        if at_us > self.last_progress_us and not blank and not told_again:
            self.last_progress_us = at_us

    def _feed_marker(self, writer: str, line: str, text: str, rank: str, pid: int, at_us: int) -> None:
        if writer == "sglang":
            self._feed_text(text, rank, pid, at_us)
        elif writer == "uvicorn":
            self._feed_uvicorn(text, at_us)
        else:
            error = _ARGUMENT_ERROR.match(line)
            if error:
                self.argument_error = error.group(1)[:_TAIL_WIDTH]

    def _feed_trace(self, line: str, text: str, rank: str, pid: int, at_us: int) -> bool:
        trace = self._open.get(pid) if self._open else None
        if trace is not None:
            trace.add(line)
            self._note_exception(trace)
            return True
        match = _TRACEBACK.match(text) if _TRACEBACK_TEXT in text else None
        if match is None:
            return False
        while len(self._open) >= _OPEN_TRACES:
            self._close_trace(next(iter(self._open)))
        self._open[pid] = _Trace(rank, pid, (match.group(1) or "").strip(), at_us)
        return True

    def _note_exception(self, trace: _Trace) -> None:
        if not trace.exceptions:
            return
        info = trace.frozen()
        self.last_exception = info
        scheduler = "hit an exception" in info.source
        known = self.first_exception
        # The first of a scheduler is the cause, later ones on other ranks mostly its echoes. It outranks a
        # traceback of unknown origin; the same trace is renewed while its chain grows.
        if (
            known is None
            or (known.pid, known.at_us) == (info.pid, info.at_us)
            or (scheduler and "hit an exception" not in known.source)
        ):
            self.first_exception = info
        held = self.exceptions_by_rank.get(info.rank)
        if held is None or (held.pid, held.at_us) == (info.pid, info.at_us):
            self.exceptions_by_rank[info.rank] = info

    def _note_clue(self, text: str, place: str, rank: str, pid: int, at_us: int) -> None:
        if len(self.clues) >= _CLUES:
            return
        text = text[:_CLUE_WIDTH]
        seen = look_up(text, place)
        if seen is None:
            return
        id_ = seen[0].id
        if sum(clue.id == id_ for clue in self.clues) < _CLUES_OF_A_ROW:
            self.clues.append(Clue(id_, text, place, rank, pid, at_us))

    def _close_trace(self, pid: int) -> None:
        self._open.pop(pid, None)

    def _feed_text(self, text: str, rank: str, pid: int, at_us: int) -> None:
        # Without ranks in the prefix (one scheduler) the process stands for the rank.
        who = rank or f"pid {pid}"
        if text.startswith("Load weight begin"):
            self._begins[who] = self._begins.get(who, 0) + 1
            self.gated_waiting = False
            self._enter("loading_weights" if self._begins[who] == 1 else "loading_draft", who, at_us)
        elif text.startswith("Load weight end. "):
            self._feed_weight_end(text, who, at_us)
        elif text.startswith(("KV Cache is allocated", "KV Cache VA upper bound", "Memory pool end")):
            self._enter("allocating_kv_cache", who, at_us)
        elif text.startswith("Capture ") and _CAPTURE_BEGIN.match(text):
            self._enter("capturing_graphs", who, at_us)
        elif text.startswith("max_total_num_tokens="):
            match = _MAX_TOKENS.match(text)
            if match:
                tokens = int(match.group(1))
                known = self.max_total_num_tokens
                self.max_total_num_tokens = tokens if known is None else min(known, tokens)
                self._enter("binding", who, at_us)
        elif text.startswith("Gated launch waiting for activation"):
            self.gated_waiting = True
            self._enter("waiting_at_gate", who, at_us)
        elif rank == "":
            self._feed_parent(text, at_us)

    def _feed_parent(self, text: str, at_us: int) -> None:
        if text.startswith("server_args="):
            self.began = True
        elif text.startswith(FIRED_UP):
            if self.fired_up_us is None:
                self.fired_up_us = at_us
        elif text.startswith("Engine startup timings"):
            self.startup_timings = _timings(text.partition(":")[2])
        elif text.startswith("SIGTERM received"):
            if self.draining is None:
                self.draining = Draining(since_us=at_us, remaining=None)
        elif text.startswith("Gracefully exiting"):
            match = _REMAINING.match(text)
            since_us = self.draining.since_us if self.draining else at_us
            if match:
                self.draining = Draining(since_us=since_us, remaining=int(match.group(1)))

    def _feed_uvicorn(self, text: str, at_us: int) -> None:
        if text.startswith("Started server process"):
            self._enter("binding", "", at_us)
        elif text.startswith("Uvicorn running on "):
            match = _UVICORN_RUNNING.match(text)
            if match:
                self.uvicorn_running = match.group(1)
                self._enter("warming_up", "", at_us)
        elif text.startswith("[Errno "):
            match = _BIND.match(text)
            if match:
                self.bind_failed = BindFailure(
                    errno=int(match.group(1)),
                    address=match.group(2),
                    port=int(match.group(3)),
                    text=text[:_TAIL_WIDTH],
                    at_us=at_us,
                )

    def _feed_weight_end(self, text: str, who: str, at_us: int) -> None:
        if text.startswith("Load weight end. Committed real weights"):
            # --startup-weight-load-mode overlap: no type, no per-model lines.
            self.weights_committed = True
            return
        match = _WEIGHT_TYPE.search(text)
        if match is None:
            return
        type_ = match.group(1)
        index = self._ends.get(who, 0)
        self._ends[who] = index + 1
        # Where the begin lines were lost the end lines tell as much.
        self._begins[who] = max(self._begins.get(who, 0), index + 1)
        self._enter("loading_weights" if index == 0 else "loading_draft", who, at_us)
        self._last_weight_end_us = max(self._last_weight_end_us, at_us)
        for model in self._models:
            # One rank loads a model once: the same class again (STANDALONE with the target as its draft) is another model.
            if model.type == type_ and who not in model.ranks:
                model.add(who, text)
                return
        model = _Model(type_, "target" if index == 0 else "draft")
        model.add(who, text)
        self._models.append(model)

    def _enter(self, phase: str, who: str, at_us: int) -> None:
        """Go to a phase, unless the line is a straggler's."""
        current = self._spans[-1][0] if self._spans else "starting"
        seen = {name for name, _start in self._spans}
        start_us = at_us
        if phase == "loading_draft":
            if phase in seen or _ORDER[current] >= _ORDER["binding"]:
                return
        elif _ORDER[phase] <= _ORDER[current]:
            return
        elif phase in ("allocating_kv_cache", "capturing_graphs"):
            # A rank that has not begun its draft yet still works for the target.
            if self._begins.get(who, 0) < 2 and "loading_draft" in seen:
                return
            if phase == "allocating_kv_cache" and self._last_weight_end_us:
                start_us = min(at_us, max(self._last_weight_end_us, self._spans[-1][1]))
        self._spans.append((phase, start_us))

    # --- keeping it over two slices of a wait

    def dump(self, *, tail: int = 0) -> dict[str, Any]:
        """The state as plain JSON values, small; without tracebacks that are still arriving.

        Of the tail the last `tail` lines are kept, up to 32 KiB of them.
        """
        return {
            "expected": self.expected,
            "fired_up_us": self.fired_up_us,
            "uvicorn_running": self.uvicorn_running,
            "bind_failed": asdict(self.bind_failed) if self.bind_failed else None,
            "draining": asdict(self.draining) if self.draining else None,
            "exit": asdict(self.exit) if self.exit else None,
            "startup_timings": self.startup_timings,
            "max_total_num_tokens": self.max_total_num_tokens,
            "gated_waiting": self.gated_waiting,
            "weights_committed": self.weights_committed,
            "argument_error": self.argument_error,
            "first_exception": _dump_exception(self.first_exception),
            "last_exception": _dump_exception(self.last_exception),
            "clues": [asdict(clue) for clue in self.clues],
            "pids": sorted(self.pids),
            "last_line": self.last_line,
            "tail": _newest(self.tail(tail)),
            "log_incomplete": self.log_incomplete,
            "began": self.began,
            "last_progress_us": self.last_progress_us,
            "last_us": self.last_us,
            "lines": self.lines,
            "spans": [list(span) for span in self._spans],
            "begins": dict(self._begins),
            "ends": dict(self._ends),
            "last_weight_end_us": self._last_weight_end_us,
            "models": [
                {
                    "type": model.type,
                    "role": model.role,
                    "ranks": list(model.ranks),
                    "quant": model.quant,
                    # Only the extremes are ever shown.
                    "figures": {
                        name: sorted({min(values), max(values)}) for name, values in model.figures.items() if values
                    },
                }
                for model in self._models
            ],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> StartupLog:
        """The state that `dump` gave."""
        log = cls(expected=int(data["expected"]))
        for name in (
            "fired_up_us",
            "uvicorn_running",
            "startup_timings",
            "max_total_num_tokens",
            "gated_waiting",
            "weights_committed",
            "argument_error",
            "log_incomplete",
            "began",
            "last_line",
            "last_progress_us",
            "last_us",
            "lines",
        ):
            setattr(log, name, data[name])
        log.bind_failed = BindFailure(**data["bind_failed"]) if data["bind_failed"] else None
        log.draining = Draining(**data["draining"]) if data["draining"] else None
        log.exit = ExitFacts(**data["exit"]) if data["exit"] else None
        log.first_exception = _load_exception(data["first_exception"])
        log.last_exception = _load_exception(data["last_exception"])
        log.clues = [Clue(**item) for item in data["clues"]]
        log.pids = set(data["pids"])
        log._tail.extend(data["tail"])
        for info in (log.first_exception, log.last_exception):
            if info is not None:
                log.exceptions_by_rank.setdefault(info.rank, info)
        log._spans = [(str(phase), int(start)) for phase, start in data["spans"]]
        log._begins = dict(data["begins"])
        log._ends = dict(data["ends"])
        log._last_weight_end_us = int(data["last_weight_end_us"])
        for item in data["models"]:
            model = _Model(item["type"], item["role"])
            model.ranks = list(item["ranks"])
            model.quant = item["quant"]
            for name, values in item["figures"].items():
                model.figures[name] = list(values)
            log._models.append(model)
        return log


def _newest(lines: list[str]) -> list[str]:
    """The last lines that together have no more than _KEPT_TAIL signs."""
    left = _KEPT_TAIL
    for index in range(len(lines) - 1, -1, -1):
        left -= len(lines[index])
        if left < 0:
            return lines[index + 1 :]
    return lines


def _dump_exception(info: ExceptionInfo | None) -> dict[str, Any] | None:
    return None if info is None else {**asdict(info), "lines": list(info.lines)}


def _load_exception(data: Mapping[str, Any] | None) -> ExceptionInfo | None:
    return None if data is None else ExceptionInfo(**{**data, "lines": tuple(data["lines"])})
