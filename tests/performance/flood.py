# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A wait for a server that logs 10,000 lines a second while it starts: memory, processor time, and how late the verdict comes.

The markers are required, and come at the end of it, so that the verdict needs the whole log read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import typing as t

from ansible_collections.specdec.serving.tests.support.lab.client import Host, down, up
from ansible_collections.specdec.serving.tests.support.observer import units

#: The goals: memory of the module with its journalctl, and seconds from the truth to the verdict.
MEMORY_MIB, LAG_S = 64.0, 0.5
RATE, PORT, SCALE = 10_000, 31990, 0.002
#: journald keeps this much; more passes through it.
JOURNAL = "256M"


@dataclasses.dataclass(frozen=True)
class Flooded:
    """What one wait took. ``waited_s`` of the lag is the machine's: no processor was free for us."""

    rate: int
    seconds: float
    state: str
    markers: int
    log_incomplete: str
    lag_s: float
    waited_s: float
    cpu_percent: float
    own_mib: float
    with_files_mib: float
    written: str

    @property
    def met(self) -> bool:
        """Whether it was right, in time and in bounds; on a busy machine the time without a processor is taken off."""
        right = self.state == "ready" and self.markers == 4 and not self.log_incomplete
        return right and self.with_files_mib <= MEMORY_MIB and 0 <= self.lag_s <= LAG_S + self.waited_s

    def __str__(self) -> str:
        return (
            f"{self.rate} lines/s for {self.seconds:g} s ({self.written}): {self.state}, {self.markers} of 4 markers, "
            f"lag {self.lag_s:.3f} s (of which without a processor at most {self.waited_s:.3f} s), {self.cpu_percent:.1f} % of a "
            f"core, {self.own_mib:.1f} MiB ({self.with_files_mib:.1f} MiB with the pages of files)"
            + (f"; {self.log_incomplete}" if self.log_incomplete else "")
        )


def measure(host: Host, *, rate: int = RATE, seconds: float = 60.0) -> Flooded:
    """Start a server that logs so much for so long while it loads, and wait for it. The host is made with `units.VOLUMES`."""
    name = f"sglang-flood-{time.time_ns() // 10**9}"
    truth = f"{units.TRUTH}/{name}"
    flood = f"/usr/bin/python3 {units.COLLECTION}/tests/support/observer/flood.py {rate} {seconds}"
    # The weights are loaded at the very end of the flood.
    times = json.dumps({"load_target": max(seconds - 3.0, 0.0) / SCALE})
    text = units.unit_file(
        f"/bin/sh -c '{flood} & exec {units.server_command(port=PORT)}'",
        environment={**units.server_environment(truth), "STAND_IN_SCALE": str(SCALE), "STAND_IN_TIMES": times},
    )
    host.exec(["mkdir", "-p", "-m", "0777", units.TRUTH])
    host.write_file(f"/run/systemd/system/{name}.service", text)
    host.exec(["sh", "-c", f"systemctl daemon-reload; systemctl start {name}"])
    try:
        options = units.ready_options(
            unit=f"{name}.service", port=PORT, markers="require", timeout=str(2 * seconds + 60), stall_timeout=0
        )
        driver = f"{units.COLLECTION}/tests/support/observer/flooded.py"
        words = ["env", f"PYTHONPATH={units.ROOT}", "python3", "-B", driver]
        measured = json.loads(host.exec(words, input=json.dumps(options), timeout=3 * seconds + 90).stdout)
        events = [json.loads(line) for line in host.exec(["cat", truth]).stdout.splitlines()]
        words = ["journalctl", "--quiet", "--output=cat", "--lines=1", f"--unit={name}", "--grep=^flood: "]
        written = host.exec(words, check=False).stdout.strip().partition(": ")[2]
    finally:
        script = f"systemctl kill -s KILL {name}; systemctl reset-failed {name}; rm -f /run/systemd/system/{name}.service {truth}"
        host.exec(["sh", "-c", script], check=False)
    result = measured["result"]
    ready = [event["monotonic"] for event in events if event["event"] == "ready"]
    return Flooded(
        rate=rate,
        seconds=seconds,
        state=result["state"],
        markers=result["markers"]["seen"],
        log_incomplete=result["log_incomplete"],
        lag_s=result["detected_at_monotonic"] - ready[0] if ready else float("inf"),
        waited_s=measured["waited_s"],
        cpu_percent=100 * measured["cpu_s"] / measured["seconds"],
        own_mib=measured["own_mib"],
        with_files_mib=measured["with_files_mib"],
        written=written or "and it went on after the verdict",
    )


def main(argv: t.Sequence[str] | None = None) -> int:
    """Measure once; 0 if the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--host", default="flood", help="name of the lab host")
    options = parser.parse_args(argv)
    host = up([options.host], volumes=units.VOLUMES, journal_size=JOURNAL)[options.host]
    try:
        flooded = measure(host, rate=options.rate, seconds=options.seconds)
    finally:
        down([options.host])
    print(flooded)
    return 0 if flooded.met else 1


if __name__ == "__main__":
    sys.exit(main())
