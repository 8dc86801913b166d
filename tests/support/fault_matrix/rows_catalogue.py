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

# What the wait calls it where the catalogue, which is the server's side, leaves it open; and whether that ends the wait: then
# the verdict comes with the fault and not with the timeout.
_CAUSES = {
    "main-exits-0": ("exited", False),
    "unhealthy": ("unhealthy", False),
    "health-500": ("unhealthy", False),
    "generate-500": ("generation_failed", True),
    "generate-400": ("generation_failed", True),
    "generate-nothing": ("generation_failed", True),
    "speculation-never": ("speculation_not_exercised", True),
    "speculation-absent": ("speculation_not_exercised", True),
    "wrong-model": ("wrong_model", True),
    "no-model": ("wrong_model", True),
    "wrong-path": ("wrong_model_path", True),
    "other-settings": ("settings_mismatch", True),
    "other-algorithm": ("settings_mismatch", True),
    "models-redirect": ("redirected", True),
    "models-slow": ("slow_answer", False),
    "models-endless": ("huge_answer", True),
    "models-endless-slow": ("slow_answer", False),
    "models-huge": ("huge_answer", True),
    "models-html": ("not_json", True),
    "models-list": ("not_json", True),
    "models-truncated": ("not_json", True),
    "models-cut": ("cut_answer", False),
    "models-length": ("slow_answer", False),
    "models-length-word": ("not_http", True),
    "models-reset": ("reset", False),
    "models-garbage": ("not_http", True),
    "models-hang": ("no_answer", False),
    "models-404": ("http_status", False),
    "settings-huge": ("huge_answer", True),
    "settings-html": ("not_json", True),
    "settings-truncated": ("not_json", True),
    "settings-hang": ("no_answer", False),
    "other-address": ("wrong_address", True),
    "other-port": ("wrong_port", True),
    "slow-load": ("timeout", False),
}


def rows() -> list[Fault]:
    """The catalogue as rows."""
    entries: dict[str, dict[str, t.Any]] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return [_row(name, entry) for name, entry in entries.items()]


def _row(name: str, entry: dict[str, t.Any]) -> Fault:
    expected = entry["expected"]
    state, cause = expected["state"], expected["cause"]
    options: dict[str, t.Any] = dict(entry.get("options", {}))
    own_time = _OWN_TIMES.get(state, "")
    if not cause and name in _CAUSES:
        cause, ends_the_wait = _CAUSES[name]
        own_time = "truth:fault" if ends_the_wait else own_time
    own_time = expected.get("own_time", own_time)
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
