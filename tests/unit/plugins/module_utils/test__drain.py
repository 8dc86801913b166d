# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The course of a drain on a scripted host: time passes only when it waits."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._drain import (
    Course,
    Drain,
    DrainError,
    Machine,
    Server,
    Target,
)
from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseLost
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState
from ansible_collections.specdec.serving.plugins.module_utils._traffic import Load, NotAsked

#: s, until a server that was told to stop and has no requests is gone.
_STOPS_S = 3.0


class FakeServer(Server):
    """Requests end at the given times (s); after SIGTERM it ends once it has none, as SGLang does."""

    def __init__(self, host: Host, pid: int, ends: t.Sequence[float] = ()) -> None:
        self.host, self.pid, self.ends, self.port = host, pid, list(ends), 30000
        self.told_to_stop: float | None = None
        self.killed = False
        self.fault: NotAsked | None = None
        self.abort_fault: NotAsked | None = None
        self.clients: int | None = 0
        self.asked = self.aborts = 0

    def left(self) -> int:
        return sum(end > self.host.now for end in self.ends)

    def alive(self) -> bool:
        if self.killed:
            return False
        if self.told_to_stop is None:
            return True
        idle_at = max([self.told_to_stop, *(end for end in self.ends if end <= self.host.now)])
        return bool(self.left()) or self.host.now < idle_at + _STOPS_S

    def load(self) -> Load:
        self.asked += 1
        if self.fault:
            raise self.fault
        return Load(self.left(), 0)

    def abort_all(self) -> None:
        self.aborts += 1
        if self.abort_fault:
            raise self.abort_fault
        self.ends = [min(end, self.host.now) for end in self.ends]

    def connections(self) -> int | None:
        return self.clients


