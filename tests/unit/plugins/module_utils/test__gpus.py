# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""nvidia-smi: what it answers, and that nobody ever waits for it."""

from __future__ import annotations

import typing as t
from collections.abc import Sequence

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._gpus import (
    GpuState,
    GpuWatch,
    parse_apps,
    parse_gpus,
)

GPUS = """\
0, GPU-1d8a3f4e-0001, NVIDIA RTX PRO 6000 Blackwell Server Edition, 100, 91.24, 600.00, 81234
1, GPU-1d8a3f4e-0002, NVIDIA RTX PRO 6000 Blackwell Server Edition, [N/A], [Unknown Error], [N/A], 81234
No devices were found
"""
APPS = """\
4711, GPU-1d8a3f4e-0001, 81000
4711, GPU-1d8a3f4e-0002, 80000
4712, GPU-1d8a3f4e-0002, [N/A]
"""


def gpu(utilization: float | None = 100.0, power: float | None = 90.0, limit: float | None = 600.0) -> GpuState:
    return GpuState(0, "GPU-a", "NVIDIA B300", utilization, power, limit, 1000.0)


@pytest.mark.parametrize(
    ("state", "spins"),
    [
        pytest.param(gpu(), True, id="full at idle power"),
        pytest.param(gpu(power=480.0), False, id="at work"),
        pytest.param(gpu(utilization=0.0), False, id="idle"),
        pytest.param(gpu(power=None), False, id="power unknown"),
        pytest.param(gpu(limit=None), False, id="limit unknown"),
        pytest.param(gpu(utilization=None), False, id="utilisation unknown"),
    ],
)
def test_full_utilisation_at_idle_power(state: GpuState, spins: bool) -> None:
    assert state.spins is spins


def test_gpus_are_parsed_with_what_the_driver_does_not_tell() -> None:
    first, second = parse_gpus(GPUS)
    assert (first.index, first.utilization_percent, first.power_w, first.power_limit_w) == (0, 100.0, 91.24, 600.0)
    assert (second.utilization_percent, second.power_w, second.memory_used_mib) == (None, None, 81234.0)


def test_memory_of_a_process_is_added_up_over_its_gpus() -> None:
    memory, uuids = parse_apps(APPS)
    assert memory == {4711: 161000.0}
    assert uuids[4711] == {"GPU-1d8a3f4e-0001", "GPU-1d8a3f4e-0002"}
    assert uuids[4712] == {"GPU-1d8a3f4e-0002"}


@pytest.mark.parametrize("text", ["", "\n", "ERR!", "a, b, c", "NVIDIA-SMI has failed because it couldn't communicate"])
def test_nonsense_is_nothing(text: str) -> None:
    assert parse_gpus(text) == ()
    assert parse_apps(text) == ({}, {})


class Query:
    """A run of nvidia-smi that answers when the test says so."""

    def __init__(self, argv: Sequence[str], now: float) -> None:
        self.argv = list(argv)
        self.began = now
        self.result: tuple[int, str] | None = None
        self.given_up = False

    def answer(self) -> tuple[int, str] | None:
        return self.result

    def give_up(self) -> None:
        self.given_up = True


class Machine:
    def __init__(self, program: str | None = "/usr/bin/nvidia-smi") -> None:
        self.now = 0.0
        self.queries: list[Query] = []
        self.watch = GpuWatch(clock=lambda: self.now, program=program, start=self._start)

    def _start(self, argv: Sequence[str], now: float) -> t.Any:
        self.queries.append(Query(argv, now))
        return self.queries[-1]


def test_without_the_program_nothing_is_asked() -> None:
    machine = Machine(program=None)
    machine.watch.ask()
    assert machine.watch.view().gpus == ()
    assert machine.queries == []


def test_answers_are_taken_when_they_are_there() -> None:
    machine = Machine()
    machine.watch.ask()
    machine.watch.ask()
    assert [query.argv[1].partition("=")[0] for query in machine.queries] == ["--query-gpu", "--query-compute-apps"]
    assert machine.watch.view().gpus == ()
    machine.queries[0].result = (0, GPUS)
    assert len(machine.watch.view().gpus) == 2
    machine.queries[1].result = (0, APPS)
    assert machine.watch.view().apps == {4711: 161000.0}
    machine.watch.ask()
    assert len(machine.queries) == 4
    assert len(machine.watch.view().gpus) == 2, "the old answer stands until there is a new one"


def test_only_the_gpus_of_the_server_are_shown_where_they_are_known() -> None:
    machine = Machine()
    machine.watch.ask()
    machine.queries[0].result = (0, GPUS)
    machine.queries[1].result = (0, APPS)
    assert [gpu.index for gpu in machine.watch.view({4712}).gpus] == [1]
    assert [gpu.index for gpu in machine.watch.view({1}).gpus] == [0, 1]


def test_a_driver_that_does_not_answer_is_told_and_not_waited_for() -> None:
    machine = Machine()
    machine.watch.ask()
    machine.now = 5.0
    assert machine.watch.view().silent_for == 0.0
    machine.now = 60.0
    assert machine.watch.view().silent_for == 60.0
    machine.watch.ask()
    assert len(machine.queries) == 2, "no second one beside a stuck one"
    machine.watch.close()
    assert all(query.given_up for query in machine.queries)


def test_a_failed_query_keeps_its_reason() -> None:
    machine = Machine()
    machine.watch.ask()
    machine.queries[0].result = (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert "nvidia-smi failed (9)" in machine.watch.view().error


def test_a_program_that_cannot_be_started_is_not_tried_again() -> None:
    tried: list[float] = []

    def start(_argv: Sequence[str], now: float) -> t.Any:
        tried.append(now)
        raise PermissionError("not executable")

    watch = GpuWatch(clock=lambda: 0.0, program="/usr/bin/nvidia-smi", start=start)
    watch.ask()
    watch.ask()
    assert len(tried) == 1
    assert "cannot be started" in watch.view().error
