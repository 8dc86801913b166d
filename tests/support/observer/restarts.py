#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts units of a lab host at random moments, each restart with a wait beside it, and reports every verdict.

Reads ``{"seed": str, "units": [{"options": {...}, "restarts": int, "impatience": float}]}`` on stdin. ``impatience`` is
the share of restarts that do not wait for the verdict of the one before: the invocation is then replaced in the middle
of its start. Writes one JSON line a verdict: unit, replaces, state, ready, invocation_id, detected_at_monotonic, msg.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

OBSERVER = Path(__file__).with_name("observe.py")
KEPT = ("state", "ready", "invocation_id", "detected_at_monotonic", "elapsed", "msg")
_output = threading.Lock()


def _invocation(unit: str) -> str:
    command = ["systemctl", "show", "--value", "--property=InvocationID", unit]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _observe(options: t.Mapping[str, t.Any], replaces: str) -> None:
    done = subprocess.run(
        [sys.executable, "-B", str(OBSERVER)],
        input=json.dumps({**options, "replaces": replaces}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        verdict: dict[str, t.Any] = {"state": "observer failed", "ready": False, "msg": done.stderr[-2000:]}
    else:
        result = json.loads(done.stdout)
        verdict = {name: result.get(name) for name in KEPT}
    with _output:
        print(json.dumps({"unit": options["unit"], "replaces": replaces, **verdict}), flush=True)


def _restart(plan: t.Mapping[str, t.Any], seed: str) -> None:
    chance = random.Random(seed)
    options = plan["options"]
    waits: list[threading.Thread] = []
    for _restart_number in range(plan["restarts"]):
        replaces = _invocation(options["unit"])
        subprocess.run(["systemctl", "restart", "--no-block", options["unit"]], check=True)
        wait = threading.Thread(target=_observe, args=(options, replaces))
        wait.start()
        waits.append(wait)
        if chance.random() < plan["impatience"]:
            time.sleep(chance.uniform(0.0, 3.0))
        else:
            wait.join()
            time.sleep(chance.uniform(0.0, 0.5))
    for wait in waits:
        wait.join()


def main() -> None:
    """Restart all units side by side."""
    plan = json.load(sys.stdin)
    threads = [
        threading.Thread(target=_restart, args=(unit, f"{plan['seed']}:{number}"))
        for number, unit in enumerate(plan["units"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
