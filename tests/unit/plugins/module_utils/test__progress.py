# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stall clocks: what moves them, what does not, and when a server counts as hung."""

from __future__ import annotations

import json
import typing as t
from collections.abc import Callable

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._progress import (
    CPU,
    CPU_SHARE,
    IO_RATE,
    MEMORY_RATE,
    ProcessSample,
    Progress,
    Repeats,
    is_own_probe,
)

MIB = 2**20


def process(pid: int = 90, role: str = "scheduler", **changes: t.Any) -> ProcessSample:
    values: dict[str, t.Any] = {
        "pid": pid,
        "start_ticks": 1,
        "role": role,
        "rank": "TP0",
        "state": "S",
        "cpu_s": 0.0,
        "children_cpu_s": 0.0,
        "rss_bytes": 100 * MIB,
        "io_bytes": 0,
        **changes,
    }
    return ProcessSample(**values)


def run(
    at: Callable[[float], list[ProcessSample]],
    *,
    until: float,
    stall_s: float = 100.0,
    spin_s: float = 200.0,
    step: float = 1.0,
    port_open: bool = False,
    idle_spins: bool = False,
) -> tuple[str, float]:
    """(verdict, when); "" when there was none until then."""
    progress = Progress(stall_s=stall_s, spin_s=spin_s, now=0.0)
    now = 0.0
    while now <= until:
        progress.sample(at(now), now, port_open=port_open)
        verdict = progress.verdict(now, idle_spins=idle_spins)
        if verdict:
            return verdict, now
        now += step
    return "", now


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param(lambda _now: {}, "stalled", id="nothing"),
        pytest.param(lambda now: {"cpu_s": now}, "spinning", id="cpu"),
        pytest.param(lambda now: {"cpu_s": 0.02 * now}, "stalled", id="the cpu of a process that polls"),
        pytest.param(lambda now: {"cpu_s": CPU_SHARE * 1.1 * now}, "spinning", id="cpu, just enough"),
        pytest.param(lambda now: {"io_bytes": int(IO_RATE * 1.1 * now)}, "", id="a slow loader that reads"),
        pytest.param(lambda now: {"io_bytes": int(8000 * now)}, "stalled", id="wake-ups of a barrier"),
        pytest.param(lambda now: {"io_bytes": 100_000 * int(now / 25)}, "stalled", id="a heartbeat that reads"),
        pytest.param(lambda now: {"io_bytes": 50 * MIB * int(now / 50)}, "", id="a burst of reading each 50 s"),
        pytest.param(lambda now: {"rss_bytes": int(MEMORY_RATE * 1.1 * now)}, "", id="a slow loader that grows"),
        pytest.param(lambda now: {"rss_bytes": int(100 * now)}, "stalled", id="a small leak"),
        pytest.param(lambda now: {"rss_bytes": int(2**40 - 10 * MIB * now)}, "stalled", id="pages that are taken away"),
        pytest.param(lambda _now: {"io_bytes": None}, "stalled", id="no permission to see the I/O"),
        pytest.param(lambda now: {"children_cpu_s": 0.2 * now}, "", id="short compilers, seen by their parent only"),
    ],
)
def test_signals(changes: Callable[[float], dict[str, t.Any]], verdict: str) -> None:
    found, when = run(lambda now: [process(**changes(now))], until=400.0)
    assert found == verdict
    if verdict:
        assert when == pytest.approx({"stalled": 100.0, "spinning": 200.0}[verdict], abs=1.0)


@pytest.mark.parametrize(
    ("role", "port_open", "verdict"),
    [
        pytest.param("scheduler", True, "", id="a scheduler counts always"),
        pytest.param("detokenizer", True, "", id="the detokenizer too"),
        pytest.param("data_parallel_controller", True, "", id="the controller too"),
        pytest.param("compiler", True, "", id="a compiler too"),
        pytest.param("main", False, "", id="main while it loads"),
        pytest.param("main", True, "stalled", id="main once it can be polled"),
        pytest.param("tokenizer_worker", True, "stalled", id="a worker that is polled"),
        pytest.param("other", False, "", id="a rank that has no title yet"),
        pytest.param("other", True, "stalled", id="anything else later"),
        pytest.param("resource_tracker", False, "stalled", id="a helper of Python"),
    ],
)
def test_whose_signals_count(role: str, port_open: bool, verdict: str) -> None:
    def at(now: float) -> list[ProcessSample]:
        return [process(role=role, cpu_s=now, io_bytes=int(MIB * now))]

    assert run(at, until=150.0, port_open=port_open)[0] == verdict


