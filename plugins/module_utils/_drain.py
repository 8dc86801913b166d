# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop or restart servers without cutting off their requests. PRIVATE to the collection.

Of each unit: wait until it has no requests; when the time is up abort them; ask systemd to stop or restart it; see the old
process out. SGLang takes requests until it has none left (sigterm_watchdog in srt/managers/tokenizer_manager.py), without a limit of its
own, so what comes in meanwhile is aborted as well once the time is up. A server that cannot be asked is stopped by systemd
alone: SGLang still lets its requests end, for as long as the unit's stop timeout.
"""

from __future__ import annotations

import abc
import dataclasses
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState
from ansible_collections.specdec.serving.plugins.module_utils._traffic import Load, NotAsked

__all__ = ("Course", "Drain", "DrainError", "Machine", "Server", "Target")

#: s, between two looks at a server with requests, between two aborts, and at a unit that ends.
_POLL_S = 1.0
_ABORT_AGAIN_S = 2.0
_STOP_POLL_S = 0.2
# A single request may be a health check, or one of many short ones: looked at again before a stop is refused.
_LOOKS, _LOOK_AGAIN_S = 3, 0.3
# A server that does not answer is asked so often.
_TRIES = 3
# s, for a restart to end the old process after all requests are gone or were aborted; then the wait for readiness goes on with it.
_SEE_OUT_S = 20.0

_GONE = ("inactive", "failed")


class DrainError(Exception):
    """Nothing was stopped, and why."""


class Server(abc.ABC):
    """One running server; the main process of its unit."""

    #: '' = it listens and can be asked. Else why there is nothing to ask; ``idle`` says that it has no requests then.
    reason = ""
    idle = False
    port = 0

    @abc.abstractmethod
    def alive(self) -> bool:
        """Whether that process still runs."""

    @abc.abstractmethod
    def load(self) -> Load:
        """Raises NotAsked."""

    @abc.abstractmethod
    def abort_all(self) -> None:
        """Raises NotAsked."""

    @abc.abstractmethod
    def connections(self) -> int | None:
        """How many clients are connected; None where that cannot be seen."""


class Machine(abc.ABC):
    """The host."""

    @abc.abstractmethod
    def monotonic(self) -> float:
        """CLOCK_MONOTONIC in seconds."""

    @abc.abstractmethod
    def pause(self, seconds: float) -> None:
        """Wait; raises HangUp when nobody listens to us any more."""

    @abc.abstractmethod
    def show(self, unit: str) -> UnitState:
        """The unit's state."""

    @abc.abstractmethod
    def server(self, state: UnitState) -> Server:
        """The server of a unit whose main process runs."""

    @abc.abstractmethod
    def job(self, verb: str, unit: str) -> None:
        """``systemctl stop`` or ``restart``, without waiting for it. Raises DrainError."""

    @abc.abstractmethod
    def keep_lease(self, work: t.Callable[[], None]) -> None:
        """Do what changes the host. Raises LeaseLost when it is no longer ours to change."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A unit to stop or restart. ``replaces``: the invocation that shall end, another one is left alone; '' = whichever runs."""

    unit: str
    replaces: str = ""


def _requests(count: int | None) -> str:
    return f"{count} request{'' if count == 1 else 's'}"


def _were(count: int | None) -> str:
    return f"{_requests(count)} {'was' if count == 1 else 'were'}"


