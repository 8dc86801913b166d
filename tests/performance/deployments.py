# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Seconds of `deploy.yml` where nothing is to be changed, and of a play that is written by hand (`by_hand.yml`), in turns.

Both are run as users run them: ansible-playbook over SSH with sudo, by the checkout's ansible.cfg, on one lab host with one server.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.lab.client import Host, render_inventory
from ansible_collections.specdec.serving.tests.support.observer.task import start
from ansible_collections.specdec.serving.tests.support.observer.units import CHECKOUT
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance as stand_in

OURS, BY_HAND = "deploy.yml", "by_hand.yml"
NAME, PORT = "bench-noop", 32198
UNIT = f"sglang-{NAME}.service"


class DeploymentFailed(RuntimeError):
    """A run failed, or changed something though nothing was to be changed."""


def variables(**changes: t.Any) -> dict[str, t.Any]:
    """What the inventory says: one stand-in server with a draft, whose readiness is proven without generated tokens."""
    return {
        "sglang_version": "0.5.23",
        "sglang_wheelhouse": "/srv/wheelhouse/stand-in",
        "sglang_ready_generation_tokens": 0,
        "sglang_instances": [stand_in(NAME, PORT)],
        **changes,
    }


class Deployments:
    """Runs both plays on ``host``; ``folder`` is theirs."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host, self._folder = host, folder
        (folder / "hosts.yml").write_text(render_inventory([host]), encoding="utf-8")
        group = {"sglang": {"hosts": {host.name: {}}, "vars": variables()}}
        (folder / "sglang.yml").write_text(json.dumps(group), encoding="utf-8")
        self._extra: dict[str, str] = {}

    def run(self, playbook: Path, *, changes: bool = False) -> float:
        """Seconds from the command line to its end. Raises DeploymentFailed."""
        words = ["ansible-playbook", "-i", str(self._folder / "hosts.yml"), "-i", str(self._folder / "sglang.yml")]
        words += [str(playbook), "--extra-vars", json.dumps(self._extra)]
        began = time.monotonic()
        process = start(words)
        output = process.communicate(timeout=300)[0]
        seconds = time.monotonic() - began
        changed = re.findall(r"\bchanged=(\d+)", output)
        if process.returncode or (changed != ["0"] and not changes):
            raise DeploymentFailed(f"{playbook.name} ended with {process.returncode}:\n{output[-3000:]}")
        return seconds

    def prepare(self) -> None:
        """Deploy, and take what was written as what is written by hand; then nothing is left to be changed by either."""
        self.run(CHECKOUT / OURS, changes=True)
        unit = self._host.exec(["cat", f"/etc/systemd/system/{UNIT}"]).stdout
        (environment_file,) = re.findall(r"^EnvironmentFile=(\S+)$", unit, re.MULTILINE)
        (self._folder / "unit").write_text(unit, encoding="utf-8")
        environment = self._host.exec(["cat", environment_file]).stdout
        (self._folder / "environment").write_text(environment, encoding="utf-8")
        self._extra = {
            "folder": str(self._folder),
            "unit": UNIT,
            "port": str(PORT),
            "environment_file": environment_file,
        }

    def seconds(self, playbook: str) -> float:
        """Of one run that changes nothing."""
        folder = Path(__file__).parent if playbook == BY_HAND else CHECKOUT
        return self.run(folder / playbook)


def measure(host: Host, number: int) -> dict[str, list[float]]:
    """Seconds of so many runs of each, in turns, so that whatever else the machine does strikes both."""
    with tempfile.TemporaryDirectory() as folder:
        deployments = Deployments(host, Path(folder))
        deployments.prepare()
        found: dict[str, list[float]] = {OURS: [], BY_HAND: []}
        for turn in range(number + 1):
            for playbook, seconds in found.items():
                taken = deployments.seconds(playbook)
                # The first of each opens connections and fills caches.
                if turn:
                    seconds.append(taken)
    return found


__all__ = ("BY_HAND", "OURS", "DeploymentFailed", "measure")
