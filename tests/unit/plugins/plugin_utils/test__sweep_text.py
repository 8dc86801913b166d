# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_text import sweep_plan, sweep_summary, trial_times


@pytest.mark.parametrize(
    ("noted", "wanted"),
    [
        pytest.param({"since": 8.0, "began": 10.0}, {"claim": 2.0, "preflight": 10.0}, id="ended in preflight"),
        pytest.param(
            {"since": 10.0, "began": 10.0, "prepared": 11.0},
            {"claim": 0.0, "preflight": 1.0, "stop": 9.0},
            id="in the stop",
        ),
        pytest.param(
            {"since": 10.0, "began": 10.0, "prepared": 11.0, "stopped": 12.0, "ready": 14.5},
            {"claim": 0.0, "preflight": 1.0, "stop": 1.0, "start": 2.5, "benchmark": 5.5},
            id="in the benchmark",
        ),
        pytest.param(
            {
                "since": 10.0,
                "began": 10.0,
                "prepared": 11.0,
                "stopped": 12.0,
                "ready": 14.5,
                "measured": 19.0,
            },
            {"claim": 0.0, "preflight": 1.0, "stop": 1.0, "start": 2.5, "benchmark": 4.5, "evaluate": 1.0},
            id="in the evaluation",
        ),
        pytest.param(
            {
                "since": 10.0,
                "began": 10.0,
                "prepared": 11.0,
                "stopped": 12.0,
                "ready": 15.0,
                "measured": 19.0,
                "evaluated": 19.5,
            },
            {
                "claim": 0.0,
                "preflight": 1.0,
                "stop": 1.0,
                "start": 3.0,
                "benchmark": 4.0,
                "evaluate": 0.5,
                "other": 0.5,
            },
            id="at the end",
        ),
    ],
)
def test_where_the_time_of_a_trial_went(noted: dict[str, float], wanted: dict[str, float]) -> None:
    assert trial_times(noted, 20.0) == wanted


def trial(number: int, **changes: t.Any) -> dict[str, t.Any]:
    return {
        "number": number,
        "configuration": f"a={number}",
        "state": "waiting",
        "cause": "",
        "faults": [],
        "details": {},
        **changes,
    }


def test_the_plan_tells_what_would_be_refused() -> None:
    planned: dict[str, t.Any] = {
        "waiting": 3,
        "instance": "k26",
        "trials": [
            trial(0),
            trial(1, faults=["port 0"]),
            trial(2),
            trial(3, state="duplicate", details={"of": 0}),
            trial(4, state="failed", cause="hung"),
        ],
    }
    checks: list[dict[str, t.Any]] = [
        {"item": {"number": 0}},
        {"item": {"number": 2}, "errors": ["'x' is no argument", "y"]},
    ]
    assert sweep_plan(planned, checks).splitlines() == [
        "3 trials of k26 would run",
        "    0  a=0",
        "    1  a=1  -  would be refused: port 0",
        "    2  a=2  -  would be refused: 'x' is no argument",
        "    3  a=3  -  the same as trial 0",
        "    4  a=4  -  known already: hung",
    ]
    timeline = [
        {"phase": "starting", "start": 0.0, "duration": 15.0},
        {"phase": "binding", "start": 15.0, "duration": 5.0},
    ]
    each = "the instance as it is took 20.0 s to start"
    rest = "and measuring comes on top (a grid of three and more also measures the baseline again)"
    assert sweep_plan(planned, checks, timeline).splitlines()[-1] == f"{each}: 1 such start takes 20.0 s, {rest}"
    two = {**planned, "trials": [*planned["trials"], trial(5)]}
    assert sweep_plan(two, checks, timeline).splitlines()[-1] == f"{each}: 2 such starts take 40.0 s, {rest}"


SHOWN = {
    "table": "TABLE",
    "notices": ["the baselines lie apart"],
    "run_s": 120.0,
    "times": {"preflight": 2.0, "stop": 0.0, "start": 60.0, "benchmark": 138.0},
    "starts": {"warm": 3, "median": 20.0, "cold": [{"number": 0, "seconds": 60.0}]},
    "savings": [
        {"rule": "told by a rule", "trials": 2, "seconds": 400.0},
        {"rule": "screened", "trials": 5, "seconds": -3.0},
    ],
    "steps": [],
    "winner": {"number": 4, "point": {"tp_size": 4}, "args": {"tp_size": 4}, "env": {}},
}


def test_the_end_shows_time_and_winner() -> None:
    lines = sweep_summary(SHOWN, over="all trials have ended").splitlines()
    assert lines[:4] == ["sweep ended: all trials have ended", "TABLE", "", "note: the baselines lie apart"]
    assert lines[4] == "time: 3 min 20 s"
    assert "start" in lines[6]
    assert " 30 %" in lines[6]
    assert lines[-3:] == ["to deploy trial 4, give the instance", "args:", "  tp_size: 4"]


def test_the_end_accounts_for_the_whole_run() -> None:
    run = {"began": 1000.0, "restoring": 1125.0, "restored": 1145.0, "ended": 1150.0}
    lines = sweep_summary(SHOWN, run=run).splitlines()
    # Of trials 200 s, 120 s of them in this run of 150 s.
    assert "time: 3 min 50 s" in lines
    told = {line.split("  ")[1]: line for line in lines if line.startswith("  ") and "%" in line}
    assert "20.0 s" in told["put back"]
    assert "10.0 s" in told["rest"]


@pytest.mark.parametrize(
    ("winner", "wanted"),
    [
        ({}, "no trial passed its gates; the instance stays as it is"),
        ({"number": 0, "point": {}}, "nothing is better than the instance as it is"),
    ],
)
def test_an_end_without_a_change(winner: dict[str, t.Any], wanted: str) -> None:
    assert sweep_summary({**SHOWN, "winner": winner}).splitlines()[-1] == wanted


def test_the_end_tells_what_was_saved_and_how_long_starts_took() -> None:
    text = sweep_summary(SHOWN)
    assert "starts: 3 in 20.0 s (median); with cold caches and not compared: trial 0 in 60.0 s" in text
    assert "  told by a rule    2 trials  about 6 min 40 s" in text
    assert "  screened          5 trials  about -3.0 s" in text


def test_nothing_is_said_of_what_there_was_none_of() -> None:
    text = sweep_summary({**SHOWN, "starts": {"warm": 0, "median": None, "cold": []}, "savings": []})
    assert not {word for word in ("starts", "saved", "ladder") if word in text}


def test_a_ladder_is_shown_step_by_step() -> None:
    steps = [
        {
            "number": 0,
            "configuration": "baseline",
            "verdict": "start",
            "reason": "the instance as it is",
            "values": [10.0],
        },
        {"number": 2, "configuration": "a=1", "verdict": "dropped", "reason": "hung", "values": []},
    ]
    text = sweep_summary({**SHOWN, "steps": steps})
    assert "ladder:\n  start    trial   0       10.00  baseline  the instance as it is\n" in text
    assert "  dropped  trial   2           -  a=1       hung\n" in text