class Host(Machine):
    """Units by name; ``jobs`` are what systemd was asked for."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.servers: dict[str, FakeServer] = {}
        self.jobs: list[tuple[float, str, str]] = []
        self.lost = False
        self.kept = 0
        self.stop_timeout = 300.0

    def serve(self, unit: str, *ends: float) -> FakeServer:
        self.servers[unit] = FakeServer(self, 100 + len(self.servers), [self.now + end for end in ends])
        return self.servers[unit]

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        for server in self.servers.values():
            if server.told_to_stop is not None and self.now - server.told_to_stop >= self.stop_timeout:
                server.killed = True

    def show(self, unit: str) -> UnitState:
        server = self.servers.get(unit)
        if server is None:
            return UnitState()
        state = UnitState(
            load_state="loaded", active_state="active", main_pid=server.pid, invocation_id=f"{server.pid:032x}"
        )
        if server.told_to_stop is not None:
            state = dataclasses.replace(state, active_state="deactivating")
        if not server.alive():
            state = dataclasses.replace(state, active_state="inactive", main_pid=0)
        return state

    def server(self, state: UnitState) -> Server:
        return next(server for server in self.servers.values() if server.pid == state.main_pid)

    def job(self, verb: str, unit: str) -> None:
        self.jobs.append((self.now - 1000.0, verb, unit))
        if unit in self.servers:
            self.servers[unit].told_to_stop = self.now

    def keep_lease(self, work: t.Callable[[], None]) -> None:
        if self.lost:
            raise LeaseLost("taken over")
        self.kept += 1
        work()


@pytest.fixture
def host() -> Host:
    return Host()


def drain(
    host: Host, verb: str = "stop", *, timeout: float = 60, force: bool = False, units: str = "a"
) -> dict[str, Course]:
    """In slices of 15 s, each a process of its own: what is kept between them goes through JSON."""
    targets = [Target(unit) for unit in units]
    resume = None
    while True:
        run = Drain(targets, host, verb=verb, timeout=timeout, force=force)
        courses, finished = run.run(slice_s=15.0, resume=resume)
        if finished:
            return {course.unit: course for course in courses}
        resume = json.loads(json.dumps(run.resume(courses)))


def test_without_requests_it_is_stopped_at_once(host: Host) -> None:
    host.serve("a")
    course = drain(host)["a"]
    assert (course.outcome, course.changed, course.found, course.aborted) == ("idle", True, 0, 0)
    assert host.jobs == [(0.0, "stop", "a")]
    assert course.report()["msg"] == "it had no requests"
    assert host.show("a").active_state == "inactive"


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_requests_may_end(host: Host, verb: str) -> None:
    server = host.serve("a", 4.5, 20.5)
    course = drain(host, verb)["a"]
    assert (course.outcome, course.found, course.aborted, server.aborts) == ("drained", 2, 0, 0)
    assert host.jobs == [(21.0, verb, "a")]
    assert course.report()["msg"] == "its 2 requests ended within 21.0 s"
    assert course.report()["phase"] == "ended"


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_when_the_time_is_up_they_are_aborted(host: Host, verb: str) -> None:
    server = host.serve("a", 4.5, 1000, 2000)
    course = drain(host, verb)["a"]
    assert (course.outcome, course.found, course.aborted, server.aborts) == ("aborted", 3, 2, 1)
    assert host.jobs == [(60.0, verb, "a")]
    assert course.report()["msg"] == "2 requests were aborted after 60.0 s"
    assert host.now - 1000 < 60 + _STOPS_S + 1


def test_what_comes_in_while_it_stops_is_aborted_too(host: Host) -> None:
    server = host.serve("a", 1000)
    before = server.abort_all

    def another() -> None:
        before()
        if server.aborts < 4:
            server.ends.append(host.now + 1000)

    server.abort_all = another  # type: ignore[method-assign]  # clients that try again at once
    course = drain(host, timeout=10)["a"]
    assert (course.outcome, server.aborts) == ("aborted", 4)
    assert host.now - 1000 < 30


def test_what_comes_in_while_it_stops_may_end_in_time(host: Host) -> None:
    server = host.serve("a")
    host.jobs.append((0.0, "none", ""))
    job = host.job

    def late(verb: str, unit: str) -> None:
        job(verb, unit)
        server.ends.append(host.now + 20)

    host.job = late  # type: ignore[method-assign]  # a request that was not counted yet
    course = drain(host)["a"]
    assert (course.outcome, server.aborts) == ("idle", 0)
    assert 20 <= host.now - 1000 < 30


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_without_time_it_is_refused(host: Host, verb: str) -> None:
    host.serve("a")
    host.serve("b", 1000, 1000)
    with pytest.raises(
        DrainError, match=r"^b has 2 requests running\. No time was given .*nothing was stopped.*sglang_force"
    ):
        drain(host, verb, timeout=0, units="ab")
    # Not the one without requests either: all or none.
    assert host.jobs == []


def test_without_time_and_without_requests_it_is_not(host: Host) -> None:
    host.serve("a")
    assert drain(host, timeout=0)["a"].outcome == "idle"


def test_a_health_check_is_no_request(host: Host) -> None:
    host.serve("a", 0.1)
    assert drain(host, timeout=0)["a"].outcome == "idle"
    assert host.jobs[0][0] < 1.0


@pytest.mark.parametrize("timeout", [0, 60])
def test_by_force_they_are_aborted_at_once(host: Host, timeout: float) -> None:
    server = host.serve("a", 1000, 1000)
    course = drain(host, timeout=timeout, force=True)["a"]
    assert (course.outcome, course.aborted, server.aborts) == ("aborted", 2, 1)
    assert host.jobs == [(0.0, "stop", "a")]


def test_a_server_that_cannot_be_asked_is_not_asked_for_ever(host: Host) -> None:
    server = host.serve("a")
    server.fault, server.clients = NotAsked("no answer before the deadline"), 4
    course = drain(host)["a"]
    assert (course.outcome, server.asked, server.aborts) == ("not_asked", 3, 0)
    assert host.jobs[0][0] < 5
    assert course.report()["msg"] == (
        "it could not be asked for its requests (no answer before the deadline, 4 open connections), so it was stopped without"
        " draining; SGLang lets them end for as long as the unit's stop timeout"
    )


def test_nor_asked_again_when_it_never_will_tell(host: Host) -> None:
    server = host.serve("a")
    server.fault = NotAsked("401", final=True)
    assert drain(host)["a"].outcome == "not_asked"
    assert server.asked <= 2


def test_one_that_answers_now_and_then_is_waited_for(host: Host) -> None:
    server = host.serve("a", 30)
    answers = iter(range(1000))
    load = server.load

    def now_and_then() -> Load:
        if next(answers) % 3:
            raise NotAsked("busy")
        return load()

    server.load = now_and_then  # type: ignore[method-assign]  # a busy server
    assert drain(host)["a"].outcome == "drained"


@pytest.mark.parametrize(("clients", "refused"), [(4, True), (0, False), (None, False)])
def test_without_time_its_connections_count(host: Host, clients: int | None, refused: bool) -> None:
    server = host.serve("a")
    server.fault, server.clients = NotAsked("no answer"), clients
    if refused:
        with pytest.raises(
            DrainError, match=r"a could not be asked for its requests .no answer. and has 4 open connections"
        ):
            drain(host, timeout=0)
        assert host.jobs == []
    else:
        assert drain(host, timeout=0)["a"].outcome == "not_asked"


def test_a_hung_server_whose_requests_do_not_end(host: Host) -> None:
    server = host.serve("a", 5000)
    server.abort_fault = NotAsked("no answer")
    course = drain(host, timeout=10)["a"]
    assert (course.outcome, server.aborts) == ("not_aborted", 1)
    # systemd ended it.
    assert 310 <= host.now - 1000 < 312
    assert "could not be aborted (no answer); systemd ends them" in course.report()["msg"]


def test_a_restart_leaves_the_rest_to_the_wait_for_readiness(host: Host) -> None:
    host.serve("a", 5000).abort_fault = NotAsked("no answer")
    assert drain(host, "restart", timeout=10)["a"].outcome == "not_aborted"
    assert 30 <= host.now - 1000 < 32


@pytest.mark.parametrize(
    ("reason", "idle", "outcome"),
    [("nothing listens on port 30000 yet", True, "idle"), ("it lives in another network", False, "not_asked")],
)
def test_a_server_that_need_not_be_asked(host: Host, reason: str, idle: bool, outcome: str) -> None:
    server = host.serve("a")
    server.reason, server.idle = reason, idle
    course = drain(host)["a"]
    assert (course.outcome, server.asked, course.reason) == (outcome, 0, reason)
    assert reason in course.report()["msg"]
    assert host.jobs == [(0.0, "stop", "a")]


def test_a_unit_that_does_not_run(host: Host) -> None:
    course = drain(host)["a"]
    assert (course.outcome, course.changed, host.jobs) == ("not_running", False, [])
    course = drain(host, "restart")["a"]
    assert (course.outcome, course.changed, host.jobs) == ("not_running", True, [(0.0, "restart", "a")])


def test_a_server_that_ends_by_itself(host: Host) -> None:
    server = host.serve("a", 30, 1000)
    pause = host.pause

    def crash(seconds: float) -> None:
        pause(seconds)
        server.killed = host.now >= 1005

    host.pause = crash  # type: ignore[method-assign]  # it crashes meanwhile
    course = drain(host)["a"]
    assert (course.outcome, course.changed, host.jobs) == ("ended", False, [])
    assert course.report()["msg"] == "it ended by itself while 2 requests were waited for"


def test_each_is_stopped_when_it_is_free(host: Host) -> None:
    host.serve("a", 20)
    host.serve("b")
    host.serve("c", 5000)
    courses = drain(host, units="abcd")
    assert [course.outcome for course in courses.values()] == ["drained", "idle", "aborted", "not_running"]
    assert host.jobs == [(0.0, "stop", "b"), (20.0, "stop", "a"), (60.0, "stop", "c")]


def test_an_answer_that_was_lost_restarts_nothing_twice(host: Host) -> None:
    server = host.serve("a")
    target = Target("a", replaces="0" * 32)
    courses, finished = Drain([target], host, verb="restart", timeout=60).run()
    assert (courses[0].outcome, courses[0].changed, finished, host.jobs) == ("restarted", False, True, [])
    target = Target("a", replaces=f"{server.pid:032x}")
    courses, finished = Drain([target], host, verb="restart", timeout=60).run()
    assert (courses[0].outcome, len(host.jobs)) == ("idle", 1)


@pytest.mark.parametrize("ends", [(), (1000.0,)])
def test_nothing_is_stopped_without_the_lease(host: Host, ends: tuple[float, ...]) -> None:
    host.serve("a", *ends)
    host.lost = True
    with pytest.raises(LeaseLost):
        drain(host, timeout=5)
    assert host.jobs == []


def test_a_look_changes_nothing(host: Host) -> None:
    host.serve("a", 1000, 1000)
    host.serve("b")
    courses = Drain([Target(unit) for unit in "abc"], host, verb="stop", timeout=0).look()
    assert [(course.found, course.changed) for course in courses] == [(2, True), (0, True), (None, False)]
    assert [course.report()["outcome"] for course in courses] == ["waiting", "waiting", "not_running"]
    assert courses[0].report()["msg"] == "2 requests left"
    assert host.jobs == []
    assert Drain([Target("c")], host, verb="restart", timeout=0).look()[0].changed
