# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.performance import bench, rows, sweeps
from ansible_collections.specdec.serving.tests.support.observer import races
from ansible_collections.specdec.serving.tests.support.sweeps import twelve


def look(name: str, says: str, began: float, ended: float) -> dict[str, t.Any]:
    return {"name": name, "says": says, "began": began, "ended": ended}


def start(
    *, at: float = 100.3, requests: t.Sequence[t.Any] = (), loop: float = 110.0, uri: float = 101.0
) -> dict[str, t.Any]:
    """A start that truly was ready at 100."""
    return {
        "kind": "start",
        "ready": 100.0,
        "wait": {"ready": True, "detected_at_monotonic": at, "requests": list(requests)},
        "looks": [
            look("loop", "ready", 95.0, 95.1),
            look("loop", "ready", loop, loop + 0.1),
            look("uri", "ready", uri, uri + 1.0),
            look("wait_for", "ready", 99.0, 99.1),
            look("wait_for", "ready", 100.5, 100.6),
            look("journal", "ready", 104.0, 104.1),
        ],
    }


def crash(*, at: float = 50.1, cause: str = "exception") -> dict[str, t.Any]:
    wait = {"state": "crashed", "cause": cause, "summary": "died", "detected_at_monotonic": at}
    looks = [look("loop", "failed", 57.0, 57.1)]
    return {"kind": "crash", "crash": "unknown flag", "ended": 50.0, "wait": wait, "looks": looks}


def test_the_percentile_is_a_value_that_was_measured() -> None:
    assert rows.p95(list(range(1, 101))) == 95
    assert rows.p95([3.0]) == 3.0
    with pytest.raises(ValueError, match="no values"):
        rows.p95([])


@pytest.mark.parametrize(
    ("at", "requests", "lag"),
    [
        pytest.param(100.3, [], 0.3, id="nothing asked"),
        pytest.param(100.3, [("/v1/models", 98.0, 99.0)], 0.3, id="asked before"),
        pytest.param(100.3, [("/ready", 99.9, 100.1), ("/generate", 100.1, 100.2)], 0.1, id="asked across and after"),
        pytest.param(99.9, [("/generate", 99.0, 99.8)], -0.1, id="early"),
    ],
)
def test_our_lag_is_without_our_own_requests(at: float, requests: list[t.Any], lag: float) -> None:
    assert rows.own_lag(start(at=at, requests=requests)) == pytest.approx(lag)


def test_the_lag_of_a_baseline_is_that_of_its_first_true_word() -> None:
    looks = start()["looks"]
    assert rows.baseline_lag(looks, name="loop", says="ready", truth=100.0) == (True, 10.0)
    assert rows.baseline_lag(looks, name="uri", says="ready", truth=100.0) == (False, 1.0)
    asked_before = [look("uri", "ready", 99.5, 100.5)]
    assert rows.baseline_lag(asked_before, name="uri", says="ready", truth=100.0) == (False, 0.0)


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        pytest.param({"at": 100.1}, True, id="all goals"),
        pytest.param({"at": 100.3}, False, id="too late"),
        pytest.param({"at": 99.9}, False, id="early"),
        pytest.param({"at": 100.2, "loop": 105.0}, False, id="not 30 times faster than the loop"),
        pytest.param({"at": 100.2, "uri": 100.9}, False, id="not 5 times faster than uri"),
    ],
)
def test_the_goals_of_ready_lag(changes: dict[str, t.Any], met: bool) -> None:
    row = rows.ready_lag([start(**changes)] * 3, [1.5])
    assert (row.met, row.n) == (met, 3)
    assert row.baselines["loop"]["early"] == 3
    assert row.details["task_returned"]["n"] == 1


def test_a_ready_start_that_was_not_told_is_no_figure() -> None:
    given_up = {**start(), "wait": {"ready": False}}
    with pytest.raises(ValueError, match="1 starts"):
        rows.ready_lag([start(), given_up], [])


@pytest.mark.parametrize(
    ("record", "met"),
    [
        pytest.param(crash(), True, id="in time, explained"),
        pytest.param(crash(at=50.3), False, id="late"),
        pytest.param(crash(cause=""), False, id="not explained"),
    ],
)
def test_the_goals_of_crash_lag(record: dict[str, t.Any], met: bool) -> None:
    row = rows.crash_lag([record])
    assert row.met is met
    assert row.baselines["loop"]["p95"] == pytest.approx(7.0)


def test_one_false_ready_or_one_false_alarm_fails_the_row() -> None:
    race = races.plan("1", 1)[0]
    good = races.Judgement(served=True, ready=True, false_ready=("loop",), false_failed=False)
    bad = races.Judgement(served=True, ready=True, false_ready=(races.OURS,), false_failed=False)
    alarm = races.Judgement(served=True, ready=False, false_ready=(), false_failed=True)
    row = rows.false_ready([(race, good)] * 4)
    assert (row.met, row.measured, row.baselines["loop"]) == (True, 0, 1000)
    row = rows.false_ready([(race, good)] * 3 + [(race, bad)])
    assert (row.met, row.measured) == (False, 250)
    assert not rows.false_ready([(race, good), (race, alarm)]).met
    broken = races.Judgement(served=False, ready=False, false_ready=(), false_failed=False, broken="Traceback")
    with pytest.raises(ValueError, match="Traceback"):
        rows.false_ready([(race, broken)])


