# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's memory of its verified starts: how long one may take, and how long is left. PRIVATE to the collection.

``starts.jsonl`` holds one JSON object a line, one line for each start that was proven ready and whose beginning was seen.
From them come ``timeout: auto`` and the estimate of the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import stat
import statistics
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._files import write_file

FILE_NAME = "starts.jsonl"
#: ``timeout: auto`` is at least this, in seconds: the option's own default.
LEAST_AUTO_S = 1350.0
#: ... and this many times the slowest verified start of the kind.
AUTO_FACTOR = 3.0

COLD, WARM = "cold", "warm"

_KEPT = 200
# The file is shortened when it has this many lines, not at each one.
_SHORTEN_AT = 250
_READ_AT_MOST = 1024 * 1024
# No start takes a day. A line that says so is damaged, and would make a wait of `timeout: auto` endless.
_LONGEST_S = 86400.0
_LOCK_S = 2.0
_LOCK_POLL_S = 0.05
_DRIVER = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")
_GPU_MODEL = re.compile(r"\((.+)\)$")


@dataclasses.dataclass(frozen=True)
class Subject:
    """What kind of start it is. Empty strings where something is not known; ``gpus`` are the names of the host's cards, sorted."""

    model_path: str
    draft_model_path: str = ""
    release: str = ""
    driver: str = ""
    gpus: tuple[str, ...] = ()
    tp_size: int = 1
    ep_size: int = 1
    node_rank: int = 0


@dataclasses.dataclass(frozen=True)
class Start:
    """One verified start: seconds of each phase in order, and of all of it; ``at`` in seconds since the epoch."""

    subject: Subject
    invocation_id: str
    at: float
    cache: str
    phases: tuple[tuple[str, float], ...]
    total_s: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """From earlier starts of the same kind: seconds in all and left, the slowest of them, their number.

    ``longer``: this start has taken longer than every one of them.
    """

    total_s: float
    left_s: float
    slowest_s: float
    count: int
    longer: bool

    def result(self) -> dict[str, t.Any]:
        """The module's ``estimate``."""
        return {
            "total_s": round(self.total_s, 1),
            "left_s": round(self.left_s, 1),
            "slowest_s": round(self.slowest_s, 1),
            "from": self.count,
            "longer": self.longer,
        }


def parse_timeout(value: t.Any, *, name: str = "timeout") -> float | None:
    """Seconds, or None for ``auto``. Raises ValueError with what is wrong, for the module and the controller alike."""
    text = str(value).strip()
    if text.lower() == "auto":
        return None
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"{name} {value!r} is neither a number of seconds nor 'auto'") from None
    if isinstance(value, bool) or not 0 < seconds < float("inf"):
        raise ValueError(f"{name} {value!r} must be a number of seconds above 0, or 'auto'")
    return seconds


# ---- what earlier starts tell -----------------------------------------------------------------------------------


def cache_state(starts: t.Iterable[Start], subject: Subject) -> str:
    """``cold`` for the first verified start on this host of release, model and driver: its kernels are not compiled yet.

    A release that is not known yet counts as any.
    """
    for start in starts:
        known = start.subject
        if (
            known.model_path == subject.model_path
            and known.driver == subject.driver
            and (not subject.release or known.release == subject.release)
        ):
            return WARM
    return COLD


def similar(starts: t.Iterable[Start], subject: Subject) -> list[Start]:
    """Earlier starts of the same model, host class (the cards) and cache state."""
    starts = list(starts)
    cache = cache_state(starts, subject)
    return [
        start
        for start in starts
        if start.cache == cache
        and start.subject.model_path == subject.model_path
        and start.subject.gpus == subject.gpus
        and start.subject.node_rank == subject.node_rank
    ]


def auto_timeout(starts: t.Iterable[Start], subject: Subject) -> float:
    """Seconds: the larger of LEAST_AUTO_S and AUTO_FACTOR times the slowest similar start."""
    slowest = max((start.total_s for start in similar(starts, subject)), default=0.0)
    return max(LEAST_AUTO_S, AUTO_FACTOR * slowest)


def estimate(
    starts: t.Iterable[Start], subject: Subject, timeline: t.Sequence[t.Mapping[str, t.Any]], uptime: float
) -> Estimate | None:
    """The rest of a start, None without earlier ones. ``timeline`` as in the module's result, ``uptime`` in seconds.

    Starts with the same draft and sizes are preferred. Each tells the rest from where this one is: what its current
    phase lacks and all that came after; the median of these counts.
    """
    known = similar(starts, subject)
    if not known:
        return None
    known = [start for start in known if _sizes(start.subject) == _sizes(subject)] or known
    totals = [start.total_s for start in known]
    left = statistics.median(_rest(start, timeline, uptime) for start in known)
    slowest = max(totals)
    return Estimate(
        total_s=uptime + left if left > 0 else max(statistics.median(totals), uptime),
        left_s=left,
        slowest_s=slowest,
        count=len(known),
        longer=uptime > slowest,
    )


def _sizes(subject: Subject) -> tuple[str, int, int]:
    return subject.draft_model_path, subject.tp_size, subject.ep_size


def _rest(start: Start, timeline: t.Sequence[t.Mapping[str, t.Any]], uptime: float) -> float:
    names = [phase["phase"] for phase in timeline]
    here = len(names) - 1
    if here < 0 or [name for name, _seconds in start.phases[: here + 1]] != names:
        return max(start.total_s - uptime, 0.0)
    in_phase = max(start.phases[here][1] - float(timeline[here]["duration"]), 0.0)
    return in_phase + sum(seconds for _name, seconds in start.phases[here + 1 :])


