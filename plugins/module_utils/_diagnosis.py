# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a start failed, from its log, systemd's word and the kernel's. PRIVATE to specdec.serving.

Nothing here reads a clock or the host. The first cause wins over its echoes on other ranks; a fault of a GPU or the OOM
killer outranks the Python that met it; what no row of the table knows is told by its exception and the frame that matters.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import (
    APPLICATION,
    HARDWARE,
    NOTICE,
    KernelFault,
    KernelLine,
    kernel_faults,
)
from ansible_collections.specdec.serving.plugins.module_utils._releases import advises_what_is_set, flags
from ansible_collections.specdec.serving.plugins.module_utils._signatures import (
    CAUSE,
    CERTAIN,
    SIGNATURES,
    SYMPTOM,
    WARNING,
    Signature,
    look_up,
)
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import ExceptionInfo, StartupLog
from ansible_collections.specdec.serving.plugins.module_utils._systemd import EXIT_CODES, UnitState

__all__ = ["Diagnosis", "Frame", "Signature", "diagnose", "log_warnings", "segments"]

# The kernel's stamp and the one of the journal, which takes a line when it gets to it, are not the same.
_KERNEL_SLACK_US = 2_000_000
_TEXT = 500
_EVIDENCE = 10
_INDEX = {row.id: index for index, row in enumerate(SIGNATURES)}
_FRAME = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>.+)')
_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True)
class Diagnosis:
    """`id` is the row of the table ("" = none fits), `severity` error, or critical for faults of the machine.

    `source` is where the row comes from, `rank` the rank that failed first ("" = none or unknown), `warnings` what the log
    and the kernel also said without it being the cause.
    """

    id: str
    cause: str
    summary: str
    remedy: str
    severity: str
    source: str
    rank: str
    evidence: tuple[str, ...]
    warnings: tuple[str, ...]
    #: The summary is about how the process ended, and nothing else.
    by_exit: bool = False


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Segment:
    """One traceback of a chain: its frames, outermost first, and the text of its exception."""

    frames: tuple[Frame, ...]
    message: tuple[str, ...]


def segments(lines: t.Iterable[str]) -> list[Segment]:
    """The tracebacks of a chain, the first one (where it began) first."""
    found: list[Segment] = []
    frames: list[Frame] = []
    message: list[str] = []
    in_frames = False
    for line in [*lines, _TRACEBACK]:
        if line.endswith(_TRACEBACK):
            if frames or message:
                found.append(Segment(tuple(frames), tuple(message)))
            frames, message, in_frames = [], [], True
        elif in_frames and (not line or line[0].isspace()):
            frame = _FRAME.match(line)
            if frame:
                frames.append(Frame(frame.group("file"), int(frame.group("line")), frame.group("function").strip()))
        elif line and not line.startswith(_CHAIN):
            in_frames = False
            message.append(line)
    return found


@dataclass(frozen=True)
class _Candidate:
    """Something that may be the cause; `row` None is an exception that the table does not know."""

    level: int
    at_us: float
    row: Signature | None
    match: t.Match[str] | None
    line: str
    rank: str = ""
    exception: ExceptionInfo | None = None

    def order(self) -> tuple[int, float, int]:
        return self.level, self.at_us, _INDEX[self.row.id] if self.row else len(_INDEX)


# --- reading the exceptions -------------------------------------------------------------------------------------------------


def _of_sglang(info: ExceptionInfo) -> bool:
    """Whether SGLang gave up over it; a traceback without that may have been survived."""
    return "hit an exception" in info.source


def _frame_that_matters(parts: t.Sequence[Segment]) -> Frame | None:
    for segment in parts:
        own = [frame for frame in segment.frames if "/sglang/" in frame.file and "/torch/" not in frame.file]
        if own:
            return own[-1]
    return next((segment.frames[-1] for segment in parts if segment.frames), None)


