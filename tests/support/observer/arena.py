#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs races on a lab host: several units side by side, each restarted again and again with every observer beside it.

Reads ``{"races": [...], "lanes": N}`` on stdin, races as `races.py` plans them, and writes one JSON line a race, as
`races.judge` takes it. Race n runs on lane n % N. Needs root.
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
import threading
import time
import traceback
import typing as t

from ansible_collections.specdec.serving.tests.support.observer import baselines, waits
from ansible_collections.specdec.serving.tests.support.observer.neighbour import Neighbour
from ansible_collections.specdec.serving.tests.support.observer.races import INTERVALS, OURS, Action, Race
from ansible_collections.specdec.serving.tests.support.observer.servers import (
    Order,
    Server,
    installed,
    strike,
    systemctl,
)
from ansible_collections.specdec.serving.tests.support.observer.units import (
    MODEL,
    MODEL_PATH,
    STAND_IN,
    server_command,
)

FIRST_PORT = 32000
# Seconds: for a server by hand; for baselines after the rest has ended; for a start that may yet get ready.
_PREPARE_S, _TAIL_S, _SETTLE_S = 30.0, 0.7, 1.5


class Lane:
    """One unit and its races, one after the other."""

    def __init__(self, number: int) -> None:
        port = FIRST_PORT + number
        self.server = Server(f"race-{number}", port)
        self.survivor = Server(f"race-survivor-{number}", port, survives=True)

    def run(self, race: Race) -> dict[str, t.Any]:
        server, other = (self.survivor, self.server) if race.survivor else (self.server, self.survivor)
        with contextlib.ExitStack() as stack:
            # It has the same port.
            other.end()
            self._prepare(race, server)
            neighbour = self._neighbour(race, stack)
            return _Running(race, server, neighbour).run()

    def _prepare(self, race: Race, server: Server) -> None:
        if race.old is None or race.survivor or server.drain != race.old or not server.serves():
            server.end()
            if race.old is not None:
                server.configure(drain=race.old)
                server.start()
        server.configure(times={"load_target": race.load}, drain=race.drain, share=race.share)

    def _neighbour(self, race: Race, stack: contextlib.ExitStack) -> Neighbour | None:
        if not race.neighbour:
            return None
        port = self.server.port
        if race.neighbour == "sglang":
            environment = {**os.environ, "PYTHONPATH": STAND_IN, "STAND_IN_SCALE": "0"}
            process = subprocess.Popen(
                server_command(port=port).split(), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            deadline = time.monotonic() + _PREPARE_S
            while baselines.Target("", port).get("/ready")[0] != 200:
                if time.monotonic() > deadline:
                    raise RuntimeError("the server by hand did not get ready")
                time.sleep(0.05)
            return None
        found = Neighbour(port, style=race.neighbour, share=race.share, model=MODEL, model_path=MODEL_PATH)
        stack.callback(found.close)
        return found


class _Running:
    """One race from the restart to the last word."""

    def __init__(self, race: Race, server: Server, neighbour: Neighbour | None) -> None:
        self.race = race
        self.server = server
        self.neighbour = neighbour
        self.chance = random.Random(race.number)
        self.offset = server.written()
        self.notes: list[dict[str, t.Any]] = []
        self.verdicts: dict[str, dict[str, t.Any]] = {}

    def run(self) -> dict[str, t.Any]:
        race, server = self.race, self.server
        if race.before and self.neighbour is not None:
            self._note({"shadow": "up", "monotonic": self.neighbour.up()})
        order = server.restart()
        replaces = order.before.invocation_id
        time.sleep(race.wait_delay)
        watching = waits.fork(self._watch_baselines)
        waiting = waits.fork_wait(server.options(replaces=replaces, timeout=str(race.timeout)), self._strike())
        try:
            self._attend(order, watching, waiting)
        finally:
            for pid, pipe in (watching, waiting):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.close(pipe)
                os.waitpid(pid, 0)
            order.close()
        self._settle()
        return self._record(replaces, order.began)

    def _watch_baselines(self) -> None:
        def say(name: str, look: baselines.Look) -> bool:
            waits.say({"name": name, **dataclasses.asdict(look)})
            return False

        target = baselines.Target(self.server.unit, self.server.port)
        for thread in baselines.watch(target, intervals=INTERVALS, phases=self.race.phases, say=say):
            thread.join()

    def _strike(self) -> waits.Strike | None:
        found = [action for action in self.race.actions if action.at is None]
        if not found:
            return None
        (action,) = found

        def act() -> None:
            if action.delay:
                thread = threading.Timer(action.delay, lambda: self._perform(action, waits.say))
                thread.start()
            else:
                self._perform(action, waits.say)

        return waits.Strike(path=action.path, nth=action.nth, act=act)

    def _perform(self, action: Action, note: t.Callable[[dict[str, t.Any]], None]) -> None:
        if action.what in ("restart", "stop"):
            note({"order": action.what, "monotonic": time.monotonic()})
            # Between two checks nothing else happens until the other invocation is there.
            systemctl(action.what, *(["--no-block"] if action.at is not None else []), self.server.unit)
        elif action.what == "kill":
            struck = strike(self.server.group, action.whom, self.chance)
            if struck is not None:
                note(struck)
        elif self.neighbour is not None:
            at = self.neighbour.up() if action.what == "up" else self.neighbour.down()
            note({"shadow": action.what, "monotonic": at})

    def _note(self, message: dict[str, t.Any]) -> None:
        self.notes.append(message)

    def _attend(self, order: Order, watching: tuple[int, int], waiting: tuple[int, int]) -> None:
        """Let everything happen, until all have said something or no more is to come."""
        due = sorted((action for action in self.race.actions if action.at is not None), key=lambda one: one.at or 0.0)
        pipes = {watching[1]: b"", waiting[1]: b""}
        poller = select.poll()
        for fd in pipes:
            poller.register(fd, select.POLLIN)
        poller.register(order.fd, select.POLLIN)
        last_word: float | None = None
        while True:
            now = time.monotonic()
            while due and order.began + (due[0].at or 0.0) <= now:
                self._perform(due.pop(0), self._note)
            if waiting[1] not in pipes and not due and "systemd" in self.verdicts:
                last_word = last_word or now
                if watching[1] not in pipes or now - last_word > _TAIL_S:
                    return
            wake = [0.1] + ([order.began + (due[0].at or 0.0) - now] if due else [])
            for fd, _event in poller.poll(max(min(wake), 0.0) * 1000):
                if fd == order.fd:
                    poller.unregister(fd)
                    at = time.monotonic()
                    ready = order.process.wait() == 0
                    self.verdicts["systemd"] = {"ready": ready, "at": at, "looked_at": at}
                    continue
                data = os.read(fd, 65536)
                if not data:
                    poller.unregister(fd)
                    del pipes[fd]
                    continue
                *lines, pipes[fd] = (pipes[fd] + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))

    def _take(self, message: dict[str, t.Any]) -> None:
        if "name" in message:
            ready = message["says"] == baselines.READY
            self.verdicts[message["name"]] = {"ready": ready, "at": message["ended"], "looked_at": message["began"]}
        elif "state" in message:
            self.verdicts[OURS] = {
                **{key: value for key, value in message.items() if key != "requests"},
                "at": message.get("detected_at_monotonic"),
            }
        else:
            self._note(message)

    def _settle(self) -> None:
        """A start that was given up may yet get ready: then it was given up wrongly."""
        ours = self.verdicts.get(OURS, {})
        if ours.get("ready") or self.race.neighbour or self.race.survivor:
            return
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            unit = self.server.show()
            if not unit.job and (unit.active_state in ("inactive", "failed") or self._is_ready(unit.invocation_id)):
                return
            time.sleep(0.1)

    def _is_ready(self, invocation_id: str) -> bool:
        return any(
            entry["event"] == "ready" and entry["invocation_id"] == invocation_id
            for entry in self.server.events(self.offset)
        )

    def _record(self, replaces: str, began: float) -> dict[str, t.Any]:
        shadows: list[list[float | None]] = []
        for note in self.notes:
            if note.get("shadow") == "up":
                shadows.append([note["monotonic"], None])
            elif note.get("shadow") == "down" and shadows:
                shadows[-1][1] = note["monotonic"]
        events = [*self.server.events(self.offset), *(note for note in self.notes if "event" in note)]
        names = ("event", "monotonic", "invocation_id", "main_pid")
        return {
            "number": self.race.number,
            "kind": self.race.kind,
            "unit": self.server.unit,
            "replaces": replaces,
            "began": began,
            "until": time.monotonic(),
            "orders": [note["monotonic"] for note in self.notes if "order" in note],
            "shadows": shadows,
            "events": [{name: event[name] for name in names} for event in events],
            "verdicts": self.verdicts,
        }


def run_lane(lane: Lane, races: t.Sequence[Race]) -> None:
    for race in races:
        try:
            record = lane.run(race)
        except Exception:  # noqa: BLE001  told as the race's record, which the judge takes for no verdict
            record = {"number": race.number, "kind": race.kind, "broken": traceback.format_exc()[-3000:]}
        waits.say(record)


def main() -> None:
    """Run all lanes side by side; leave nothing behind."""
    order = json.load(sys.stdin)
    todo = [Race.from_json(race) for race in order["races"]]
    lanes = [Lane(number) for number in range(order["lanes"])]
    servers = [server for lane in lanes for server in (lane.server, lane.survivor)]
    shares = [[race for race in todo if race.number % len(lanes) == number] for number in range(len(lanes))]
    with installed(servers):
        waits.gather([functools.partial(run_lane, lane, share) for lane, share in zip(lanes, shares, strict=True)])


if __name__ == "__main__":
    main()
