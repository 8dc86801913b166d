# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The study on real journal files, shared by real processes."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import random
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._lease import Owner
from ansible_collections.specdec.serving.plugins.plugin_utils._lease_holder import owner_of
from ansible_collections.specdec.serving.plugins.plugin_utils._study import (
    COMPLETE,
    DUPLICATE,
    FAILED,
    LEASE_S,
    Outcome,
    StudyError,
    TrialStudy,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import Sweep, load_sweep
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import (
    AGAIN,
    SCREEN,
    Point,
    baseline_again,
    for_screening,
    grid_points,
    point_key,
)

FINGERPRINT = {"instance": "a", "host class": "cpu"}
#: Of another machine, so that only time tells whether it lives.
FAR = Owner(id="f" * 16, host="far", user="ann", pid=1, start_ticks=1, boot="b" * 36)
OTHER = Owner(id="0" * 16, host="other", user="ben", pid=1, start_ticks=1, boot="c" * 36)


def sweep(more: str = "", space: str = "tp_size: [1, 2, 4]") -> Sweep:
    return load_sweep(f"instance: a\nspace:\n  {space}\nworkloads: [w]\nlevels: [1]\n{more}", path="s.yml")


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def study(path: Path, one: Sweep | None = None, **changes: t.Any) -> TrialStudy:
    options: dict[str, t.Any] = {"fingerprint": FINGERPRINT, "identify": point_key, **changes}
    return TrialStudy(str(path / "trials.journal"), "nightly", one or sweep(), **options)


def run_all(one: TrialStudy, score: t.Callable[[Point], float | None]) -> list[Point]:
    ran = []
    while (claim := one.claim(FAR, host="h")) is not None:
        value = score(claim.point)
        outcome = Outcome(FAILED, cause="hung") if value is None else Outcome(COMPLETE, (value,))
        one.finish(claim.number, FAR, outcome)
        ran.append(claim.point)
    return ran


def test_a_grid_from_plan_to_end(tmp_path: Path) -> None:
    one = study(tmp_path)
    one.plan(grid_points(sweep()))
    assert run_all(one, lambda point: None if point.get("tp_size") == 2 else 1.0) == [
        {},
        {"tp_size": 1},
        {"tp_size": 2},
        baseline_again("h", 1),
        {"tp_size": 4},
        baseline_again("h", 2),
    ]
    assert [(row.state, row.outcome and row.outcome.cause, row.attempt) for row in one.rows()] == [
        (COMPLETE, "", 1),
        (COMPLETE, "", 1),
        (FAILED, "hung", 1),
        (COMPLETE, "", 1),
        (COMPLETE, "", 1),
        (COMPLETE, "", 1),
    ]


def test_planning_again_adds_only_what_is_new(tmp_path: Path) -> None:
    study(tmp_path).plan(grid_points(sweep()))
    run_all(study(tmp_path), lambda _point: 1.0)
    wider = sweep(space="tp_size: [1, 2, 4, 8]")
    one = study(tmp_path, wider)
    one.plan(grid_points(wider))
    assert run_all(one, lambda _point: 1.0) == [{"tp_size": 8}]


def test_failed_ones_are_redone_only_on_request(tmp_path: Path) -> None:
    one = study(tmp_path)
    one.plan(grid_points(sweep()))
    run_all(one, lambda point: None if point.get("tp_size") == 2 else 1.0)
    one.plan(grid_points(sweep()))
    assert run_all(one, lambda _point: 1.0) == []
    one.plan(grid_points(sweep()), again=lambda row: row.state == FAILED)
    assert run_all(one, lambda _point: 1.0) == [{"tp_size": 2}]
    assert [row.state for row in one.rows()].count(FAILED) == 1, "the first try stays on record"


def test_what_would_run_the_same_runs_once(tmp_path: Path) -> None:
    # The instance has tp_size 2 already.
    one = study(tmp_path, identify=lambda point: str(point.get("tp_size", 2)))
    one.plan(grid_points(sweep()))
    assert run_all(one, lambda _point: 1.0) == [{}, {"tp_size": 1}, {"tp_size": 4}]
    twin = one.rows()[2]
    assert (twin.state, twin.outcome and twin.outcome.details) == (DUPLICATE, {"of": 0})
    assert len(one.plan(grid_points(sweep()))) == 4, "a duplicate is not planned once more"


def test_a_trial_is_ended_once_and_only_by_its_owner(tmp_path: Path) -> None:
    one = study(tmp_path)
    one.plan([{}])
    claim = one.claim(FAR, host="h")
    assert claim is not None
    with pytest.raises(StudyError, match="trial 0 belongs to ann@far"):
        one.finish(0, OTHER, Outcome(COMPLETE, (1.0,)))
    one.finish(0, FAR, Outcome(COMPLETE, (1.0,)))
    one.finish(0, FAR, Outcome(COMPLETE, (1.0,)))
    with pytest.raises(StudyError, match="trial 0 has ended already as 'complete'"):
        one.finish(0, FAR, Outcome(FAILED, cause="hung"))


def test_an_owner_elsewhere_that_is_silent_loses_its_trial(tmp_path: Path) -> None:
    clock = Clock()
    one = study(tmp_path, wall=clock)
    one.plan([{}])
    assert one.claim(FAR, host="h") is not None
    clock.now += LEASE_S - 1
    one.renew(0, FAR)
    clock.now += LEASE_S - 1
    assert one.claim(OTHER, host="h") is None
    clock.now += 2
    claim = one.claim(OTHER, host="h")
    assert claim is not None
    assert (claim.number, claim.attempt) == (0, 2)
    with pytest.raises(StudyError, match="trial 0 belongs to ben@other"):
        one.renew(0, FAR)


def test_a_dead_owner_on_this_machine_is_known_at_once(tmp_path: Path) -> None:
    one = study(tmp_path)
    one.plan([{}])
    me = owner_of(os.getpid())
    assert one.claim(me, host="h") is not None
    assert one.claim(FAR, host="h") is None, "it lives"
    one.release(0, me)
    assert one.rows()[0].state == "waiting"
    # The same pid, once another process had it.
    reused = dataclasses.replace(me, id="1" * 16, start_ticks=me.start_ticks - 1)
    assert one.claim(reused, host="h") is not None
    claim = one.claim(FAR, host="h")
    assert claim is not None
    assert claim.attempt == 3


def test_a_study_of_another_sweep_is_refused(tmp_path: Path) -> None:
    study(tmp_path).plan([{}])
    with pytest.raises(StudyError, match="host class: 'cpu' there, 'b300' asked"):
        study(tmp_path, fingerprint={**FINGERPRINT, "host class": "b300"}).rows()


@pytest.mark.parametrize("storage", ["sqlite:///x.db", "mysql://h/db"])
def test_storage_that_cannot_be_shared_is_refused(storage: str) -> None:
    with pytest.raises(StudyError, match="cannot be shared safely"):
        TrialStudy(storage, "n", sweep(), fingerprint={}, identify=point_key)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StudyError, match=r"the study's storage .*/trials.journal cannot be used"):
        study(tmp_path / "file").rows()