@pytest.mark.parametrize(("cpu", "met"), [(0.6, True), (0.7, False)])
def test_the_cpu_of_a_wait(cpu: float, met: bool) -> None:
    row = rows.wait_cpu({"cpu_s": cpu, "seconds": 60.0, "first_cpu_s": 0.3, "ranks": 8})
    assert (row.measured, row.met) == (round(cpu / 0.6, 3), met)


def swept(**changes: t.Any) -> sweeps.Swept:
    """Ten trials of 60 s, of which 55 are needed, one that was never started, and 25 s until the host was as before."""
    ran = {
        "claim": 1.0,
        "preflight": 2.0,
        "stop": 1.0,
        "start": 21.0,
        "keep": 1.0,
        "benchmark": 30.0,
        "evaluate": 3.0,
        "other": 1.0,
    }
    values = {
        "wall_s": 640.0,
        "rows": {},
        "wrong": {},
        "winner": "a",
        "left_running": "known-good",
        "trials": [*[ran] * 10, {"claim": 1.0, "preflight": 4.0}],
        "put_back_s": 25.0,
    }
    return sweeps.Swept(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        pytest.param({}, False, id="6.5 s"),
        pytest.param({"wall_s": 635.0}, True, id="6 s"),
        pytest.param({"wall_s": 635.0, "wrong": {"b": "missing"}}, False, id="a wrong row"),
        pytest.param({"wall_s": 635.0, "put_back_s": 20.0}, False, id="the way back is no trial's"),
    ],
)
def test_the_overhead_of_a_sweep(changes: dict[str, t.Any], met: bool) -> None:
    row = rows.sweep_overhead(swept(**changes), swept(wall_s=900.0, wrong={"b": "missing"}))
    assert row.met is met
    assert row.n == 10
    # By the trials' own account, which knows nothing of the start of Ansible.
    assert row.details["reported"]["median"] == 5.0
    assert row.baselines["shell_loop"]["wrong_rows"] == 1
    (line,) = rows.table([dataclasses.asdict(row)]).splitlines()[1:]
    assert line.endswith("shell_loop 900 s with 1 wrong rows")


def test_starts_that_are_too_short_prove_nothing() -> None:
    short = {"start": 19.0, "benchmark": 30.0}
    assert not rows.sweep_overhead(swept(trials=[short], wall_s=75.0), None).met


def test_what_a_loop_got_wrong() -> None:
    rows_of_it = {
        0: ("90", "[2, null]"),
        1: ("100", "[8, 2048]"),
        2: ("120", "[8, 4096]"),
        3: ("", ""),
        5: ("80", "[8, 2048]"),
        10: ("101", "[8, 2048]"),
    }
    found = sweeps.judged(rows_of_it)
    keys = [sweeps.name(one) for one in twelve.CONFIGURATIONS]
    assert len(set(keys)) == 12
    assert found.wrong == {
        keys[2]: "accepted, and it is unstable",
        keys[3]: "accepted, and it is illegal_memory_access",
        keys[5]: "measured a server with [8, 2048]",
        keys[6]: "missing, and it is sound",
    }
    assert found.rows[keys[3]] == "an empty row"
    assert found.rows[keys[4]] == "no row"
    assert found.wrong_winner


def test_rows_are_replaced_by_id_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "build" / "bench.json"
    row = rows.Row(id="a", measured=1.0, goal="<= 2", unit="s", met=True, n=3)
    rows.keep(file, [row, rows.Row(id="b", measured=5.0, goal="<= 2", unit="s", met=False, n=3)], {"seed": 1})
    rows.keep(file, [rows.Row(id="b", measured=1.0, goal="<= 2", unit="s", met=True, n=4)], {"seed": 2})
    kept = json.loads(file.read_text())["rows"]
    assert [(one["id"], one["measured"], one["seed"]) for one in kept] == [("a", 1.0, 1), ("b", 1.0, 2)]
    lines = rows.table(kept).splitlines()
    assert len(lines) == 3
    assert "yes" in lines[1]


def test_enough_starts_for_a_percentile() -> None:
    assert min(bench.STARTS, bench.CRASHES) >= 60


@pytest.mark.parametrize(("ours", "met"), [((5.0, 4.5, 90.0), True), ((5.4, 5.3, 1.0), False)])
def test_a_deployment_that_changes_nothing_is_held_against_the_median_by_hand(
    ours: tuple[float, ...], met: bool
) -> None:
    row = rows.noop_deploy(ours, (4.0, 4.0, 0.1))
    assert row.met is met
    assert row.baselines["by_hand_s"]["median"] == 4.0
    assert row.details["ours_s"]["max"] == max(ours)


def test_a_fleet_is_held_against_one_server() -> None:
    row = rows.fleet_growth([32.0, 33.0, 32.5], [48.0, 50.0, 49.0], number=32, load_s=30.0)
    assert row.id == "fleet_growth_32"
    assert row.id in bench.ROWS
    assert not row.met
    assert rows.fleet_growth([32.0], [48.0], number=32, load_s=30.0).met
