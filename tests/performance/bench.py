# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make bench`: measures on a lab host what the collection promises, beside what people use instead.

Rows go to build/bench.json (`rows.py`), the raw measurements to build/bench-*.jsonl.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.performance import deployments, fleet, rows, sweeps
from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError, down, render_inventory
from ansible_collections.specdec.serving.tests.support.observer import host as observer_host
from ansible_collections.specdec.serving.tests.support.observer import races
from ansible_collections.specdec.serving.tests.support.observer.task import play_argv, start
from ansible_collections.specdec.serving.tests.support.observer.units import (
    CHECKOUT,
    ready_options,
    server_command,
    server_environment,
    unit_file,
)

HOST, SWEEP_HOST = "bench", "bench-sweep"
BUILD = CHECKOUT / "build"
FILE = BUILD / "bench.json"
STARTS, CRASHES, QUIET_S, RACES, TASKS, DEPLOYMENTS, FLEETS = 64, 72, 60.0, 1000, 5, 9, 3
#: Starts side by side: few, since each is to be measured as if it were alone.
LANES = 4
#: Of the rows that look at starts.
OBSERVED = ("wait_cpu_percent", "ready_lag_p95_s", "crash_lag_p95_s")
ROWS = (*OBSERVED, "noop_deploy_ratio", "fleet_growth_32", "false_ready_per_1000", "sweep_overhead_s")


def say(line: str) -> None:
    print(line, flush=True)


