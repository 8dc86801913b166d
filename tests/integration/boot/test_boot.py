# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What happens to deployed units when a host loses its power and boots again."""

from __future__ import annotations

import json
import re
import time

import pytest

from ansible_collections.specdec.serving.tests.integration.boot.conftest import Machine
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

#: Services that a server has to wait for, each a second late. nvidia-* play the GPU's.
SLOW = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "slow-network.service")


def slow_service(name: str) -> str:
    online = "Before=network-online.target\n" if name == "slow-network.service" else ""
    wanted = "network-online.target" if online else "multi-user.target"
    return (
        f"[Unit]\nDescription=Plays {name}\nDefaultDependencies=no\n{online}"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sleep 1\n"
        f"[Install]\nWantedBy={wanted}\n"
    )


def late_mount(machine: Machine, model: str) -> None:
    """A model on a file system that is mounted a second after boot."""
    machine.host.exec(["mkdir", "-p", "/srv/models", "/mnt/models"])
    machine.host.exec(["cp", "-a", f"/models/{model}", "/srv/models/"])
    machine.host.write_file("/etc/systemd/system/slow-disk.service", slow_service("slow-disk.service"))
    machine.host.write_file(
        "/etc/systemd/system/mnt-models.mount",
        "[Unit]\nRequires=slow-disk.service\nAfter=slow-disk.service\n"
        "[Mount]\nWhat=/srv/models\nWhere=/mnt/models\nType=none\nOptions=bind\n[Install]\nWantedBy=multi-user.target\n",
    )
    machine.host.exec(["systemctl", "daemon-reload"])
    machine.host.exec(["systemctl", "--quiet", "enable", "--now", "mnt-models.mount"])


def test_servers_come_up_in_order_and_the_next_deployment_changes_nothing(machine: Machine) -> None:
    late_mount(machine, "stand-in-target")
    for name in SLOW:
        machine.host.write_file(f"/etc/systemd/system/{name}", slow_service(name))
    machine.host.exec(["systemctl", "--quiet", "enable", *SLOW])
    names = ("a", "b", "c")
    mounted = {"model_path": "/mnt/models/stand-in-target"}
    servers = [
        instance(name, port=30100 + index, **(mounted if name == "b" else {})) for index, name in enumerate(names)
    ]
    play = machine.deploy(*servers)
    assert play.returncode == 0, play.output
    before = {name: machine.shown(f"sglang-{name}.service", "InvocationID") for name in names}

    machine.cut_the_power()

    for name in names:
        shown = machine.shown(f"sglang-{name}.service", "ActiveState", "InvocationID", "NRestarts")
        assert (shown["ActiveState"], shown["NRestarts"]) == ("active", "0")
        assert shown["InvocationID"] != before[name]["InvocationID"]
    awaited = [*SLOW, "network-online.target"]
    ready = {
        unit: int(machine.shown(unit, "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"])
        for unit in (*awaited, "mnt-models.mount")
    }
    assert 0 not in ready.values(), ready
    for name in names:
        unit = f"sglang-{name}.service"
        started = int(machine.shown(unit, "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"])
        late = {unit: at for unit, at in ready.items() if at > started and (name == "b" or unit != "mnt-models.mount")}
        assert not late, (name, started, late)

    machine.until(lambda: machine.status().count("ready") >= len(names), "all are ready")
    assert len(re.findall(rf"{machine.host.name} +[abc] +ready ", machine.status())) == len(names)
    play = machine.play()
    assert play.returncode == 0, play.output
    assert play.recap(machine.host.name)["changed"] == 0


@pytest.mark.long("a boot more")
def test_what_is_not_enabled_stays_down(machine: Machine) -> None:
    play = machine.deploy(instance(), sglang_enabled=False)
    assert play.returncode == 0, play.output
    machine.cut_the_power()
    assert machine.deployment.state() == "inactive"
    assert re.search(rf"{machine.host.name} +a +stopped", machine.status())
    play = machine.play()
    assert play.returncode == 0, play.output
    assert machine.deployment.state() == "active"


