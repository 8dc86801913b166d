# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Two lab hosts with stand-in servers, and the task sglang_ready as a play runs it on both."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import queue
import subprocess
import threading
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_hosts as of_the_lab
from ansible_collections.specdec.serving.tests.support.lab.client import Host, render_inventory
from ansible_collections.specdec.serving.tests.support.observer import units
from ansible_collections.specdec.serving.tests.support.observer.task import start

HOSTS = ("controller-a", "controller-b")
PORT = 31100
MARK = "RESULT-AS-JSON "
_SERIAL = itertools.count(time.time_ns() // 10**9)


@dataclasses.dataclass
class Server:
    """A stand-in of one name on one or both hosts."""

    hosts: t.Mapping[str, Host]
    name: str

    @property
    def unit(self) -> str:
        return f"sglang-{self.name}.service"

    @property
    def state_dir(self) -> str:
        return f"/var/lib/specdec-test/{self.name}"

    def start(self, host: str, *arguments: str, loads_for: float = 0.1) -> None:
        """Write its unit and start it; its target model loads for so many seconds."""
        environment = {
            **units.server_environment(f"{units.TRUTH}/{self.name}"),
            "STAND_IN_TIMES": json.dumps({"load_target": loads_for / 0.002}),
        }
        command = " ".join([units.server_command(port=PORT), "--host", "0.0.0.0", *arguments])
        self.hosts[host].write_file(
            f"/etc/systemd/system/{self.unit}", units.unit_file(command, environment=environment)
        )
        self.restart(host)

    def restart(self, host: str) -> None:
        self.hosts[host].exec(["sh", "-c", f"systemctl daemon-reload; systemctl restart {self.unit}"])

    def options(self, **changes: t.Any) -> dict[str, t.Any]:
        return units.ready_options(
            unit=self.unit, port=PORT, **{"host": "0.0.0.0", "state_dir": self.state_dir, **changes}
        )

    def remove(self) -> None:
        unit = self.unit
        script = (
            f"systemctl kill --signal=SIGKILL {unit}; systemctl stop {unit}; systemctl reset-failed {unit};"
            f"rm -rf /etc/systemd/system/{unit} {units.TRUTH}/{self.name} {self.state_dir}; systemctl daemon-reload"
        )
        for host in self.hosts.values():
            host.exec(["sh", "-c", script], check=False)


@dataclasses.dataclass
class Line:
    """A line of ansible-playbook, and when it came."""

    text: str
    at: float


class Play:
    """A play of one task that runs while the test goes on; its lines come as they are printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[Line] = []
        self._queue: queue.Queue[Line | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self._queue.put(Line(text.rstrip("\n"), time.monotonic()))
        self._queue.put(None)

    def until(self, part: str, seconds: float = 60.0) -> Line:
        """The next line that holds ``part``."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._queue.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no line with {part!r} within {seconds} s:\n{self.output}")
            self.lines.append(line)
            if part in line.text:
                return line

    def end(self, seconds: float = 180.0) -> dict[str, dict[str, t.Any]]:
        """Wait for its end; give the task's result by host, without those that were unreachable."""
        deadline = time.monotonic() + seconds
        while (line := self._queue.get(timeout=max(deadline - time.monotonic(), 0.001))) is not None:
            self.lines.append(line)
        self.process.wait(timeout=30)
        results = {}
        for item in self.lines:
            if MARK in item.text:
                text = json.loads("{" + item.text.strip().rstrip(",") + "}")["msg"].removeprefix(MARK)
                answer = json.loads(text)
                results[answer["host"]] = answer["answer"]
        return results

    @property
    def output(self) -> str:
        return "\n".join(line.text for line in self.lines)

    def line(self, part: str) -> Line:
        """A line that was seen already."""
        return next(line for line in self.lines if part in line.text)


@dataclasses.dataclass
class Controller:
    """Runs plays in a folder of its own, so that no other test's connection is used."""

    folder: Path
    hosts: t.Mapping[str, Host]
    server: Server

    def start(
        self,
        *names: str,
        switches: t.Sequence[str] = (),
        environment: t.Mapping[str, str] | None = None,
        connection: t.Mapping[str, str] | None = None,
        **options: t.Any,
    ) -> Play:
        """``connection`` are variables of all hosts; ``options`` are the task's."""
        inventory = self.folder / "inventory.yml"
        inventory.write_text(render_inventory([self.hosts[name] for name in names]), encoding="utf-8")
        play = {
            "name": "Test",
            "hosts": "all",
            "gather_facts": False,
            "become": True,
            "vars": dict(connection or {}),
            "tasks": [
                {
                    "name": "Prove readiness",
                    "specdec.serving.sglang_ready": self.server.options(**options),
                    "register": "answer",
                    "ignore_errors": True,
                },
                {
                    "name": "Show the result",
                    "ansible.builtin.debug": {
                        "msg": MARK + "{{ {'host': inventory_hostname, 'answer': answer} | to_json }}"
                    },
                },
            ],
        }
        playbook = self.folder / "play.yml"
        playbook.write_text(json.dumps([play]), encoding="utf-8")
        argv = ["ansible-playbook", "-i", str(inventory), str(playbook), *switches]
        return Play(start(argv, {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"), **(environment or {})}))

    def run(self, *names: str, **options: t.Any) -> tuple[Play, dict[str, dict[str, t.Any]]]:
        play = self.start(*names, **options)
        return play, play.end()

    def module_runs(self, name: str) -> bool:
        """Whether the module is at work on a host."""
        done = self.hosts[name].exec(["pgrep", "--full", "AnsiballZ_sglang_ready|sglang_ready.*json"], check=False)
        journal = self.hosts[name].exec(["pgrep", "--exact", "journalctl"], check=False)
        return bool(done.stdout.strip() or journal.stdout.strip())

    def until_module(self, name: str, runs: bool, seconds: float = 30.0) -> float:
        """Wait for it; give the seconds."""
        started = time.monotonic()
        while self.module_runs(name) is not runs:
            if time.monotonic() - started > seconds:
                raise AssertionError(f"after {seconds} s: module {'does not run' if runs else 'still runs'} on {name}")
            time.sleep(0.2)
        return time.monotonic() - started

    @contextlib.contextmanager
    def black_hole(self, name: str) -> t.Iterator[t.Callable[[], None]]:
        """From now on nothing that this host sends arrives, no reset either. Gives what ends it."""
        host = self.hosts[name]
        peers = host.exec(["sh", "-c", "ss -Htn state established '( sport = :22 )' | awk '{print $4}'"]).stdout
        addresses = sorted({peer.rpartition(":")[0].strip("[]").removeprefix("::ffff:") for peer in peers.split()})
        assert addresses, "nobody is connected"

        def end() -> None:
            for address in addresses:
                host.exec(["ip", "route", "del", "blackhole", f"{address}/32"], check=False)

        try:
            for address in addresses:
                host.exec(["ip", "route", "add", "blackhole", f"{address}/32"])
            yield end
        finally:
            end()


@pytest.fixture(scope="session")
def lab_hosts() -> dict[str, Host]:
    return of_the_lab(*HOSTS, truth=True)


@pytest.fixture
def controller(lab_hosts: dict[str, Host], tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Controller]:
    server = Server(lab_hosts, f"c-{next(_SERIAL)}")
    # Short: the path of a control socket has a limit.
    yield Controller(tmp_path_factory.mktemp("c"), lab_hosts, server)
    server.remove()