def _known(info: ExceptionInfo) -> tuple[Signature, t.Match[str], str] | None:
    """The row that fits an exception best: (row, match, the line that it was seen in)."""
    found: list[tuple[Signature, t.Match[str], str]] = []
    parts = [(segment.message, [f"{f.file}:{f.function}" for f in segment.frames]) for segment in segments(info.lines)]
    # The ends are kept even when a long chain was cut.
    last = parts[-1][1] if parts else []
    parts += [((info.source,), []), ((info.final_line,), last)]
    for message, frames in parts:
        for line in message:
            seen = look_up(line, "exception", frames)
            if seen is not None:
                found.append((*seen, line))
    return min(found, key=lambda item: (item[0].level, _INDEX[item[0].id]), default=None)


def _exceptions(log: StartupLog) -> list[_Candidate]:
    infos: dict[tuple[int, int], ExceptionInfo] = {}
    for info in (log.first_exception, *log.exceptions_by_rank.values(), log.last_exception):
        if info is not None and info.final_line:
            infos.setdefault((info.pid, info.at_us), info)
    given_up = any(_of_sglang(info) for info in infos.values())
    found = []
    for info in infos.values():
        known = _known(info)
        weak = given_up and not _of_sglang(info)
        if known is not None:
            row, match, line = known
            level = SYMPTOM if weak and row.level == CAUSE else row.level
            found.append(_Candidate(level, info.at_us, row, match, line, info.rank, info))
        else:
            level = CAUSE if _of_sglang(info) else SYMPTOM
            found.append(_Candidate(level, info.at_us, None, None, info.final_line, info.rank, info))
    return found


def _lines(log: StartupLog) -> t.Iterator[_Candidate]:
    for clue in log.clues:
        seen = look_up(clue.text, clue.place)
        if seen is not None:
            yield _Candidate(seen[0].level, clue.at_us, seen[0], seen[1], clue.text, clue.rank)


def _exits(unit: UnitState) -> t.Iterator[_Candidate]:
    facts = [f"result {unit.result}"] if unit.result != "success" else []
    if unit.exec_main_code in EXIT_CODES:
        facts.append(f"{EXIT_CODES[unit.exec_main_code]} {unit.exec_main_status}")
    for fact in facts:
        seen = look_up(fact, "exit")
        if seen is not None:
            yield _Candidate(seen[0].level, float("inf"), seen[0], seen[1], fact)


# --- the verdict ------------------------------------------------------------------------------------------------------------


def _kernel_cause(faults: t.Sequence[KernelFault], best: _Candidate | None) -> KernelFault | None:
    """The kernel's fault that explains the failure, or None."""
    until = float("inf")
    if best is not None and best.level == CERTAIN and best.row is not None and best.row.cause != "host_out_of_memory":
        return None
    if best is not None and best.level <= CAUSE:
        until = best.at_us + _KERNEL_SLACK_US
    for kind in (HARDWARE, APPLICATION):
        for fault in faults:
            if fault.kind == kind and fault.at_us <= until:
                return fault
    return None


def _fill(template: str, match: t.Match[str] | None, release: str) -> str:
    groups = match.groupdict() if match else {}
    return template.format_map({**flags(release), **{name: value or "" for name, value in groups.items()}})


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else text[:_TEXT] + "..."


def _evidence(candidate: _Candidate) -> list[str]:
    info = candidate.exception
    if info is None:
        return [] if candidate.row is not None and candidate.row.where == "exit" else [_short(candidate.line)]
    parts = segments(info.lines)
    source = " ".join(part for part in (info.rank, info.source) if part)
    frame = _frame_that_matters(parts)
    message = [line for segment in parts for line in segment.message]
    wanted = [candidate.line, info.final_line, *message[-4:]]
    kept = [source, f"at {frame}" if frame else "", *dict.fromkeys(wanted)]
    return [_short(line) for line in kept if line]


def _warnings(log: StartupLog, faults: t.Sequence[KernelFault], release: str) -> tuple[str, ...]:
    found = log_warnings(log, release)
    found += [f"kernel: {fault.summary}" for fault in faults if fault.kind == NOTICE]
    return tuple(dict.fromkeys(found))[:_EVIDENCE]


