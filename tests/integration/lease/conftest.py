# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One lab host, plays that run beside each other, and clients whose requests take their time."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import threading
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host, remove_units
from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment, Play
from ansible_collections.specdec.serving.tests.support.lab.client import Host

LEASE = "/run/specdec/sglang/lease.json"
_SERIAL = itertools.count(time.time_ns() // 10**9)

#: A client of one request, on the host itself; what came of it goes to a file.
_CLIENT = """
import json, sys, urllib.request
port, tokens, key, out = sys.argv[1:]
body = {"text": "hello " + out, "sampling_params": {"max_new_tokens": int(tokens), "ignore_eos": True}}
headers = {"Content-Type": "application/json"}
if key:
    headers["Authorization"] = "Bearer " + key
try:
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), headers), timeout=600
    ) as reply:
        answer = json.load(reply)["meta_info"]
        said = {"reason": answer["finish_reason"]["type"], "tokens": answer["completion_tokens"]}
except Exception as error:
    said = {"error": repr(error)}
with open(out + ".new", "w") as file:
    json.dump(said, file)
__import__("os").rename(out + ".new", out)
"""


def slow_instance(name: str = "a", port: int = 30100, **changes: t.Any) -> dict[str, t.Any]:
    """An instance of the stand-in that starts in a moment and gives 50 tokens a second to each request."""
    return {
        "name": name,
        "model_path": "/models/stand-in-target",
        "port": port,
        "args": {"tp_size": 1, "disable_cuda_graph": True},
        "env": {"STAND_IN_SCALE": "0.002", "STAND_IN_TIMES": json.dumps({"decode_step": 10})},
        **changes,
    }


#: Tokens of a second.
SECOND = 50


@dataclasses.dataclass
class Client:
    """A request that runs."""

    host: Host
    out: str

    def answer(self, timeout: float = 60) -> dict[str, t.Any]:
        """What came of it."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            done = self.host.exec(["cat", self.out], check=False)
            if done.returncode == 0:
                return t.cast("dict[str, t.Any]", json.loads(done.stdout))
            time.sleep(0.2)
        raise AssertionError(f"no answer within {timeout} s")

    def waits(self) -> bool:
        return self.host.exec(["test", "-e", self.out], check=False).returncode != 0


@dataclasses.dataclass
class Lab(Deployment):
    """A deployment whose plays may run beside the test."""

    def request(self, seconds: float, *, port: int = 30100, key: str = "") -> Client:
        """Ask for so many seconds of tokens, and wait until the server works on it."""
        out = f"/tmp/client-{next(_SERIAL)}"
        self.host.exec(["sh", "-c", f"cat > /tmp/client.py <<'END'\n{_CLIENT}END\n"])
        tokens = str(round(seconds * SECOND))
        before = self.running(port, key)
        self.host.exec(
            ["systemd-run", "--quiet", "--collect", "python3", "/tmp/client.py", str(port), tokens, key, out]
        )
        wait_until(lambda: self.running(port, key) > before, timeout=20)
        return Client(self.host, out)

    def running(self, port: int = 30100, key: str = "") -> int:
        command = ["curl", "--silent", "--max-time", "5", "--header", f"Authorization: Bearer {key}"]
        text = self.host.exec([*command, f"http://127.0.0.1:{port}/v1/loads"]).stdout
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in json.loads(text)["loads"])

    def lease(self) -> dict[str, t.Any]:
        done = self.host.exec(["cat", LEASE], check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {"held": False}

    def edit_lease(self, **changes: t.Any) -> None:
        text = json.dumps({**self.lease(), **changes})
        self.host.exec(["sh", "-c", f"cat > {LEASE} <<'END'\n{text}\nEND\n"])

    def unit_text(self, unit: str = "sglang-a.service") -> str:
        return self.host.exec(["cat", f"/etc/systemd/system/{unit}"]).stdout

    @contextlib.contextmanager
    def beside(self, playbook: str = "deploy.yml", *switches: str, **options: t.Any) -> t.Iterator[Beside]:
        """A play that runs while the test goes on."""
        beside = Beside(self, playbook, switches, options)
        beside.start()
        try:
            yield beside
        finally:
            beside.end()


class Beside:
    """A play in a thread of its own."""

    def __init__(self, lab: Lab, playbook: str, switches: tuple[str, ...], options: dict[str, t.Any]) -> None:
        # The command line of its ansible-playbook names its own inventory.
        self._lab = dataclasses.replace(
            lab, folder=lab.folder / f"beside-{next(_SERIAL)}", variables=dict(lab.variables)
        )
        self._lab.folder.mkdir()
        self._arguments = (playbook, *switches)
        self._options = options
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._play: Play | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        self._play = self._lab.play(*self._arguments, **self._options)

    def pids(self) -> list[int]:
        """Its ansible-playbook and the workers, parents first."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                    if str(self._lab.folder / "hosts.yml").encode() in words:
                        found.append(int(name))
        return sorted(found)

    def kill(self) -> None:
        """End ansible-playbook as the kernel does when memory is short: nothing of it can clean up."""
        os.kill(self.pids()[0], signal.SIGKILL)

    def result(self, timeout: float = 180) -> Play:
        self._thread.join(timeout)
        assert self._play is not None, "the play has not ended"
        return self._play

    def end(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._thread.join(30)


def wait_until(condition: t.Callable[[], t.Any], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def lease_host() -> Host:
    return lab_host("lease")


@pytest.fixture
def lab(lease_host: Host, tmp_path: Path) -> t.Iterator[Lab]:
    """The host without units, clients or a lease, whatever an earlier test left; engines stay."""
    remove_units(lease_host, "/run/specdec", "/tmp/client-*")
    variables = {**VARIABLES, "sglang_instances": [slow_instance()]}
    yield Lab(lease_host, tmp_path, hosts={"role": {}}, variables=variables)
    lease_host.exec(["sh", "-c", "systemctl stop 'run-*.service'"], check=False)
