# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is found of a killed sweep must be able to be wrong, or a test that finds nothing says nothing."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.tests.support.sweeps import kills

CHECKOUT = Path(__file__).parents[4]


def journal(*entries: tuple[str, int, t.Any], torn: str = "") -> str:
    lines = []
    for kind, number, value in entries:
        if kind == "told":
            lines.append({"op_code": 6, "trial_id": number, "state": value})
        else:
            lines.append({"op_code": 2, "user_attr": {f"{kind}:{number}": value}})
    return "".join(json.dumps(line) + "\n" for line in lines) + torn


def test_each_trial_ends_once() -> None:
    whole = journal(
        ("lease", 0, {}), ("told", 0, 0), ("result", 0, {"a": 1}), ("told", 0, 1), torn='{"op_code": 6, "tri'
    )
    study = kills.read(whole)
    assert (study.told, study.results, study.wrong) == ({0: 1}, {0: [{"a": 1}]}, [])


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        pytest.param([("result", 0, {}), ("told", 0, 1), ("told", 0, 3)], "trial 0 was told 2 times", id="told twice"),
        pytest.param([("result", 1, {}), ("result", 1, {}), ("told", 1, 1)], "trial 1 has 2 results", id="two results"),
        pytest.param([("told", 2, 1)], "trial 2 was told without a result", id="no result"),
    ],
)
def test_what_is_wrong(entries: list[tuple[str, int, t.Any]], wanted: str) -> None:
    assert kills.read(journal(*entries)).wrong == [wanted]


def test_a_result_that_is_lost_or_changed() -> None:
    before = kills.read(journal(("result", 0, {"a": 1}), ("result", 1, {"a": 1})))
    assert kills.lost(before, before) == []
    assert kills.lost(before, kills.read(journal(("result", 1, {"a": 2})))) == [0, 1]


def test_the_phase_is_that_of_the_last_task_that_begins_one() -> None:
    names = ["Plan the sweep", "specdec.serving.sglang : Claim the next trial", "x : Start", "x : Wait until ready"]
    assert [kills.phase_of(names[:count]) for count in range(5)] == ["before", "before", "claim", "start", "start"]


def test_a_plan_is_the_seed_s_and_has_every_phase() -> None:
    planned = kills.plan("1", 20)
    assert planned == kills.plan("1", 20)
    assert planned != kills.plan("2", 20)
    assert {kill.phase for kill in planned} == {*kills.LASTS, kills.BEFORE, kills.CLAIM, kills.RESTORE}
    assert sum(kill.phase in kills.LASTS for kill in planned) == 17
    assert {kill.phase for kill in kills.plan("1", 3)} == {"benchmark", "start", "record"}
    assert {kill.waits for kill in kills.plan("1", 3)} == {True, False}


def test_the_tasks_are_there() -> None:
    text = "".join(
        (CHECKOUT / f"roles/sglang/tasks/{name}.yml").read_text()
        for name in ("lease", "release", "sweep_step", "sweep_restore", "trial")
    )
    found = set()

    def names(tasks: t.Any) -> None:
        for task in tasks:
            found.add(task["name"])
            for part in ("block", "rescue", "always"):
                names(task.get(part, []))

    for document in text.split("---\n")[1:]:
        names(yaml.safe_load(document))
    assert {name for tasks in kills.TASKS.values() for name in tasks} <= found


def test_the_table_counts() -> None:
    rows = [
        kills.Row(kills.Kill("start", 1, 0.5), "start", 12.0, 0),
        kills.Row(kills.Kill("restore", 1, 0.5), "claim", None, 2),
    ]
    text = kills.table(rows)
    assert text.startswith(
        "1 of 2 inside a trial; by phase: claim 1, start 1\nown configuration back 12.0 s after a kill"
    )
    assert "SIGKILL 0.50 s into start 1" in text
