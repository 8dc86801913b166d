# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One lab host whose configurations change, fail, are killed halfway and go back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host, remove_units
from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment, Play
from ansible_collections.specdec.serving.tests.support.known_good import kills
from ansible_collections.specdec.serving.tests.support.lab.client import Host, Lab
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

CHECKOUT = Path(__file__).resolve().parents[3]
UNIT = "sglang-a.service"
KEEP = 3
_CALLBACKS = CHECKOUT / "tests" / "support" / "known_good" / "callback_plugins"
#: A module that lost its controller goes on until it has done its work, or notices.
_QUIET_S = 60.0


def configuration(number: int, *, fault: str = "", **changes: t.Any) -> dict[str, t.Any]:
    """An instance whose parts all tell its number; ``fault``: of the stand-in."""
    marks = kills.marks(number)
    values = instance(api_key=marks["apikey"], **changes)
    values["args"] = {**values["args"], "chat_template": marks["argument"]}
    values["env"] = {**values["env"], "GENERATION": marks["variable"], "HF_TOKEN": marks["token"]}
    if fault:
        values["env"]["STAND_IN_FAULT"] = fault
    return values


class Killable(Deployment):
    """A deployment of one instance that can be killed."""

    def deploy(self, number: int, *switches: str, fault: str = "", **changes: t.Any) -> Play:
        self.variables["sglang_instances"] = [configuration(number, fault=fault, **changes)]
        return self.play("deploy.yml", *switches)

    def _python(self, script: str, *words: t.Any, check: bool = True) -> str:
        argv = ["python3", "-", *map(str, words)]
        return self.host.exec(argv, input=script, check=check).stdout

    def look(self) -> dict[str, t.Any]:
        """What is there, once nothing of the killed run works any more."""
        deadline = time.monotonic() + _QUIET_S
        while True:
            seen = json.loads(self._python(kills.LOOK, UNIT, "a"))
            if not seen["modules"]:
                return dict(seen)
            assert time.monotonic() < deadline, f"a module runs on: {seen['modules']}"
            time.sleep(0.1)

    def found(self) -> kills.Found:
        # A process that was just started may not have its own command line yet.
        found = kills.judge(self.look())
        if any(problem.startswith("process") for problem in found.wrong):
            time.sleep(0.5)
            found = kills.judge(self.look())
        return found

    def tasks(self) -> list[dict[str, t.Any]]:
        """The tasks of the last run with when each began, in seconds since the run did."""
        lines = [json.loads(line) for line in (self.folder / "tasks.jsonl").read_text().splitlines()]
        return [{**line, "at": line["at"] - self._began} for line in lines]

    def killed(self, number: int, kill: kills.Kill | None = None, *, fault: str = "") -> tuple[Play, bool]:
        """Deploy and kill; the run, and whether it was struck. Without a kill: only note when its tasks begin."""
        self.variables["sglang_instances"] = [configuration(number, fault=fault)]
        log, trace = self.folder / "output.txt", self.folder / "tasks.jsonl"
        trace.write_text("")
        command, environment = self.command("deploy.yml")
        environment.update(
            ANSIBLE_CALLBACK_PLUGINS=str(_CALLBACKS), ANSIBLE_CALLBACKS_ENABLED="kill_at", SPECDEC_TASKS=str(trace)
        )
        if kill is not None and kill.kind == "boundary":
            environment["SPECDEC_KILL_BEFORE"] = str(int(kill.at))
        struck = False
        self._began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if kill is not None and kill.kind in ("controller", "reboot"):
                    time.sleep(max(kill.at - (time.monotonic() - self._began), 0))
                    struck = process.poll() is None
                    if kill.kind == "reboot":
                        self.host = Lab().reboot(self.host.name)
                    elif struck:
                        os.killpg(process.pid, signal.SIGKILL)
                elif kill is not None and kill.kind == "module":
                    struck = bool(self._python(kills.KILL_MODULE, kill.at, 20).strip())
                process.wait(timeout=200)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if kill is not None and kill.kind == "boundary":
            struck = process.returncode == -signal.SIGKILL
        return Play(process.returncode, log.read_text(errors="replace")), struck


@pytest.fixture(scope="session")
def known_good_host() -> Host:
    return lab_host("known-good")


@pytest.fixture
def deployment(known_good_host: Host, tmp_path: Path) -> Killable:
    """Nothing is deployed, whatever an earlier test left; engines stay."""
    remove_units(known_good_host)
    variables = {**VARIABLES, "sglang_known_good_keep": KEEP}
    return Killable(known_good_host, tmp_path, variables=variables)
