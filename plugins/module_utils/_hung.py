# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watches whether a start still moves and explains it when it does not. PRIVATE to specdec.serving.

The rules are in ``_progress.py``; this feeds them from a machine (:class:`Machine`, part of the wait's host), as seldom as
it can, and puts a verdict into words: which signal stood still since when, and what each process did.
"""

from __future__ import annotations

import abc
import dataclasses
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._gpus import GpuState, GpuView
from ansible_collections.specdec.serving.plugins.module_utils._processes import STATE_NAMES
from ansible_collections.specdec.serving.plugins.module_utils._progress import (
    ANSWERS,
    LOG,
    SPINNING,
    STALLED,
    ProcessSample,
    Progress,
    Repeats,
    is_own_probe,
)
from ansible_collections.specdec.serving.plugins.module_utils._signatures import look_up
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

COLLECTIVE_HANG = "collective_hang"
DEAF = "deaf"

_SAMPLE_S = 2.0
#: A verdict needs a sample that is this fresh.
_FRESH_S = 0.25
# nvidia-smi costs a tenth of a second of CPU and more: only once the rest is quiet, and seldom.
_GPU_QUIET_S = 10.0
_GPU_EVERY_S = 30.0
_GPU_LAST_S = 5.0
_LINES = 64
_LINE_WIDTH = 160
_PROCESSES = 64
_EVIDENCE = 16
# Percent of a core: below it a rank waits, above the other it spins.
_WAITS = 10.0
_SPINS = 50.0
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
# In these phases all ranks log the same.
_ALIKE = ("starting", "loading_weights", "loading_draft", "allocating_kv_cache", "capturing_graphs")
_ORDER = ("main", "data_parallel_controller", "scheduler", "detokenizer", "tokenizer_worker", "compiler", "other")


class Machine(abc.ABC):
    """What this needs of the host."""

    @abc.abstractmethod
    def samples(self, unit: UnitState) -> tuple[ProcessSample, ...]:
        """All processes of the unit's control group and what they have used; zombies are left out."""

    @abc.abstractmethod
    def frozen(self, unit: UnitState) -> bool:
        """Whether the unit's control group is frozen."""

    @abc.abstractmethod
    def wait_channel(self, pid: int) -> str:
        """The kernel function that a process sleeps in, '' = none or unknown."""

    @abc.abstractmethod
    def ask_gpus(self) -> None:
        """Let nvidia-smi look at the GPUs; returns at once."""

    @abc.abstractmethod
    def gpu_view(self, pids: t.Collection[int]) -> GpuView:
        """What nvidia-smi has answered so far; the GPUs of these processes where that is known."""


@dataclasses.dataclass(frozen=True)
class Situation:
    """What the wait knows of the server beside its signals."""

    unit: UnitState
    phase: str
    #: The port belongs to this start: from now on others may make the main process work.
    port_open: bool = False
    #: The server said that it is up: now its schedulers spin also when nothing is to be done.
    fired_up: bool = False
    #: It waits by design, at a gate or for another node.
    held: bool = False


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A hung server in words, and the lists of the result's diagnosis."""

    cause: str
    summary: str
    remedy: str
    #: Whether the remedy fits what was seen, and not only that nothing moves.
    certain: bool
    evidence: tuple[str, ...]
    lists: t.Mapping[str, t.Any]


class StallWatch:
    """The stall clocks of one start."""

    def __init__(
        self,
        machine: Machine,
        *,
        stall_s: float,
        spin_s: float,
        now: float,
        started: float = 0.0,
        kept: t.Mapping[str, t.Any] | None = None,
    ) -> None:
        """``stall_s`` and ``spin_s`` 0 = never; ``started``: the main process did then, 0 = unknown.

        ``kept`` is what ``dump`` gave in an earlier slice of the same start.
        """
        self._machine = machine
        self._shortest_s = min((s for s in (stall_s, spin_s) if s > 0), default=0.0)
        self._progress = Progress(
            stall_s=stall_s, spin_s=spin_s, now=now, started=started, kept=kept and kept["progress"]
        )
        self._repeats = Repeats()
        self._lines: dict[str, tuple[str, float]] = {}
        for rank, (text, at) in kept["lines"].items() if kept else ():
            self._lines[rank] = (text, at)
        self._unanswered: dict[str, float] = dict(kept["unanswered"]) if kept else {}
        self._asked_gpus_at = float("-inf")
        self._situation = Situation(UnitState(), "")

    # -- what comes in ----------------------------------------------------------------------------------------------

    def note_line(self, *, message: str, text: str, pid: int, at: float, probing: bool) -> None:
        """A line of the log that is no access line: ``message`` as logged, ``text`` without its prefix."""
        rank = _rank_of_line(message) or f"pid {pid}"
        if rank in self._lines or len(self._lines) < _LINES:
            self._lines[rank] = (text[:_LINE_WIDTH], at)
        if self._repeats.is_new(text) and not (probing and is_own_probe(text)):
            self._progress.note(LOG, at)

    def look(self, situation: Situation, now: float, *, fresh: bool = False) -> None:
        """Take a sample if it is time for one, or if it must be fresh for a verdict."""
        self._situation = situation
        if situation.held:
            self._progress.hold(now)
        at = self._progress.sampled_at
        # A movement counts from the sample that shows it: for a short timeout they must be close.
        every = min(_SAMPLE_S, self._shortest_s / 20) if self._shortest_s else _SAMPLE_S
        if at is not None and now - at < (_FRESH_S if fresh else every):
            return
        self._progress.sample(self._machine.samples(situation.unit), now, port_open=situation.port_open)
        self._look_at_gpus(now)

    def _look_at_gpus(self, now: float) -> None:
        quiet = self._progress.quiet_for(now)
        if not self._shortest_s or quiet < min(_GPU_QUIET_S, self._shortest_s / 4):
            return
        view = self._gpus()
        self._progress.note_gpu_memory(view.apps, now)
        asked = now - self._asked_gpus_at
        due = self._progress.due_in(now, idle_spins=self._situation.fired_up)
        every = min(_GPU_EVERY_S, self._shortest_s / 4)
        if asked >= every or (due < _GPU_LAST_S <= asked):
            self._asked_gpus_at = now
            self._machine.ask_gpus()

    def _gpus(self) -> GpuView:
        return self._machine.gpu_view({process.pid for process in self._progress.processes})

    def answered(self, path: str, now: float, *, proven: bool = False) -> None:
        """The server answered our request; ``proven`` = it passed the checks, which is progress."""
        self._unanswered.pop(path, None)
        if proven:
            self._unanswered = {}
            self._progress.note(ANSWERS, now)

    def unanswered(self, path: str, since: float) -> None:
        """The server took our request and did not answer it before its deadline."""
        self._unanswered.setdefault(path, since)

    # -- what comes out ---------------------------------------------------------------------------------------------

    def is_hung(self, now: float) -> bool:
        """Whether nothing moves any more, judged by a fresh sample."""
        if self._situation.held or not self._verdict(now):
            return False
        self.look(self._situation, now, fresh=True)
        return bool(self._verdict(now))

    def _verdict(self, now: float) -> str:
        return self._progress.verdict(now, idle_spins=self._situation.fired_up)

    def due_in(self, now: float) -> float:
        """Seconds until a verdict if nothing moves from now on."""
        if self._situation.held:
            return float("inf")
        return self._progress.due_in(now, idle_spins=self._situation.fired_up)

    def dump(self) -> dict[str, t.Any]:
        """For the next slice of the wait: plain JSON values, a few KiB."""
        lines = {rank: list(line) for rank, line in self._lines.items()}
        return {"progress": self._progress.dump(), "lines": lines, "unanswered": self._unanswered}

    def lists(self, now: float, *, last_line: str) -> dict[str, t.Any]:
        """`stalled`, `processes` and, where there are some, `gpus` of the result's diagnosis."""
        found: dict[str, t.Any] = {
            "stalled": self._progress.stood_still(now, last_line=last_line[:_LINE_WIDTH]),
            "processes": [self._describe(process) for process in self._shown()],
        }
        gpus = self._gpus().gpus
        if gpus:
            found["gpus"] = [_describe_gpu(gpu) for gpu in gpus]
        return found

    def explain(self, now: float, *, last_line: str, port: int) -> Explanation:
        """Why it counts as hung, and who stands still."""
        situation, progress = self._situation, self._progress
        verdict = self._verdict(now)
        quiet = progress.quiet_for(now)
        lists = self.lists(now, last_line=last_line)
        view = self._gpus()
        cause, where = verdict, f"in phase {situation.phase or 'starting'}"
        what = f"nothing moved for {quiet:.0f} s {where}"
        if verdict == SPINNING:
            what = f"only the CPU moved for {quiet:.0f} s {where}, and no compiler is at work"
        if verdict == STALLED and not situation.fired_up:
            still = min(item["since_s"] for item in lists["stalled"])
            what = f"nothing moved for {still:.0f} s {where}"
        if situation.port_open and self._unanswered:
            path, since = min(self._unanswered.items(), key=lambda item: item[1])
            cause = DEAF
            what = f"it accepts connections on port {port} and has not answered {path} for {now - since:.0f} s; {what}"
        remedy, certain = _REMEDIES[cause], False
        spinning = [gpu for gpu in view.gpus if gpu.spins]
        if spinning:
            cause, certain = COLLECTIVE_HANG, True
            remedy = _collective_remedy()
            what += f"; {_full_at_idle_power(spinning)}"
        suspects = self._suspects(lists["processes"], now)
        if suspects.text:
            what += f"; {suspects.text}"
        if suspects.remedy:
            # That it does not answer either is no wonder.
            cause = STALLED if cause == DEAF else cause
            remedy, certain = suspects.remedy, True
        if view.silent_for:
            what += f"; nvidia-smi has not answered for {view.silent_for:.0f} s: the GPU driver is stuck"
            remedy, certain = _DRIVER_REMEDY, True
        evidence = [_in_words(process) for process in lists["processes"]]
        return Explanation(cause, what, remedy, certain, tuple(evidence[:_EVIDENCE]), lists)

    # -- the processes ----------------------------------------------------------------------------------------------

    def _shown(self) -> list[ProcessSample]:
        known = [p for p in self._progress.processes if p.role in _ORDER]
        if any(process.role == "scheduler" for process in known):
            # Until they have a title, ranks are other processes; afterwards those are of interest only if they are stuck.
            known = [process for process in known if process.role != "other" or process.state in "TtD"]
        return sorted(known, key=lambda p: (_ORDER.index(p.role), _rank_order(p.rank), p.pid))[:_PROCESSES]

    def _describe(self, process: ProcessSample) -> dict[str, t.Any]:
        state = STATE_NAMES.get(process.state, "")
        return {
            "role": process.role,
            "rank": process.rank,
            "pid": process.pid,
            "state": f"{process.state} ({state})" if state else process.state,
            "wchan": self._machine.wait_channel(process.pid),
            "cpu_percent": self._progress.cpu_percent(process),
            "rss_bytes": process.rss_bytes,
            "last_line": self._lines.get(process.rank or f"pid {process.pid}", ("", 0.0))[0],
        }

    def _suspects(self, processes: t.Sequence[t.Mapping[str, t.Any]], now: float) -> _Suspects:
        if self._machine.frozen(self._situation.unit):
            unit = self._situation.unit.id
            return _Suspects(f"the control group of {unit} is frozen", f"Thaw it: `systemctl thaw {unit}`.")
        stopped = [process for process in processes if process["state"][:1] in ("T", "t")]
        if stopped:
            every = len(stopped) == len(processes)
            names = f"all {len(stopped)} processes" if every and len(stopped) > 1 else _names(stopped)
            verb = "is" if len(stopped) == 1 else "are"
            by = "a debugger" if all(process["state"][:1] == "t" for process in stopped) else "a signal"
            pids = " ".join(str(process["pid"]) for process in stopped)
            return _Suspects(
                f"{names} {verb} stopped by {by}",
                f"Find out who stopped it, and let it go on (`kill -CONT {pids}`) or restart the unit.",
            )
        waiting = [process for process in processes if process["state"][:1] == "D"]
        if waiting:
            where = waiting[0]["wchan"] or "the kernel"
            return _Suspects(
                f"{_names(waiting)} cannot be interrupted (D) in {where}",
                "The kernel waits for storage or a driver: look at the mounts of the models and at the kernel's log.",
            )
        ranks = [process for process in processes if process["role"] == "scheduler"]
        return _Suspects(_odd_one_out(ranks) or (self._behind(ranks, now) if self._situation.phase in _ALIKE else ""))

    def _behind(self, ranks: t.Sequence[t.Mapping[str, t.Any]], now: float) -> str:
        """Ranks that came less far than the others, by their last lines; '' = they all got to the same place."""
        groups: dict[str, list[t.Mapping[str, t.Any]]] = {}
        for rank in ranks:
            groups.setdefault(_DIGITS.sub("0", rank["last_line"]), []).append(rank)
        if len(groups) < 2:
            return ""

        def told(group: t.Sequence[t.Mapping[str, t.Any]]) -> float:
            return max(self._lines.get(rank["rank"] or f"pid {rank['pid']}", ("", 0.0))[1] for rank in group)

        behind, *others = sorted(groups.values(), key=told)
        if len(behind) > len(ranks) / 2:
            # What one rank tells for all of them, such as progress, is no difference.
            return ""
        seconds = f"{now - told(behind):.0f} s ago" if told(behind) else "ever"
        return f"{_names(behind)} logged last {behind[0]['last_line']!r} ({seconds}), others {others[-1][0]['last_line']!r}"


@dataclasses.dataclass(frozen=True)
class _Suspects:
    text: str
    remedy: str = ""


_REMEDIES = {
    STALLED: "See where the processes stand (`py-spy dump --pid PID`, kernel log, storage), then restart the unit. "
    "Raise stall_timeout only if this start is known to be silent for longer.",
    SPINNING: "See where the ranks spin (`py-spy dump --pid PID`); full GPU utilisation at idle power would be a collective "
    "that hangs. Raise spin_timeout only if this start is known to compile inside the server for longer.",
    DEAF: "See where it stands (`py-spy dump --pid PID`), then restart the unit.",
}
_DRIVER_REMEDY = "Look for Xid and NVRM lines in the kernel's log; a stuck driver needs a reset of the GPU or a reboot."


def _collective_remedy() -> str:
    # One place for it: the table of known failures.
    row = look_up("Init parallel begin.", "last")
    return row[0].remedy if row is not None else _REMEDIES[SPINNING]


def _rank_of_line(message: str) -> str:
    """`TP3 EP3` of `[2026-11-29 14:24:24 TP3 EP3] text`, without a regular expression: there may be many lines."""
    if message[:1] != "[":
        return ""
    end = message.find("]", 20, 64)
    return " ".join(message[1:end].split()[2:]) if end > 0 else ""


def _rank_order(rank: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", rank)]


def _name(process: t.Mapping[str, t.Any]) -> str:
    # One that has no title yet has no role either.
    who = process["rank"] or (process["role"] if process["role"] != "other" else "a process")
    return f"{who} (pid {process['pid']})"


def _names(processes: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    shown = ", ".join(_name(process) for process in processes[:4])
    return shown + (f" and {len(processes) - 4} more" if len(processes) > 4 else "")


def _in_words(process: t.Mapping[str, t.Any]) -> str:
    parts = [f"{process['role']} {process['rank']}".strip() + f" pid {process['pid']}: {process['state']}"]
    if process["wchan"]:
        parts.append(f"in {process['wchan']}")
    if process["cpu_percent"] is not None:
        parts.append(f"{process['cpu_percent']:g} % CPU")
    parts.append(f"{process['rss_bytes'] / 2**20:.0f} MiB")
    if process["last_line"]:
        parts.append(f"last: {process['last_line']}")
    return ", ".join(parts)


def _odd_one_out(ranks: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """The rank that the others wait for, by their CPU; '' = they all do the same."""
    known = [rank for rank in ranks if rank["cpu_percent"] is not None]
    spin = [rank for rank in known if rank["cpu_percent"] >= _SPINS]
    wait = [rank for rank in known if rank["cpu_percent"] < _WAITS]
    if len(spin) + len(wait) == len(ranks) and spin and wait:
        if len(wait) <= len(spin):
            return f"{_names(wait)} stands still while {len(spin)} other ranks spin"
        return f"{_names(spin)} spins while {len(wait)} other ranks wait"
    return ""


def _describe_gpu(gpu: GpuState) -> dict[str, t.Any]:
    return {
        "index": gpu.index,
        "name": gpu.name,
        "utilization_percent": gpu.utilization_percent,
        "power_w": gpu.power_w,
        "power_limit_w": gpu.power_limit_w,
        "memory_used_mib": gpu.memory_used_mib,
    }


def _full_at_idle_power(gpus: t.Sequence[GpuState]) -> str:
    one = gpus[0]
    which = "GPU" if len(gpus) == 1 else "GPUs"
    return (
        f"{which} {', '.join(str(gpu.index) for gpu in gpus)} at {one.utilization_percent:.0f} % with {one.power_w:.0f}"
        f" of {one.power_limit_w:.0f} W: full utilisation at idle power is a collective that hangs"
    )


__all__ = ("COLLECTIVE_HANG", "DEAF", "Explanation", "Machine", "Situation", "StallWatch")
