# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._slices import SliceLoop, plain, progress_line


class Lost(Exception):
    pass


class Controller:
    """A scripted module: each step is an answer or an exception; the clock moves by ``step`` seconds a call."""

    def __init__(self, script: list[t.Any], *, step: float = 1.0) -> None:
        self.script, self.step, self.now = script, step, 0.0
        self.calls: list[dict[str, t.Any]] = []
        self.reported: list[dict[str, t.Any]] = []
        self.complaints: list[str] = []
        self.parent = 42

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
            parent=lambda: self.parent,
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


def test_a_host_that_never_answered_is_given_up_early() -> None:
    controller = Controller([Lost("no such host")])
    with pytest.raises(Lost):
        controller.run({"timeout": "1350"})
    assert 60 <= controller.now <= 65


def test_the_wait_ends_with_its_controller() -> None:
    controller = Controller([UNFINISHED])

    def execute(extra: dict[str, t.Any]) -> dict[str, t.Any]:
        controller.parent = 1
        return Controller.execute(controller, extra)

    controller.execute = execute  # type: ignore[method-assign]  # for this test
    with pytest.raises(ValueError, match="ansible-playbook is gone"):
        controller.run()
    assert len(controller.calls) == 1


def test_a_timeout_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="'soon'"):
        Controller([Lost("x")]).run({"timeout": "soon"})


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
            "ct200 | sglang-k26.service | loading_weights | ranks 3/16 | 41 s | weights 72.2 GB a rank",
        ),
        (
            {"unit": "u.service", "state": "stopping", "phase": "", "draining": 2, "elapsed": 5},
            "ct200 | u.service | stopping, 2 requests left | 5 s",
        ),
        ({"unit": "u.service", "state": "loading", "phase": "", "elapsed": 0}, "ct200 | u.service | loading | 0 s"),
    ],
)
def test_progress_line(answer: dict[str, t.Any], line: str) -> None:
    assert progress_line("ct200", answer) == line