def test_a_server_that_crashes_at_boot_is_given_up_and_told_and_healed(machine: Machine) -> None:
    """The drop-in plays what differs after a boot: a GPU that is gone, say."""
    assert machine.deploy(instance()).returncode == 0
    drop_in = "/etc/systemd/system/sglang-a.service.d/fault.conf"
    machine.host.write_file(drop_in, "[Service]\nEnvironment=STAND_IN_FAULT=oom-load-target\n")

    machine.cut_the_power_and_let_units_fail()

    machine.until(lambda: machine.deployment.state() == "failed", "systemd gives up")
    shown = machine.shown("sglang-a.service", "NRestarts", "SubState", "InvocationID")
    # Three starts (sglang_start_limit_burst), and a third restart that was refused.
    assert (shown["NRestarts"], shown["SubState"]) == ("3", "failed"), shown
    starts = machine.host.journal("sglang-a.service", "--output=cat").count("Starting sglang-a.service")
    assert starts == 3
    # It stays so.
    time.sleep(3)
    assert machine.shown("sglang-a.service", "NRestarts", "SubState", "InvocationID") == shown
    status = machine.status()
    assert re.search(rf"{machine.host.name} +a +crashed .*gpu_out_of_memory", status), status

    assert "systemd tried to restart it 3 times and gave up" in machine.play("status.yml", "-v").output

    # Whoever deploys while the cause is still there gets the diagnosis, and no loop.
    play = machine.play()
    assert play.returncode != 0
    assert "gpu_out_of_memory" in play.failure(machine.host.name)
    assert machine.deployment.state() in ("failed", "inactive")

    machine.host.exec(["rm", drop_in])
    machine.host.exec(["systemctl", "daemon-reload"])
    play = machine.play()
    assert play.returncode == 0, play.output
    assert machine.deployment.state() == "active"
    assert machine.play().recap(machine.host.name)["changed"] == 0


@pytest.mark.long("two boots more")
def test_a_wrong_argument_at_boot_is_tried_once(machine: Machine) -> None:
    """Status 2: RestartPreventExitStatus=."""
    assert machine.deploy(instance()).returncode == 0
    text = machine.host.exec(["cat", "/etc/systemd/system/sglang-a.service"]).stdout
    assert "--port 30100" in text
    machine.host.write_file(
        "/etc/systemd/system/sglang-a.service", text.replace("--port 30100", "--port 30100 \\\n  --no-such-flag")
    )
    machine.cut_the_power_and_let_units_fail()
    machine.until(lambda: machine.deployment.state() == "failed", "the unit has failed")
    shown = machine.shown("sglang-a.service", "NRestarts", "ExecMainStatus")
    assert shown == {"NRestarts": "0", "ExecMainStatus": "2"}
    status = machine.status()
    assert re.search(rf"{machine.host.name} +a +crashed .*argument_error", status), status
    # The role puts its own file back.
    play = machine.play()
    assert play.returncode == 0, play.output
    assert machine.play().recap(machine.host.name)["changed"] == 0


@pytest.mark.long("two boots more")
def test_a_model_that_is_not_mounted_is_told_by_name(machine: Machine) -> None:
    late_mount(machine, "stand-in-target")
    assert machine.deploy(instance(model_path="/mnt/models/stand-in-target")).returncode == 0
    # Of a folder that is missing systemd would make an empty one.
    machine.host.exec(["sh", "-c", "mv /srv/models /srv/models-gone; touch /srv/models"])
    machine.cut_the_power_and_let_units_fail()
    assert machine.deployment.state() == "inactive"
    play = machine.play("status.yml", "-v")
    assert "dependency_failed" in play.output
    assert "mnt-models.mount" in play.output
    play = machine.play()
    assert play.returncode != 0
    assert "/mnt/models/stand-in-target" in play.failure(machine.host.name)

    machine.host.exec(["sh", "-c", "rm /srv/models; mv /srv/models-gone /srv/models"])
    machine.host.exec(["systemctl", "start", "mnt-models.mount"])
    play = machine.play()
    assert play.returncode == 0, play.output
    assert machine.play().recap(machine.host.name)["changed"] == 0


