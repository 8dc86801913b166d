#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts and crashes on a lab host, watched by every observer at the pace that people really use: for `make bench`.

Reads ``{"seed": str, "lanes": N, "starts": N, "crashes": N, "quiet_s": S}`` on stdin and writes one JSON
line a measurement: ``kind`` start (``ready``: truth; ``wait``: what `waits.wait` gives; ``looks``: looks of the baselines that
said something), crash (``ended``: truth) or quiet (CPU seconds of a wait for a server that only loads). Needs root.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.observer import baselines, waits
from ansible_collections.specdec.serving.tests.support.observer.servers import (
    Server,
    installed,
    strike,
    systemctl,
)

FIRST_PORT = 32100
# The story's start in hundredths; /health takes its real second.
_SCALE, _HEALTH_S = 0.01, 1.0
_LIMIT_S = 60.0
# Seconds until a wait has read what there is to read and only waits.
_SETTLED_S = 5.0
_QUIET_UNIT = "bench-wait"

#: How a start dies: arguments that it refuses, a fault of the stand-in, or whom a signal hits and when (seconds, or an event
#: of its truth).
CRASHES: dict[str, dict[str, t.Any]] = {
    "unknown flag": {"arguments": "--no-such-flag"},
    "contradiction": {"arguments": "--speculative-num-draft-tokens 4"},
    "scheduler killed while loading": {"whom": "scheduler", "after": (0.5, 1.3)},
    "main process killed while loading": {"whom": "main", "after": (0.3, 1.3)},
    "scheduler killed in warm-up": {"whom": "scheduler", "event": "port_bound"},
    "detokenizer killed in warm-up": {"whom": "detokenizer", "event": "port_bound"},
    **{
        fault: {"fault": fault}
        for fault in (
            "oom-load-target",
            "weights-damaged",
            "kv-cache-too-small",
            "segfault",
            "nccl-abort",
            "rank-quits",
        )
    },
}


