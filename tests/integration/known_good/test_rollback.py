# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A configuration that does not become ready gives way to the one that was proven ready last."""

from __future__ import annotations

import re

from ansible_collections.specdec.serving.tests.integration.known_good.conftest import Killable
from ansible_collections.specdec.serving.tests.support.known_good import kills
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance


def runs(deployment: Killable, number: int) -> None:
    """Unit and process are wholly of this configuration."""
    found = deployment.found()
    assert found.is_all(number), found


def test_a_crash_is_rolled_back_and_told_once(deployment: Killable) -> None:
    assert deployment.deploy(1).returncode == 0
    first = deployment.invocation()
    play = deployment.deploy(2, fault="oom-load-target")
    assert play.returncode != 0
    assert "crashed (gpu_out_of_memory)" in play.failure("role")
    assert re.search(
        r"Rolled back: generation [0-9a-f]{12}, proven ready \S+ \S+ UTC, was put back and is ready again",
        play.failure("role"),
    )
    # The diagnosis stands in the chart, once; the message of the failure is short, and no result is dumped.
    assert play.output.count("cause: gpu_out_of_memory") == 1
    assert play.output.count("remedy: ") == 1
    assert "log_tail" not in play.output
    runs(deployment, 1)
    assert deployment.invocation() not in ("", first)
    assert re.search(
        # It has the key of that time, so it is not as asked either.
        r"role +a +not as asked .*rolled back \d{4}-\d\d-\d\d \d\d:\d\d UTC; ",
        deployment.play("status.yml").output,
    )

    # The same again: nothing else is tried, and it goes back again.
    assert "Rolled back: " in deployment.deploy(2, fault="oom-load-target").failure("role")
    runs(deployment, 1)
    # A good one ends that.
    assert deployment.deploy(3).returncode == 0
    runs(deployment, 3)
    assert "rolled back" not in deployment.play("status.yml").output
    assert deployment.deploy(3).recap("role")["changed"] == 0


def test_without_a_known_good_one_it_is_stopped(deployment: Killable) -> None:
    play = deployment.deploy(1, fault="oom-load-target")
    assert play.returncode != 0
    assert "Not rolled back: no other configuration of it was proven ready on this host" in play.failure("role")
    assert play.failure("role").endswith("The unit is stopped.")
    assert deployment.state() in ("inactive", "failed")


def test_not_wanted(deployment: Killable) -> None:
    assert deployment.deploy(1).returncode == 0
    deployment.variables["sglang_rollback"] = False
    play = deployment.deploy(2, fault="oom-load-target")
    assert "since sglang_rollback is false. The unit is stopped." in play.failure("role")
    assert deployment.found().unit == {2}
    assert deployment.state() in ("inactive", "failed")


def test_hung_and_too_slow_are_rolled_back_too(deployment: Killable) -> None:
    assert deployment.deploy(1).returncode == 0
    deployment.variables.update(sglang_ready_stall_timeout=3)
    play = deployment.deploy(2, fault='{"at": "load_target", "who": "ranks", "do": "hang"}')
    assert "did not become ready: hung" in play.failure("role")
    assert "Rolled back: " in play.failure("role")
    runs(deployment, 1)
    deployment.variables.update(sglang_ready_stall_timeout=0, sglang_ready_timeout="4")
    play = deployment.deploy(3, fault='{"at": "load_target", "who": "ranks", "do": "hang"}')
    assert "did not become ready: loading (timeout)" in play.failure("role")
    assert "Rolled back: " in play.failure("role")
    runs(deployment, 1)


