# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Durations: seconds of each step of the real story, times STAND_IN_SCALE.

Every wait of the stand-in goes through `Times`, so one number scales a whole start, and faults (`faults.py`: a stall, a
death at a step) strike in one place: `Steps.run`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sglang.stand_in.faults import Faults
from sglang.stand_in.truth import Truth

# Seconds of the story's start (eight GPUs, graphs off: about 210 s); the README tells what each one is.
DEFAULT_SECONDS: dict[str, float] = {
    "imports": 14.0,
    "rank_imports": 20.0,
    "init_parallel": 25.0,
    "load_target": 61.5,
    "load_draft": 9.0,
    "kv_cache": 18.0,
    "capture": 45.0,
    "scheduler_ready": 20.0,
    "gate_poll": 1.0,
    "gate_log": 10.0,
    "bind": 2.0,
    "warm_up_poll": 1.0,
    "warm_up": 38.0,
    "health": 1.0,
    "health_timeout": 20.0,
    "prefill": 0.05,
    "decode_step": 0.02,
    "watchdog": 1.0,
    "launch_poll": 5.0,
    "crash_settle": 5.0,
    "drain_poll": 5.0,
    "stop_schedulers": 0.2,
    "stop_limit": 15.0,
    "stop_tick": 0.1,
    "exit": 0.2,
}

# A timeout that shrank to milliseconds would fire on a busy machine, and a poll would flood the log: these never go
# below so many seconds. The warm-up asks 120 times at most, so its poll times 120 bounds the time to bind the port.
_FLOOR: dict[str, float] = {
    "health_timeout": 2.0,
    "stop_limit": 2.0,
    "drain_poll": 0.05,
    "warm_up_poll": 0.01,
    "gate_poll": 0.01,
    "gate_log": 0.5,
}


class Times:
    """Seconds per step. Raises ValueError when STAND_IN_TIMES or STAND_IN_SCALE is no use."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        scale = environment.get("STAND_IN_SCALE", "0.01")
        try:
            self.scale = float(scale)
        except ValueError:
            raise ValueError(f"STAND_IN_SCALE is {scale!r}: give a number, 1.0 for the story's own times") from None
        if self.scale < 0:
            raise ValueError(f"STAND_IN_SCALE is {scale!r}: it cannot be negative")
        text = environment.get("STAND_IN_TIMES", "{}")
        try:
            own = json.loads(text)
        except ValueError as error:
            raise ValueError(f"STAND_IN_TIMES is {text!r}: no JSON ({error})") from None
        if not isinstance(own, dict) or not all(
            isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 for value in own.values()
        ):
            raise ValueError(f"STAND_IN_TIMES is {text!r}: give a JSON object of step: seconds >= 0")
        unknown = sorted(set(own) - set(DEFAULT_SECONDS))
        if unknown:
            raise ValueError(f"STAND_IN_TIMES names {unknown}: known steps are {sorted(DEFAULT_SECONDS)}")
        self._own: dict[str, float] = own
        seed = environment.get("STAND_IN_SEED", "0")
        try:
            self.seed = int(seed)
        except ValueError:
            raise ValueError(f"STAND_IN_SEED is {seed!r}: give an integer") from None

    def seconds(self, name: str) -> float:
        """Scaled seconds of a step."""
        value = self._own.get(name, DEFAULT_SECONDS[name]) * self.scale
        if name not in self._own:
            value = max(value, _FLOOR.get(name, 0.0))
        return value

    def jittered(self, name: str, who: str) -> float:
        """Scaled seconds, up to 10 % shorter, different for each rank and the same for each seed."""
        return self.seconds(name) * (1 - 0.1 * random.Random(f"{self.seed}/{name}/{who}").random())


class Steps:
    """Runs the steps of one process and notes their truth."""

    def __init__(self, times: Times, truth: Truth, faults: Faults, who: str) -> None:
        self.times = times
        self.truth = truth
        self.faults = faults
        self.who = who

    @contextmanager
    def run(self, name: str, **details: Any) -> Iterator[float]:
        """One step: its whole time has passed when the block ends. Yields the seconds it will take."""
        self.truth.note("step_begin", step=name, who=self.who, **details)
        seconds = self.times.jittered(name, self.who)
        end = time.monotonic() + seconds
        self.faults.strike(name, self.who, "begin", seconds, **details)
        yield seconds
        time.sleep(max(0.0, end - time.monotonic()))
        self.faults.strike(name, self.who, "end", **details)
        self.truth.note("step_end", step=name, who=self.who, **details)
