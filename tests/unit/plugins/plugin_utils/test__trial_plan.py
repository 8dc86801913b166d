# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import Sweep, SweepFileError, load_sweep
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import (
    SCREEN,
    Finished,
    applied,
    climb,
    for_screening,
    grid_points,
    identity,
    implied_failure,
    point_key,
    promoted,
    reduced,
    warm_key,
    warm_order,
)


def sweep(space: str, more: str = "") -> Sweep:
    lines = "".join(f"  {line}\n" for line in space.splitlines())
    return load_sweep(f"instance: a\nspace:\n{lines}workloads: [w]\nlevels: [1]\n{more}", path="s.yml")


def test_the_grid_begins_with_the_baseline_and_the_last_parameter_is_the_fastest() -> None:
    assert grid_points(sweep("a: [1, 2]\nb: [x, y]")) == (
        {},
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    )


def test_include_and_exclude() -> None:
    points = grid_points(
        sweep("a: [1, 2]\nb: [1, 2]", "exclude: [{a: 1, b: 2}]\ninclude: [{a: 3, b: 3}, {a: 1, b: 1}]\n")
    )
    assert points == ({}, {"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2, "b": 2}, {"a": 3, "b": 3})


def test_values_keep_their_types() -> None:
    assert len(grid_points(sweep("a: [1, true, '1', null, 1.0]"))) == 6
    assert len(grid_points(sweep("a: [1, true]", "exclude: [{a: true}]\n"))) == 2


def test_what_a_condition_leaves_out_is_run_once() -> None:
    one = sweep(
        "algorithm: [NGRAM, DFLASH, null]\nblock: [4, 8]\nwindow: [1, 2]",
        "conditions:\n- {when: {algorithm: [DFLASH]}, only: [block]}\n- {when: {block: 8}, only: [window]}\n",
    )
    assert grid_points(one) == (
        {},
        {"algorithm": "NGRAM"},
        {"algorithm": "DFLASH", "block": 4},
        {"algorithm": "DFLASH", "block": 8, "window": 1},
        {"algorithm": "DFLASH", "block": 8, "window": 2},
        {"algorithm": None},
    )
    assert reduced(one, {"algorithm": "NGRAM", "block": 8, "window": 2}) == {"algorithm": "NGRAM"}


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        pytest.param("exclude: [{a: 1}, {a: 2}]\n", "leave nothing of the space", id="nothing is left"),
        pytest.param(
            "budget: {trials: 2}\n", "the grid has 3 configurations with the baseline, and the budget is 2", id="budget"
        ),
        pytest.param(
            "budget: {trials: 3}\nscreen: true\n",
            "3 configurations with the baseline, 1 of them measured in full after the screening, and the budget is 3",
            id="budget for a screening",
        ),
    ],
)
def test_a_grid_that_cannot_be(more: str, wanted: str) -> None:
    with pytest.raises(SweepFileError, match=wanted):
        grid_points(sweep("a: [1, 2]", more))


@pytest.mark.parametrize(
    ("space", "wanted"),
    [
        pytest.param(("a", "b", "c"), "the space has 1000000000 combinations", id="never listed"),
        pytest.param(("a", "b"), "combinations|configurations", id="too many"),
    ],
)
def test_a_grid_for_a_life_time(space: tuple[str, ...], wanted: str) -> None:
    ranges = "\n".join(f"{name}: {{low: 1, high: 1000, step: 1}}" for name in space)
    with pytest.raises(SweepFileError, match=wanted):
        grid_points(sweep(ranges))


def test_a_point_over_the_instance() -> None:
    args, env = {"tp_size": 4, "flag": True, "other": 1}, {"X": "0", "Y": "1"}
    assert applied({"tp_size": 8, "env.X": 1, "flag": None}, args=args, env=env) == (
        {"tp_size": 8, "flag": None, "other": 1},
        {"X": "1", "Y": "1"},
    )
    assert applied({}, args=args, env=env) == (args, env)


def test_identity_depends_on_what_ran_and_not_on_the_order() -> None:
    assert identity({"args": {"a": 1, "b": 2}}) == identity({"args": {"b": 2, "a": 1}})
    assert identity({"args": {"a": 1}}) != identity({"args": {"a": True}})


MEMORY = "monotone: [{cause: gpu_out_of_memory, parameter: block}]\n"


@pytest.mark.parametrize(
    ("point", "implied"),
    [
        ({"block": 32, "tp": 1}, True),
        ({"block": 16, "tp": 1}, True),
        ({"block": 8, "tp": 1}, False),
        ({"block": 32, "tp": 2}, False),
        ({"tp": 1}, False),
    ],
)
def test_a_rule_of_the_user_saves_a_start(point: dict[str, t.Any], implied: bool) -> None:
    one = sweep("block: [8, 16, 32]\ntp: [1, 2]", MEMORY)
    failed = Finished({"block": 16, "tp": 1}, cause="gpu_out_of_memory")
    assert implied_failure(one, point, [failed]) is (failed if implied else None)
    assert implied_failure(one, point, [Finished({"block": 16, "tp": 1}, cause="hung")]) is None


def up(one: Sweep, score: t.Callable[[dict[str, t.Any]], float | None], mad: float = 0.0) -> list[Finished]:
    """All trials of a ladder, in order."""
    finished: list[Finished] = []
    while (point := climb(one, finished)[1]) is not None:
        assert point_key(point) not in {point_key(trial.point) for trial in finished}, "it was tried already"
        value = score(point)
        values = () if value is None else (value,)
        finished.append(Finished(point, values, "" if values else "crashed", (mad,) if values else (), len(finished)))
    return finished


