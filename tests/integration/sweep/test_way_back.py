# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sweep whose way back fails."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from ansible_collections.specdec.serving.tests.integration.sweep.conftest import HOLD_S, UNIT, Sweeping


def _ended(process: subprocess.Popen[bytes], sweeping: Sweeping, *, within: float = 400) -> str:
    process.wait(timeout=within)
    return sweeping.output.read_text(errors="replace")


@pytest.mark.long("a sweep more")
def test_a_way_back_that_fails_is_told_at_the_end(sweeping: Sweeping) -> None:
    sweeping.deployment.variables["sglang_trial_hold"] = HOLD_S
    sweeping.write({"no_such_argument": [1]})
    unit = sweeping.host.exec(["cat", f"/etc/systemd/system/{UNIT}"]).stdout
    (path,) = re.findall(r"^EnvironmentFile=(\S+(?<!secret)\.env)$", unit, re.MULTILINE)
    own = sweeping.host.exec(["cat", path]).stdout
    process = sweeping.start()
    try:
        assert sweeping.wait_for_task("Measure", 1, process)
        # From now on its own configuration crashes. That of the trial has a file of its own.
        sweeping.host.exec(["sh", "-c", f"echo 'STAND_IN_FAULT=\"oom-load-target\"' >>{path}"])
        output = _ended(process, sweeping)
    finally:
        sweeping.kill(process)
    print(output)
    assert process.returncode == 2
    # All trials are told first, and what failed is the last word.
    last = output[output.rindex("fatal: ") :]
    assert "why not" in output[: output.rindex("fatal: ")]
    assert f"{UNIT} on role did not come back with its own configuration (gpu_out_of_memory: " in last
    assert "deploy.yml" in last
    lease = json.loads(sweeping.host.exec(["cat", "/run/specdec/sglang/lease.json"]).stdout)
    assert lease["held"] is False
    timers = ["systemctl", "list-units", "--plain", "--no-legend", "specdec-trial-*.timer"]
    assert len(sweeping.host.exec(timers).stdout.splitlines()) == 1, "no second try is to come"
    assert sweeping.host.exec(["ls", f"/run/systemd/system/{UNIT}.d"], check=False).stdout.strip() == ""
    # What was in its way goes: systemd or the timer brings it back.
    sweeping.host.write_file(path, own, mode="0644")
    sweeping.wait_until_restored()
