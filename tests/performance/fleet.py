# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Seconds of a wait for many servers side by side, each of a host of its own in the inventory, and of a wait for one.

All hosts are one lab host: the servers and the modules of all waits share its processors with ansible-playbook, which a real fleet
does not. Connections are one for each host, as with a fleet. All servers begin to load at the same instant (SGLang's gated launch), which
is when ansible-playbook is started, and take ``LOAD_S`` for it.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import yaml

from ansible_collections.specdec.serving.tests.support.lab.client import Host, render_inventory
from ansible_collections.specdec.serving.tests.support.observer import units
from ansible_collections.specdec.serving.tests.support.observer.task import start

MANY, LOAD_S = 32, 30.0
_SCALE = 0.002
_PORT, _GATE = 31000, 31400
_TRUTH = "/run/bench-fleet"

#: Runs on the host: opens the gates of so many servers, from that port on.
_OPEN = """
import sys, urllib.request
first, number = map(int, sys.argv[1:])
for port in range(first, first + number):
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/gate/activate", b"", method="POST"), timeout=30).read()
"""


class FleetFailed(RuntimeError):
    """A server did not get as far as its gate, or the wait did not end well."""


def _unit(number: int) -> str:
    return f"sglang-bench-fleet{number}.service"


def _start_servers(host: Host, number: int) -> None:
    """Start them, and wait until all stand at their gates."""
    for one in range(number):
        command = f"{units.server_command(port=_PORT + one, tp_size=1)} --gated-launch-port {_GATE + one}"
        environment = {
            **units.server_environment(f"{_TRUTH}/{one}"),
            "STAND_IN_SCALE": str(_SCALE),
            "STAND_IN_TIMES": json.dumps({"load_target": LOAD_S / _SCALE}),
        }
        host.write_file(f"/run/systemd/system/{_unit(one)}", units.unit_file(command, environment=environment))
    every = " ".join(map(_unit, range(number)))
    script = f"rm -rf {_TRUTH}; mkdir -m 0777 {_TRUTH}; systemctl daemon-reload; systemctl start {every}"
    host.exec(["sh", "-c", script], timeout=300)
    deadline = time.monotonic() + 300
    while True:
        at_gate = host.exec(["sh", "-c", f"cat {_TRUTH}/* 2>/dev/null | grep -c gate_waiting"], check=False).stdout
        if int(at_gate or 0) >= number:
            return
        if time.monotonic() > deadline:
            raise FleetFailed(f"{at_gate.strip()} of {number} servers got as far as their gate")
        time.sleep(1)


def _stop_servers(host: Host) -> None:
    script = (
        "systemctl kill --signal=KILL 'sglang-bench-fleet*.service'; rm -f /run/systemd/system/sglang-bench-fleet*;"
        f" systemctl daemon-reload; systemctl reset-failed; rm -rf {_TRUTH}"
    )
    host.exec(["sh", "-c", script], check=False)


def _play(host: Host, folder: Path, number: int) -> list[str]:
    """Write inventory and play; give the command."""
    known = yaml.safe_load(render_inventory([host]))["all"]["hosts"][host.name]
    hosts = {
        f"fleet{one}": {
            **known,
            "ansible_control_path": f"%(directory)s/fleet{one}",
            "unit": _unit(one),
            "server_port": _PORT + one,
        }
        for one in range(number)
    }
    (folder / "hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    options = units.ready_options(unit="{{ unit }}", port="{{ server_port }}", timeout="300")
    options["settings"] = {**units.SETTINGS, "tp_size": 1, "ep_size": 1}
    task = {"name": "Wait until ready", "specdec.serving.sglang_ready": options}
    play = {"name": "Wait", "hosts": "all", "gather_facts": False, "become": True, "tasks": [task]}
    (folder / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
    return ["ansible-playbook", "-i", str(folder / "hosts.yml"), str(folder / "play.yml")]


def seconds(host: Host, number: int) -> float:
    """From the instant at which so many servers begin to load until ansible-playbook has proven all of them ready."""
    try:
        _start_servers(host, number)
        with tempfile.TemporaryDirectory() as folder:
            words = _play(host, Path(folder), number)
            began = time.monotonic()
            process = start(words)
            host.exec(["python3", "-c", _OPEN, str(_GATE), str(number)])
            output = process.communicate(timeout=400)[0]
            taken = time.monotonic() - began
        if process.returncode:
            raise FleetFailed(f"the wait for {number} servers ended with {process.returncode}:\n{output[-3000:]}")
        return taken
    finally:
        _stop_servers(host)


def measure(host: Host, rounds: int) -> dict[int, list[float]]:
    """Seconds of a wait for one server and of a wait for many, in turns."""
    found: dict[int, list[float]] = {1: [], MANY: []}
    for _round in range(rounds):
        for number, taken in found.items():
            taken.append(seconds(host, number))
    return found


__all__ = ("LOAD_S", "MANY", "FleetFailed", "measure", "seconds")
