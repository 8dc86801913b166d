# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._lease import LOST
from ansible_collections.specdec.serving.plugins.plugin_utils._kept_claim import NOT_KEPT
from ansible_collections.specdec.serving.plugins.plugin_utils._record import NOT_WRITTEN
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_failure import trial_failure

CRASH = {
    "failed": True,
    "state": "crashed",
    "msg": "a long text",
    "diagnosis": {
        "cause": "out_of_memory",
        "summary": "rank 3 ran out of memory",
        "remedy": "Lower mem_fraction_static.",
    },
    "evidence": "/var/lib/x.tar.gz",
}


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        pytest.param(CRASH, ("out_of_memory", "rank 3 ran out of memory", False), id="a verdict"),
        pytest.param({"state": "hung", "msg": "nothing moved\nmore"}, ("hung", "nothing moved", False), id="a state"),
        pytest.param({"msg": ""}, ("failed", "the task 'Start' failed", False), id="nothing said"),
        pytest.param(
            {"errors": ["'x' is no argument", "b"], "msg": "unfit"},
            ("rejected", "'x' is no argument", False),
            id="refused by preflight",
        ),
        pytest.param({"assertion": "a", "msg": "no such GPU"}, ("rejected", "no such GPU", False), id="refused before"),
        pytest.param(
            {"unreachable": True, "msg": "ssh: timed out"}, ("failed", "ssh: timed out", True), id="the host is gone"
        ),
        pytest.param(
            {**CRASH, "diagnosis": {"cause": "gpu_fault"}}, ("gpu_fault", "a long text", True), id="the GPU is broken"
        ),
    ],
)
def test_what_a_row_says(result: dict[str, t.Any], wanted: tuple[str, str, bool]) -> None:
    found = trial_failure(result, "Start")
    assert (found["cause"], found["summary"], found["infrastructure"]) == wanted


def test_a_loop_tells_of_its_failed_item() -> None:
    items = [{"failed": False, "msg": "fine"}, {"failed": True, "msg": "the server ended: killed by signal 9"}]
    found = trial_failure({"msg": "One or more items failed", "results": items}, "Measure")
    assert (found["cause"], found["summary"]) == ("not_measured", "the server ended: killed by signal 9")


@pytest.mark.parametrize(
    ("seen", "result", "wanted"),
    [
        pytest.param({"active": True, "expired": False}, CRASH, ("out_of_memory", False), id="it was the trial's"),
        pytest.param({}, CRASH, ("out_of_memory", False), id="nobody looked"),
        pytest.param({"skipped": True}, CRASH, ("out_of_memory", False), id="it had not begun"),
        pytest.param({"active": False, "expired": True}, CRASH, ("trial_expired", False), id="its timer ended it"),
        pytest.param({"active": False, "expired": False}, CRASH, ("host_restarted", True), id="a reboot"),
        pytest.param(
            {"active": False}, {"msg": f"{LOST}, so this run"}, ("lease_lost", True), id="another run has the host"
        ),
    ],
)
def test_what_was_seen_of_another_configuration_is_not_the_trial_s(
    seen: dict[str, t.Any], result: dict[str, t.Any], wanted: tuple[str, bool]
) -> None:
    for one in (result, {"results": [{**result, "failed": True}]}):
        found = trial_failure(one, "Measure", trial=seen)
        assert (found["cause"], found["infrastructure"]) == wanted


def test_remedy_and_evidence_are_kept() -> None:
    found = trial_failure(CRASH)
    assert (found["remedy"], found["evidence"]) == ("Lower mem_fraction_static.", "/var/lib/x.tar.gz")


def test_what_others_do_on_the_host_is_no_fault_of_the_trial() -> None:
    found = trial_failure({"msg": f"{LOST}, so this run changes nothing here any more."}, "Wait until ready")
    assert (found["cause"], found["infrastructure"]) == ("lease_lost", True)
    found = trial_failure(
        {"msg": "a has 2 requests running. No time was given"}, "Stop what ran before, once its requests have ended"
    )
    assert (found["cause"], found["infrastructure"]) == ("not_stopped", True)


@pytest.mark.parametrize(
    ("message", "task"),
    [
        pytest.param(
            f"{NOT_WRITTEN} to './results': [Errno 28] No space left on device: './results/x'", "Measure", id="record"
        ),
        pytest.param(f"{NOT_KEPT}the study's storage x cannot be used: refused", "Measure", id="claim"),
        pytest.param("the study's storage x cannot be used: refused", "Record what was measured", id="result"),
    ],
)
def test_what_the_controller_cannot_keep_is_no_fault_of_the_trial(message: str, task: str) -> None:
    found = trial_failure({"msg": message}, task)
    assert (found["cause"], found["summary"], found["infrastructure"]) == ("not_recorded", message, True)


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        pytest.param(CRASH, "out_of_memory", id="the server crashed"),
        pytest.param({"ready": True, "diagnosis": {}}, "not_measured", id="the server is well"),
        pytest.param({"skipped": True}, "not_measured", id="nobody looked"),
        pytest.param({"failed": True, "msg": "no answer"}, "not_measured", id="it could not be seen"),
    ],
)
def test_a_server_that_died_while_it_was_measured_is_the_cause(seen: dict[str, t.Any], cause: str) -> None:
    found = trial_failure({"msg": "nothing was measured: the unit is failed"}, "Measure", seen)
    assert found["cause"] == cause
    assert bool(found["evidence"]) is (cause == "out_of_memory")