def test_a_line_that_a_killed_writer_left_unfinished(tmp_path: Path) -> None:
    study(tmp_path).plan(grid_points(sweep()))
    journal = tmp_path / "trials.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"worker_id":"x","trial_')
    one = study(tmp_path)
    assert len(run_all(one, lambda _point: 1.0)) == 6
    for line in journal.read_bytes().splitlines():
        json.loads(line)


def test_a_result_that_was_not_told_is_told_by_the_next_who_comes(tmp_path: Path) -> None:
    one = study(tmp_path)
    one.plan(grid_points(sweep()))
    claim = one.claim(FAR, host="h")
    assert claim is not None
    # Killed between the two writes of `finish`.
    with one._opened() as raw:
        raw.set_user_attr("result:0", dataclasses.asdict(Outcome(COMPLETE, (5.0,))))
    following = study(tmp_path).claim(OTHER, host="h")
    assert following is not None
    assert following.number == 1
    assert study(tmp_path).rows()[0].state == COMPLETE


def test_what_is_best_in_the_screening_is_measured_in_full(tmp_path: Path) -> None:
    screening = sweep("screen: true\n", space="tp_size: [1, 2, 4, 8]")
    one = study(tmp_path, screening)
    one.plan(for_screening(grid_points(screening)))
    scores: dict[int | None, float | None] = {None: 5.0, 1: 3.0, 2: 9.0, 4: 7.0, 8: None}
    ran = run_all(one, lambda point: scores[point.get("tp_size")])
    screened = [{"tp_size": size, SCREEN: True} for size in (1, 2, 4, 8)]
    again = [baseline_again("h", count) for count in (1, 2)]
    assert ran == [{}, *screened, again[0], {"tp_size": 2}, again[1]]
    # The same command once more finds nothing to do.
    assert study(tmp_path, screening).claim(FAR, host="h") is None


def test_nothing_is_promoted_while_another_host_still_screens(tmp_path: Path) -> None:
    screening = sweep("screen: true\n", space="tp_size: [1, 2]")
    one = study(tmp_path, screening)
    one.plan(for_screening(grid_points(screening)))
    claims = [one.claim(owner, host="h") for owner in (FAR, FAR, OTHER)]
    for claim in claims[:2]:
        assert claim is not None
        one.finish(claim.number, FAR, Outcome(COMPLETE, (1.0,)))
    assert one.claim(FAR, host="h") is None
    assert claims[2] is not None
    one.finish(claims[2].number, OTHER, Outcome(COMPLETE, (2.0,)))
    following = one.claim(FAR, host="h")
    assert following is not None
    assert following.point == {"tp_size": 2}