def points(finished: t.Sequence[Finished]) -> list[dict[str, t.Any]]:
    return [dict(trial.point) for trial in finished]


def test_a_ladder_keeps_what_is_better_and_drops_what_fails() -> None:
    one = sweep("graph: [on]\nblock: [4, 8, 16]\noverlap: [on]")

    def score(point: dict[str, t.Any]) -> float | None:
        if point.get("graph"):
            return None
        return {None: 10.0, 4: 12.0, 8: 15.0, 16: 8.0}[point.get("block")] + (1 if point.get("overlap") else 0)

    finished = up(one, score)
    assert points(finished) == [
        {},
        {"graph": True},
        {"block": 4},
        {"block": 8},
        {"block": 16},
        {"block": 8, "overlap": True},
    ]
    assert [(step.trial.number, step.verdict, step.reason) for step in climb(one, finished)[0]] == [
        (0, "start", "the instance as it is"),
        (1, "dropped", "crashed"),
        (2, "dropped", "20.0 % better than trial 0, and trial 3 is better yet"),
        (3, "kept", "50.0 % better than trial 0"),
        (4, "dropped", "20.0 % worse than trial 0"),
        (5, "kept", "6.7 % better than trial 3"),
    ]


def test_a_ladder_does_not_climb_on_noise() -> None:
    """2 MAD of 1.0: 11.9 against 10 is a tie, 12.1 is better."""
    one = sweep("a: [1]\nb: [1]")
    finished = up(one, lambda point: 10.0 + 1.9 * point.get("a", 0) + 2.1 * point.get("b", 0), mad=1.0)
    assert points(finished) == [{}, {"a": 1}, {"b": 1}]
    assert [step.reason for step in climb(one, finished)[0]][1:] == [
        "no different from trial 0 beyond noise",
        "21.0 % better than trial 0",
    ]


def test_a_ladder_goes_down_where_less_is_better() -> None:
    one = sweep("a: [1, 2]", "objective: {metric: ttft_p50_ms}\n")
    finished = up(one, lambda point: {None: 5.0, 1: 4.0, 2: 9.0}[point.get("a")])
    assert points(finished) == [{}, {"a": 1}, {"a": 2}]
    assert [step.verdict for step in climb(one, finished)[0]] == ["start", "kept", "dropped"]


def test_a_ladder_needs_a_baseline_that_works() -> None:
    with pytest.raises(ValueError, match="the baseline did not pass \\(hung\\)"):
        climb(sweep("a: [1]"), [Finished({}, cause="hung")])


@given(st.dictionaries(st.integers(0, 26), st.one_of(st.none(), st.floats(0, 100)), min_size=27, max_size=27))
def test_a_ladder_ends_at_its_best(scores: dict[int, float | None]) -> None:
    one = sweep("a: [0, 1, 2]\nb: [0, 1, 2]\nc: [0, 1, 2]")
    tried = up(one, lambda p: 1.0 if not p else scores[9 * p.get("a", 0) + 3 * p.get("b", 0) + p.get("c", 0)])
    assert len(tried) <= 10
    kept = [step.trial.values[0] for step in climb(one, tried)[0] if step.verdict != "dropped"]
    assert kept == sorted(kept)


# -- screening and caches -----------------------------------------------------------------------------------------------


def screened(*values: float | None) -> list[Finished]:
    return [
        Finished({"a": number, SCREEN: True}, () if value is None else (value,)) for number, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        pytest.param((3.0, 9.0, 1.0), [1], id="a third of three"),
        pytest.param((3.0, 9.0, 1.0, 8.0), [1, 3], id="rounded up, in their order"),
        pytest.param((None, None, 1.0), [2], id="of those that rank"),
        pytest.param((None, None), [], id="none of them"),
    ],
)
def test_the_best_third_is_promoted(values: tuple[float | None, ...], wanted: list[int]) -> None:
    found = promoted(sweep("a: [1, 2]", "screen: true\n"), screened(*values))
    assert found == tuple({"a": number} for number in wanted)


def test_of_two_objectives_the_least_beaten_are_promoted() -> None:
    one = sweep(
        "a: [1, 2]",
        "screen: {share: 0.5}\nobjective: [{metric: output_tok_s}, {metric: ttft_p50_ms}]\n",
    )
    values = [(10.0, 5.0), (9.0, 6.0), (20.0, 9.0), (8.0, 7.0)]
    found = promoted(one, [Finished({"a": number, SCREEN: True}, pair) for number, pair in enumerate(values)])
    assert found == ({"a": 0}, {"a": 2})


def test_the_baseline_is_not_screened() -> None:
    assert for_screening([{}, {"a": 1}]) == ({}, {"a": 1, SCREEN: True})


def test_what_shares_its_caches_stands_together() -> None:
    order: list[dict[str, t.Any]] = [
        {},
        {"tp_size": 2},
        {"mem_fraction_static": 0.8},
        {"tp_size": 2, "mem_fraction_static": 0.9},
    ]
    found = warm_order(order, lambda point: warm_key({"tp_size": 1, **point}))
    assert found == (order[0], order[2], order[1], order[3])


@pytest.mark.parametrize(
    ("args", "same"),
    [
        ({"mem_fraction_static": 0.9}, True),
        ({"speculative_dflash_block_size": 16}, True),
        ({"enable_torch_compile": False}, True),
        ({"enable_torch_compile": True}, False),
        ({"speculative_draft_model_path": "/models/b"}, False),
        ({"tp_size": 4}, False),
    ],
)
def test_what_decides_over_caches(args: dict[str, t.Any], same: bool) -> None:
    own = {"tp_size": 8, "speculative_draft_model_path": "/models/a"}
    assert (warm_key({**own, **args}) == warm_key(own)) is same
