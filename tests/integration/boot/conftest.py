# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One lab host that loses its power and boots again, with units of the role on it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host, remove_units
from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment, Play
from ansible_collections.specdec.serving.tests.support.lab.client import Host, Lab, LabError
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

CHECKOUT = Path(__file__).resolve().parents[3]
NAME = "boot"
#: No connection of before the power cut is used again: a real one ends by ServerAliveInterval, 15 s later.
FRESH = {"ANSIBLE_SSH_ARGS": "-o ControlMaster=no -o ControlPath=none"}
_UNITS = ("sglang-*", "nvidia-*", "slow-*", "mnt-models.mount")


@dataclasses.dataclass
class Machine:
    """The host, what is deployed on it, and its power."""

    deployment: Deployment

    @property
    def host(self) -> Host:
        return self.deployment.host

    def play(self, playbook: str = "deploy.yml", *switches: str, **extra: t.Any) -> Play:
        return self.deployment.play(playbook, *switches, environment=FRESH, **extra)

    def deploy(self, *instances: dict[str, t.Any], **variables: t.Any) -> Play:
        self.deployment.variables.update(variables)
        if instances:
            self.deployment.variables["sglang_instances"] = list(instances)
        return self.play()

    def start(self) -> subprocess.Popen[str]:
        """A deployment that goes on beside the test; it notices a silent host within 3 s."""
        inventory = self.deployment.folder / "hosts.yml"  # as the last play left it
        content = yaml.safe_load(inventory.read_text())
        content["sglang"]["vars"] = self.deployment.variables
        inventory.write_text(yaml.safe_dump(content, sort_keys=False))
        alive = "-o ControlMaster=no -o ControlPath=none -o ServerAliveInterval=1 -o ServerAliveCountMax=2"
        return subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                "-i",
                str(inventory),
                str(CHECKOUT / "deploy.yml"),
            ],
            cwd=CHECKOUT,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_SSH_ARGS": alive,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def cut_the_power(self) -> None:
        """The units' states are not waited for: systemd says "running" once no job is left, so all have been tried."""
        self.deployment.host = Lab().reboot(NAME)

    def cut_the_power_and_let_units_fail(self) -> None:
        """A host with a failed unit comes up "degraded", which the lab takes for a fault of its own."""
        try:
            self.cut_the_power()
        except LabError as error:
            if "degraded" not in str(error):
                raise
            self.deployment.host = Lab().host(NAME)

    def shown(self, unit: str, *properties: str) -> dict[str, str]:
        words = ["systemctl", "show", f"--property={','.join(properties)}", unit]
        return dict(line.partition("=")[::2] for line in self.host.exec(words).stdout.splitlines())

    def until(self, condition: t.Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
            time.sleep(0.2)

    def status(self) -> str:
        play = self.play("status.yml")
        assert play.returncode == 0, play.output
        return play.output


@pytest.fixture(scope="session")
def boot_host() -> Host:
    return lab_host(NAME)


@pytest.fixture
def machine(boot_host: Host, tmp_path: Path) -> Machine:
    """The host without units of ours, whatever an earlier test left; engines stay."""
    host = Lab().host(NAME)
    remove_units(host, "/var/cache/specdec", "/srv/models*", units=_UNITS)
    variables = {**VARIABLES, "sglang_restart_delay": 4, "sglang_instances": [instance()]}
    return Machine(Deployment(host, tmp_path, {NAME: {}}, variables))