class Watched:
    """One start with its observers; ``until`` decides when enough was seen."""

    def __init__(self, server: Server, *, intervals: t.Mapping[str, float], chance: random.Random) -> None:
        self.server = server
        self.offset = server.written()
        self.looks: list[dict[str, t.Any]] = []
        self.wait: dict[str, t.Any] = {}
        self.invocation_id = ""
        self._phases = {name: chance.uniform(0.0, interval) for name, interval in intervals.items()}
        self._intervals = intervals

    def run(self, until: t.Callable[[Watched], bool]) -> None:
        order = self.server.restart()
        watching = waits.fork(self._watch)
        waiting = waits.fork_wait(self.server.options(replaces=order.before.invocation_id, timeout=str(_LIMIT_S)), None)
        try:
            self._attend(until, watching[1], waiting[1])
        finally:
            for pid, pipe in (watching, waiting):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.close(pipe)
                os.waitpid(pid, 0)
            order.close()

    def _watch(self) -> None:
        def say(name: str, look: baselines.Look) -> bool:
            waits.say({"name": name, **dataclasses.asdict(look)})
            return True

        target = baselines.Target(self.server.unit, self.server.port)
        for thread in baselines.watch(target, intervals=self._intervals, phases=self._phases, say=say):
            thread.join()

    def _attend(self, until: t.Callable[[Watched], bool], *fds: int) -> None:
        rests = dict.fromkeys(fds, b"")
        deadline = time.monotonic() + _LIMIT_S
        while not until(self):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all was seen within {_LIMIT_S} s: {self.wait}, {self.looks[-5:]}")
            for fd in select.select(list(rests), [], [], 0.05)[0]:
                data = os.read(fd, 1 << 16)
                if not data:
                    del rests[fd]
                    continue
                *lines, rests[fd] = (rests[fd] + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if "name" in message:
                        self.looks.append(message)
                    else:
                        self.wait = message

    def first(self, *events: str) -> float | None:
        """When the first such event of the newest start was."""
        found = self.server.events(self.offset)
        newest = [event["invocation_id"] for event in found if event["event"] == "started"][-1:]
        times = [event["monotonic"] for event in found if event["event"] in events and event["invocation_id"] in newest]
        return min(times, default=None)

    def has_seen(self, at: float | None, says: str, names: t.Collection[str]) -> bool:
        """Whether each of these baselines has said it since."""
        if at is None:
            return False
        seen = {look["name"] for look in self.looks if look["says"] == says and look["ended"] >= at}
        return seen.issuperset(names)


def one_start(server: Server, chance: random.Random) -> dict[str, t.Any]:
    server.end()
    server.configure(times={"health": _HEALTH_S})
    watched = Watched(server, intervals=baselines.INTERVALS, chance=chance)
    watched.run(
        lambda seen: bool(seen.wait) and seen.has_seen(seen.first("ready"), baselines.READY, baselines.INTERVALS)
    )
    return {"kind": "start", "ready": watched.first("ready"), "wait": watched.wait, "looks": watched.looks}


def one_crash(server: Server, name: str, chance: random.Random) -> dict[str, t.Any]:
    crash = CRASHES[name]
    server.end()
    server.configure(
        times={"health": _HEALTH_S},
        arguments=crash.get("arguments", ""),
        environment={"STAND_IN_FAULT": crash["fault"]} if "fault" in crash else None,
    )
    watched = Watched(server, intervals={"loop": baselines.INTERVALS["loop"]}, chance=chance)
    began = time.monotonic()
    after = chance.uniform(*crash["after"]) if "after" in crash else None
    to_strike = "whom" in crash
    ended: list[float] = []

    def until(seen: Watched) -> bool:
        nonlocal to_strike
        due = time.monotonic() - began >= after if after is not None else seen.first(crash.get("event", "")) is not None
        if to_strike and due and strike(server.group, crash["whom"], chance) is not None:
            to_strike = False
        if not seen.wait:
            return False
        if not ended:
            unit = server.show()
            if unit.active_state != "failed" or unit.invocation_id != seen.wait["invocation_id"]:
                return False
            # Systemd's own stamp, or the last words of the process where they came before it.
            stamps = [unit.exec_main_exit_us / 1e6, seen.first("exited", "crashed")]
            ended.append(min(stamp for stamp in stamps if stamp))
        return seen.has_seen(ended[0], baselines.FAILED, ["loop"])

    watched.run(until)
    return {"kind": "crash", "crash": name, "ended": ended[0], "wait": watched.wait, "looks": watched.looks}


def quiet(server: Server, seconds: float) -> dict[str, t.Any]:
    """CPU of a wait, its journalctl and every systemctl included, while the server loads and says nothing."""
    server.end()
    server.configure(times={"load_target": 3600.0})
    offset = server.written()
    systemctl("start", server.unit)
    loading = 0
    while loading < server.tp_size:
        time.sleep(0.1)
        text = server.truth_file.read_bytes()[offset:].decode()
        loading = text.count('"step": "load_target"')
    observer = Path(__file__).with_name("observe.py")
    words = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--unit={_QUIET_UNIT}"]
    words += [f"--setenv=PYTHONPATH={os.environ['PYTHONPATH']}", "python3", "-B", str(observer)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None:
            raise RuntimeError("no pipe")
        process.stdin.write(json.dumps(server.options(timeout="3600")))
        process.stdin.close()
        began = time.monotonic()
        time.sleep(_SETTLED_S)
        settled, settled_cpu = time.monotonic(), _cpu_seconds(_QUIET_UNIT)
        time.sleep(seconds)
        ended, ended_cpu = time.monotonic(), _cpu_seconds(_QUIET_UNIT)
        systemctl("kill", "--signal=KILL", f"{_QUIET_UNIT}.service")
    server.end()
    return {
        "kind": "quiet",
        "seconds": ended - settled,
        "cpu_s": ended_cpu - settled_cpu,
        "first_seconds": settled - began,
        "first_cpu_s": settled_cpu,
        "ranks": server.tp_size,
    }


def _cpu_seconds(unit: str) -> float:
    text = Path(f"/sys/fs/cgroup/system.slice/{unit}.service/cpu.stat").read_text(encoding="ascii")
    return int(dict(line.split() for line in text.splitlines())["usage_usec"]) / 1e6


def main() -> None:
    """The quiet wait alone, then all lanes side by side; leave nothing behind."""
    order = json.load(sys.stdin)
    lanes = [Server(f"bench-{number}", FIRST_PORT + number, scale=_SCALE) for number in range(order["lanes"])]
    still = Server("bench-quiet", FIRST_PORT + len(lanes), tp_size=8, scale=_SCALE)

    def run_lane(number: int) -> None:
        counts = {"start": order["starts"], "crash": order["crashes"]}
        jobs = [(name, index) for name, count in counts.items() for index in range(count)]
        for name, index in jobs:
            if index % len(lanes) != number:
                continue
            chance = random.Random(f"{order['seed']}:{name}:{index}")
            try:
                if name == "start":
                    found = one_start(lanes[number], chance)
                else:
                    # Not index % kinds alone, which would bind kinds to lanes.
                    kind = list(CRASHES)[(index // len(lanes) + number) % len(CRASHES)]
                    found = one_crash(lanes[number], kind, chance)
            except Exception:  # noqa: BLE001  told, and the bench fails with it
                found = {"kind": "broken", "why": traceback.format_exc()[-3000:]}
            waits.say(found)

    with installed([*lanes, still]):
        if order["quiet_s"]:
            waits.say(quiet(still, order["quiet_s"]))
        waits.gather([functools.partial(run_lane, number) for number in range(len(lanes))])


if __name__ == "__main__":
    main()
