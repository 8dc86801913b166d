# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An instance of the stand-in on a lab host that has the real client of the real engine, and sweeps over it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.tests.integration.benchmark.conftest import measuring_host
from ansible_collections.specdec.serving.tests.integration.lab_hosts import build_stand_in
from ansible_collections.specdec.serving.tests.integration.role.conftest import CHECKOUT, VARIABLES, Deployment, Play
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.observer.host import MODELS, PYTHON
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

_CALLBACKS = CHECKOUT / "tests" / "support" / "known_good" / "callback_plugins"
PORT = 31700
UNIT = "sglang-a.service"
#: Well above what one slice of a measurement (20 s) and the way to the next one take on a busy machine, so that only a controller that is gone lets it pass.
HOLD_S = 45
#: As small as the client allows; what it says of speed is the stand-in's own clock.
WORKLOAD = {
    "name": "tiny",
    "description": "For tests of sweeps.",
    "kind": "fixed",
    "input_length": 16,
    "output_length": 24,
    "requests": {"per_user": 2, "minimum": 4, "steady_state_s": 0},
    "repeats": 1,
}


class Sweeping:
    """A deployed instance and the folder with its sweep file and results."""

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self.deployment, self.folder = deployment, folder
        self.sweep_file = folder / "nightly.yml"
        self.points: dict[int, dict[str, t.Any]] = {}
        (folder / "tiny.yml").write_text(yaml.safe_dump(WORKLOAD))

    @property
    def host(self) -> Host:
        return self.deployment.host

    def write(self, space: dict[str, t.Any], **more: t.Any) -> None:
        sweep = {"instance": "a", "space": space, "workloads": ["./tiny.yml"], "levels": [2], **more}
        self.sweep_file.write_text(yaml.safe_dump(sweep, sort_keys=False))

    def sweep(
        self,
        *switches: str,
        timeout: float = 600,
        environment: t.Mapping[str, str] | None = None,
        **extra: t.Any,
    ) -> Play:
        return self.deployment.play(
            "sweep.yml",
            *switches,
            timeout=timeout,
            environment=environment,
            sweep=str(self.sweep_file),
            results_dir=str(self.folder / "results"),
            **extra,
        )

    def start(self, **extra: t.Any) -> subprocess.Popen[bytes]:
        """A sweep to be killed, with its own connections; what it prints is in ``output``, its tasks are in ``tasks``."""
        command, environment = self.deployment.command(
            "sweep.yml",
            environment={
                "ANSIBLE_CALLBACK_PLUGINS": str(_CALLBACKS),
                "ANSIBLE_CALLBACKS_ENABLED": "kill_at",
                "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
                "SPECDEC_TASKS": str(self.folder / "tasks.jsonl"),
            },
            sweep=str(self.sweep_file),
            results_dir=str(self.folder / "results"),
            **extra,
        )
        (self.folder / "tasks.jsonl").write_text("")
        return subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.output.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def tasks(self) -> list[str]:
        """Names of the tasks that have begun in the run that was started last."""
        lines = (self.folder / "tasks.jsonl").read_text().splitlines()
        return [json.loads(line)["name"].rpartition(" : ")[2] for line in lines]

    def wait_for_task(self, name: str, number: int, process: subprocess.Popen[bytes], *, within: float = 300) -> bool:
        """Whether the task began for the ``number``-th time before the run ended."""
        deadline = time.monotonic() + within
        while self.tasks().count(name) < number:
            if process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"{name!r} did not begin: {self.output.read_text()[-3000:]}"
            time.sleep(0.02)
        return True

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End everything of the run as a machine does that dies: workers and ssh lead process groups of their own."""
        process.kill()
        deadline = time.monotonic() + 10
        while pids := self.processes():
            assert time.monotonic() < deadline, pids
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()

    def processes(self) -> list[int]:
        """Those that name our folder, as all of the run do: by the inventory, or by the path of a connection."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if f"{self.folder}/".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    @property
    def output(self) -> Path:
        return self.folder / "killed.log"

    def arguments(self) -> str:
        """The running server's command line, as ``flag=value`` words; empty when none runs."""
        pid = self.host.exec(["systemctl", "show", "--value", "--property=MainPID", UNIT]).stdout.strip()
        words = self.host.exec(["cat", f"/proc/{pid}/cmdline"], check=False).stdout.split("\0")
        return " ".join(f"{flag}={value}" for flag, value in itertools.pairwise(words) if flag.startswith("--"))

    def environment(self, host: Host | None = None) -> list[str]:
        """The running server's ``NAME=value``, on our host or on another one of the sweep."""
        host = host or self.host
        pid = host.exec(["systemctl", "show", "--value", "--property=MainPID", UNIT]).stdout.strip()
        return host.exec(["cat", f"/proc/{pid}/environ"]).stdout.split("\0")

    def is_measured(self) -> bool:
        """Whether a client of SGLang's still asks the server."""
        state = self.host.exec(["systemctl", "is-active", f"specdec-benchmark-{UNIT}"], check=False).stdout.strip()
        return state not in ("inactive", "failed")

    def is_restored(self) -> bool:
        """Whether the unit's own configuration answers again, by whatever brought it back, and no trial's is in its way."""
        if "--speculative-dflash-block-size=8" not in self.arguments():
            return False
        if self.host.exec(["ls", f"/run/systemd/system/{UNIT}.d"], check=False).stdout.strip():
            return False
        url = f"http://127.0.0.1:{PORT}/ready"
        return self.host.exec(["curl", "--silent", "--fail", url], check=False).returncode == 0

    def wait_until_restored(self, *, within: float = HOLD_S + 60) -> float:
        """For so many seconds it was not (see :meth:`is_restored`)."""
        began = time.monotonic()
        while not self.is_restored():
            assert time.monotonic() - began < within, f"not restored: {self.arguments()!r}"
            time.sleep(0.3)
        return time.monotonic() - began

    def forget(self) -> None:
        """The next sweep is another one."""
        shutil.move(self.folder / "results", self.folder / f"results-{time.monotonic_ns()}")

    def records(self) -> list[dict[str, t.Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / "results").glob("*.json"))]

    def is_own(self, unit: str = UNIT) -> bool:
        """Whether the unit runs its own configuration and nothing of a trial is left."""
        script = f"find /run/systemd/system/{unit}.d /run/specdec/trials -type f 2>/dev/null;"
        script += " systemctl list-units --plain --no-legend --all 'specdec-trial-*'"
        left = self.host.exec(["sh", "-c", script], check=False).stdout.strip()
        assert left == "", left
        return self.deployment.state(unit) == "active"


