# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab host that can run the drivers of this folder, from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t

from ansible_collections.specdec.serving.tests.support.cpu_engine import installed
from ansible_collections.specdec.serving.tests.support.lab.client import Host, up
from ansible_collections.specdec.serving.tests.support.observer import races
from ansible_collections.specdec.serving.tests.support.observer.units import (
    CHECKOUT,
    COLLECTION,
    ROOT,
    TRUTH,
    VOLUMES,
)

#: Units side by side: two for each of a small machine's cores, since a race is mostly waiting.
LANES = 6
#: Runs the real client of the real engine on a host made by :func:`measuring`. Beside nothing else, so that a server that runs by it
#: has its client there, as in an engine.
PYTHON = "/usr/local/engine/bin/python"
ENGINE = "/srv/engine"
MODELS = "/srv/models"


def make(name: str) -> Host:
    """A host with this checkout's code mounted and the stand-in's models. Raises LabError where none can run."""
    subprocess.run(
        [sys.executable, CHECKOUT / "tests/support/stand_in/build.py"], check=True, stdout=subprocess.DEVNULL
    )
    return up([name], volumes=VOLUMES)[name]


def measuring(name: str) -> Host:
    """A host like that on which PYTHON has the real client. Raises BuildError without the engine, LabError where none can run.

    The engine is this machine's, shown to the host, since one takes minutes to install. Its interpreter is the host's own: a virtual
    environment that was moved is nothing but a folder of packages.
    """
    engine, models = installed.engine(), installed.models()
    host = up([name], volumes=(*VOLUMES, f"{engine}:{ENGINE}:ro", f"{models}:{MODELS}:ro"))[name]
    # A stand-in's PYTHONPATH stands first in its unit; the client's unit has none, and there the engine is real.
    packages = f"{ENGINE}/lib/python3.11/site-packages"
    script = f'#!/bin/sh\nPYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{packages} exec /usr/bin/python3.11 -B "$@"\n'
    host.exec(["mkdir", "-p", PYTHON.rpartition("/")[0]])
    host.write_file(PYTHON, script)
    host.exec(["chmod", "0755", PYTHON])
    host.exec(["mkdir", "-p", "-m", "0777", TRUTH])
    return host


def drive(host: Host, driver: str, order: t.Mapping[str, t.Any]) -> t.Iterator[dict[str, t.Any]]:
    """Run a driver of this folder in a control group of its own, and give its lines as they come.

    Raises RuntimeError when it fails.
    """
    words = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--setenv=PYTHONPATH={ROOT}"]
    words += ["python3", "-B", f"{COLLECTION}/tests/support/observer/{driver}.py"]
    with subprocess.Popen(
        host.exec_argv(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("no pipes")
        process.stdin.write(json.dumps(order))
        process.stdin.close()
        for line in process.stdout:
            yield json.loads(line)
        errors = process.stderr.read()
    if process.returncode:
        raise RuntimeError(f"{driver} ended with {process.returncode}: {errors[-3000:]}")


def race(
    host: Host, *, seed: str, number: int, lanes: int = LANES
) -> t.Iterator[tuple[races.Race, dict[str, t.Any], races.Judgement]]:
    """Run so many races and judge each as it ends."""
    plan = races.plan(seed, number)
    order = {"races": [one.to_json() for one in plan], "lanes": lanes}
    for record in drive(host, "arena", order):
        yield plan[record["number"]], record, races.judge(record)


__all__ = ("LANES", "MODELS", "PYTHON", "drive", "make", "measuring", "race")
