# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._ranking import (
    drift,
    judge,
    point_text,
    ranking,
    sweep_table,
    time_spent,
    told_apart,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._study import COMPLETE, DUPLICATE, FAILED, Outcome, Row
from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import Sweep, load_sweep
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import SCREEN, baseline_again


def sweep(more: str = "") -> Sweep:
    return load_sweep(f"instance: a\nspace: {{tp_size: [1, 2]}}\nworkloads: [w]\nlevels: [1, 8]\n{more}", path="s.yml")


def level(
    concurrency: int,
    tok_s: float = 100.0,
    mad: float = 1.0,
    *,
    cv: float | None = None,
    ttft_cv: float | None = None,
    **changes: t.Any,
) -> dict[str, t.Any]:
    summary = {
        "output_tok_s": {"median": tok_s, "mad": mad, "cv": cv},
        "ttft_p50_ms": {"median": 50.0, "mad": 1.0, "cv": ttft_cv},
        "acceptance_length": {"median": 2.5, "mad": 0.0},
    }
    return {"concurrency": concurrency, "valid": True, "reasons": [], "summary": summary, **changes}


def result(*levels: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    return {"w": {"levels": list(levels)}}


def row(
    number: int, value: float | None, mad: float = 0.0, point: dict[str, t.Any] | None = None, **more: t.Any
) -> Row:
    details = {
        "objectives": [{"metric": "output_tok_s", "level": 8, "workload": "w", "median": value, "mad": mad}]
        if value
        else [],
        **more.pop("details", {}),
    }
    values = {"state": COMPLETE, "values": (value,) if value else None, **more}
    outcome = Outcome(values["state"], values["values"], more.get("cause", ""), details)
    return Row(number, {"tp_size": number} if point is None else point, str(number), outcome.state, outcome, host="h")


def test_what_passes_all_gates_has_values() -> None:
    outcome = judge(sweep(), benchmarks=result(level(1), level(8, 300.0)), details={"times": {"start": 3.0}})
    assert (outcome.state, outcome.values, outcome.cause) == (COMPLETE, (300.0,), "")
    assert outcome.details["times"] == {"start": 3.0}


def test_repeats_may_scatter_a_little_or_at_all_where_the_file_says_so() -> None:
    assert judge(sweep(), benchmarks=result(level(1, cv=0.1), level(8))).values == (100.0,)
    assert judge(sweep("gates: {max_cv: null}\n"), benchmarks=result(level(1, cv=9.0), level(8))).values == (100.0,)


GATES = "gates: {min_pass_at_1: 0.5, parity: true, min_acceptance_length: 2.6}\n"
GOOD = {"coding": {"pass_at_1": 0.9}, "parity": {"passed": True}}


@pytest.mark.parametrize(
    ("more", "levels", "evaluation", "cause", "wanted"),
    [
        pytest.param("", [level(8)], {}, "not_measured", "level 1 of w was not measured", id="a level is missing"),
        pytest.param(
            "",
            [level(1), level(8, valid=False, reasons=[{"rule": "foreign", "detail": "2 requests were not ours"}])],
            {},
            "invalid",
            "level 8 of w: foreign: 2 requests were not ours",
            id="invalid",
        ),
        pytest.param(
            "",
            [level(1), level(8, cv=0.101)],
            {},
            "unstable",
            "the repeats of level 8 of w scatter: output_tok_s by 10.1 % (coefficient of variation), at most 10 % may be",
            id="unstable",
        ),
        pytest.param(
            "gates: {max_cv: 0.02}\nobjective: {metric: ttft_p50_ms, level: 1}\n",
            [level(1, ttft_cv=0.03), level(8, ttft_cv=0.5)],
            {},
            "unstable",
            "the repeats of level 1 of w scatter: ttft_p50_ms by 3.0 % (coefficient of variation), at most 2 % may be",
            id="unstable in what is ranked",
        ),
        pytest.param(
            "objective: {metric: e2e_p99_ms}\n",
            [level(1), level(8)],
            {},
            "not_measured",
            "e2e_p99_ms at level 8 of w is missing",
            id="no such figure",
        ),
        pytest.param(
            GATES,
            [level(1), level(8)],
            GOOD,
            "acceptance_length",
            "acceptance length 2.50 at level 1 of w is below 2.6",
            id="acceptance",
        ),
        pytest.param(
            "gates: {min_pass_at_1: 0.5}\n",
            [level(1), level(8)],
            {"coding": {"pass_at_1": 0.25}},
            "incorrect",
            "pass@1 0.250 is below 0.5",
            id="incorrect",
        ),
        pytest.param(
            "gates: {min_pass_at_1: 0.5}\n",
            [level(1), level(8)],
            {},
            "not_measured",
            "coding was not evaluated",
            id="not evaluated",
        ),
        pytest.param(
            "gates: {parity: true}\n",
            [level(1), level(8)],
            {"parity": {"passed": False, "text": "3 mismatches, floor 1"}},
            "parity",
            "3 mismatches, floor 1",
            id="parity",
        ),
    ],
)
def test_a_gate_that_is_not_passed(
    more: str, levels: list[dict[str, t.Any]], evaluation: dict[str, t.Any], cause: str, wanted: str
) -> None:
    outcome = judge(sweep(more), benchmarks=result(*levels), evaluation=evaluation)
    assert (outcome.values, outcome.cause) == (None, cause)
    assert wanted in outcome.details["faults"]


def test_invalid_levels_may_be_allowed_and_are_still_told() -> None:
    outcome = judge(sweep("gates: {valid: false}\n"), benchmarks=result(level(1), level(8, valid=False)))
    assert outcome.values == (100.0,)


def test_figures_of_another_start_are_not_the_trial_s() -> None:
    benchmarks = result(level(1), level(8))
    benchmarks["w"]["invocation_id"] = "aa"
    evaluation = {"invocation_id": "aa"}
    assert judge(sweep(), benchmarks=benchmarks, evaluation=evaluation, details={"invocation_id": "aa"}).values
    outcome = judge(sweep(), benchmarks=benchmarks, evaluation=evaluation, details={"invocation_id": "bb"})
    assert (outcome.cause, outcome.values) == ("invocation_changed", None)
    outcome = judge(sweep(), benchmarks=benchmarks, evaluation={"invocation_id": "cc"}, details={"invocation_id": "aa"})
    assert outcome.cause == "invocation_changed"


def places(one: Sweep, rows: list[Row]) -> list[tuple[int, int | None, bool]]:
    return [(ranked.row.number, ranked.place, ranked.winner) for ranked in ranking(one, rows)]


def test_the_best_wins_and_each_other_one_is_told_why_not() -> None:
    rows = [
        row(0, 100.0, point={}),
        row(1, 120.0),
        row(2, None, state=FAILED, cause="out_of_memory", details={"summary": "rank 3 ran out of memory"}),
        row(3, None, state=DUPLICATE, details={"of": 1}),
        row(4, 130.0, point=baseline_again("h", 1)),
        row(5, None, cause="invalid", details={"faults": ["level 8 of w: foreign"]}),
    ]
    found = ranking(sweep(), rows)
    assert [(one.row.number, one.place, one.reason) for one in found] == [
        (1, 1, ""),
        (0, 2, "16.7 % less output_tok_s than trial 1"),
        (2, None, "rank 3 ran out of memory"),
        (3, None, "the same as trial 1"),
        (4, None, "the baseline once more, of h"),
        (5, None, "level 8 of w: foreign"),
    ]


def test_a_difference_within_the_noise_is_a_tie_that_the_simpler_one_wins() -> None:
    rows = [row(0, 100.0, 2.0, point={}), row(1, 103.9, 0.1), row(2, 104.1, 0.1)]
    found = ranking(sweep(), rows)
    # 104.1 - 100 is more than 2 MAD of 2.0, 103.9 against 104.1 is within 2 x 0.1.
    assert [one.row.number for one in found if one.place == 1] == [1, 2]
    assert [one.row.number for one in found if one.winner] == [1], "as few changes, and earlier"
    noisy = [row(0, 100.0, 3.0, point={}), row(1, 105.0, 0.1)]
    assert places(sweep(), noisy) == [(0, 1, True), (1, 1, False)]
    assert "tied with 0, which changes less" in {one.reason for one in ranking(sweep(), noisy)}


def test_less_can_be_better() -> None:
    one = sweep("objective: {metric: ttft_p50_ms, level: 8}\n")
    assert places(one, [row(0, 10.0), row(1, 8.0)]) == [(1, 1, True), (0, 2, False)]
    assert ranking(one, [row(0, 10.0), row(1, 8.0)])[1].reason == "25.0 % more ttft_p50_ms than trial 1"


def test_two_objectives_have_a_front() -> None:
    one = sweep("objective: [{metric: output_tok_s, level: 8}, {metric: ttft_p50_ms, level: 8}]\n")
    rows = [row(0, 100.0, values=(100.0, 10.0)), row(1, 90.0, values=(90.0, 5.0)), row(2, 80.0, values=(80.0, 6.0))]
    assert places(one, rows) == [(0, 1, True), (1, 1, True), (2, 2, False)]
    assert ranking(one, rows)[2].reason == "trial 1 is better in both"


def test_nothing_ranks() -> None:
    assert places(sweep(), [row(0, None, cause="invalid")]) == [(0, None, False)]
    assert ranking(sweep(), []) == []


def test_drift_is_that_of_the_baselines() -> None:
    rows = [row(0, 100.0, point={}), row(1, 200.0), row(2, 96.0, point=baseline_again("h", 1))]
    assert drift(rows) == {"h": pytest.approx(0.04)}
    assert drift(rows[:2]) == {}


def test_where_the_time_went() -> None:
    rows = [
        row(0, 1.0, details={"times": {"start": 20.0, "stop": 1.0}}),
        row(1, 1.0, details={"times": {"start": 5.0, "x": 2.0}}),
    ]
    spent = {phase: seconds for phase, seconds in time_spent(rows).items() if seconds}
    assert spent == {"stop": 1.0, "start": 25.0, "other": 2.0}


def test_the_table() -> None:
    rows = [
        row(0, 100.0, 1.0, point={}),
        row(1, 120.0, 0.5),
        row(2, None, state=FAILED, cause="hung", details={"summary": "nothing moved"}),
        row(3, 90.0, 0.0),
    ]
    assert sweep_table(sweep(), rows).splitlines() == [
        "   trial  verdict   output_tok_s@8  configuration  why not",
        "★  1      complete  120.00 ±0.50    tp_size=1",
        "2  0      complete  100.00 ±1.00    baseline       16.7 % less output_tok_s than trial 1",
        "3  3      complete  90.00           tp_size=3      25.0 % less output_tok_s than trial 1",
        "   2      hung      -               tp_size=2      nothing moved",
    ]


@pytest.mark.parametrize(
    ("point", "text"),
    [
        ({}, "baseline"),
        (baseline_again("h", 1), "baseline (again)"),
        ({"tp_size": 8, "env.X": "1"}, "tp_size=8 env.X=1"),
        ({"tp_size": None}, "tp_size=null"),
        ({"a": "x" * 40}, "a=xxxxxxxxxxxxxxxxx…"),
        ({"a": "x" * 40, SCREEN: 1}, "a=xxxxxx… (screened)"),
    ],
)
def test_points_for_people(point: dict[str, t.Any], text: str) -> None:
    assert point_text(point, 20) == text


def test_points_that_would_be_cut_to_the_same_are_told_apart() -> None:
    long = {"speculative_algorithm": "STANDALONE"}
    points: list[dict[str, t.Any]] = [
        {**long, "steps": 3},
        {**long, "steps": 5, "top": 1},
        {},
        {"speculative_algorithm": "NGRAM"},
        {**long, "steps": 3, SCREEN: 1},
    ]
    assert told_apart(points, 34) == [
        "… steps=3",
        "… steps=5 top=1",
        "baseline",
        "speculative_algorithm=NGRAM",
        "speculative_algorithm=… (screened)",
    ]
    # Twice the same: there is nothing to tell apart.
    assert told_apart([points[0], points[0]], 34) == 2 * ["speculative_algorithm=STANDALONE …"]
