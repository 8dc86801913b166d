# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of the fault matrix from the catalogue of the stand-in: every entry is a row, with nothing typed again."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._signatures import SIGNATURES
from ansible_collections.specdec.serving.tests.support.fault_matrix.model import Fault
from ansible_collections.specdec.serving.tests.support.observer.units import CHECKOUT

CATALOGUE = CHECKOUT / "tests/support/stand_in/src/sglang/stand_in/faults.json"
# Short, so that a hung row costs no minutes; long enough that no start is still on its way.
STALL_S = 3
SPIN_S = 5
_GROUPS = {"crashed": "crashes", "hung": "hung", "loading": "never ready", "ready": "survived"}
_OWN_TIMES = {"crashed": "exit", "ready": "truth:ready", "loading": "timeout"}
# Of a server that is ready, what costs nothing is not told.
_SUMMARIES = {row.id: row.summary for row in SIGNATURES if row.severity == "warning"}


def rows() -> list[Fault]:
    """The catalogue as rows."""
    entries: dict[str, dict[str, t.Any]] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return [_row(name, entry) for name, entry in entries.items()]


def _row(name: str, entry: dict[str, t.Any]) -> Fault:
    expected = entry["expected"]
    state, cause = expected["state"], expected["cause"]
    options: dict[str, t.Any] = dict(entry.get("options", {}))
    own_time = expected.get("own_time", _OWN_TIMES.get(state, ""))
    slow = any(fault.get("for_s", 0) >= 30 for fault in entry.get("faults", ()))
    if slow:
        options = {"timeout": "200", **options}
    if state == "hung":
        options = {"stall_timeout": STALL_S, "spin_timeout": SPIN_S, **options}
        own_time = f"truth:fault+{SPIN_S if cause == 'spinning' else STALL_S}"
    if state == "loading" and own_time == "timeout":
        options = {"timeout": "4", **options}
    warning = expected.get("warning", "")
    return Fault(
        id=name,
        group=_GROUPS[state],
        what=entry["what"],
        state=state,
        cause=cause,
        row=expected.get("id", ""),
        words=(_SUMMARIES[warning],) if warning in _SUMMARIES else (),
        own_time=own_time,
        arguments=tuple(entry.get("arguments", ())),
        environment={"STAND_IN_FAULT": name},
        options=options,
        needs=entry.get("needs", ""),
        # The kernel's log is the whole host's.
        alone=bool(entry.get("needs")) or any(fault.get("rate", 0) >= 1000 for fault in entry.get("faults", ())),
        slow=slow,
    )


__all__ = ("rows",)
