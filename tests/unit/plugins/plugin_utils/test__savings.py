# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was saved, in seconds of what it would have taken."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.plugins.plugin_utils._savings import durations, savings, starts
from ansible_collections.specdec.serving.plugins.plugin_utils._study import COMPLETE, FAILED, Outcome, Row

FULL = {"preflight": 2.0, "start": 20.0, "benchmark": 60.0, "evaluate": 18.0}


def row(
    number: int,
    cause: str = "",
    times: t.Mapping[str, float] | None = None,
    cold: bool = False,
    point: t.Mapping[str, t.Any] | None = None,
) -> Row:
    outcome = Outcome(FAILED if cause else COMPLETE, None, cause, {"times": times or {}, "cold": cold})
    return Row(number, point or {"a": number}, str(number), outcome.state, outcome)


def test_a_cold_start_is_no_measure_of_others() -> None:
    rows = [row(0, times={**FULL, "start": 300.0}, cold=True), row(1, times=FULL), row(2, times=FULL)]
    assert starts(rows) == {"warm": 2, "median": 20.0, "cold": [{"number": 0, "seconds": 300.0}]}
    assert durations(rows) == [100.0, 100.0]
    assert durations(rows[:1]) == [380.0], "there is no other"


def test_a_failed_start_is_no_start() -> None:
    assert starts([row(0, "hung", {"start": 300.0}), row(1)]) == {"warm": 0, "median": None, "cold": []}


def test_what_was_spent_on_a_trial_was_not_saved() -> None:
    rows = [
        row(0, times=FULL),
        row(1, "rejected", {"preflight": 3.0}),
        row(2, "implied"),
        row(3, "hung", {"start": 9.0}),
    ]
    assert savings(rows) == [
        {"rule": "refused before it was started", "trials": 1, "seconds": 97.0},
        {"rule": "told by a rule under 'monotone'", "trials": 1, "seconds": 100.0},
    ]


def test_a_start_that_was_given_up_saved_what_would_have_followed() -> None:
    rows = [row(0, times=FULL), row(1, "kv_cache_too_small", {"preflight": 2.0, "start": 15.0})]
    (saved,) = savings(rows)
    assert (saved["trials"], saved["seconds"]) == (1, 78.0)


def test_a_screening_may_cost_more_than_it_saves() -> None:
    """Two of three are measured in full, and the third would have taken 100 s; the screening took 3 x 50 s."""
    screened = [
        row(number, times={"start": 20.0, "benchmark": 30.0}, point={"a": number, "#screen": True})
        for number in (1, 2, 3)
    ]
    rows = [row(0, times=FULL), *screened, row(4, times=FULL, point={"a": 1}), row(5, times=FULL, point={"a": 2})]
    assert savings(rows) == [{"rule": "screened, and not measured in full", "trials": 1, "seconds": -50.0}]


def test_nothing_is_known_before_anything_was_measured() -> None:
    assert savings([row(0, "hung")]) == []
