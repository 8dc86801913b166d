# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One lab host with stand-in servers as units, and the wait of sglang_ready run on it without Ansible."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.observer import units

# Several runs side by side need a host each.
READY_HOST = os.environ.get("READY_HOST", "ready")
_SERIAL = itertools.count(time.time_ns() // 10**9)


@dataclasses.dataclass
class Server:
    """A stand-in server as a unit of the lab host."""

    host: Host
    name: str
    port: int
    truth: str

    @property
    def unit(self) -> str:
        return f"sglang-{self.name}.service"

    def write(
        self,
        *arguments: str,
        environment: t.Mapping[str, str] | None = None,
        service: t.Sequence[str] = (),
        tp_size: int = 2,
        model_path: str = units.MODEL_PATH,
        command: str = "",
    ) -> None:
        """Write the unit file; two ranks with a DFLASH draft unless told otherwise."""
        words = command or " ".join([self.command(tp_size=tp_size, model_path=model_path), *arguments])
        text = units.unit_file(
            words, environment={**units.server_environment(self.truth), **(environment or {})}, service=service
        )
        self.host.write_file(f"/etc/systemd/system/{self.unit}", text)
        self.host.exec(["systemctl", "daemon-reload"])

    def command(self, *, tp_size: int = 2, model_path: str = units.MODEL_PATH) -> str:
        """The command line of such a server."""
        return units.server_command(port=self.port, tp_size=tp_size, model_path=model_path)

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.host.exec(["systemctl", *words, self.unit], check=check).stdout

    def property(self, name: str) -> str:
        return self.systemctl("show", "--value", f"--property={name}").strip()

    def options(self, **changes: t.Any) -> dict[str, t.Any]:
        return units.ready_options(**{"unit": self.unit, "port": self.port, **changes})

    def observe_argv(self, *switches: str) -> list[str]:
        return ["env", f"PYTHONPATH={units.ROOT}", "python3", "-B", units.OBSERVER, *switches]

    def observe(self, *switches: str, **changes: t.Any) -> dict[str, t.Any]:
        """The result of one wait on the host."""
        done = self.host.exec(self.observe_argv(*switches), input=json.dumps(self.options(**changes)))
        return t.cast("dict[str, t.Any]", json.loads(done.stdout))

    def start_observing(self, **changes: t.Any) -> subprocess.Popen[str]:
        """A wait in the background; its result is on stdout."""
        # Over SSH, as Ansible does: a connection that breaks must be noticed at the other end.
        process = subprocess.Popen(
            self.host.ssh_argv("sudo " + " ".join(self.observe_argv())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self.options(**changes)))
        process.stdin.close()
        process.stdin = None
        return process

    def true_events(self, invocation_id: str) -> dict[str, float]:
        """First monotonic time of each event of one invocation, as the server itself knows it."""
        events: dict[str, float] = {}
        for line in self.host.exec(["cat", self.truth]).stdout.splitlines():
            entry = json.loads(line)
            if entry["invocation_id"] == invocation_id:
                events.setdefault(entry["event"], entry["monotonic"])
        return events

    @contextlib.contextmanager
    def neighbour(self, *command: str, environment: t.Mapping[str, str] | None = None) -> t.Iterator[str]:
        """Another process of the host, started by hand; gives its unit's name."""
        unit = f"neighbour-{next(_SERIAL)}.service"
        settings = [f"--setenv={name}={value}" for name, value in (environment or {}).items()]
        self.host.exec(["systemd-run", "--quiet", f"--unit={unit}", *settings, "--", *command])
        try:
            yield unit
        finally:
            self.host.exec(["sh", "-c", f"systemctl kill -s KILL {unit}; systemctl reset-failed {unit}"], check=False)

    def answers(self) -> bool:
        """Whether anything on the port answers /v1/models."""
        url = f"http://127.0.0.1:{self.port}/v1/models"
        return self.host.exec(["curl", "-sf", "-o", "/dev/null", url], check=False).returncode == 0

    def until(self, condition: t.Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait for something on the host."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self.unit}: not within {seconds} s; its log:\n{self.host.journal(self.unit)[-3000:]}"
                )
            time.sleep(0.05)


@pytest.fixture(scope="session")
def ready_host() -> Host:
    return lab_host(READY_HOST, truth=True)


@pytest.fixture
def make_server(ready_host: Host) -> t.Iterator[t.Callable[[str], Server]]:
    made: list[Server] = []

    def make(name: str) -> Server:
        # A name of its own for each test: the journal keeps what earlier units of a name logged.
        name = f"{name}-{next(_SERIAL)}"
        server = Server(ready_host, name, 31000 + len(made), f"{units.TRUTH}/{name}")
        made.append(server)
        return server

    yield make
    for server in made:
        # One call for all of it: entering the host costs more than what is done there.
        unit = server.unit
        script = (
            f"systemctl kill --signal=SIGKILL {unit}; systemctl stop {unit}; systemctl reset-failed {unit};"
            f"rm -f /etc/systemd/system/{unit} {server.truth}; systemctl daemon-reload"
        )
        server.host.exec(["sh", "-c", script], check=False)


@pytest.fixture
def server(make_server: t.Callable[[str], Server]) -> Server:
    return make_server("x")
