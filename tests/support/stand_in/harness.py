# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""For tests: starts stand-ins on loopback and watches them. Controller side, not part of the wheel."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.stand_in import build

#: Makes the kernel's log of a lab host writable for faults: containers have no /dev/kmsg, and journald takes a pipe for it.
#: Somebody must hold the pipe open first, or journald (and PID 1) would wait for a reader.
KERNEL_LOG = """
set -e
test ! -p /dev/kmsg || exit 0
mkfifo -m 0600 /dev/kmsg
systemd-run --quiet --unit=kernel-log sh -c 'exec sleep infinity <>/dev/kmsg'
sleep 0.3
systemctl restart systemd-journald
"""
# Nothing here takes this long; a busy machine may be slow.
LIMIT = 30.0


def make_models(folder: Path) -> Path:
    """Model folders for tests: the stand-in's own, and two that look like those that the recordings were made with."""
    build.build_models(folder)
    for name in ("tiny", "tiny-draft"):
        build.make_model(
            folder / name,
            config={"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 2048},
            total_bytes=800_000,
            shards=1,
        )
    return folder


def children(pid: int) -> list[int]:
    """Direct children, oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == pid and fields[0] != "Z":
                    found.append(int(entry.name))
    return sorted(found)


def group(leader: int) -> list[int]:
    """Processes of a group that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                if int(fields[2]) == leader and fields[0] != "Z":
                    found.append(int(entry.name))
    return sorted(found)


def title(pid: int) -> str:
    """Command line as ps shows it."""
    data = Path(f"/proc/{pid}/cmdline").read_bytes()
    return data.rstrip(b"\0").replace(b"\0", b" ").decode()


def wait_until(what: str, check: t.Callable[[], t.Any], limit: float = LIMIT) -> t.Any:
    """The first true result of check."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        result = check()
        if result:
            return result
        time.sleep(0.005)
    raise AssertionError(f"{what}: not within {limit:g} s")


class Reply(t.NamedTuple):
    status: int
    body: bytes
    seconds: float

    def json(self) -> t.Any:
        return json.loads(self.body)


class StandIn:
    """One running stand-in. Its whole process group ends with the test."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path, host: str = "127.0.0.1") -> None:
        self.process = process
        self.pid = process.pid
        self.port = port
        self.host = host
        self._folder = folder

    def log(self) -> str:
        """stderr and stdout together, as the journal has them."""
        return (self._folder / "log").read_text(encoding="utf-8")

    def truth(self, event: str) -> list[dict[str, t.Any]]:
        path = self._folder / "truth.jsonl"
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        return [entry for entry in entries if entry["event"] == event]

    def wait_for_log(self, text: str) -> None:
        wait_until(f"log line {text!r}", lambda: text in self.log())

    def wait_for_event(self, event: str) -> None:
        wait_until(f"event {event!r}", lambda: self.truth(event))

    def wait_ready(self) -> None:
        self.wait_for_log("The server is fired up and ready to roll!")

    def exit(self, limit: float = LIMIT) -> int:
        """Status as subprocess gives it: -N for signal N."""
        return self.process.wait(limit)

    def ask(
        self,
        path: str,
        body: t.Any = None,
        *,
        method: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = LIMIT,
    ) -> Reply:
        """One request on a connection of its own. Raises OSError when the port is closed."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        begin = time.monotonic()
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, data, headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.read(), time.monotonic() - begin)
        finally:
            connection.close()

    def port_open(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def schedulers(self) -> list[int]:
        return [pid for pid in children(self.pid) if title(pid).startswith("sglang::scheduler")]


class Factory:
    """start(...) gives running stand-ins."""

    def __init__(self, engine: Path, models: Path, folder: Path, python: str) -> None:
        self.engine = engine
        self.models = models
        self._folder = folder
        self._python = python
        self._running: list[StandIn] = []

    @staticmethod
    def free_port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    def start(
        self,
        *words: str,
        model: str = "tiny",
        scale: float = 0.0,
        times: dict[str, float] | None = None,
        port: int | None = None,
        python: str | None = None,
        **environment: str,
    ) -> StandIn:
        """Start `python -m sglang.launch_server`; words may say DRAFT, TINY-DRAFT for model folders."""
        port = port or self.free_port()
        folder = self._folder / str(len(self._running))
        folder.mkdir()
        named = {"DRAFT": str(self.models / "stand-in-draft"), "TINY-DRAFT": str(self.models / "tiny-draft")}
        argv = [python or self._python, "-m", "sglang.launch_server"]
        argv += ["--model-path", str(self.models / model), "--port", str(port)]
        argv += [named.get(word, word) for word in words]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                env={
                    "PATH": os.environ["PATH"],
                    "COLUMNS": "80",
                    "PYTHONPATH": str(self.engine),
                    "STAND_IN_SCALE": str(scale),
                    "STAND_IN_TIMES": json.dumps(times or {}),
                    "STAND_IN_TRUTH": str(folder / "truth.jsonl"),
                    **environment,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = StandIn(process, port, folder)
        self._running.append(running)
        return running

    def close(self) -> None:
        for running in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.process.wait(LIMIT)
