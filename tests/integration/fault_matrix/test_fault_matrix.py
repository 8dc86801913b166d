# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every fault through the real wait, each a test of its own. The table is written to build/fault-matrix.md.

`make matrix` runs the same rows alone and holds every verdict to half a second after the fault.
"""

from __future__ import annotations

import os
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.fault_matrix.matrix import run
from ansible_collections.specdec.serving.tests.support.fault_matrix.model import Fault, Outcome
from ansible_collections.specdec.serving.tests.support.fault_matrix.report import Report
from ansible_collections.specdec.serving.tests.support.fault_matrix.rows import faults
from ansible_collections.specdec.serving.tests.support.lab.client import LabError
from ansible_collections.specdec.serving.tests.support.observer.units import CHECKOUT

# Other steps of `make test` run beside on the same cores: a verdict takes several programs, each of which may have to wait.
LIMIT_S = 3.0
LEAST_ROWS = 60
HOST = f"{os.environ.get('READY_HOST', 'ready')}-matrix"


def _reason(fault: Fault) -> str:
    return fault.skip or ("takes minutes: `make matrix SLOW=--slow`" if fault.slow else "")


FAULTS = faults()
ROWS = [
    pytest.param(fault, id=fault.id, marks=[pytest.mark.skip(reason=_reason(fault))] if _reason(fault) else [])
    for fault in FAULTS
]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    """The rows that were chosen, all run."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {call.params["fault"].id for call in calls if call is not None and "fault" in call.params}
    chosen = [fault for fault in FAULTS if fault.id in wanted and not _reason(fault)]
    try:
        found = run(chosen, host_name=HOST, limit_s=LIMIT_S)
    except LabError as error:
        pytest.skip(f"no lab host: {error}")
    found.write(CHECKOUT / "build")
    return found


@pytest.mark.parametrize("fault", ROWS)
def test_fault(fault: Fault, report: Report) -> None:
    outcome = _outcomes(report)[fault.id]
    assert not outcome.problems, f"{outcome.problems}; it said: {outcome.message}"


def test_verdicts_come_with_the_fault(
    report: Report, record_property: t.Callable[[str, t.Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    record_property("fault_matrix", report.summary())
    with capsys.disabled():
        print(f"\n{report.summary()}")
    late = {outcome.fault.id: outcome.seconds for outcome in report.late}
    assert late == {}


def test_there_are_enough_rows() -> None:
    assert len([fault for fault in FAULTS if not _reason(fault)]) >= LEAST_ROWS


def _outcomes(report: Report) -> dict[str, Outcome]:
    return {outcome.fault.id: outcome for outcome in report.outcomes}