def test_files_written_before_the_power_went_are_what_runs_after(machine: Machine) -> None:
    """The run ended between writing the unit and restarting it. After the boot there is nothing left to restart."""
    assert machine.deploy(instance()).returncode == 0
    machine.deployment.variables["sglang_instances"] = [instance(env={"STAND_IN_SCALE": "0.003"})]
    helper = machine.deployment.folder / "configure.yml"
    tasks = [
        {"ansible.builtin.include_role": {"name": "specdec.serving.sglang", "tasks_from": name}}
        for name in ("preflight", "configure")
    ]
    helper.write_text(json.dumps([{"hosts": "sglang", "gather_facts": False, "become": True, "tasks": tasks}]))
    play = machine.play(str(helper))
    assert play.returncode == 0, play.output
    pid = machine.shown("sglang-a.service", "MainPID")["MainPID"]
    assert "STAND_IN_SCALE=0.002" in machine.host.exec(["cat", f"/proc/{pid}/environ"]).stdout

    machine.cut_the_power()

    shown = machine.shown("sglang-a.service", "MainPID", "InvocationID")
    assert "STAND_IN_SCALE=0.003" in machine.host.exec(["cat", f"/proc/{shown['MainPID']}/environ"]).stdout
    # It is proven ready for the first time, which is kept; nothing is restarted, and then nothing is left to do.
    for changes in (1, 0):
        play = machine.play()
        assert play.returncode == 0, play.output
        assert play.recap(machine.host.name)["changed"] == changes
        assert machine.shown("sglang-a.service", "InvocationID")["InvocationID"] == shown["InvocationID"]


@pytest.mark.parametrize("moment", [pytest.param("waiting", marks=pytest.mark.long("another moment")), "restarting"])
def test_power_that_goes_during_a_deployment(machine: Machine, moment: str) -> None:
    """The play loses its host, says so, and the next one finishes the work."""
    assert machine.deploy(instance()).returncode == 0
    slow = instance(env={"STAND_IN_SCALE": "0.002", "STAND_IN_TIMES": json.dumps({"load_target": 3000})})
    machine.deployment.variables["sglang_instances"] = [slow]
    process = machine.start()
    old = machine.deployment.invocation()
    machine.until(lambda: machine.deployment.invocation() != old, "the restart")
    if moment == "waiting":
        machine.until(lambda: "Load weight begin" in machine.host.journal("sglang-a.service"), "the load")
    machine.cut_the_power()
    output = process.communicate(timeout=200)[0]
    # It reconnects, and waits for the start that the boot made.
    assert process.returncode == 0, output
    play = machine.play()
    assert play.returncode == 0, play.output
    assert play.recap(machine.host.name)["changed"] == 0


#: Plays a driver of which nothing but the nodes of its GPUs is missing after a boot.
NVIDIA_SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,uuid,*) for n in 0 1; do echo "$n, GPU-$n, Stand-in, 900000, 00000000:0$n:00.0, 590.10.01, 9.0"; done;;
--query-gpu=index,persistence*) printf '0, Enabled\\n1, Enabled\\n';;
esac
"""
NVIDIA_MODPROBE = """#!/bin/sh
echo "$@" "uid $(id -u)" "$(grep NoNewPrivs /proc/self/status)" >>/run/device-nodes
"""


def test_device_nodes_are_made_before_each_start_outside_of_the_sandbox(machine: Machine) -> None:
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("nvidia-modprobe", NVIDIA_MODPROBE)):
        machine.host.write_file(f"/usr/local/bin/{name}", text, mode="0755")
    try:
        play = machine.deploy(instance(gpus=[0, 1]))
        assert play.returncode == 0, play.output
        machine.cut_the_power()
        machine.until(lambda: machine.deployment.state() == "active", "it is active")
        made = machine.host.exec(["cat", "/run/device-nodes"]).stdout
        assert made == "-u -c=0 -c=1 uid 0 NoNewPrivs:\t0\n"
        # A driver whose nodes cannot be made does not keep the server from starting: it tells better what is missing.
        machine.host.exec(["rm", "/usr/local/bin/nvidia-modprobe"])
        machine.cut_the_power()
        assert machine.deployment.state() == "active"
    finally:
        machine.host.exec(["rm", "-f", "/usr/local/bin/nvidia-smi", "/usr/local/bin/nvidia-modprobe"])
