# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The judge must see a mixture, or a test that finds none says nothing."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.known_good import kills


def look(unit: int = 1, process: int | None = 1, **changes: t.Any) -> dict[str, t.Any]:
    of, runs = kills.marks(unit), kills.marks(process or 0)
    files = {"/etc/a.env": of["variable"], "/etc/a.secret.env": of["token"], "/etc/a.yaml": of["apikey"]}
    return {
        "unit": {"command": of["argument"], **files},
        "process": None
        if process is None
        else {
            "command": runs["argument"],
            "environment": runs["variable"],
            "secret environment": runs["token"],
            "credential": runs["apikey"],
        },
        "records": [
            {"sequence": 1, "content": of["argument"], "files": files},
            {"sequence": 2, "content": kills.marks(7)["argument"], "files": {"x": kills.marks(7)["token"]}},
        ],
        "damaged": [],
        **changes,
    }


def test_whole_configurations() -> None:
    found = kills.judge(look())
    assert found == kills.Found(frozenset({1}), frozenset({1}), (7, 1), ())
    assert found.is_all(1)
    assert not found.is_all(2)
    assert not kills.judge(look(2, 1)).is_all(2)
    # The unit was switched and not restarted yet: both are whole.
    assert kills.judge(look(2, 1)).wrong == ()
    assert kills.judge(look(2, None)) == kills.Found(frozenset({2}), frozenset(), (7, 2), ())


@pytest.mark.parametrize("part", ["command", "environment", "secret environment", "credential"])
def test_a_process_of_two_configurations(part: str) -> None:
    seen = look()
    seen["process"][part] = "gen-2-x"
    assert kills.judge(seen).wrong == ("process: a mixture of [1, 2]",)
    seen["process"][part] = None
    assert kills.judge(seen).wrong == (f"process: {part} is missing",)


def test_a_unit_of_two_configurations() -> None:
    seen = look()
    seen["unit"]["/etc/a.yaml"] = "gen-12-x"
    assert kills.judge(seen).wrong == ("unit: a mixture of [1, 12]",)
    seen["unit"]["/etc/a.yaml"] = None
    assert kills.judge(seen).wrong == ("unit: /etc/a.yaml is missing",)
    assert kills.judge(look(unit=1) | {"unit": None}).wrong == ("unit: there is none",)


def test_records_that_are_damaged_or_lack_files() -> None:
    seen = look(damaged=["/x.json"])
    seen["records"][0]["files"]["/etc/a.yaml"] = None
    assert kills.judge(seen).wrong == ("record: /x.json is damaged", "record: /etc/a.yaml is missing")


def test_lost_records() -> None:
    before = kills.Found(frozenset(), frozenset(), (5, 4, 3), ())
    assert kills.lost(before, kills.Found(frozenset(), frozenset(), (6, 5, 4), ()), keep=3) == []
    assert kills.lost(before, kills.Found(frozenset(), frozenset(), (6, 4), ()), keep=3) == [5]


def test_a_seed_decides_the_kills() -> None:
    windows = {"good_s": (2.0, 5.0), "bad_s": (2.0, 9.0)}
    planned = kills.plan("1", 50, **windows)
    assert planned == kills.plan("1", 50, **windows)
    assert planned != kills.plan("2", 50, **windows)
    assert {kill.kind for kill in planned} == {"controller", "module"}
    assert {kill.bad for kill in planned} == {True, False}
    assert all(0.3 <= kill.at <= (9.0 if kill.bad else 5.0) for kill in planned)
    assert sum(kill.at >= 2.0 for kill in planned) > 30


def test_table() -> None:
    rows = [
        kills.Row(kills.Kill("boundary", 3, name="Write"), 1, 2, True, kills.judge(look(2, 1)), True, 4.25),
        kills.Row(kills.Kill("module", 1.5, bad=True), 1, 2, False, kills.judge(look(9, None)), False, 1),
    ]
    lines = kills.table(rows).splitlines()
    assert lines[1].split("  ")[0] == "before 'Write'"
    assert lines[1].split()[-6:] == ["new", "old", "-", "ready,", "4.2", "s"]
    assert "OTHER (9)" in lines[2]
    assert lines[2].endswith("NOT READY")


@pytest.mark.parametrize("script", [kills.LOOK, kills.KILL_MODULE])
def test_scripts_are_python(script: str) -> None:
    compile(script, "script", "exec")
