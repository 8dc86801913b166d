# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The checkout's playbooks on one lab host with the stand-in, as users run them: over SSH with sudo."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

CHECKOUT = Path(__file__).resolve().parents[3]
CONNECTION = ("ansible_host", "ansible_port", "ansible_user", "ansible_ssh_private_key_file", "ansible_ssh_common_args")


@dataclasses.dataclass(frozen=True)
class Play:
    """What one run of ansible-playbook said."""

    returncode: int
    output: str

    def recap(self, host: str) -> dict[str, int]:
        (line,) = re.findall(rf"^{re.escape(host)} +: (ok=.*)$", self.output, re.MULTILINE)
        return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}

    def failure(self, host: str) -> str:
        """The message with which a host failed or was unreachable."""
        found = re.findall(rf"^(?:fatal|failed): \[{re.escape(host)}\].*?=> (\{{.*\}})$", self.output, re.MULTILINE)
        assert found, self.output[-4000:]
        return str(json.loads(found[-1]).get("msg"))


@dataclasses.dataclass
class Deployment:
    """An inventory in a folder of its own, for aliases of one lab host."""

    host: Host
    folder: Path
    hosts: dict[str, dict[str, t.Any]] = dataclasses.field(default_factory=dict)
    variables: dict[str, t.Any] = dataclasses.field(default_factory=dict)

    def connection(self) -> dict[str, t.Any]:
        options = (
            f"-o UserKnownHostsFile={self.host.known_hosts_file} -o GlobalKnownHostsFile=/dev/null"
            " -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
        )
        values = ("127.0.0.1", self.host.port, "deploy", self.host.key_file, options)
        return dict(zip(CONNECTION, values, strict=True))

    def command(
        self, playbook: str, *switches: str, environment: t.Mapping[str, str] | None = None, **extra: t.Any
    ) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment of a run, whose inventory is written."""
        hosts = {name: {**self.connection(), **values} for name, values in (self.hosts or {"role": {}}).items()}
        inventory = {"sglang": {"hosts": hosts, "vars": self.variables}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))
        tool = shutil.which("ansible-playbook", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert tool is not None
        command = [tool, "-i", str(self.folder / "hosts.yml"), str(CHECKOUT / playbook), *switches]
        if extra:
            command += ["--extra-vars", json.dumps(extra)]
        return command, {
            **os.environ,
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            **(environment or {}),
        }

    def play(
        self,
        playbook: str = "deploy.yml",
        *switches: str,
        environment: t.Mapping[str, str] | None = None,
        timeout: float = 300,
        **extra: t.Any,
    ) -> Play:
        command, variables = self.command(playbook, *switches, environment=environment, **extra)
        done = subprocess.run(
            command,
            cwd=CHECKOUT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Play(done.returncode, done.stdout)

    def snapshot(self) -> str:
        """Everything that a deployment may change on the host: files with owner, mode, size and time, users, units."""
        script = (
            "find /etc /opt /var/lib/specdec /var/cache/specdec /usr/local /home /nonexistent"
            " -path /etc/lab -prune -o -name '.ansible*' -prune -o"
            " -printf '%p %u %g %m %s %T@\\n' 2>/dev/null | grep -v -e '^/home' -e '^/etc/lab' | sort;"
            " getent passwd; systemctl list-units --all --no-legend --plain 'sglang-*' | awk '{print $1, $3, $4}'"
        )
        return self.host.exec(["sh", "-c", script]).stdout

    def invocation(self, unit: str = "sglang-a.service") -> str:
        return self.host.exec(["systemctl", "show", "--property=InvocationID", "--value", unit]).stdout.strip()

    def state(self, unit: str = "sglang-a.service") -> str:
        return self.host.exec(["systemctl", "is-active", unit], check=False).stdout.strip()


VARIABLES = {
    "sglang_version": "0.5.23",
    "sglang_wheelhouse": "/srv/wheelhouse/stand-in",
    "sglang_instances": [instance()],
    "sglang_ready_timeout": "60",
}


@pytest.fixture(scope="session")
def role_host() -> Host:
    return lab_host("role")


@pytest.fixture
def deployment(role_host: Host, tmp_path: Path) -> Deployment:
    return Deployment(role_host, tmp_path, variables=dict(VARIABLES))
