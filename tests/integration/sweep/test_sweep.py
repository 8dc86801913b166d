# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sweeps as users run them: a playbook, a lab host, the stand-in, the real client."""

from __future__ import annotations

import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.integration.sweep.conftest import UNIT, Sweeping, verdicts


def test_a_sweep_and_the_way_back(sweeping: Sweeping) -> None:
    before = sweeping.host.exec(["cat", f"/etc/systemd/system/{UNIT}"]).stdout
    invocation = sweeping.deployment.invocation(UNIT)
    sweeping.write({"speculative_dflash_block_size": [4], "no_such_argument": [None, 1]})

    checked = sweeping.sweep("--check")
    assert checked.returncode == 0, checked.output[-4000:]
    assert "would be refused" in checked.output
    assert sweeping.deployment.invocation(UNIT) == invocation
    assert not (sweeping.folder / "results").exists()

    swept = sweeping.sweep()
    print(swept.output)
    assert swept.returncode == 0, swept.output[-6000:]
    assert sweeping.is_own()
    assert sweeping.host.exec(["cat", f"/etc/systemd/system/{UNIT}"]).stdout == before
    assert len(sweeping.records()) == 2, "the baseline and one configuration"
    assert verdicts(swept.output) == {0: "complete", 1: "complete", 2: "rejected"}

    again = sweeping.sweep()
    assert again.returncode == 0
    assert again.output.count("role | all trials have ended") == 1, "told for each step"
    assert len(sweeping.records()) == 2


@pytest.mark.long("a sweep of which the twelve configurations are a longer one")
def test_what_fails_is_a_row_and_the_sweep_goes_on(sweeping: Sweeping) -> None:
    dies = {"at": "ready", "after_s": 1, "do": "exit", "code": 3}
    sweeping.write(
        {
            "env.STAND_IN_FAULT": ["oom-load-target", "hang-load-target", "wrong-model", dies],
            "speculative_dflash_block_size": [4],
        },
    )
    swept = sweeping.sweep()
    print(swept.output)
    assert swept.returncode == 0, swept.output[-6000:]
    assert sweeping.is_own()
    found = verdicts(swept.output)
    # 0, 5 and 6 are the baseline, first, in the middle and at the end.
    assert [found[number] for number in (1, 2, 3)] == ["gpu_out_of_memory", "stalled", "wrong_model"]
    assert found[4] == "exited", "whether it died before the first request or later"
    assert "nothing is better than the instance as it is" in swept.output
    assert "failed=0" in swept.output


@pytest.mark.long("a reboot")
def test_a_reboot_ends_a_trial(sweeping: Sweeping) -> None:
    sweeping.write({"speculative_dflash_block_size": [4]})
    process = sweeping.start()
    try:
        deadline = time.monotonic() + 120
        while "=4" not in sweeping.arguments():
            assert time.monotonic() < deadline, "the trial did not start"
            time.sleep(0.1)
    finally:
        sweeping.kill(process)
    sweeping.host.lab.reboot(sweeping.host.name)
    sweeping.wait_until_restored(within=60)


def test_what_cannot_be_kept_starts_nothing(sweeping: Sweeping) -> None:
    invocation = sweeping.deployment.invocation(UNIT)
    sweeping.write({"speculative_dflash_block_size": [4]})
    (sweeping.folder / "file").touch()
    nowhere = "postgresql://ann:planted-pw-1@127.0.0.1:1/studies"
    # A variable of the inventory, as a vault would give it.
    sweeping.deployment.variables["sglang_sweep_storage"] = nowhere
    unreachable = sweeping.sweep("-vvv")
    assert unreachable.returncode == 2
    assert "postgresql://ann:***@127.0.0.1:1/studies cannot be used" in unreachable.output
    assert "planted-pw-1" not in unreachable.output
    del sweeping.deployment.variables["sglang_sweep_storage"]
    unwritable = sweeping.deployment.play(
        "sweep.yml", sweep=str(sweeping.sweep_file), results_dir=str(sweeping.folder / "file")
    )
    assert unwritable.returncode == 2
    assert "no record can be written to" in unwritable.output
    assert sweeping.deployment.invocation(UNIT) == invocation
    assert sweeping.is_own()


