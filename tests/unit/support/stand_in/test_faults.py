# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The catalogue of faults and the reading of STAND_IN_FAULT."""

from __future__ import annotations

import json
import typing as t

import pytest
from sglang.stand_in import conditions, faults
from sglang.stand_in.truth import Truth

from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import KernelLine, kernel_faults
from ansible_collections.specdec.serving.plugins.module_utils._signatures import SIGNATURES

CATALOGUE = faults.catalogue()
ROWS = {row.id: row for row in SIGNATURES}


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_is_complete(name: str) -> None:
    entry = CATALOGUE[name]
    found = faults.parse(name)
    assert found or entry.get("arguments"), "an entry without an effect"
    assert entry["what"]
    expected = entry["expected"]
    assert expected["state"] in ("ready", "loading", "hung", "crashed")
    if "id" in expected and entry.get("needs") != "kernel_log":
        assert ROWS[expected["id"]].cause == expected["cause"]


@pytest.mark.parametrize(
    ("name", "entry"), [(name, entry) for name, entry in CATALOGUE.items() if entry.get("needs") == "kernel_log"]
)
def test_lines_of_the_kernel_are_known(name: str, entry: dict[str, t.Any]) -> None:
    lines = [line for fault in entry["faults"] for line in fault.get("kernel_lines", ())]
    found = kernel_faults([KernelLine(0, line.replace("{pid}", "77")) for line in lines], pids={77})
    assert len(found) == len(lines) == 1
    if entry["expected"]["id"] not in ROWS:
        assert (found[0].id, found[0].cause) == (entry["expected"]["id"], entry["expected"]["cause"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("no-such-fault", "the catalogue has .*'story-graph-replay'", id="unknown-name"),
        pytest.param("{", "no JSON", id="no-json"),
        pytest.param("[1]", "give objects, not 1", id="no-object"),
        pytest.param('{"do": "hang"}', "name either a step", id="nowhere"),
        pytest.param('{"do": "hang", "at": "bind", "on": "/x"}', "name either a step", id="two-places"),
        pytest.param('{"do": "fly", "at": "bind"}', "do is 'fly'", id="unknown-action"),
        pytest.param('{"do": "answer", "at": "bind"}', "do is 'answer'", id="answer-at-a-step"),
        pytest.param('{"do": "hang", "at": "lunch"}', "at is 'lunch'", id="unknown-step"),
        pytest.param('{"do": "hang", "at": "bind", "when": 2}', "when is 2", id="part-above-1"),
        pytest.param('{"fault": "no-such-fault"}', "fault is 'no-such-fault', the catalogue has", id="unknown-part"),
        pytest.param('{"do": "hang", "at": "bind", "with": 1}', "'with' is 1: give an object", id="with-nothing"),
        pytest.param('{"do": "hang", "at": "bind", "when": true}', "when is True", id="boolean"),
    ],
)
def test_what_is_no_use_is_named(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        faults.parse(text)


@pytest.mark.parametrize(
    ("who", "hit"),
    [
        ("*", {"main", "detokenizer", "TP0 EP0", "TP1 EP1", "scheduler"}),
        ("ranks", {"TP0 EP0", "TP1 EP1", "scheduler"}),
        ("TP1", {"TP1 EP1"}),
        (["main", "TP0"], {"main", "TP0 EP0"}),
        ("detokenizer", {"detokenizer"}),
    ],
)
def test_who_is_hit(who: t.Any, hit: set[str]) -> None:
    (fault,) = faults.parse(json.dumps({"do": "hang", "at": "bind", "who": who}))
    assert {name for name in ("main", "detokenizer", "TP0 EP0", "TP1 EP1", "scheduler") if fault.hits(name)} == hit


@pytest.mark.parametrize(
    ("value", "patch", "merged"),
    [
        ({"a": 1, "b": 2}, {"a": None, "c": 3}, {"b": 2, "c": 3}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"data": [{"id": "x"}]}, {"data": []}, {"data": []}),
        (7, {"a": 1}, {"a": 1}),
    ],
)
def test_merge(value: t.Any, patch: t.Any, merged: t.Any) -> None:
    assert faults.merge(value, patch) == merged


def test_a_traceback_reads_like_pythons() -> None:
    lines = faults.traceback_lines({"frames": ["a/b.py:f"], "error": "KeyError: 1", "before": {"error": "OSError: 2"}})
    assert lines[:2] == ["Traceback (most recent call last):", "OSError: 2"]
    assert "During handling of the above exception, another exception occurred:" in lines
    assert lines[-3].startswith('  File "{site}/a/b.py", line ')
    assert lines[-3].endswith(", in f")
    assert lines[-1] == "KeyError: 1"


def test_placeholders() -> None:
    assert faults.render("{stamp} {pid} {rank}", stamp="[x TP1]", pid=7, rank="TP1") == "[x TP1] 7 TP1"
    assert "{" not in faults.render("{site}/a.py", stamp="", pid=0)


def test_the_catalogue_covers_what_the_diagnosis_knows() -> None:
    """Rows of systemd have no server that prints them; F10 needs another server on the port, F9 a health check that fails."""
    told = {entry["expected"].get("id") for entry in CATALOGUE.values()}
    told |= {entry["expected"].get("warning") for entry in CATALOGUE.values()}
    missing = {row.id for row in SIGNATURES if row.where not in ("exit", "manager")} - told
    assert {id_ for id_ in missing if not id_.endswith("-older")} == {"F9", "F10", "F10-name"}


def test_an_entry_of_the_catalogue_among_others() -> None:
    several = [{"fault": "story-graph-replay", "with": {"disable_cuda_graph": False}}, {"do": "hang", "at": "bind"}]
    *story, own = faults.parse(json.dumps(several))
    assert [(one.do, one.at) for one in story] == [(one.do, one.at) for one in faults.parse("story-graph-replay")]
    assert {one.name for one in story} == {"story-graph-replay"}
    assert {tuple(one.only.items()) for one in story} == {(("disable_cuda_graph", (False,)),)}
    assert (own.name, dict(own.only)) == ("own", {})
    assert [one.number for one in (*story, own)] == list(range(len(story) + 1))


def test_with_holds_only_once_the_arguments_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "_known", {})
    blocks = conditions.check({"speculative_dflash_block_size": [8, 16]}, "here")
    assert conditions.holds({})
    assert not conditions.holds(blocks)
    for size, holds in ((8, True), (16, True), (4, False)):
        conditions.know({"speculative_dflash_block_size": size})
        assert conditions.holds(blocks) is holds
    assert not conditions.holds(conditions.check({"no_such_argument": None}, "here"))


@pytest.mark.parametrize(
    ("options", "struck"),
    [
        pytest.param({}, [True, False, False], id="once"),
        pytest.param({"skip": 1}, [False, True, False], id="once, later"),
        pytest.param({"skip": 1, "each": True}, [False, True, True], id="each from then on"),
    ],
)
def test_how_often_a_fault_strikes(
    options: dict[str, t.Any], struck: list[bool], capfd: pytest.CaptureFixture[str]
) -> None:
    fault = {"at": "decode", "who": "ranks", "do": "print", "lines": ["struck"], **options}
    found = faults.Faults({"STAND_IN_FAULT": json.dumps(fault)}, Truth({}))
    seen = []
    for _step in struck:
        found.strike("decode", "TP0", "begin")
        seen.append("struck" in "".join(capfd.readouterr()))
    assert seen == struck
