# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import status_table
from ansible_collections.specdec.serving.plugins.plugin_utils._drift import drift_lines, drift_word, server_options


def row(**changes: t.Any) -> dict[str, t.Any]:
    values = {"where": "unit", "name": "page_size", "asked": "64", "found": "32", "needs": "deploy", "path": ""}
    return {**values, **changes}


def test_servers_are_joined_by_name() -> None:
    resolved = [
        {"name": name, "settings": {"tp_size": 2}, "model_path": "/m", "served_model_name": name, "port": 1}
        for name in ("a", "b")
    ]
    results: list[dict[str, t.Any]] = [{"item": "b", "server": {"version": "0.5.23"}}, {"item": "a", "skipped": True}]
    known = {"settings": {"tp_size": 2}, "model_path": "/m"}
    assert server_options(resolved, results) == [
        {"name": "a", "served_model_name": "a", "server": {}, **known},
        {"name": "b", "served_model_name": "b", "server": {"version": "0.5.23"}, **known},
    ]


@pytest.mark.parametrize(
    ("result", "word"),
    [
        ({"drift": []}, "as asked"),
        ({"drift": [row()]}, "1 differs"),
        ({"drift": [row(), row()]}, "2 differ"),
        ({"drift": None}, "not compared"),
        ({}, "not compared"),
    ],
)
def test_word(result: dict[str, t.Any], word: str) -> None:
    assert drift_word(result) == word


def test_the_table_stays_short_and_the_lines_stand_below() -> None:
    results: list[dict[str, t.Any]] = [
        {
            "unit": "sglang-a.service",
            "host": "h1",
            "state": "ready",
            "drift": [
                row(),
                row(where="environment", name="FOO", asked=None, found=""),
                row(where="process", name="disable_cuda_graph", asked=True, found=None, needs="restart"),
                row(where="drop_in", name="TasksMax", asked=["a", "b"], found="5", needs="nothing", path="/etc/x.conf"),
            ],
        },
        {"unit": "sglang-b.service", "host": "h2", "state": "stopped", "drift": []},
        {"unit": "sglang-c.service", "host": "h2", "state": "stopped", "drift": None},
    ]
    table, below = status_table(results).split("\n\n")
    assert [line.split("  ")[-1].strip() for line in table.splitlines()] == [
        "CONFIGURATION",
        "4 differ",
        "as asked",
        "not compared",
    ]
    assert below.splitlines() == [
        "HOST  INSTANCE  WHERE                NAME                SHOULD BE  IS  NEEDS",
        "h1    a         unit file            page_size           64         32  deploy",
        'h1    a         environment file     FOO                 -          ""  deploy',
        "h1    a         running process      disable_cuda_graph  set        -   restart",
        "h1    a         drop-in /etc/x.conf  TasksMax            a b        5   nothing",
    ]


def test_nothing_below_when_nothing_differs() -> None:
    assert "\n\n" not in status_table([{"unit": "sglang-a.service", "drift": []}])
    assert "CONFIGURATION" not in status_table([{"unit": "sglang-a.service"}])
    assert drift_lines([{"drift": None}, {}]) == []


def test_long_values_show_where_they_differ() -> None:
    long = "".join(f"{number:04d}" for number in range(50))
    (_title, line) = drift_lines([{"drift": [row(asked=long + "x" + long, found=long + "y" + long)]}])
    asked, found = line[4:6]
    assert len(asked) == len(found) == 48
    assert asked.startswith("...")
    assert asked.endswith("...")
    assert asked.replace("x", "y") == found
    assert asked != found
