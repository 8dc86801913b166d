# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._progress import CPU, Progress
from ansible_collections.specdec.serving.plugins.plugin_utils._slices import (
    SliceLoop,
    forks_warning,
    keepalive_arguments,
    plain,
    progress_line,
    remaining,
    stood_still,
)


class Lost(Exception):
    pass


class Controller:
    """A scripted module: each step is an answer or an exception; the clock moves by ``step`` seconds a call."""

    def __init__(self, script: list[t.Any], *, step: float = 1.0) -> None:
        self.script, self.step, self.now = script, step, 0.0
        self.calls: list[dict[str, t.Any]] = []
        self.reported: list[dict[str, t.Any]] = []
        self.complaints: list[str] = []
        self.abandoned = False
        self.kept: list[float] = []
        self.patience: float | None = None

    def execute(self, extra: dict[str, t.Any]) -> dict[str, t.Any]:
        self.calls.append(extra)
        self.now += self.step
        item = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(item, Exception):
            raise item
        return t.cast("dict[str, t.Any]", item)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, arguments: dict[str, t.Any] | None = None, *, check_mode: bool = False) -> dict[str, t.Any]:
        loop = SliceLoop(
            arguments=arguments or {},
            check_mode=check_mode,
            execute=self.execute,
            lost=Lost,
            report=self.reported.append,
            complain=self.complaints.append,
            monotonic=lambda: self.now,
            sleep=self.sleep,
            abandoned=lambda: self.abandoned,
            keep=lambda: self.kept.append(self.now),
            patience=self.patience,
        )
        return loop.run()


UNFINISHED = {"finished": False, "state": "loading", "resume": {"started": 1.0}}
READY = {"finished": True, "state": "ready", "ready": True}
FAILED = {"failed": True, "msg": "crashed"}


def test_slices_go_on_where_the_last_ended() -> None:
    controller = Controller([UNFINISHED, UNFINISHED, READY])
    assert controller.run() is READY
    assert controller.calls == [
        {"slice": 15.0},
        {"slice": 60.0, "resume": {"started": 1.0}},
        {"slice": 60.0, "resume": {"started": 1.0}},
    ]
    assert controller.reported == [UNFINISHED, UNFINISHED]


def test_something_may_be_kept_with_each_slice() -> None:
    controller = Controller([UNFINISHED, Lost("gone"), READY])
    controller.run()
    assert controller.kept == [0.0, 1.0, 3.0]


def test_a_host_that_is_silent_for_long_is_given_up() -> None:
    script: list[t.Any] = [UNFINISHED] * 50 + [Lost("Connection timed out")]
    controller = Controller(script)
    controller.patience = 30.0
    with pytest.raises(Lost):
        controller.run({"timeout": "14400"})
    assert 80 <= controller.now <= 82


def clocks(*, log: float = 0.0, cpu: float = 0.0, at: float = 1000.0, state: str = "loading") -> dict[str, t.Any]:
    """An answer at 1,000 s on the host's clock: log and CPU have stood still for so long, processes were seen at ``at``."""
    moved = {"log": 1000.0 - log, "io": 1000.0 - log, "memory": 1000.0 - log, "cpu": 1000.0 - cpu}
    return {
        "finished": False,
        "unit": "u.service",
        "phase": "binding",
        "state": state,
        "elapsed": 75,
        "detected_at_monotonic": 1000.0,
        "resume": {"stalls": {"progress": {"at": at, "moved": moved}}},
    }


@pytest.mark.parametrize(
    ("answer", "length"),
    [
        pytest.param(clocks(log=9.0, cpu=9.0), 60.0, id="it moves"),
        pytest.param(clocks(log=10.0, cpu=10.0), 30.0, id="nothing moves"),
        pytest.param(clocks(log=10.0), 30.0, id="only the CPU moves"),
    ],
)
def test_slices_are_shorter_while_something_stands_still(answer: dict[str, t.Any], length: float) -> None:
    controller = Controller([answer, READY])
    controller.run()
    assert controller.calls[1]["slice"] == length


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        pytest.param(clocks(log=29.0, cpu=29.0), "75 s", id="not yet worth a word"),
        pytest.param(clocks(log=118.6, cpu=61.0), "75 s | nothing has moved for 61 s", id="nothing"),
        pytest.param(clocks(log=118.6, cpu=2.0), "75 s | only the CPU has moved for 119 s", id="only the CPU"),
        pytest.param(clocks(log=118.6, cpu=118.6, at=990.0), "75 s", id="its processes were not looked at"),
        pytest.param(clocks(log=118.6, cpu=118.6, state="stopping"), "75 s", id="it is not the start that is awaited"),
    ],
)
def test_the_line_says_how_long_nothing_moved(answer: dict[str, t.Any], end: str) -> None:
    assert progress_line("ct200", answer).endswith(f" |   {end}")