@dataclasses.dataclass
class Course:
    """How far one unit is. Times in seconds of the machine's monotonic clock; all of it survives a slice.

    ``phase`` is waiting, stopping or ended. ``outcome``, once it is known: idle, drained, aborted, not_aborted, not_asked,
    not_running, ended (the process did, by itself), restarted (by an earlier try). ``was`` is its ActiveState at first. ``found`` and ``left`` are numbers of
    requests, None where they are not known.
    """

    unit: str
    replaces: str = ""
    phase: str = "waiting"
    outcome: str = ""
    was: str = ""
    active_state: str = ""
    invocation_id: str = ""
    main_pid: int = 0
    changed: bool = False
    found: int | None = None
    left: int | None = None
    aborted: int = 0
    connections: int | None = None
    reason: str = ""
    misses: int = 0
    drained_s: float = 0.0
    job_at: float = 0.0
    asked_at: float = 0.0
    aborted_at: float | None = None
    cannot_abort: str = ""

    def report(self) -> dict[str, t.Any]:
        return {
            "aborted": self.aborted,
            "active_state": self.active_state,
            "changed": self.changed,
            "connections": self.connections,
            "drained_s": round(self.drained_s, 1),
            "invocation_id": self.invocation_id,
            "msg": self.describe(),
            "outcome": self.outcome or self.phase,
            "phase": self.phase,
            "reason": self.reason or self.cannot_abort,
            "requests": self.found,
            "requests_left": self.left,
        }

    def describe(self) -> str:
        """What became of the requests of a unit, in a sentence."""
        clients = f", {self.connections} open connections" if self.connections else ""
        if self.outcome == "not_running":
            return "it did not run"
        if self.outcome == "idle":
            return "it had no requests" + (f" ({self.reason})" if self.reason else "")
        if self.outcome == "drained":
            return f"its {_requests(self.found)} ended within {self.drained_s:.1f} s"
        if self.outcome == "ended":
            return f"it ended by itself while {_were(self.left)} waited for"
        if self.outcome == "aborted":
            return f"{_were(self.aborted)} aborted after {self.drained_s:.1f} s"
        if self.outcome == "not_aborted":
            return (
                f"{_requests(self.left)} still ran after {self.drained_s:.1f} s and could not be aborted ({self.cannot_abort});"
                " systemd ends them at the unit's stop timeout"
            )
        if self.outcome == "not_asked":
            return (
                f"it could not be asked for its requests ({self.reason}{clients}), so it was stopped without draining; SGLang lets"
                " them end for as long as the unit's stop timeout"
            )
        if self.phase == "waiting":
            return f"{_requests(self.left)} left" if self.left is not None else "its requests are not known yet"
        return f"{self.phase}"