def test_where_nothing_passes_the_screening_nothing_is_measured_in_full(tmp_path: Path) -> None:
    screening = sweep("screen: true\n", space="tp_size: [1, 2, 4, 8]")
    one = study(tmp_path, screening)
    one.plan(for_screening(grid_points(screening)))
    assert len(run_all(one, lambda point: None if point else 1.0)) == 5


def test_a_ladder(tmp_path: Path) -> None:
    climb = sweep("sampler: ladder\n", space="tp_size: [1, 2]\n  ep_size: [1]")
    one = study(tmp_path, climb)
    ran = run_all(one, lambda point: 5.0 + point.get("tp_size", 0) + point.get("ep_size", 0))
    assert ran == [{}, {"tp_size": 1}, {"tp_size": 2}, {"tp_size": 2, "ep_size": 1}, baseline_again("h", 1)]


def test_a_ladder_passes_what_ran_already_under_another_name(tmp_path: Path) -> None:
    climb = sweep("sampler: ladder\n")
    one = study(tmp_path, climb, identify=lambda point: str(point.get("tp_size", 1)))
    assert run_all(one, lambda point: float(point.get("tp_size", 1))) == [{}, {"tp_size": 2}, {"tp_size": 4}]


def test_a_ladder_without_a_working_baseline_says_so(tmp_path: Path) -> None:
    one = study(tmp_path, sweep("sampler: ladder\n"))
    with pytest.raises(StudyError, match="the baseline did not pass \\(hung\\)"):
        run_all(one, lambda _point: None)


@pytest.mark.parametrize(
    ("sampler", "objective"),
    [
        pytest.param("tpe", "", id="tpe"),
        pytest.param("nsga2", "objective: [{metric: user_tok_s}, {metric: output_tok_s}]\n", id="nsga2"),
    ],
)
def test_a_sampler_proposes_within_the_space_and_the_budget(tmp_path: Path, sampler: str, objective: str) -> None:
    space = "tp_size: [1, 2, 4]\n  mem_fraction_static: {low: 0.5, high: 0.9}\n  block: {low: 1, high: 64}\n  list: [[1, 2], {a: 1}, null, true, 1]"
    asked = sweep(f"sampler: {sampler}\nseed: 7\nbudget: {{trials: 12}}\n{objective}", space=space)
    ran: list[Point] = []
    while (claim := study(tmp_path, asked).claim(FAR, host="h")) is not None:
        ran.append(claim.point)
        values = (1.0,) if sampler == "tpe" else (1.0, 2.0)
        failed = len(ran) % 3 == 0
        study(tmp_path, asked).finish(claim.number, FAR, Outcome(FAILED) if failed else Outcome(COMPLETE, values))
    assert len(ran) == len({point_key(point) for point in ran}) == 12
    assert all(0.5 <= point["mem_fraction_static"] <= 0.9 and isinstance(point["block"], int) for point in ran)
    assert {type(point["list"]) for point in ran} > {list}


def test_a_sampler_that_has_nothing_new_ends(tmp_path: Path) -> None:
    asked = sweep("sampler: tpe\nbudget: {hours: 1}\n")
    assert len(run_all(study(tmp_path, asked), lambda _point: 1.0)) == 3


def _work(path: Path, number: int, killed: bool, seed: int) -> None:
    # Each its own owner, alive as long as its process.
    random.seed(seed)
    one, me = study(path), owner_of(os.getpid())
    while (claim := one.claim(me, host=f"h{number}")) is not None:
        with (path / f"ran-{claim.number}").open("a") as file:
            file.write(f"{number}\n")
        if killed and random.random() < 0.3:
            os.kill(os.getpid(), 9)
        one.finish(claim.number, me, Outcome(COMPLETE, (float(number),)))


def test_processes_share_a_study_and_some_are_killed(tmp_path: Path) -> None:
    space = f"tp_size: {list(range(1, 12))}"
    study(tmp_path, sweep(space=space)).plan(grid_points(sweep(space=space)))
    context = multiprocessing.get_context("fork")
    for round_ in range(8):
        workers = [
            context.Process(target=_work, args=(tmp_path, number, round_ < 7, 10 * round_ + number))
            for number in range(3)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode in (0, -9)
    rows = study(tmp_path).rows()
    assert all(row.state == COMPLETE for row in rows)
    assert sum(bool(row.point.get("tp_size")) for row in rows) == 11
    baselines = [row.point[AGAIN]["host"] for row in rows if AGAIN in row.point]
    assert set(baselines) | {rows[0].host} == {"h0", "h1", "h2"}
    for row in rows:
        tries = (tmp_path / f"ran-{row.number}").read_text().splitlines()
        assert len(tries) == row.attempt, "nobody ran what another one was running"