def test_the_clocks_are_those_that_the_host_keeps() -> None:
    progress = Progress(stall_s=300, spin_s=600, now=940.0)
    for now in range(940, 1001, 2):
        progress.sample([], float(now), port_open=False)
    progress.note(CPU, 990.0)
    kept = json.loads(json.dumps({"stalls": {"progress": progress.dump()}}))
    assert stood_still({**clocks(), "resume": kept}) == (10.0, 60.0)


def test_a_failure_ends_the_wait() -> None:
    assert Controller([UNFINISHED, FAILED]).run() is FAILED


@pytest.mark.parametrize("arguments", [{"wait": False}, {"wait": "no"}, {"wait": "False"}])
def test_without_waiting_it_looks_once(arguments: dict[str, t.Any]) -> None:
    controller = Controller([READY])
    controller.run(arguments)
    assert controller.calls == [{}]


def test_check_mode_looks_once() -> None:
    controller = Controller([READY])
    controller.run(check_mode=True)
    assert controller.calls == [{}]


def test_dropped_connections_are_survived() -> None:
    controller = Controller([UNFINISHED, Lost("reset"), Lost("no route"), READY])
    assert controller.run() is READY
    assert controller.calls[-1]["resume"] == {"started": 1.0}
    assert [text.rpartition(" ")[2] for text in controller.complaints] == ["reset", "route"]


def test_a_host_that_stays_away_is_let_through_after_the_timeout() -> None:
    controller = Controller([UNFINISHED, Lost("gone")])
    with pytest.raises(Lost):
        controller.run({"timeout": 100})
    assert 130 <= controller.now <= 135


@pytest.mark.parametrize(
    "text",
    [
        "Data could not be sent to remote host x. Make sure this host can be reached over ssh: ssh: connect to host x: timed out",
        "Failed to connect to the host via ssh: ssh: Could not resolve hostname x: Name or service not known",
    ],
)
def test_a_host_that_never_answered_is_given_up_early(text: str) -> None:
    controller = Controller([Lost(text)])
    with pytest.raises(Lost):
        controller.run({"timeout": "1350"})
    assert 60 <= controller.now <= 65


@pytest.mark.parametrize(
    "text",
    [
        "Failed to connect to the host via ssh: Timeout, server 127.0.0.1 not responding.",
        "Failed to connect to the host via ssh: Connection to 10.0.0.1 closed by remote host.",
        "Failed to connect to the host via ssh: client_loop: send disconnect: Broken pipe",
        'Data could not be sent to remote host "10.0.0.1". Make sure this host can be reached over ssh: ',
        "Failed to connect to the host via ssh: Shared connection to 127.0.0.1 closed.",
        "Data could not be sent to remote host: Shared connection reset by peer: Connection reset by peer",
    ],
)
def test_a_host_that_was_lost_before_its_first_answer_is_no_misspelt_one(text: str) -> None:
    controller = Controller([Lost(text), Lost("Connection timed out")])
    with pytest.raises(Lost):
        controller.run({"timeout": "200"})
    assert 230 <= controller.now <= 235


def test_the_wait_ends_with_its_controller() -> None:
    controller = Controller([UNFINISHED])

    def execute(extra: dict[str, t.Any]) -> dict[str, t.Any]:
        controller.abandoned = True
        return Controller.execute(controller, extra)

    controller.execute = execute  # type: ignore[method-assign]  # for this test
    with pytest.raises(ValueError, match="ansible-playbook is gone"):
        controller.run()
    assert len(controller.calls) == 1


@pytest.mark.parametrize("value", ["soon", 0, "-1", "nan"])
def test_a_timeout_that_is_none_is_named_before_the_host_is_asked(value: t.Any) -> None:
    controller = Controller([READY])
    with pytest.raises(ValueError, match=f"timeout {value!r}"):
        controller.run({"timeout": value})
    assert controller.calls == []


@pytest.mark.parametrize("arguments", [{"timeout": "auto"}, {"timeout": None}, {}])
def test_the_default_holds_until_the_host_told_another(arguments: dict[str, t.Any]) -> None:
    controller = Controller([{**UNFINISHED, "timeout": 1350.0}, Lost("gone")])
    with pytest.raises(Lost):
        controller.run(arguments)
    assert 1380 <= controller.now <= 1385