def test_a_rank_that_works_is_enough() -> None:
    """The sum over many that wait is none, one that works is."""
    waiting = [process(90 + number, cpu_s=0.0) for number in range(8)]
    assert run(lambda now: [process(p.pid, cpu_s=0.02 * now) for p in waiting], until=150.0)[0] == "stalled"
    assert run(lambda now: [*waiting, process(99, io_bytes=int(MIB * now))], until=400.0)[0] == ""


def test_an_idle_scheduler_that_spins_is_no_sign_of_life() -> None:
    found = run(lambda now: [process(cpu_s=now)], until=150.0, idle_spins=True)
    assert found == ("stalled", 100.0)


def test_a_compiler_at_work_holds_spinning_off_and_a_stopped_one_does_not() -> None:
    def at(works: float) -> Callable[[float], list[ProcessSample]]:
        return lambda now: [process(cpu_s=now), process(91, "compiler", cpu_s=works * now)]

    assert run(at(1.0), until=400.0)[0] == ""
    assert run(at(0.0), until=400.0) == ("spinning", 200.0)


def test_processes_that_come_and_go_are_progress() -> None:
    progress = Progress(stall_s=100.0, spin_s=0.0, now=0.0)
    progress.sample([process()], 0.0, port_open=True)
    progress.sample([process(), process(91, "compiler")], 50.0, port_open=True)
    assert progress.since("compilers") == 50.0
    progress.sample([process()], 60.0, port_open=True)
    assert progress.since("compilers") == 60.0
    progress.sample([process(), process(92)], 70.0, port_open=True)
    assert progress.since("processes") == 70.0
    progress.sample([process(), process(92), process(93, "other")], 80.0, port_open=True)
    assert progress.verdict(169.0) == ""
    assert progress.verdict(170.0) == "stalled"


def test_a_pid_that_is_reused_is_another_process() -> None:
    progress = Progress(stall_s=100.0, spin_s=0.0, now=0.0)
    progress.sample([process(cpu_s=0.0)], 0.0, port_open=True)
    progress.sample([process(start_ticks=2, cpu_s=50.0)], 10.0, port_open=True)
    assert progress.since("processes") == 10.0
    assert progress.since(CPU) == 0.0


def test_gpu_memory_of_own_processes() -> None:
    progress = Progress(stall_s=100.0, spin_s=0.0, now=0.0)
    progress.sample([process(90)], 0.0, port_open=True)
    progress.note_gpu_memory({90: 1000.0, 4711: 5.0}, 10.0)
    assert progress.since("gpu_memory") == 10.0
    progress.note_gpu_memory({90: 1001.0, 4711: 5000.0}, 20.0)
    assert progress.since("gpu_memory") == 10.0
    progress.note_gpu_memory({90: 1100.0}, 30.0)
    assert progress.since("gpu_memory") == 30.0


def test_a_machine_that_was_paused_is_not_held_against_the_server() -> None:
    progress = Progress(stall_s=100.0, spin_s=200.0, now=0.0)
    progress.sample([process()], 0.0, port_open=True)
    progress.sample([process()], 1.0, port_open=True)
    progress.sample([process()], 1001.0, port_open=True)
    assert progress.verdict(1001.0) == ""
    assert progress.due_in(1001.0) == pytest.approx(99.0)


def test_0_is_never() -> None:
    assert run(lambda _now: [process()], until=500.0, stall_s=0.0, spin_s=0.0) == ("", 501.0)
    assert Progress(stall_s=0.0, spin_s=0.0, now=0.0).due_in(5.0) == float("inf")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        pytest.param({}, "stalled", id="nothing changed"),
        pytest.param({"cpu_s": 1000.02}, "stalled", id="too little"),
        pytest.param({"cpu_s": 1030.0}, "", id="cpu"),
        pytest.param({"io_bytes": 50 * MIB}, "", id="io"),
        pytest.param({"rss_bytes": 900 * MIB}, "", id="memory"),
        pytest.param({"start_ticks": 7}, "", id="another process"),
    ],
)
def test_clocks_go_on_in_the_next_slice(changes: dict[str, t.Any], verdict: str) -> None:
    """60 s in the first slice, 50 s without one, and what changed in between counts."""
    first = Progress(stall_s=100.0, spin_s=0.0, now=0.0)
    for now in range(61):
        first.sample([process(cpu_s=1000.0)], float(now), port_open=True)
    kept = json.loads(json.dumps(first.dump()))
    second = Progress(stall_s=100.0, spin_s=0.0, now=110.0, kept=kept)
    second.sample([process(**{"cpu_s": 1000.0, **changes})], 110.0, port_open=True)
    assert second.verdict(110.0) == verdict


