# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One lab host whose failed starts leave evidence: units written by hand, and a deployment of the role."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.observer import units

STATE_DIR = "/var/lib/specdec/sglang"
_SERIAL = itertools.count(time.time_ns() // 10**9)


@pytest.fixture(scope="session")
def evidence_host() -> Host:
    return lab_host("evidence", truth=True)


@dataclasses.dataclass
class Unit:
    """A unit of the host, and the evidence of it."""

    host: Host
    name: str
    port: int
    state_dir: str = STATE_DIR

    @property
    def unit(self) -> str:
        return f"sglang-{self.name}.service"

    @property
    def folder(self) -> str:
        return f"{self.state_dir}/evidence/{self.unit}"

    def start(
        self,
        *arguments: str,
        environment: t.Mapping[str, str] | None = None,
        service: t.Sequence[str] = (),
        command: str = "",
    ) -> None:
        """Write the unit of a stand-in, and start it; `command` runs something else."""
        values = {**units.server_environment(f"{units.TRUTH}/{self.name}"), **(environment or {})}
        words = command or " ".join([units.server_command(port=self.port), *arguments])
        self.host.write_file(
            f"/etc/systemd/system/{self.unit}", units.unit_file(words, environment=values, service=service)
        )
        self.restart()

    def restart(self) -> None:
        self.host.exec(["sh", "-c", f"systemctl daemon-reload; systemctl restart {self.unit}"], check=False)

    def judge(self, **options: t.Any) -> dict[str, t.Any]:
        """The verdict of a wait that keeps evidence."""
        asked = units.ready_options(unit=self.unit, port=self.port, state_dir=self.state_dir, **options)
        argv = ["env", f"PYTHONPATH={units.ROOT}", "python3", "-B", units.OBSERVER, "--keep-evidence"]
        return t.cast("dict[str, t.Any]", json.loads(self.host.exec(argv, input=json.dumps(asked)).stdout))

    def archives(self) -> list[str]:
        """All that is in the folder, the lock left out."""
        return sorted(
            name for name in self.host.exec(["ls", "-A", self.folder], check=False).stdout.split() if name != ".lock"
        )

    def files(self, archive: str) -> dict[str, str]:
        """Names and texts of what an archive holds."""
        script = (
            "import json, sys, tarfile\n"
            "with tarfile.open(sys.argv[1]) as archive:\n"
            "    print(json.dumps({m.name.partition('/')[2]: archive.extractfile(m).read().decode() for m in archive}))"
        )
        return t.cast("dict[str, str]", json.loads(self.host.exec(["python3", "-c", script, archive]).stdout))

    def until(self, *argv: str, seconds: float = 20.0) -> str:
        """Wait for a command on the host to succeed; gives what it printed."""
        deadline = time.monotonic() + seconds
        while True:
            done = self.host.exec(list(argv), check=False)
            if done.returncode == 0:
                return done.stdout
            assert time.monotonic() < deadline, (
                f"{argv}: not within {seconds} s:\n{self.host.journal(self.unit)[-3000:]}"
            )
            time.sleep(0.1)

    def remove(self) -> None:
        script = (
            f"systemctl kill --signal=SIGCONT {self.unit}; systemctl kill --signal=SIGKILL {self.unit}; systemctl stop {self.unit};"
            f"systemctl reset-failed {self.unit}; rm -rf /etc/systemd/system/{self.unit} /etc/systemd/system/{self.unit}.d {self.folder};"
            "systemctl daemon-reload"
        )
        self.host.exec(["sh", "-c", script], check=False)


@pytest.fixture
def make_unit(evidence_host: Host) -> t.Iterator[t.Callable[..., Unit]]:
    made: list[Unit] = []

    def make(**changes: t.Any) -> Unit:
        serial = next(_SERIAL)
        made.append(Unit(evidence_host, f"x-{serial}", 32100 + len(made), **changes))
        return made[-1]

    yield make
    for unit in made:
        unit.remove()


@pytest.fixture
def unit(make_unit: t.Callable[..., Unit]) -> Unit:
    return make_unit()