def machine() -> dict[str, t.Any]:
    """What the figures were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def kept(name: str, records: t.Iterable[t.Any]) -> t.Iterator[t.Any]:
    """Write each raw measurement as it comes, and say now and then how far it is."""
    heard = time.monotonic()
    with (BUILD / f"bench-{name}.jsonl").open("w", encoding="utf-8") as file:
        for number, record in enumerate(records, 1):
            file.write(json.dumps(record if isinstance(record, dict) else [record[0].to_json(), record[1]]) + "\n")
            if time.monotonic() - heard > 60:
                heard = time.monotonic()
                say(f"  {name}: {number}")
            yield record


def measure_starts(host: Host, *, seed: int, wanted: t.Collection[str]) -> list[dict[str, t.Any]]:
    order = {
        "seed": str(seed),
        "lanes": LANES,
        "starts": STARTS if "ready_lag_p95_s" in wanted else 0,
        "crashes": CRASHES if "crash_lag_p95_s" in wanted else 0,
        "quiet_s": QUIET_S if "wait_cpu_percent" in wanted else 0,
    }
    records = list(kept("starts", observer_host.drive(host, "starts", order)))
    broken = [record["why"] for record in records if record["kind"] == "broken"]
    if broken:
        raise RuntimeError(f"{len(broken)} measurements broke: {broken[0]}")
    return records


def task_returns(host: Host, number: int) -> list[float]:
    """Seconds from the truth to the return of the task in ansible-playbook, over SSH with sudo.

    Host and controller share a kernel here, and so the monotonic clock.
    """
    unit, port, truth = "sglang-bench-task.service", 32199, "/run/bench-task.truth"
    environment = {**server_environment(truth), "STAND_IN_SCALE": "0.01"}
    host.write_file(f"/etc/systemd/system/{unit}", unit_file(server_command(port=port), environment=environment))
    host.exec(["systemctl", "daemon-reload"])
    restart = {
        "name": "Restart",
        "ansible.builtin.systemd_service": {"name": unit, "state": "restarted", "no_block": True},
    }
    options = ready_options(unit=unit, port=port)
    ready = {"name": "Prove readiness", "specdec.serving.sglang_ready": options}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        inventory = Path(folder, "inventory.yml")
        inventory.write_text(render_inventory([host]), encoding="utf-8")
        for _number in range(number):
            host.exec(["sh", "-c", f"systemctl stop {unit}; rm -f {truth}"])
            process = start(play_argv(Path(folder), inventory, [restart, ready]))
            returned, output = 0.0, []
            for line in process.stdout or ():
                output.append(line)
                # The next task begins.
                if "Show the result" in line:
                    returned = returned or time.monotonic()
            process.wait()
            events = [json.loads(line) for line in host.exec(["cat", truth]).stdout.splitlines()]
            true = [event["monotonic"] for event in events if event["event"] == "ready"]
            if process.returncode or not returned or not true:
                raise RuntimeError(f"the task did not get ready:\n{''.join(output)[-3000:]}")
            found.append(returned - true[-1])
    host.exec(["sh", "-c", f"systemctl stop {unit}; rm -f /etc/systemd/system/{unit}; systemctl daemon-reload"])
    return found


def measure_sweeps() -> rows.Row:
    """Both ways to sweep the same configurations, one after the other on a host that has the real client."""
    host = observer_host.measuring(SWEEP_HOST)
    try:
        ours = sweeps.by_playbook(host)
        loop = sweeps.by_loop(host)
    finally:
        down([SWEEP_HOST])
    say(sweeps.comparison(ours, loop))
    return rows.sweep_overhead(ours, loop)


def measure(host: Host, *, seed: int, wanted: t.Collection[str], number: int) -> t.Iterator[rows.Row]:
    """The rows, as they get known."""
    if "sweep_overhead_s" in wanted:
        yield measure_sweeps()
    records = measure_starts(host, seed=seed, wanted=wanted) if any(row in wanted for row in OBSERVED) else []
    if "wait_cpu_percent" in wanted:
        yield rows.wait_cpu(*(record for record in records if record["kind"] == "quiet"))
    if "ready_lag_p95_s" in wanted:
        yield rows.ready_lag(records, task_returns(host, TASKS))
    if "crash_lag_p95_s" in wanted:
        yield rows.crash_lag(records)
    if "noop_deploy_ratio" in wanted:
        seconds = deployments.measure(host, DEPLOYMENTS)
        yield rows.noop_deploy(seconds[deployments.OURS], seconds[deployments.BY_HAND])
    if "fleet_growth_32" in wanted:
        waits = fleet.measure(host, FLEETS)
        yield rows.fleet_growth(waits[1], waits[fleet.MANY], number=fleet.MANY, load_s=fleet.LOAD_S)
    if "false_ready_per_1000" in wanted:
        ran = kept("races", observer_host.race(host, seed=f"{seed}:bench", number=number))
        judged = [(race, judgement) for race, _record, judgement in ran]
        say(races.table(judged))
        yield rows.false_ready(judged)


def main(argv: list[str] | None = None) -> int:
    """Measure; 0 if every goal is met, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", choices=ROWS, help="only these; the others stay as they were")
    parser.add_argument("--races", type=int, default=RACES)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(argv)
    wanted = options.rows or ROWS
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    about = {
        "seed": seed,
        "machine": machine(),
        "date": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
    }
    say(f"bench: seed {seed} (repeat with SEED={seed}); {about['machine']}")
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"the machine is not quiet (load {load:.2f}): times will be worse than they could be")
    BUILD.mkdir(exist_ok=True)
    try:
        host = observer_host.make(HOST)
    except LabError as error:
        say(f"no lab host, nothing was measured: {error}")
        return 1
    try:
        done = []
        for row in measure(host, seed=seed, wanted=wanted, number=options.races):
            done.append(row)
            # At once: an hour of measuring is not lost to what comes after it.
            rows.keep(FILE, [row], about)
            say(f"{row.id}: {row.measured:g} {row.unit}, goal {row.goal}: {'met' if row.met else 'NOT MET'}")
    finally:
        down([HOST])
    known = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    say(f"\n{rows.table(known)}\n\n{FILE.relative_to(CHECKOUT)} holds all of it")
    met = sum(row.met for row in done)
    say(f"{met} of {len(done)} goals met, {len(wanted) - len(done)} not measured")
    return 0 if met == len(wanted) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
