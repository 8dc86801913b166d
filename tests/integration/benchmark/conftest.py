# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A lab host on which the real client of the real engine measures servers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.tests.support.cpu_engine import build
from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError, render_inventory
from ansible_collections.specdec.serving.tests.support.observer import units
from ansible_collections.specdec.serving.tests.support.observer.host import MODELS, PYTHON, measuring
from ansible_collections.specdec.serving.tests.support.observer.task import answer_of, play_argv, start

HOST = "benchmark"
#: What a stand-in that speculates runs with, as the role's inventory says it.
INSTANCE = {
    "model_path": units.MODEL_PATH,
    "served_model_name": units.MODEL,
    "args": {
        "tokenizer_path": f"{MODELS}/tiny",
        "max_running_requests": 8,
        "speculative_algorithm": "DFLASH",
        "speculative_draft_model_path": "/models/stand-in-draft",
        "speculative_dflash_block_size": 8,
    },
}
_PORTS = itertools.count(31300)


@dataclasses.dataclass
class Server:
    """A server of the host, a unit of its own."""

    host: Host
    name: str
    port: int

    @property
    def unit(self) -> str:
        return f"sglang-{self.name}.service"

    def start(self, command: str, environment: t.Mapping[str, str], *, within: float = 60.0) -> None:
        """Write its unit, start it, and wait until it answers."""
        text = units.unit_file(command, environment=environment)
        self.host.write_file(f"/etc/systemd/system/{self.unit}", text)
        self.host.exec(["sh", "-c", f"systemctl daemon-reload; systemctl restart {self.unit}"])
        script = (
            f"for i in $(seq {within * 5:.0f}); do systemctl is-active --quiet {self.unit} || exit 3;"
            f" curl --silent --fail --output /dev/null http://127.0.0.1:{self.port}/ready && exit 0; sleep 0.2; done; exit 4"
        )
        done = self.host.exec(["sh", "-c", script], check=False)
        assert done.returncode == 0, self.journal()

    def stand_in(
        self,
        *arguments: str,
        faults: t.Sequence[t.Mapping[str, t.Any]] = (),
        speculate: bool = False,
        **times: float,
    ) -> None:
        """A stand-in with these further arguments; ``times`` are seconds of its steps as they are."""
        scale = 0.002
        environment = {
            **units.server_environment(self.truth_file),
            "STAND_IN_TIMES": json.dumps({name: seconds / scale for name, seconds in times.items()}),
        }
        if faults:
            environment["STAND_IN_FAULT"] = json.dumps(list(faults))
        words = [f"{PYTHON} -m sglang.launch_server --model-path {units.MODEL_PATH}", "--enable-metrics"]
        words += [f"--served-model-name {units.MODEL} --port {self.port} --tokenizer-path {MODELS}/tiny"]
        words += ["--max-running-requests 8", *arguments]
        if speculate:
            words += ["--speculative-algorithm DFLASH --speculative-draft-model-path /models/stand-in-draft"]
            words += ["--speculative-dflash-block-size 8"]
        self.start(" ".join(words), environment)

    @property
    def truth_file(self) -> str:
        return f"{units.TRUTH}/{self.name}.jsonl"

    def served(self) -> list[dict[str, t.Any]]:
        """What the stand-in knows of the requests that it served, without its own warm-up."""
        lines = self.host.exec(["cat", self.truth_file]).stdout.splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if event["event"] == "served"]

    def journal(self) -> str:
        return self.host.exec(["journalctl", "--unit", self.unit, "--no-pager", "--lines=40"], check=False).stdout

    def remove(self) -> None:
        script = (
            f"systemctl kill --signal=SIGKILL {self.unit}; systemctl stop {self.unit}; systemctl reset-failed {self.unit};"
            f" rm -f /etc/systemd/system/{self.unit} {self.truth_file}; systemctl daemon-reload"
        )
        self.host.exec(["sh", "-c", script], check=False)


@dataclasses.dataclass
class Controller:
    """Runs the task from a folder of its own."""

    host: Host
    folder: Path

    def task(self, server: Server, **options: t.Any) -> dict[str, t.Any]:
        return {
            "name": "Measure",
            "specdec.serving.sglang_benchmark": {
                "unit": server.unit,
                "port": server.port,
                "results_dir": str(self.folder / "results"),
                "timeout": 400,
                **options,
            },
        }

    def start(self, server: Server, **options: t.Any) -> subprocess.Popen[str]:
        inventory = self.folder / "inventory.yml"
        inventory.write_text(render_inventory([self.host]), encoding="utf-8")
        argv = play_argv(self.folder, inventory, [self.task(server, **options)])
        return start(argv, {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp")})

    def measure(self, server: Server, **options: t.Any) -> tuple[str, dict[str, t.Any]]:
        """What was printed, and the result."""
        return answer_of(self.start(server, **options), timeout=500)

    def playbook(self, server: Server, *switches: str, **variables: t.Any) -> tuple[int, str]:
        """Run the checkout's benchmark.yml on the server as an instance of the role; give the status and what was printed."""
        (connection,) = yaml.safe_load(render_inventory([self.host]))["all"]["hosts"].values()
        inventory = {
            "sglang": {
                "hosts": {"bench": connection},
                "vars": {"sglang_instances": [{"name": server.name, "port": server.port, **INSTANCE}]},
            }
        }
        path = self.folder / "hosts.yml"
        path.write_text(yaml.safe_dump(inventory), encoding="utf-8")
        argv = ["ansible-playbook", "-i", str(path), str(units.CHECKOUT / "benchmark.yml"), *switches]
        argv += ["--extra-vars", json.dumps({"results_dir": str(self.folder / "results"), **variables})]
        environment = {
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
            "ANSIBLE_CONFIG": str(units.CHECKOUT / "ansible.cfg"),
        }
        process = start(argv, environment)
        output = process.communicate(timeout=500)[0]
        return process.returncode, output

    def client_runs(self, server: Server) -> bool:
        unit = f"specdec-benchmark-{server.unit}"
        done = self.host.exec(["systemctl", "is-active", unit], check=False)
        return done.stdout.strip() in ("active", "activating", "deactivating")


@pytest.fixture(scope="session")
def lab_host() -> Host:
    return measuring_host(HOST)


def measuring_host(name: str) -> Host:
    """A lab host on which PYTHON has the real client; the test is skipped where there can be none."""
    try:
        return measuring(name)
    except build.BuildError as error:
        pytest.skip(str(error))
    except LabError as error:
        pytest.skip(f"no lab host: {error}")


@pytest.fixture
def server(lab_host: Host, request: pytest.FixtureRequest) -> t.Iterator[Server]:
    port = next(_PORTS)
    found = Server(lab_host, f"b-{port}", port)
    yield found
    found.remove()


@pytest.fixture
def controller(lab_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Controller:
    # Short: the path of a control socket has a limit.
    return Controller(lab_host, tmp_path_factory.mktemp("b"))
