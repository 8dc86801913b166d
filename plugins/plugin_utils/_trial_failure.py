# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What failed in a trial, in the words of its row. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.specdec.serving.plugins.module_utils._lease import LOST
from ansible_collections.specdec.serving.plugins.plugin_utils._kept_claim import NOT_KEPT
from ansible_collections.specdec.serving.plugins.plugin_utils._record import NOT_WRITTEN

__all__ = ["EXPIRED", "REJECTED", "trial_failure"]

#: Cause of a configuration that the engine, or the collection, refuses.
REJECTED: t.Final = "rejected"
#: Cause of a trial that its host ended, since it heard nothing of the controller.
EXPIRED: t.Final = "trial_expired"
#: ... and of one that was gone with everything else below /run.
RESTARTED: t.Final = "host_restarted"
_GONE = {
    EXPIRED: (
        "the host heard nothing of this run for sglang_trial_hold seconds and put the unit's own configuration back; what was seen is not the trial's",
        "See what kept the controller from the host, and try it once more with sweep_again=trial_expired.",
    ),
    RESTARTED: (
        "the trial is gone from the host, which was restarted meanwhile or was given the unit's own configuration by somebody",
        "",
    ),
}
#: Causes that are the host's (module_utils/_kernel_log.py), other people's on it, or the controller's: another configuration would have met them as well.
_HOST_FAULTS = frozenset(
    {"gpu_fault", "host_out_of_memory", RESTARTED, "lease_lost", "not_recorded", "not_stopped", "pcie_error"}
)
#: Of tasks of tasks/trial.yml whose results name no cause.
_CAUSES = {
    "Measure": "not_measured",
    "Evaluate": "not_evaluated",
    "Record what was measured": "not_recorded",
    "Stop what ran before, once its requests have ended": "not_stopped",
}
#: Long messages stand in the evidence; a row has one line.
_SUMMARY = 400


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_SUMMARY] if lines else ""


def _gone(cause: str) -> dict[str, t.Any]:
    summary, remedy = _GONE[cause]
    infrastructure = cause in _HOST_FAULTS
    return {"cause": cause, "summary": summary, "remedy": remedy, "evidence": "", "infrastructure": infrastructure}


def trial_failure(
    result: Mapping[str, t.Any],
    task: str = "",
    seen: Mapping[str, t.Any] | None = None,
    trial: Mapping[str, t.Any] | None = None,
) -> dict[str, t.Any]:
    """``cause``, ``summary``, ``remedy``, ``evidence`` and ``infrastructure`` of a failed task's result.

    A verdict of sglang_ready has a diagnosis; every other task has a message. ``seen``: what sglang_ready said of a server that was ready
    once, after the task failed: that the server is to blame, or nothing. ``trial``: what sglang_trial_unit saw of the trial afterwards;
    where that was over, nothing else that was seen is the trial's.
    """
    failed = [item for item in result.get("results") or () if item.get("failed") or item.get("unreachable")]
    if failed:
        # Of a loop, whose own message says only that an item failed.
        return trial_failure(failed[0], task, seen, trial)
    lost = str(result.get("msg") or "").startswith(LOST)
    if trial and trial.get("active") is False and not lost:
        return _gone(EXPIRED if trial.get("expired") else RESTARTED)
    if seen and seen.get("diagnosis") and not seen.get("ready"):
        return trial_failure(seen, task)
    diagnosis = result.get("diagnosis") or {}
    message = str(result.get("msg") or "")
    errors = [str(one) for one in result.get("errors") or ()]
    if errors or result.get("assertion"):
        # Of sglang_preflight, or of the check of the instance: nothing was started.
        return {
            "cause": REJECTED,
            "summary": _first_line(errors[0] if errors else message),
            "remedy": "",
            "evidence": "",
            "infrastructure": False,
        }
    cause = str(diagnosis.get("cause") or result.get("state") or _CAUSES.get(task, "failed"))
    if lost:
        cause = "lease_lost"
    elif message.startswith((NOT_KEPT, NOT_WRITTEN)):
        cause = "not_recorded"
    return {
        "cause": cause,
        "summary": str(diagnosis.get("summary") or "")[:_SUMMARY]
        or _first_line(message)
        or f"the task {task!r} failed",
        "remedy": str(diagnosis.get("remedy") or ""),
        "evidence": str(result.get("evidence") or ""),
        "infrastructure": bool(result.get("unreachable")) or cause in _HOST_FAULTS,
    }