# ---- from the module's result -----------------------------------------------------------------------------------


def driver_version(path: str = "/proc/driver/nvidia/version") -> str:
    """The NVIDIA driver's version, '' without one."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = _DRIVER.search(file.readline())
    except OSError:
        return ""
    return found.group(0) if found else ""


def card_names(gpus: t.Mapping[str, str]) -> tuple[str, ...]:
    """The models of the GPUs, sorted, from `/dev/nvidia0 (NVIDIA H200)` by address."""
    found = (_GPU_MODEL.search(name) for name in gpus.values())
    return tuple(sorted(match.group(1) if match else "" for match in found))


def release_of(version: str) -> str:
    """A release without its local part: `0.5.23+cpu` has the caches of `0.5.23`."""
    return version.partition("+")[0]


def start_of(result: t.Mapping[str, t.Any], subject: Subject, starts: t.Iterable[Start]) -> Start | None:
    """The start that a result of the module proves, None when it proves none or its beginning was not seen."""
    timeline = result.get("timeline") or ()
    if not result.get("ready") or not result.get("invocation_id") or not timeline or result.get("log_incomplete"):
        return None
    if timeline[0]["phase"] != "starting" or not subject.model_path:
        return None
    last = timeline[-1]
    return Start(
        subject=subject,
        invocation_id=result["invocation_id"],
        at=result["detected_at"],
        cache=cache_state(starts, subject),
        phases=tuple((phase["phase"], phase["duration"]) for phase in timeline),
        total_s=round(last["start"] + last["duration"], 3),
    )


# ---- the file ---------------------------------------------------------------------------------------------------


def load(directory: str) -> list[Start]:
    """The starts of this host, the oldest first; [] where nothing is kept or nothing can be read.

    Lines that are no starts are passed over: a crash in the middle of writing leaves half a line.
    """
    if not directory:
        return []
    try:
        # A pipe of this name would be waited for.
        descriptor = os.open(os.path.join(directory, FILE_NAME), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return _parse(_tail(file)) if stat.S_ISREG(os.fstat(descriptor).st_mode) else []
    except OSError:
        return []


def note(directory: str, result: t.Mapping[str, t.Any], subject: Subject) -> str:
    """Keep the start that a result proves, once for each invocation. Why that did not work, or ''.

    Never raises for what the file system does: the verdict stands in any case.
    """
    if not directory or start_of(result, subject, ()) is None:
        return ""
    path = os.path.join(directory, FILE_NAME)
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        with _locked(path) as file:
            starts = _parse(_tail(file))
            if any(start.invocation_id == result["invocation_id"] for start in starts):
                return ""
            start = start_of(result, subject, starts)
            if start is None:
                return ""
            if len(starts) >= _SHORTEN_AT or os.fstat(file.fileno()).st_size > _READ_AT_MOST:
                write_file(path, b"".join(map(_to_line, [*starts[-_KEPT + 1 :], start])))
            else:
                _append(file, start)
    except OSError as error:
        return f"this start was not noted in {path} for later estimates: {error.strerror or error}"
    return ""


def _tail(file: t.BinaryIO) -> bytes:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _READ_AT_MOST, 0))
    return file.read(_READ_AT_MOST)


def _parse(data: bytes) -> list[Start]:
    starts = []
    for line in data.split(b"\n"):
        with contextlib.suppress(ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            starts.append(_from_json(json.loads(line)))
    return starts


def _from_json(value: t.Mapping[str, t.Any]) -> Start:
    subject = Subject(
        model_path=str(value["model_path"]),
        draft_model_path=str(value["draft_model_path"]),
        release=str(value["release"]),
        driver=str(value["driver"]),
        gpus=tuple(str(name) for name in value["gpus"]),
        tp_size=int(value["tp_size"]),
        ep_size=int(value["ep_size"]),
        node_rank=int(value["node_rank"]),
    )
    total = float(value["total_s"])
    phases = tuple((str(name), float(seconds)) for name, seconds in value["phases"])
    if not all(0 <= number <= _LONGEST_S for number in (total, *(seconds for _name, seconds in phases))):
        raise ValueError(total)
    return Start(
        subject=subject,
        invocation_id=str(value["invocation_id"]),
        at=float(value["at"]),
        cache=str(value["cache"]),
        phases=phases,
        total_s=total,
    )


def _to_line(start: Start) -> bytes:
    value = dataclasses.asdict(start)
    value.update(value.pop("subject"))
    return json.dumps(value, sort_keys=True).encode("utf-8") + b"\n"


@contextlib.contextmanager
def _locked(path: str) -> t.Iterator[t.BinaryIO]:
    """The file, ours alone for a moment. It may be replaced while we wait for it: then it is opened anew."""
    deadline = time.monotonic() + _LOCK_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, f"locked by another process for {_LOCK_S:g} s") from None
                time.sleep(_LOCK_POLL_S)
                continue
            if _is_still(path, descriptor):
                yield t.cast("t.BinaryIO", file)
                return


def _is_still(path: str, descriptor: int) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _append(file: t.BinaryIO, start: Start) -> None:
    line = _to_line(start)
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":
            # Whoever wrote before us did not get to the end.
            line = b"\n" + line
    file.write(line)
    os.fsync(file.fileno())


__all__ = (
    "AUTO_FACTOR",
    "COLD",
    "FILE_NAME",
    "LEAST_AUTO_S",
    "WARM",
    "Estimate",
    "Start",
    "Subject",
    "auto_timeout",
    "cache_state",
    "card_names",
    "driver_version",
    "estimate",
    "load",
    "note",
    "parse_timeout",
    "release_of",
    "similar",
    "start_of",
)
