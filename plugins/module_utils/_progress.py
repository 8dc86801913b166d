# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a server that is not ready yet still moves: signals, and since when each stood still. PRIVATE to specdec.serving.

Nothing here reads a clock or the host: samples and times come in, a verdict comes out. A server is *stalled* when no signal
moved for the stall timeout, and *spinning* when only its CPU moved for the spin timeout: threads that wait for each other in
a collective burn CPU for ever, and so does an idle scheduler. What a poll, a heartbeat or a barrier costs is below the
thresholds: a process must use more than `CPU_SHARE` of a core, read or write more than `IO_RATE`, grow by more than
`MEMORY_RATE`.
"""

from __future__ import annotations

import hashlib
import typing as t
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

__all__ = [
    "CPU",
    "SIGNALS",
    "SPINNING",
    "STALLED",
    "ProcessSample",
    "Progress",
    "Repeats",
    "is_own_probe",
    "still_for",
]

STALLED = "stalled"
SPINNING = "spinning"

LOG = "log"
CPU = "cpu"
IO = "io"
MEMORY = "memory"
GPU_MEMORY = "gpu_memory"
COMPILERS = "compilers"
PROCESSES = "processes"
ANSWERS = "answers"
#: Every signal, in the order that people read them. `answers`: the server passed the HTTP checks. `processes`: an engine
#: process came or went. `compilers`: one came, went or worked, also one that lived between two samples only.
SIGNALS = (LOG, CPU, IO, MEMORY, GPU_MEMORY, COMPILERS, PROCESSES, ANSWERS)

#: Least share of one core, in seconds a second; an idle Python process that polls every 10 ms takes 1 to 2 %.
CPU_SHARE = 0.04
_CPU_FLOOR_S = 0.05
#: Bytes a second, read and written. A wake-up of ZeroMQ reads 8 bytes, 1,000 times a second at most.
IO_RATE = 32 * 1024
_IO_FLOOR = 256 * 1024
#: Bytes a second that the resident memory grows. That it shrinks is no sign: the kernel takes pages from who stands still.
MEMORY_RATE = 64 * 1024
_MEMORY_FLOOR = 1024 * 1024
_GPU_MEMORY_FLOOR_MIB = 16.0
# What did not add up to a movement within this time never will: the count begins anew.
_WINDOW_S = 30.0
# CPU use is told over at least this long.
_USAGE_S = 5.0
# Between two samples of one slice; more means that we could not run, so neither could the server (a paused machine).
_BLIND_S = 20.0
_KEPT_PROCESSES = 64
_REPEATS = 64

_ENGINE_ROLES = frozenset(("scheduler", "detokenizer", "data_parallel_controller"))
_COMPILER = "compiler"
# Not even before the port is open: it waits for the others, or belongs to Python.
_NEVER = frozenset(("resource_tracker",))


@dataclass(frozen=True)
class ProcessSample:
    """One process now. Times in seconds of CPU, sizes in bytes; `io_bytes` None = not readable (no permission).

    `children_cpu_s` is what its children used that have ended and been waited for, `state` the letter of proc(5).
    """

    pid: int
    start_ticks: int
    role: str
    rank: str
    state: str
    cpu_s: float
    children_cpu_s: float
    rss_bytes: int
    io_bytes: int | None


@dataclass
class _Base:
    """A value at the last movement, or at the beginning of the window."""

    value: float
    at: float

    def moved(self, value: float, now: float, *, floor: float, rate: float) -> bool:
        """Whether it rose enough since. Renews the base where it did, where it fell, and where the window is over."""
        rose = value - self.value >= max(floor, rate * (now - self.at))
        if rose or value < self.value or now - self.at > _WINDOW_S:
            self.value, self.at = value, now
        return rose


class Repeats:
    """The latest lines of the log: one that comes again word for word is a heartbeat and no progress."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def is_new(self, text: str) -> bool:
        """Take a line (without its time stamp), and tell whether it was not among the latest ones."""
        known = text in self._seen
        self._seen.pop(text, None)
        self._seen[text] = None
        if len(self._seen) > _REPEATS:
            del self._seen[next(iter(self._seen))]
        return not known


def is_own_probe(text: str) -> bool:
    """Whether a log line (without its prefix) may be the prefill of our own generation: one short prompt, alone."""
    if not text.startswith("Prefill batch"):
        return False
    fields = dict(part.strip().partition(": ")[::2] for part in text.split(","))
    tokens = fields.get("#new-token", "")
    return (
        fields.get("#new-seq") == "1"
        and tokens.isdigit()
        and int(tokens) <= 16
        and fields.get("#running-req", "0") == "0"
        and fields.get("#queue-req", "0") == "0"
    )


def still_for(moved: Mapping[str, float], now: float) -> tuple[float, float]:
    """Seconds since anything moved, and since anything but the CPU did; `moved` as `Progress.dump` gives it."""
    quiet = now - max(at for name, at in moved.items() if name != CPU)
    return min(quiet, now - moved[CPU]), quiet