def verdicts(output: str) -> dict[int, str]:
    """Trial to its verdict, as the last table tells them."""
    table = output[output.rindex("why not") :]
    return {
        int(number): verdict for number, verdict in re.findall(r"(?:^|\\n|\n)\s*[★\d]*\s+(\d+)\s+([a-z_]+)\s", table)
    }


@pytest.fixture(scope="session")
def sweep_host() -> Host:
    build_stand_in()
    return measuring_host("sweep")


def swept_instance(**changes: t.Any) -> dict[str, t.Any]:
    own = instance("a", PORT, **changes)
    # The client makes its random tokens with it.
    own["args"] = {**own["args"], "tokenizer_path": f"{MODELS}/tiny", "max_running_requests": 8}
    return own


SWEEP_VARIABLES = {
    **VARIABLES,
    "sglang_benchmark_python": PYTHON,
    "sglang_ready_timeout": "40",
    "sglang_ready_stall_timeout": 5,
    "sglang_trial_hold": 120,
}


@pytest.fixture
def sweeping(sweep_host: Host, tmp_path: Path) -> Sweeping:
    variables = {**SWEEP_VARIABLES, "sglang_instances": [swept_instance()]}
    deployment = Deployment(sweep_host, tmp_path, variables=variables)
    deployed = deployment.play()
    assert deployed.returncode == 0, deployed.output[-4000:]
    return Sweeping(deployment, tmp_path)