def log_warnings(
    log: StartupLog, release: str = "", *, severities: t.Container[str] = ("warning", "info")
) -> list[str]:
    """What the log says and the start survives: one line for each kind. `info` is normal, `warning` costs something."""
    found: dict[str, str] = {}
    for candidate in _lines(log):
        row = candidate.row
        if row is not None and row.level == WARNING and row.severity in severities:
            text = f"{_fill(row.summary, candidate.match, release)}: {_short(candidate.line)}"
            found.setdefault(row.id, f"{text}. {_fill(row.remedy, candidate.match, release)}")
    return list(found.values())


def _unknown(candidate: _Candidate) -> str:
    info = candidate.exception
    if info is None:
        return _short(candidate.line)
    frame = _frame_that_matters(segments(info.lines))
    text = _short(info.final_line)
    if info.first_line and info.first_line != info.final_line:
        text += f" (it began as {_short(info.first_line)})"
    return text + (f", at {frame}" if frame else "") + (f", on {info.rank}" if info.rank else "")


def _quoted(candidate: _Candidate) -> bool:
    """Whether the row's summary already has what the line ends with."""
    found = candidate.match.groupdict() if candidate.match else {}
    used = (
        value for name, value in found.items() if value and candidate.row and f"{{{name}}}" in candidate.row.summary
    )
    return any(candidate.line.rstrip().endswith(value.rstrip()) for value in used)


def diagnose(
    *,
    log: StartupLog,
    unit: UnitState,
    kernel: t.Iterable[KernelLine] = (),
    release: str = "",
    gpus: t.Mapping[str, str] | None = None,
    ended: bool = True,
    arguments: t.Mapping[str, t.Any] | None = None,
) -> Diagnosis:
    """Why this start failed.

    `log` is the invocation's log, `unit` its state now, `kernel` the kernel's lines since it started, `release` the installed
    SGLang ("" = unknown: remedies are spelled for the newest), `gpus` the names of the GPUs by PCI address, `arguments` what the
    server was started with, by dest: a remedy does not advise what is set already. With
    `ended=False` the process still lives and nothing more came: then only what the log says counts.

    `cause` is "" when nothing tells more than that it ended.
    """
    faults = kernel_faults(kernel, pids=log.pids, cgroup=unit.control_group, gpus=gpus)
    candidates = [*_exceptions(log), *(item for item in _lines(log) if item.level < WARNING)]
    if ended:
        candidates += _exits(unit)
    else:
        seen = look_up(log.last_line, "last")
        if seen is not None:
            candidates.append(_Candidate(seen[0].level, log.last_us, seen[0], seen[1], log.last_line))
    best = min(candidates, key=_Candidate.order, default=None)
    warnings = _warnings(log, faults, release)
    fault = _kernel_cause(faults, best)
    if fault is not None:
        lines = [item.text for item in faults if item.kind != NOTICE]
        return Diagnosis(
            id=fault.id,
            cause=fault.cause,
            summary=fault.summary,
            remedy=fault.remedy,
            severity="critical" if fault.kind == HARDWARE else "error",
            source="kernel log",
            rank=best.rank if best else "",
            evidence=tuple([_short(line) for line in lines[:5]] + (_evidence(best) if best else []))[:_EVIDENCE],
            warnings=warnings,
        )
    if best is None:
        return Diagnosis("", "", "", "", "error", "", "", (), warnings)
    evidence = tuple(_evidence(best))[:_EVIDENCE]
    row = best.row
    if row is None:
        return Diagnosis("", "exception", _unknown(best), "", "error", "traceback", best.rank, evidence, warnings)
    summary = _fill(row.summary, best.match, release)
    known = row.otherwise and advises_what_is_set(row.remedy, arguments or {})
    remedy = row.otherwise if known else row.remedy
    if row.where not in ("exit", "last"):
        summary += (f" on {best.rank}" if best.rank else "") + ("" if _quoted(best) else f": {_short(best.line)}")
    return Diagnosis(
        id=row.id,
        cause=row.cause,
        summary=summary,
        remedy=_fill(remedy, best.match, release),
        severity=row.severity,
        source=row.source,
        rank=best.rank,
        evidence=evidence,
        warnings=warnings,
        by_exit=row.where == "exit",
    )
