# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fault matrix itself: what makes a row wrong or late, and that every row can run."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.fault_matrix.model import Fault, Outcome, judged, prepared
from ansible_collections.specdec.serving.tests.support.fault_matrix.report import Report
from ansible_collections.specdec.serving.tests.support.fault_matrix.rows import faults

FAULT = Fault(id="x", group="g", what="it breaks", state="crashed", cause="exited", row="F5", words=("memory",))


def found(**changes: t.Any) -> dict[str, t.Any]:
    verdict = {
        "state": "crashed",
        "diagnosis": {"cause": "exited", "id": "F5"},
        "msg": "no memory left",
        "detected_at_monotonic": 100.3,
        "elapsed": 10.0,
        **changes.pop("verdict", {}),
    }
    return {
        "verdict": verdict,
        "trouble": [],
        "stamps": {"ExecMainExitTimestampMonotonic": 100.0},
        "truth": {"fault": 99.0},
        "marks": {"started": 90.0, "answered": 100.4, "action 0": 98.0},
        "wall_s": 11.0,
        **changes,
    }


def outcome(fault: Fault = FAULT, **changes: t.Any) -> Outcome:
    return judged(fault, found(**changes), words=fault.words, limit_s=0.5)


def test_a_row_as_expected() -> None:
    seen = outcome()
    assert seen.ok
    assert seen.seconds == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param({"verdict": {"state": "loading"}}, "state 'loading'", id="state"),
        pytest.param({"verdict": {"diagnosis": {"cause": "signal", "id": "F5"}}}, "cause 'signal'", id="cause"),
        pytest.param({"verdict": {"diagnosis": {"cause": "exited", "id": "F4"}}}, "row 'F4'", id="row of the table"),
        pytest.param({"verdict": {"msg": "it broke"}}, "not said: 'memory'", id="words"),
        pytest.param({"verdict": {"detected_at_monotonic": 99.9}}, "before the fault's own time", id="early"),
        pytest.param({"stamps": {}}, "is not known", id="no time"),
        pytest.param({"trouble": ["no neighbour"]}, "no neighbour", id="trouble"),
    ],
)
def test_what_makes_a_row_wrong(changes: dict[str, t.Any], problem: str) -> None:
    seen = outcome(**changes)
    assert not seen.ok
    assert any(problem in text for text in seen.problems)


def test_a_late_row_is_not_wrong() -> None:
    seen = outcome(verdict={"detected_at_monotonic": 100.6})
    assert (seen.ok, seen.late, seen.problems) == (False, True, ())


@pytest.mark.parametrize(
    ("own_time", "seconds"),
    [
        ("exit", 0.3),
        ("truth:fault", 1.3),
        ("truth:fault+1", 0.3),
        ("action:0", 2.3),
        ("wait", 10.0),
        ("timeout", 0.5),
    ],
)
def test_from_when_the_seconds_count(own_time: str, seconds: float) -> None:
    fault = Fault(
        id="x", group="g", what="w", state="crashed", cause="exited", own_time=own_time, options={"timeout": "9.5"}
    )
    assert outcome(fault).seconds == pytest.approx(seconds)


def test_a_fault_before_the_wait_counts_from_the_wait() -> None:
    assert outcome(stamps={"ExecMainExitTimestampMonotonic": 3.0}).seconds == pytest.approx(10.0)


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.id) for fault in faults()])
def test_every_row_is_whole(fault: Fault) -> None:
    row = prepared(fault, serial=7, port=32000, address="10.0.0.9")
    text = json.dumps(row).replace("@INVOCATION@", "")
    assert not [word for word in ("@UNIT@", "@NAME@", "@PORT@", "@DIR@", "@TLS@", "@ADDRESS@") if word in text]
    assert fault.what
    assert fault.state in (
        "ready",
        "loading",
        "hung",
        "crashed",
        "crash_loop",
        "stopping",
        "stopped",
        "not_found",
        "refused",
    )
    assert bool(fault.cause) == (fault.state not in ("ready", "refused"))


def test_the_table_tells_what_is_wrong() -> None:
    outcomes = (outcome(), outcome(verdict={"state": "loading"}))
    report = Report(outcomes=outcomes, skipped={"y": "no such device"}, machine={"load_max": 3.0}, limit_s=0.5)
    table = report.markdown()
    assert "| g: x" in table
    assert "2 faults, 1 wrong, 0 later than 0.5 s" in table
    assert "- y: not run: no such device" in table
    assert "state 'loading', expected 'crashed'" in table