def test_without_a_client_nothing_is_started(sweeping: Sweeping) -> None:
    invocation = sweeping.deployment.invocation(UNIT)
    sweeping.write({"speculative_dflash_block_size": [4]})
    # The stand-in's own engine has none.
    del sweeping.deployment.variables["sglang_benchmark_python"]
    for switches in ((), ("--check",)):
        swept = sweeping.sweep(*switches)
        assert swept.returncode == 2
        assert "has sglang without its benchmark client, so no trial could be measured" in swept.output
        assert "sglang_benchmark_python" in swept.output
    assert sweeping.deployment.invocation(UNIT) == invocation


def test_what_runs_is_not_what_the_inventory_has(sweeping: Sweeping) -> None:
    invocation = sweeping.deployment.invocation(UNIT)
    own = sweeping.deployment.variables["sglang_instances"][0]
    changed = {**own, "args": {**own["args"], "speculative_dflash_block_size": 16}}
    sweeping.deployment.variables["sglang_instances"] = [changed]
    sweeping.write({"speculative_dflash_block_size": [4]})
    swept = sweeping.sweep()
    assert swept.returncode == 2
    assert "runs something else than the inventory has" in swept.output
    assert "speculative_dflash_block_size asked 16, running 8" in swept.output
    assert sweeping.deployment.invocation(UNIT) == invocation, "something was started"
    assert sweeping.is_own()


def test_a_sweep_that_measured_nothing_fails(sweeping: Sweeping) -> None:
    # It is found where it is looked for, and cannot measure.
    sweeping.host.write_file("/usr/local/bin/broken-client", '#!/bin/sh\n[ "$1" = -c ]\n', mode="0755")
    sweeping.deployment.variables["sglang_benchmark_python"] = "/usr/local/bin/broken-client"
    sweeping.write({"no_such_argument": [1]})
    swept = sweeping.sweep()
    print(swept.output.replace("\\n", "\n"))
    assert swept.returncode == 2
    assert "None of the 2 trials of nightly was measured to its end" in swept.output
    assert verdicts(swept.output)[1] == "rejected"
    assert "checked_in_s" not in swept.output, "all that the check found was printed with what it refused"
    assert sweeping.is_own()


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        pytest.param({"args": {}}, "Give what to try", id="nothing"),
        pytest.param({"args": "page_size=16"}, "Give what to try, as a mapping", id="no mapping"),
        pytest.param({"env": ["X"]}, "Give what to try, as a mapping", id="a list"),
        pytest.param({"args": {"tp_size": 1}, "instance": "b"}, "instance b", id="another instance"),
        pytest.param({"args": {"port": 1}}, "'port' cannot be swept", id="owned"),
    ],
)
def test_a_try_that_cannot_be(sweeping: Sweeping, extra: dict[str, t.Any], wanted: str) -> None:
    invocation = sweeping.deployment.invocation(UNIT)
    tried = sweeping.deployment.play("try.yml", results_dir=str(sweeping.folder / "results"), **extra)
    assert tried.returncode == 2
    assert wanted in tried.output
    assert sweeping.deployment.invocation(UNIT) == invocation


def test_a_try_and_the_way_back(sweeping: Sweeping) -> None:
    tried = sweeping.deployment.play(
        "try.yml",
        timeout=400,
        args={"speculative_dflash_block_size": 4},
        workload=str(sweeping.folder / "tiny.yml"),
        levels=[2],
        results_dir=str(sweeping.folder / "results"),
    )
    print(tried.output)
    assert tried.returncode == 0, tried.output[-6000:]
    assert "speculative_dflash_block_size=4" in tried.output
    assert "baseline" in tried.output
    assert verdicts(tried.output) == {0: "complete", 1: "complete"}
    assert sweeping.is_own()
