# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What comes between a sweep and its end: a controller that stands still, a host that reboots, somebody who deploys."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

import pytest

from ansible_collections.specdec.serving.tests.integration.sweep.conftest import HOLD_S, Sweeping, verdicts

pytestmark = pytest.mark.long("each waits for a host that restores itself")

#: Whatever the trial is, it is not the instance's own.
_TRIAL = "--speculative-dflash-block-size=4"


@pytest.fixture
def measuring(sweeping: Sweeping) -> tuple[Sweeping, subprocess.Popen[bytes]]:
    """A sweep that measures a trial, after the baseline."""
    sweeping.deployment.variables["sglang_trial_hold"] = HOLD_S
    sweeping.write({"speculative_dflash_block_size": [4]})
    process = sweeping.start()
    try:
        assert sweeping.wait_for_task("Measure", 2, process), sweeping.output.read_text()[-4000:]
        assert _TRIAL in sweeping.arguments()
    except BaseException:
        sweeping.kill(process)
        raise
    return sweeping, process


def _goes_on(sweeping: Sweeping, again_of: str = "") -> None:
    """The same command again: the trial that was cut off is measured, the baseline is not."""
    kept = {record["invocation"]["invocation_id"] for record in sweeping.records()}
    again = sweeping.sweep(sweep_again=again_of or [])
    assert again.returncode == 0, again.output[-6000:]
    # What is tried once more is a trial of its own; the one before stays what it was.
    tried = {1: again_of, 2: "complete"} if again_of else {1: "complete"}
    assert verdicts(again.output) == {0: "complete", **tried}
    found = [record["invocation"]["invocation_id"] for record in sweeping.records()]
    assert kept < set(found)
    assert len(found) == len(set(found)) == len(kept) + 1, "a start was measured twice, or a trial was"
    assert sweeping.is_own()


def test_a_controller_that_stands_still_loses_the_trial(
    measuring: tuple[Sweeping, subprocess.Popen[bytes]],
) -> None:
    sweeping, process = measuring
    try:
        # As a laptop that is closed: connections stay, and nobody renews.
        for pid in sweeping.processes():
            os.kill(pid, signal.SIGSTOP)
        sweeping.wait_until_restored()
        assert not sweeping.is_measured(), "production answers a measurement that nobody waits for"
        for pid in sweeping.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        process.wait(timeout=180)
    finally:
        sweeping.kill(process)
    output = sweeping.output.read_text(errors="replace")
    print(output)
    assert process.returncode == 0
    assert verdicts(output) == {0: "complete", 1: "trial_expired"}
    assert "the host heard nothing of this run for sglang_trial_hold seconds" in output
    # It may have been measured to its end before: that is kept, and is of the trial's own start. What was cut off is no figure.
    starts = {record["invocation"]["invocation_id"]: record for record in sweeping.records()}
    assert len(starts) == len(sweeping.records()) <= 2
    for record in starts.values():
        assert all(level["valid"] for level in record["results"]["levels"]), record["results"]
    assert sweeping.is_own()
    _goes_on(sweeping, again_of="trial_expired")


def test_a_host_that_reboots_in_mid_sweep(measuring: tuple[Sweeping, subprocess.Popen[bytes]]) -> None:
    sweeping, process = measuring
    try:
        sweeping.host.lab.reboot(sweeping.host.name)
        sweeping.wait_until_restored()
        process.wait(timeout=300)
    finally:
        sweeping.kill(process)
    output = sweeping.output.read_text(errors="replace")
    print(output)
    # 2: told and given back; 4: Ansible lost the host for good.
    assert process.returncode in (2, 4)
    _goes_on(sweeping)


def test_a_deployment_ends_what_a_killed_sweep_left(measuring: tuple[Sweeping, subprocess.Popen[bytes]]) -> None:
    sweeping, process = measuring
    sweeping.kill(process)
    assert _TRIAL in sweeping.arguments(), "the host was faster: nothing is proven"
    began = time.monotonic()
    deployed = sweeping.deployment.play()
    print(deployed.output)
    assert deployed.returncode == 0, deployed.output[-6000:]
    assert sweeping.is_own()
    assert sweeping.is_restored()
    assert time.monotonic() - began < HOLD_S, "the host's own timer may have done it"
    assert not sweeping.is_measured(), "the client of the killed measurement runs on"
    _goes_on(sweeping)
