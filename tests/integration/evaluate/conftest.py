# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A lab host with stand-in servers whose answers are scripted, a neighbour on its network, and the sandbox for programs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_hosts as of_the_lab
from ansible_collections.specdec.serving.tests.support.lab.client import Host, render_inventory
from ansible_collections.specdec.serving.tests.support.observer import units
from ansible_collections.specdec.serving.tests.support.observer.task import answer_of, play_argv, start

HOST, NEIGHBOUR = "evaluate", "evaluate-neighbour"
PROGRAMS = f"{units.COLLECTION}/tests/support/evaluation/programs.py"
STATE_DIR = "/var/lib/specdec-test"
_SERIAL = itertools.count(time.time_ns() // 10**9)


@pytest.fixture(scope="session")
def lab_hosts() -> dict[str, Host]:
    return of_the_lab(HOST, NEIGHBOUR, truth=True)


@pytest.fixture(scope="session")
def host(lab_hosts: dict[str, Host]) -> Host:
    return lab_hosts[HOST]


@dataclasses.dataclass
class Programs:
    """Runs programs on the host in the sandbox, as the module does."""

    host: Host

    def start(
        self, *, jobs: int = 1, limits: t.Mapping[str, t.Any] | None = None, **programs: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.host.exec_argv(["env", f"PYTHONPATH={units.ROOT}", "python3", "-B", PROGRAMS]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"jobs": jobs, "limits": dict(limits or {}), "programs": programs}))
        process.stdin.close()
        process.stdin = None
        return process

    @staticmethod
    def judgements(process: subprocess.Popen[str]) -> tuple[dict[str, dict[str, t.Any]], float]:
        output = process.communicate(timeout=180)[0]
        assert process.returncode == 0, output
        answer = json.loads(output)
        return answer["judgements"], answer["wall_s"]

    def run(self, program: str, **limits: t.Any) -> dict[str, t.Any]:
        return self.judgements(self.start(limits={"seconds": 5, **limits}, program=program))[0]["program"]


@pytest.fixture
def programs(host: Host) -> Programs:
    return Programs(host)


@dataclasses.dataclass
class Server:
    """A stand-in server as a unit of the host."""

    host: Host
    name: str
    port: int

    @property
    def unit(self) -> str:
        return f"sglang-{self.name}.service"

    def start(
        self,
        script: t.Sequence[t.Mapping[str, t.Any]] = (),
        *,
        speculates: bool = True,
        extra: str = "",
        decode_step: float = 0.0,
    ) -> None:
        """Write the unit with its scripted answers, start it, and wait until it answers. ``decode_step``: seconds."""
        answers = f"/etc/{self.name}-answers.json"
        self.host.write_file(answers, json.dumps(list(script)))
        command = units.server_command(port=self.port)
        if not speculates:
            command = command[: command.index(" --speculative-algorithm")]
        text = units.unit_file(
            f"{command} {extra}".strip(),
            environment={
                **units.server_environment(f"{units.TRUTH}/{self.name}"),
                "STAND_IN_ANSWERS": answers,
                "STAND_IN_TIMES": json.dumps({"decode_step": decode_step / 0.002}),
            },
        )
        self.host.write_file(f"/etc/systemd/system/{self.unit}", text)
        self.host.exec(["sh", "-c", f"systemctl daemon-reload; systemctl restart {self.unit}"])
        url = f"http://127.0.0.1:{self.port}/v1/models"
        deadline = time.monotonic() + 30
        while self.host.exec(["curl", "-sf", "-o", "/dev/null", url], check=False).returncode != 0:
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.unit} does not answer:\n{self.host.journal(self.unit)[-3000:]}")
            time.sleep(0.1)

    def remove(self) -> None:
        script = (
            f"systemctl kill --signal=SIGKILL {self.unit}; systemctl stop {self.unit}; systemctl reset-failed {self.unit};"
            f"rm -rf /etc/systemd/system/{self.unit} {STATE_DIR}/{self.name}; systemctl daemon-reload"
        )
        self.host.exec(["sh", "-c", script], check=False)


@pytest.fixture
def server(host: Host) -> t.Iterator[Server]:
    made = Server(host, f"e-{next(_SERIAL)}", 31200)
    yield made
    made.remove()


@dataclasses.dataclass
class Task:
    """The task sglang_evaluate about one server, as a play runs it."""

    server: Server
    folder: Path

    def options(self, **changes: t.Any) -> dict[str, t.Any]:
        return {
            "unit": self.server.unit,
            "port": self.server.port,
            "state_dir": f"{STATE_DIR}/{self.server.name}",
            "timeout": "300",
            **changes,
        }

    def start(
        self, *switches: str, task: t.Mapping[str, t.Any] | None = None, **options: t.Any
    ) -> subprocess.Popen[str]:
        inventory = self.folder / "inventory.yml"
        inventory.write_text(render_inventory([self.server.host]), encoding="utf-8")
        evaluate = {"name": "Evaluate", "specdec.serving.sglang_evaluate": self.options(**options), **(task or {})}
        return start(
            play_argv(self.folder, inventory, [evaluate], switches),
            {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp")},
        )

    def run(self, *switches: str, **options: t.Any) -> tuple[str, dict[str, t.Any]]:
        return answer_of(self.start(*switches, **options), timeout=150)


@pytest.fixture
def task(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Task:
    # Short: the path of a control socket has a limit.
    return Task(server, tmp_path_factory.mktemp("e"))
