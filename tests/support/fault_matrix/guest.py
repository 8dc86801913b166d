#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs rows of the fault matrix on a lab host: real units, real journal, real sockets, and one real wait for each row.

Reads ``{"rows": [...], "side_by_side": int}`` on stdin (rows as ``rows.prepared`` makes them) and writes one JSON line a
row when it has ended, then one line with what the machine did meanwhile. Standard library only.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

# Times of the invocation that systemd knows, in seconds of CLOCK_MONOTONIC once divided by a million.
STAMPS = (
    "ExecMainStartTimestampMonotonic",
    "ExecMainExitTimestampMonotonic",
    "InactiveEnterTimestampMonotonic",
    "InactiveExitTimestampMonotonic",
    "StateChangeTimestampMonotonic",
)
_output = threading.Lock()


def _shell(script: str, *, check: bool) -> None:
    if script:
        done = subprocess.run(["sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(f"{script!r} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")


def _until(condition: t.Callable[[], t.Any], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


def _listening(port: int) -> bool:
    suffix = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[1].endswith(suffix) and words[3] == "0A":
                return True
    return False


def _truth(path: str) -> list[dict[str, t.Any]]:
    try:
        return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []


class Row:
    """One row: its unit, what stands beside it, the wait, and what is done to it meanwhile."""

    def __init__(self, row: dict[str, t.Any]) -> None:
        self.row = row
        self.marks: dict[str, float] = {}
        self.trouble: list[str] = []
        self._neighbours: list[subprocess.Popen[bytes]] = []

    def run(self) -> dict[str, t.Any]:
        """The row's verdict and times; trouble of the row itself under ``trouble``."""
        began = time.monotonic()
        verdict: dict[str, t.Any] = {}
        try:
            self._begin_neighbours()
            _shell(self.row["before"], check=True)
            verdict = self._observe()
        except (OSError, RuntimeError, subprocess.SubprocessError, ValueError) as error:
            self.trouble.append(str(error))
        found = {
            "id": self.row["id"],
            "verdict": verdict,
            "stamps": self._stamps(),
            "truth": self._first_times(verdict.get("invocation_id", "")),
            "marks": self.marks,
            "wall_s": time.monotonic() - began,
        }
        self._end()
        return {**found, "trouble": self.trouble}

    def _begin_neighbours(self) -> None:
        for argv in self.row["neighbours"]:
            self._neighbours.append(
                subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        if self._neighbours:
            _until(lambda: _listening(self.row["port"]), "a neighbour listens")

    def _observe(self) -> dict[str, t.Any]:
        # Its imports are done before the unit starts: it reads its options when everything is loaded.
        observer = subprocess.Popen(
            self.row["observer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.row["observer_environment"]},
        )
        try:
            self._until_it_reads(observer)
            _shell(self.row["start"], check=False)
            self.marks["started"] = time.monotonic()
            doing = threading.Thread(target=self._act)
            doing.start()
            options = json.dumps(self.row["options"])
            if "@INVOCATION@" in options:
                options = options.replace("@INVOCATION@", self._property("InvocationID"))
            limit_s = self.row["limit_s"]
            answer, errors = observer.communicate(options, timeout=limit_s)
            self.marks["answered"] = time.monotonic()
            doing.join()
        except subprocess.TimeoutExpired:
            observer.kill()
            answer, errors = observer.communicate()
            raise RuntimeError(f"no verdict within {limit_s:g} s: {errors[-300:]}") from None
        if observer.returncode != 0:
            # The module answers such an error as its message.
            refused = re.search(r"^(?:\S+\.)?(?:OptionError|SystemdError): (.*)", errors, re.MULTILINE | re.DOTALL)
            if refused is None:
                raise RuntimeError(f"the wait broke: {errors.strip()[-300:]}")
            return {"state": "refused", "msg": refused.group(1).strip()}
        return t.cast("dict[str, t.Any]", json.loads(answer))

    @staticmethod
    def _until_it_reads(observer: subprocess.Popen[str]) -> None:
        """When it has slept for a while without using the processor, it has loaded everything and waits for its options."""
        path, before = f"/proc/{observer.pid}/stat", ""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            words = Path(path).read_text(encoding="utf-8").rpartition(")")[2].split()
            state, used = words[0], words[11] + "+" + words[12]
            if state == "S" and used == before and used != "0+0":
                return
            before = used
            time.sleep(0.05)

    def _act(self) -> None:
        for number, action in enumerate(self.row["actions"]):
            try:
                self._wait_for(action["when"])
                self.marks[f"action {number}"] = time.monotonic()
                _shell(action["do"], check=True)
            except (OSError, RuntimeError) as error:
                self.trouble.append(str(error))
                return

    def _wait_for(self, when: str) -> None:
        kind, _, value = when.partition(":")
        if kind == "after":
            time.sleep(float(value))
        elif kind == "truth":
            _until(lambda: any(event["event"] == value for event in _truth(self.row["truth"])), when)
        elif kind == "shell":
            _until(lambda: subprocess.run(["sh", "-c", value], stdout=subprocess.DEVNULL).returncode == 0, when)
        else:
            raise RuntimeError(f"unknown moment {when!r}")

    def _property(self, name: str) -> str:
        argv = ["systemctl", "show", "--value", "--property", name, "--", self.row["unit"]]
        return subprocess.run(argv, capture_output=True, text=True).stdout.strip()

    def _stamps(self) -> dict[str, float]:
        argv = ["systemctl", "show", "--property", ",".join(STAMPS), "--", self.row["unit"]]
        lines = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
        pairs = [line.partition("=") for line in lines]
        return {name: int(value) / 1e6 for name, _, value in pairs if value.isdigit() and int(value) > 0}

    def _first_times(self, invocation: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for event in _truth(self.row["truth"]):
            if not invocation or event["invocation_id"] == invocation:
                found.setdefault(event["event"], event["monotonic"])
        return found

    def _end(self) -> None:
        for process in self._neighbours:
            os.killpg(process.pid, 9)
            process.wait()
        unit = self.row["unit"]
        _shell(
            f"systemctl kill --signal=SIGKILL {unit}; systemctl stop {unit}; systemctl reset-failed {unit};"
            + self.row["after"],
            check=False,
        )


class Machine:
    """How late the machine wakes somebody who sleeps: what a verdict may be late by without any fault of its own."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._loads: list[float] = []

    def _watch(self) -> None:
        while not self._stop.is_set():
            before = time.monotonic()
            time.sleep(0.05)
            self._late.append(time.monotonic() - before - 0.05)
            self._loads.append(os.getloadavg()[0])

    def __enter__(self) -> Machine:
        self._thread.start()
        return self

    def __exit__(self, *_unused: object) -> None:
        self._stop.set()
        self._thread.join()

    def figures(self) -> dict[str, float]:
        late = sorted(self._late) or [0.0]
        return {
            "cores": float(os.cpu_count() or 0),
            "load_max": max(self._loads, default=0.0),
            "wake_late_p50_s": late[len(late) // 2],
            "wake_late_p99_s": late[int(len(late) * 0.99)],
            "wake_late_max_s": late[-1],
        }


def _say(value: dict[str, t.Any]) -> None:
    with _output:
        print(json.dumps(value), flush=True)


def main() -> None:
    """Write all files, load them once, run the rows some at a time, remove the files."""
    plan = json.load(sys.stdin)
    rows = plan["rows"]
    files = [(path, text) for row in rows for path, text in row["files"].items()]
    try:
        for path, text in files:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, encoding="utf-8")
        for row in rows:
            _shell(row["prepare"], check=True)
        # Once for all: it stops PID 1 for a moment, which would make other rows' verdicts late.
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        with Machine() as machine:
            beside = [row for row in rows if not row["alone"]]
            with concurrent.futures.ThreadPoolExecutor(plan["side_by_side"]) as pool:
                for done in concurrent.futures.as_completed([pool.submit(Row(row).run) for row in beside]):
                    _say(done.result())
            for row in rows:
                if row["alone"]:
                    _say(Row(row).run())
        _say({"machine": machine.figures()})
    finally:
        for path, _text in files:
            Path(path).unlink(missing_ok=True)
        for row in rows:
            _shell(row["remove"], check=False)
        subprocess.run(["systemctl", "daemon-reload"], check=True)


if __name__ == "__main__":
    main()