def test_what_a_poll_adds_up_to_is_no_progress_of_the_next_slice() -> None:
    def polls(now: float) -> list[ProcessSample]:
        return [process(cpu_s=0.03 * now, io_bytes=int(20_000 * now), rss_bytes=int(30_000 * now))]

    first = Progress(stall_s=100.0, spin_s=0.0, now=0.0)
    for now in range(60):
        first.sample(polls(now), float(now), port_open=True)
    second = Progress(stall_s=100.0, spin_s=0.0, now=61.0, kept=json.loads(json.dumps(first.dump())))
    for now in range(61, 101):
        second.sample(polls(now), float(now), port_open=True)
    assert second.verdict(100.0) == "stalled"


def test_a_slice_without_a_sample_loses_nothing() -> None:
    first = Progress(stall_s=100.0, spin_s=0.0, now=0.0)
    first.sample([process()], 5.0, port_open=True)
    second = Progress(stall_s=100.0, spin_s=0.0, now=50.0, kept=json.loads(json.dumps(first.dump())))
    third = Progress(stall_s=100.0, spin_s=0.0, now=101.0, kept=json.loads(json.dumps(second.dump())))
    third.sample([process()], 101.0, port_open=True)
    assert third.verdict(101.0) == "stalled"


def test_what_is_kept_is_small() -> None:
    progress = Progress(stall_s=100.0, spin_s=0.0, now=0.0)
    many = [process(100 + number, "compiler") for number in range(500)]
    progress.sample([process(), *many], 0.0, port_open=True)
    progress.sample([process(), *many], 10.0, port_open=True)
    kept = json.loads(json.dumps(progress.dump()))
    assert len(json.dumps(kept)) < 12_000
    later = Progress(stall_s=100.0, spin_s=0.0, now=20.0, kept=kept)
    later.sample([process(), *many], 20.0, port_open=True)
    assert later.since("compilers") is None
    later = Progress(stall_s=100.0, spin_s=0.0, now=20.0, kept=kept)
    later.sample([process(), *many[1:]], 20.0, port_open=True)
    assert later.since("compilers") == 20.0


def test_cpu_use_is_of_the_last_seconds() -> None:
    progress = Progress(stall_s=100.0, spin_s=0.0, now=0.0)
    assert progress.cpu_percent(process()) is None
    for now in range(20):
        progress.sample([process(cpu_s=min(now, 10.0))], float(now), port_open=True)
    assert progress.cpu_percent(process()) == 0.0


@pytest.mark.parametrize(
    ("text", "own"),
    [
        pytest.param(
            "Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0,",
            True,
            id="as 0.5.23 logs it",
        ),
        pytest.param("Prefill batch, #new-seq: 1, #new-token: 6, #running-req: 3", False, id="beside others"),
        pytest.param("Prefill batch, #new-seq: 2, #new-token: 6, #running-req: 0", False, id="two prompts"),
        pytest.param("Prefill batch, #new-seq: 1, #new-token: 900, #running-req: 0", False, id="a long prompt"),
        pytest.param("Prefill batch", False, id="cut off"),
        pytest.param("Load weight begin. avail mem=21.60 GB", False, id="something else"),
    ],
)
def test_own_probes(text: str, own: bool) -> None:
    assert is_own_probe(text) is own


def test_repeats() -> None:
    repeats = Repeats()
    assert [repeats.is_new(text) for text in ("a", "b", "a", "b", "c")] == [True, True, False, False, True]
    for number in range(100):
        assert repeats.is_new(f"line {number}")
    assert repeats.is_new("a"), "forgotten long ago"
