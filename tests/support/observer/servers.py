# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in servers as units, from inside the lab host: configured by a file that each start reads, so no daemon-reload."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import select
import signal
import subprocess
import time
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    cgroup_pids,
    environ_of,
    read_process,
    role_of,
)
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState, show
from ansible_collections.specdec.serving.tests.support.observer import baselines, truth
from ansible_collections.specdec.serving.tests.support.observer.units import (
    SETTINGS,
    STAND_IN,
    ready_options,
    server_command,
    server_environment,
    unit_file,
)

FOLDER = Path("/run/observed")
# Seconds for a start that nothing is in the way of.
_START_S = 30.0
_KEPT_EVENTS = truth.ENDS | {"started", "ready", "port_bound", "bind_failed"}
_RUN = command_runner(timeout=60.0)

# Read by Python at its start: every socket of the server lets others share its port.
_SHARING = """\
import socket
_bind = socket.socket.bind
def bind(self, address):
    self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    _bind(self, address)
socket.socket.bind = bind
"""


def systemctl(*words: str) -> None:
    _RUN(["systemctl", *words])


@dataclasses.dataclass(frozen=True)
class Order:
    """A restart that was ordered. ``process``: the systemctl that waits for its end, as Ansible's module does."""

    began: float
    before: UnitState
    process: subprocess.Popen[bytes]
    fd: int

    def close(self) -> None:
        os.close(self.fd)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@dataclasses.dataclass
class Server:
    """A unit of a lane, its environment and the truth that its servers write."""

    name: str
    port: int
    survives: bool = False
    tp_size: int = 2
    scale: float = 0.002
    drain: float = 0.0

    @property
    def unit(self) -> str:
        return f"{self.name}.service"

    @property
    def environment_file(self) -> Path:
        return FOLDER / f"{self.name}.env"

    @property
    def truth_file(self) -> Path:
        return FOLDER / f"{self.name}.truth"

    @property
    def group(self) -> str:
        return f"/system.slice/{self.unit}"

    def install(self) -> None:
        """Write the unit; a daemon-reload is for the caller, once for all."""
        (FOLDER / "share").mkdir(parents=True, exist_ok=True)
        (FOLDER / "share" / "sitecustomize.py").write_text(_SHARING)
        self.truth_file.write_text("")
        self.configure()
        # An empty variable is no word.
        words = f"{server_command(port=self.port, tp_size=self.tp_size)} $ARGUMENTS"
        lines = ["LogRateLimitIntervalSec=0", "TimeoutStopSec=20", f"EnvironmentFile={self.environment_file}"]
        if self.survives:
            words = f"/bin/sh -c '{words} & exec sleep 1000'"
            lines.append("KillMode=process")
        text = unit_file(words, environment={}, service=lines)
        Path("/run/systemd/system", self.unit).write_text(text)

    def configure(
        self,
        *,
        drain: float = 0.0,
        share: bool = False,
        times: t.Mapping[str, float] | None = None,
        arguments: str = "",
        environment: t.Mapping[str, str] | None = None,
    ) -> None:
        """What the next start gets. ``times``: seconds of steps, as they pass."""
        # The watchdog of many idle servers would be the load of the machine.
        seconds = {"watchdog": 0.05, **(times or {})}
        values = {
            **server_environment(str(self.truth_file)),
            "PYTHONPATH": f"{FOLDER}/share:{STAND_IN}" if share else STAND_IN,
            "STAND_IN_SCALE": str(self.scale),
            "STAND_IN_TIMES": json.dumps({step: value / self.scale for step, value in seconds.items()}),
            "STAND_IN_DRAIN_S": str(drain),
            "ARGUMENTS": arguments,
            **(environment or {}),
        }
        self.environment_file.write_text("".join(f"{name}='{value}'\n" for name, value in values.items()))
        self.drain = drain

    def options(self, **changes: t.Any) -> dict[str, t.Any]:
        """The options of sglang_ready that fit it."""
        settings = {**SETTINGS, "tp_size": self.tp_size, "ep_size": self.tp_size}
        return ready_options(unit=self.unit, port=self.port, settings=settings, **changes)

    def show(self) -> UnitState:
        return show(_RUN, self.unit)

    def end(self) -> None:
        """Whatever its state, nothing of it runs afterwards."""
        systemctl("kill", "--signal=KILL", self.unit)
        systemctl("stop", self.unit)
        for pid in cgroup_pids(self.group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        systemctl("reset-failed", self.unit)

    def events(self, offset: int) -> list[dict[str, t.Any]]:
        with self.truth_file.open("rb") as file:
            file.seek(offset)
            lines = file.read().decode().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [entry for entry in found if entry["event"] in _KEPT_EVENTS]

    def written(self) -> int:
        return self.truth_file.stat().st_size

    def restart(self) -> Order:
        """Order a restart.

        Returns when systemd has taken the order: a wait that begins before could see a unit at rest.
        """
        before = self.show()
        began = time.monotonic()
        process = subprocess.Popen(["systemctl", "restart", self.unit], stdin=subprocess.DEVNULL)
        order = Order(began=began, before=before, process=process, fd=os.pidfd_open(process.pid))
        while process.poll() is None:
            now = self.show()
            if now.job or now.invocation_id != before.invocation_id:
                break
        return order

    def remove(self) -> None:
        self.end()
        Path("/run/systemd/system", self.unit).unlink(missing_ok=True)

    def start(self) -> None:
        """Start it and wait for its own word; raises RuntimeError when that does not come."""
        offset = self.written()
        systemctl("start", self.unit)
        deadline = time.monotonic() + _START_S
        while not any(entry["event"] == "ready" for entry in self.events(offset)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.unit} did not get ready within {_START_S} s ")
            time.sleep(0.02)

    def serves(self) -> bool:
        return self.show().active_state == "active" and baselines.Target(self.unit, self.port).get("/ready")[0] == 200


@contextlib.contextmanager
def installed(servers: t.Sequence[Server]) -> t.Iterator[None]:
    """The units of servers, as long as the block runs; afterwards nothing of them is left."""
    try:
        for server in servers:
            server.install()
        systemctl("daemon-reload")
        yield
    finally:
        for server in servers:
            server.remove()
        systemctl("daemon-reload")


def strike(group: str, whom: str, chance: random.Random) -> dict[str, t.Any] | None:
    """Kill a process of a unit; the note of its death. None: there was none to kill."""
    processes = [process for process in map(read_process, cgroup_pids(group)) if process and process.state not in "ZX"]
    pids = {process.pid for process in processes}
    tops = [process for process in processes if process.ppid not in pids]
    victims = tops if whom == "main" else [process for process in processes if role_of(process) == whom] or tops
    if not victims:
        return None
    victim = chance.choice(victims)
    try:
        invocation = environ_of(victim.pid, ("INVOCATION_ID",)).get("INVOCATION_ID", "")
    except OSError:
        invocation = ""
    main = victim.pid if victim in tops else victim.ppid
    try:
        death = os.pidfd_open(victim.pid)
    except ProcessLookupError:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGKILL)
    # On a loaded machine a killed process lives on for milliseconds, and until then it may answer.
    select.select([death], [], [], _START_S)
    at = time.monotonic()
    os.close(death)
    return {"event": "struck", "invocation_id": invocation, "main_pid": main, "monotonic": at}


__all__ = ("FOLDER", "Order", "Server", "installed", "strike", "systemctl")