class Progress:
    """The stall clocks of one start. Times in seconds on one monotonic clock.

    Without an earlier slice every clock starts at `now`: what was before nobody saw. `kept` is what `dump` gave.
    """

    def __init__(
        self,
        *,
        stall_s: float,
        spin_s: float,
        now: float,
        started: float = 0.0,
        kept: Mapping[str, t.Any] | None = None,
    ) -> None:
        """`stall_s` and `spin_s`: seconds, 0 = that verdict is never given. `started`: of the main process, 0 = unknown."""
        self._stall_s = stall_s
        self._spin_s = spin_s
        self._moved: dict[str, float] = {LOG: started or now, CPU: now, IO: now, MEMORY: now}
        self._cpu: dict[str, _Base] = {}
        self._io: dict[str, _Base] = {}
        self._memory: dict[str, _Base] = {}
        self._gpu: dict[int, float] = {}
        self._known: set[str] | None = None
        self._known_digests: dict[str, str] = {}
        self._last: tuple[ProcessSample, ...] = ()
        self._last_at: float | None = None
        self._usage: list[tuple[float, dict[str, float]]] = []
        self._kept = kept
        if kept:
            self._moved.update({name: at for name, at in kept["moved"].items() if name in SIGNALS})
            for name, bases in (("cpu", self._cpu), ("io", self._io), ("memory", self._memory)):
                bases.update({key: _Base(value, kept["at"]) for key, value in kept.get(name, {}).items()})
            self._known_digests = dict(kept.get("known", {}))
            self._gpu = {int(pid): mib for pid, mib in kept.get("gpu", {}).items()}

    # --- what comes in

    def sample(self, processes: Iterable[ProcessSample], now: float, *, port_open: bool) -> None:
        """Take the unit's processes into account.

        Once its port is open, the main process and its HTTP workers are no sign: whoever polls them makes them work.
        """
        if self._last_at is not None and now - self._last_at > _BLIND_S:
            self._shift(now - self._last_at)
        self._last, self._last_at = tuple(processes), now
        self._note_usage(now)
        counted = [process for process in self._last if self._counts(process, port_open)]
        self._compare_sets(counted, now)
        for process in counted:
            self._compare(process, now)
        living = {_key(process) for process in counted}
        for bases in (self._cpu, self._io, self._memory):
            for key in [key for key in bases if key.partition("+")[0] not in living]:
                del bases[key]

    @staticmethod
    def _counts(process: ProcessSample, port_open: bool) -> bool:
        if process.role in _ENGINE_ROLES or process.role == _COMPILER:
            return True
        return not port_open and process.role not in _NEVER

    def _compare_sets(self, counted: Collection[ProcessSample], now: float) -> None:
        known = {f"{p.role}:{_key(p)}" for p in counted if p.role in _ENGINE_ROLES or p.role == _COMPILER}
        if self._known is not None:
            for name in known ^ self._known:
                self.note(COMPILERS if name.startswith(_COMPILER) else PROCESSES, now)
        else:
            for signal, digest in _digests(known).items():
                if self._known_digests.get(signal, digest) != digest:
                    self.note(signal, now)
        self._known = known

    def _compare(self, process: ProcessSample, now: float) -> None:
        compiler = process.role == _COMPILER
        key = _key(process)
        if _moved(self._cpu, key, process.cpu_s, now, floor=_CPU_FLOOR_S, rate=CPU_SHARE):
            self.note(COMPILERS if compiler else CPU, now)
        # A compiler that lived between two samples is seen only here, and only if its parent waited for it.
        if _moved(self._cpu, f"{key}+", process.children_cpu_s, now, floor=_CPU_FLOOR_S, rate=CPU_SHARE):
            self.note(COMPILERS, now)
        if process.io_bytes is not None and _moved(self._io, key, process.io_bytes, now, floor=_IO_FLOOR, rate=IO_RATE):
            self.note(COMPILERS if compiler else IO, now)
        if _moved(self._memory, key, process.rss_bytes, now, floor=_MEMORY_FLOOR, rate=MEMORY_RATE):
            self.note(COMPILERS if compiler else MEMORY, now)

    def _note_usage(self, now: float) -> None:
        self._usage.append((now, {_key(p): p.cpu_s for p in self._last}))
        while len(self._usage) > 2 and now - self._usage[1][0] >= _USAGE_S:
            del self._usage[0]

    def _shift(self, seconds: float) -> None:
        for name in self._moved:
            self._moved[name] += seconds
        for bases in (self._cpu, self._io, self._memory):
            for base in bases.values():
                base.at += seconds

    def note(self, signal: str, at: float) -> None:
        """A signal moved at `at`; an earlier time than known changes nothing."""
        self._moved[signal] = max(self._moved.get(signal, at), at)

    def note_gpu_memory(self, used_mib: Mapping[int, float], now: float) -> None:
        """GPU memory by pid, of the unit's processes only: another server's is not its progress."""
        own = {process.pid for process in self._last}
        for pid, mib in used_mib.items():
            if pid in own and (pid not in self._gpu or abs(mib - self._gpu[pid]) >= _GPU_MEMORY_FLOOR_MIB):
                self._gpu[pid] = mib
                self.note(GPU_MEMORY, now)

    def hold(self, now: float) -> None:
        """Nothing is awaited of it now (it waits at a gate by design): all clocks start anew."""
        for name in self._moved:
            self.note(name, now)

    # --- what comes out

    def verdict(self, now: float, *, idle_spins: bool = False) -> str:
        """`stalled`, `spinning`, or "" while something moved.

        With `idle_spins` (the server says that it is up) its CPU is no sign of life either.
        """
        still, quiet = still_for(self._moved, now)
        if self._stall_s > 0 and (quiet if idle_spins else still) >= self._stall_s:
            return STALLED
        if self._spin_s > 0 and quiet >= self._spin_s:
            return SPINNING
        return ""

    def due_in(self, now: float, *, idle_spins: bool = False) -> float:
        """Seconds until the next verdict if nothing moves from now on; infinity when none can come."""
        still, quiet = still_for(self._moved, now)
        if idle_spins:
            still = quiet
        waits = [timeout - stood for timeout, stood in ((self._stall_s, still), (self._spin_s, quiet)) if timeout > 0]
        return max(min(waits, default=float("inf")), 0.0)

    def quiet_for(self, now: float) -> float:
        """Seconds since a signal other than the CPU moved."""
        return still_for(self._moved, now)[1]

    def since(self, signal: str) -> float | None:
        """When a signal moved last; None if it never was there."""
        return self._moved.get(signal)

    def stood_still(self, now: float, *, last_line: str = "") -> list[dict[str, t.Any]]:
        """Each signal as ``{signal, since_s, last}``, the one that stood longest first."""
        last = {
            LOG: last_line,
            CPU: f"{sum(self.cpu_percent(p) or 0.0 for p in self._last):.1f} % of a core",
            IO: _size(sum(p.io_bytes or 0 for p in self._last)),
            MEMORY: _size(sum(p.rss_bytes for p in self._last)),
            GPU_MEMORY: _size(sum(self._gpu.values()) * 2**20),
            COMPILERS: f"{sum(p.role == _COMPILER for p in self._last)} now",
            PROCESSES: f"{sum(p.role in _ENGINE_ROLES for p in self._last)} of the engine",
        }
        found = [
            {"signal": name, "since_s": round(now - self._moved[name], 1), "last": last.get(name, "")}
            for name in SIGNALS
            if name in self._moved
        ]
        return sorted(found, key=lambda item: -t.cast(float, item["since_s"]))

    @property
    def processes(self) -> tuple[ProcessSample, ...]:
        """The latest sample."""
        return self._last

    @property
    def sampled_at(self) -> float | None:
        """When it was taken."""
        return self._last_at

    def cpu_percent(self, process: ProcessSample) -> float | None:
        """Percent of one core over the last seconds; None when it was seen only once."""
        if len(self._usage) < 2:
            return None
        began, before = self._usage[0]
        ended, after = self._usage[-1]
        key = _key(process)
        if key not in before or key not in after or ended <= began:
            return None
        return round(100.0 * (after[key] - before[key]) / (ended - began), 1)

    # --- keeping it over two slices of a wait

    def dump(self) -> dict[str, t.Any]:
        """The clocks as plain JSON values, small. What changes until the next slice counts as progress of that slice."""
        if self._last_at is None:
            return {**(self._kept or {}), "moved": dict(self._moved)}
        # Hundreds of compile workers are no news; the engine's processes come first.
        ordered = sorted(self._last, key=lambda p: p.role not in _ENGINE_ROLES)[:_KEPT_PROCESSES]
        return {
            "at": self._last_at,
            "moved": dict(self._moved),
            "cpu": {
                **{_key(p): p.cpu_s for p in ordered},
                **{f"{_key(p)}+": p.children_cpu_s for p in ordered},
            },
            "io": {_key(p): p.io_bytes for p in ordered if p.io_bytes is not None},
            "memory": {_key(p): p.rss_bytes for p in ordered},
            "known": _digests(self._known or ()),
            "gpu": {str(pid): mib for pid, mib in self._gpu.items()},
        }


def _digests(known: Collection[str]) -> dict[str, str]:
    compilers = {name for name in known if name.startswith(_COMPILER)}
    return {
        signal: hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]
        for signal, names in ((COMPILERS, compilers), (PROCESSES, set(known) - compilers))
    }


def _key(process: ProcessSample) -> str:
    return f"{process.pid}.{process.start_ticks}"


def _moved(bases: dict[str, _Base], key: str, value: float, now: float, *, floor: float, rate: float) -> bool:
    base = bases.get(key)
    if base is None:
        bases[key] = _Base(value, now)
        return False
    return base.moved(value, now, floor=floor, rate=rate)


def _size(count: float) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