def test_the_automatic_timeout_is_what_the_host_tells() -> None:
    controller = Controller([{**UNFINISHED, "timeout": 5000.0}, Lost("gone")], step=10.0)
    with pytest.raises(Lost):
        controller.run({"timeout": "auto"})
    assert 5030 <= controller.now <= 5045


def test_a_given_timeout_is_not_changed_by_the_host() -> None:
    controller = Controller([{**UNFINISHED, "timeout": 5000.0}, Lost("gone")])
    with pytest.raises(Lost):
        controller.run({"timeout": "100"})
    assert 130 <= controller.now <= 135


def test_what_is_left_of_the_wait() -> None:
    assert remaining({"timeout": 100.0, "elapsed": 40.5}) == 59.5
    assert remaining({"timeout": 100.0, "elapsed": 140.5}) == 0.0


@pytest.mark.parametrize(
    ("arguments", "adds"),
    [
        ("", True),
        ("-C -o ControlMaster=auto -o ControlPersist=60s", True),
        ("-o serveraliveinterval=30", False),
        ("-o ControlMaster=auto -oServerAliveInterval=5", False),
    ],
)
def test_a_connection_of_its_own_where_nobody_looks_after_it(arguments: str, adds: bool) -> None:
    added = keepalive_arguments(arguments)
    assert ("ServerAliveInterval=5" in added and "ControlPath=none" in added) is adds
    assert adds or not added


@pytest.mark.parametrize(("hosts", "forks", "warns"), [(1, 1, False), (5, 5, False), (6, 5, True)])
def test_forks(hosts: int, forks: int, warns: bool) -> None:
    assert (f"--forks {hosts}" in forks_warning(hosts, forks)) is warns


class Tagged(str):
    """Like ansible-core's tagged strings: a subclass."""

    __slots__ = ()


def test_plain_types() -> None:
    value = plain({"a": Tagged("x"), "b": [Tagged("y"), 1, True, None]})
    assert type(value["a"]) is str
    assert value == {"a": "x", "b": ["y", 1, True, None]}


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            {
                "unit": "sglang-k26.service",
                "phase": "loading_weights",
                "markers": {"seen": 3, "expected": 16},
                "elapsed": 41.4,
                "weights": [{"mem_usage_gb": 70.0}, {"mem_usage_gb": 2.24}],
            },
            "ct200 | sglang-k26.service | loading_weights     | ranks  3/16 |   41 s | weights 72.2 GB a rank",
        ),
        (
            {"unit": "u.service", "state": "stopping", "phase": "", "draining": 2, "elapsed": 5},
            "ct200 | u.service | stopping, 2 requests left |    5 s",
        ),
        (
            {"unit": "u.service", "state": "loading", "phase": "", "elapsed": 0},
            "ct200 | u.service | loading             |    0 s",
        ),
        (
            {"unit": "u.service", "state": "loading", "phase": "starting", "elapsed": 15, "uptime": 24.3},
            "ct200 | u.service | starting            |   15 s | started 24 s ago",
        ),
        (
            {"unit": "u.service", "state": "loading", "phase": "starting", "elapsed": 15, "uptime": 14.2},
            "ct200 | u.service | starting            |   15 s",
        ),
    ],
)
def test_progress_line(answer: dict[str, t.Any], line: str) -> None:
    assert progress_line("ct200", answer) == line


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        ({"left_s": 94.6, "slowest_s": 200.0, "from": 3, "longer": False}, "about 95 s left"),
        ({"left_s": 0.0, "slowest_s": 95.2, "from": 1, "longer": True}, "longer than the earlier start (95 s at most)"),
        (
            {"left_s": 3.0, "slowest_s": 95.2, "from": 3, "longer": True},
            "longer than each of 3 earlier starts (95 s at most)",
        ),
    ],
)
def test_the_estimate_in_words(estimate: dict[str, t.Any], text: str) -> None:
    answer = {"unit": "u.service", "phase": "binding", "elapsed": 0, "estimate": estimate}
    assert progress_line("ct200", answer).endswith(f" |    0 s | {text}")


def test_lines_of_several_hosts_are_aligned() -> None:
    lines = [
        progress_line(host, {"unit": "u.service", "phase": phase, "elapsed": elapsed}, 5)
        for host, phase, elapsed in (("ct200", "allocating_kv_cache", 5), ("b300", "binding", 1024))
    ]
    assert len({line.index("| u.service") for line in lines}) == 1
    assert len({len(line) for line in lines}) == 1