def test_the_host_is_at_fault_and_not_the_configuration(deployment: Killable) -> None:
    """What was proven ready fails now: going back cures nothing, and when it is tried both diagnoses are told."""
    assert deployment.deploy(1).returncode == 0
    # What a drop-in brings in is no part of a configuration.
    drop_in = "/etc/systemd/system/sglang-a.service.d/fault.conf"
    deployment.host.write_file(drop_in, "[Service]\nEnvironment=STAND_IN_FAULT=oom-load-target\n")
    deployment.host.exec(["systemctl", "daemon-reload"])
    deployment.host.exec(["systemctl", "stop", "sglang-a.service"])
    try:
        play = deployment.deploy(1)
        assert "its configuration is the one that was proven ready last" in play.failure("role")
        assert deployment.state() in ("inactive", "failed")
        play = deployment.deploy(2)
        assert "ROLLBACK FAILED: generation" in play.failure("role")
        assert play.failure("role").count("gpu_out_of_memory") == 2
        assert deployment.state() in ("inactive", "failed")
        assert deployment.found().unit == {1}
    finally:
        deployment.host.exec(["rm", "-r", "/etc/systemd/system/sglang-a.service.d"], check=False)
        deployment.host.exec(["systemctl", "daemon-reload"])
    assert deployment.deploy(2).returncode == 0
    runs(deployment, 2)


def test_back_by_hand(deployment: Killable) -> None:
    deployment.variables["sglang_instances"] = [instance()]
    assert "No configuration has been proven ready yet." in deployment.play("rollback.yml", rollback_list=True).output
    assert deployment.play("rollback.yml").returncode != 0
    for number in (1, 2, 3, 4):
        assert deployment.deploy(number).returncode == 0
    # The newest three are kept, each with its key.
    assert deployment.found().records == (4, 3, 2)
    shown = deployment.play(
        "rollback.yml", rollback_list=True, environment={"ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"}
    ).output
    generations = re.findall(r"role +a +([0-9a-f]{12}) ", shown)
    assert len(generations) == 3
    assert re.search(rf"{generations[0]} .* installed$", shown, re.MULTILINE)

    # Needs no valid inventory, and changes nothing in check mode.
    deployment.variables["sglang_instances"] = "broken"
    play = deployment.play("rollback.yml", "--check", "--diff")
    assert play.returncode == 0, play.output
    assert "would be put back" in play.output
    runs(deployment, 4)
    play = deployment.play("rollback.yml")
    assert play.returncode == 0, play.output
    runs(deployment, 3)
    play = deployment.play("rollback.yml", generation=generations[2][:5], rollback_instances="a")
    assert play.returncode == 0, play.output
    runs(deployment, 2)
    assert deployment.found().records == (2, 3, 4)
    assert "is not kept; kept: " in deployment.play("rollback.yml", generation="00000", rollback_instances="a").output
    runs(deployment, 2)
    # Keys of all of them stay where only root reads them.
    output = deployment.play("rollback.yml", "-vvvvv", "--diff").output
    assert [number for number in (2, 3, 4) if kills.marks(number)["apikey"] in output] == []


def test_a_full_disk(deployment: Killable) -> None:
    """The change is refused before any file was replaced, and what runs is what was."""
    assert deployment.deploy(1).returncode == 0
    folder = "/etc/specdec/sglang"
    script = (
        f"cp -a {folder} /root/kept && mount -t tmpfs -o size=64k,mode=755 tmpfs {folder} && cp -a /root/kept/. {folder}/"
        f" && (head -c 1M /dev/zero > {folder}/fill; true)"
    )
    deployment.host.exec(["sh", "-c", script])
    try:
        play = deployment.deploy(2)
        assert play.returncode != 0
        assert "No space left on device" in play.failure("role")
        assert "everything was put back" in play.failure("role")
        runs(deployment, 1)
        deployment.host.exec(["rm", f"{folder}/fill"])
        assert deployment.deploy(2).returncode == 0
        runs(deployment, 2)
    finally:
        deployment.host.exec(["umount", "-l", folder], check=False)
        deployment.host.exec(["rm", "-r", "/root/kept"], check=False)


def test_none_is_kept(deployment: Killable) -> None:
    deployment.variables["sglang_known_good_keep"] = 0
    assert deployment.deploy(1).returncode == 0
    assert deployment.found().records == ()
    assert deployment.deploy(1).recap("role")["changed"] == 0