class Drain:
    """Stops or restarts targets (``verb``); ``timeout`` in seconds, ``force``: abort at once what runs."""

    def __init__(
        self, targets: t.Sequence[Target], machine: Machine, *, verb: str, timeout: float, force: bool = False
    ) -> None:
        self._machine = machine
        self._verb = verb
        self._timeout = timeout
        self._force = force
        self._targets = targets
        self._servers: dict[str, Server] = {}
        self._started = 0.0

    def look(self) -> list[Course]:
        """Check mode: what each would be drained of. Changes nothing."""
        self._started = self._machine.monotonic()
        courses = [self._begin(target) for target in self._targets]
        for course in courses:
            running = course.active_state not in _GONE
            course.changed = course.outcome != "restarted" and (running or self._verb == "restart")
        return courses

    def check(self) -> list[Course]:
        """Raises DrainError where `run` would. Changes nothing."""
        courses = [self._begin(target) for target in self._targets]
        self._refuse(courses)
        return courses

    def run(
        self, *, slice_s: float | None = None, resume: t.Mapping[str, t.Any] | None = None
    ) -> tuple[list[Course], bool]:
        """Go on until all have ended, or for ``slice_s``; gives the courses and whether all have ended.

        :raises DrainError: nothing was stopped: requests run, and neither time nor force was given.
        """
        begun = self._machine.monotonic()
        if resume:
            self._started = float(resume["started"])
            courses = [Course(**course) for course in resume["courses"]]
        else:
            self._started = begun
            courses = [self._begin(target) for target in self._targets]
            self._refuse(courses)
        while True:
            for course in courses:
                if course.phase != "ended":
                    self._step(course)
            if all(course.phase == "ended" for course in courses):
                return courses, True
            if slice_s is not None and self._machine.monotonic() - begun >= slice_s:
                return courses, False
            waiting = any(course.phase == "waiting" for course in courses)
            self._machine.pause(_POLL_S if waiting else _STOP_POLL_S)

    def resume(self, courses: t.Sequence[Course]) -> dict[str, t.Any]:
        """For the next slice."""
        return {"started": self._started, "courses": [dataclasses.asdict(course) for course in courses]}

    @property
    def elapsed(self) -> float:
        return self._machine.monotonic() - self._started

    # The first look

    def _begin(self, target: Target) -> Course:
        state = self._machine.show(target.unit)
        course = Course(
            unit=target.unit,
            replaces=target.replaces,
            was=state.active_state,
            active_state=state.active_state,
            invocation_id=state.invocation_id,
            main_pid=state.main_pid,
        )
        if (
            self._verb == "restart"
            and target.replaces not in ("", state.invocation_id)
            and state.active_state not in _GONE
        ):
            # Done already: the answer of an earlier try was lost on its way.
            course.outcome, course.phase = "restarted", "ended"
            return course
        if not state.main_pid:
            course.outcome = "not_running"
            return course
        server = self._server(course, state)
        if server.reason:
            course.reason = server.reason
            course.outcome = "idle" if server.idle else "not_asked"
            course.connections = server.connections()
            return course
        for look in range(_LOOKS):
            if look:
                self._machine.pause(_LOOK_AGAIN_S)
            self._ask(course, server)
            if not course.left or self._timeout > 0 or self._force:
                break
        course.found = course.left
        return course

    def _server(self, course: Course, state: UnitState | None = None) -> Server:
        if course.unit not in self._servers:
            self._servers[course.unit] = self._machine.server(
                self._machine.show(course.unit) if state is None else state
            )
        return self._servers[course.unit]

    def _ask(self, course: Course, server: Server) -> None:
        """Into ``left``; None and a reason when it did not tell."""
        course.asked_at = self._machine.monotonic()
        try:
            course.left = server.load().total
            course.reason, course.misses = "", 0
        except NotAsked as error:
            course.left = None
            course.reason = str(error)
            course.misses = _TRIES if error.final else course.misses + 1
            course.connections = server.connections()

    def _refuse(self, courses: t.Sequence[Course]) -> None:
        if self._timeout > 0 or self._force:
            return
        held = [
            f"{course.unit} has {_requests(course.left)} running"
            if course.left
            else f"{course.unit} could not be asked for its requests ({course.reason}) and has {course.connections} open connections"
            for course in courses
            if course.left
            or (course.left is None and course.reason and course.outcome != "idle" and course.connections)
        ]
        if held:
            raise DrainError(
                f"{'; '.join(held)}. No time was given for them to end, so nothing was stopped. Give them time"
                " (sglang_drain_timeout, in seconds), or abort them (sglang_force: true)"
            )

    # The course of one unit

    def _step(self, course: Course) -> None:
        state = self._machine.show(course.unit)
        course.active_state = state.active_state
        if course.phase == "waiting":
            self._wait(course, state)
        elif self._verb == "stop":
            self._see_out(course, state.active_state in _GONE)
        else:
            same = state.main_pid == course.main_pid and state.invocation_id == course.invocation_id
            self._see_out(course, not (course.main_pid and same and self._server(course).alive()))

    def _wait(self, course: Course, state: UnitState) -> None:
        over = self._force or self.elapsed >= self._timeout
        if not course.outcome:
            if state.main_pid != course.main_pid or state.invocation_id != course.invocation_id:
                course.outcome = "ended"
            else:
                server = self._server(course)
                self._ask(course, server)
                if course.found is None:
                    course.found = course.left
                if course.left == 0:
                    course.outcome = "drained" if course.found else "idle"
                elif not server.alive():
                    course.outcome = "ended"
                elif course.left is None and (course.misses >= _TRIES or over):
                    course.outcome = "not_asked"
                elif course.left is not None and over:
                    course.outcome = "aborted"
                course.drained_s = self.elapsed
        if course.outcome:
            self._end(course, state)

    def _end(self, course: Course, state: UnitState) -> None:
        if self._verb == "stop" and state.active_state in _GONE:
            course.phase = "ended"
            return
        # The job first: from now on the server tells its health checks that it is leaving, and what comes yet is aborted too.
        self._machine.keep_lease(lambda: self._machine.job(self._verb, course.unit))
        course.changed = True
        course.phase, course.job_at = "stopping", self._machine.monotonic()
        if course.outcome == "aborted":
            self._abort(course)

    def _abort(self, course: Course) -> None:
        now = self._machine.monotonic()
        if course.cannot_abort or (course.aborted_at is not None and now - course.aborted_at < _ABORT_AGAIN_S):
            return
        try:
            self._machine.keep_lease(self._server(course).abort_all)
        except NotAsked as error:
            course.cannot_abort = str(error)
            if not course.aborted:
                course.outcome = "not_aborted"
            return
        course.aborted_at = now
        course.aborted = max(course.aborted, course.left or 0)
        course.outcome = "aborted"

    def _see_out(self, course: Course, gone: bool) -> None:
        if gone:
            course.phase = "ended"
            course.left = 0 if course.left is not None else None
            return
        now = self._machine.monotonic()
        over = self._force or self.elapsed >= self._timeout
        asked = course.outcome not in ("not_asked", "not_aborted", "not_running", "ended") and course.main_pid
        if asked and now - course.asked_at >= _POLL_S and not self._server(course).reason:
            before = course.reason
            self._ask(course, self._server(course))
            course.reason = before
            if course.left and over:
                self._abort(course)
        if self._verb == "restart" and now - course.job_at >= _SEE_OUT_S and (over or not course.left):
            # The wait for readiness tells that it is stopping, and goes on with it.
            course.phase = "ended"
