# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the fault matrix on a lab host."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import typing as t

from ansible_collections.specdec.serving.tests.support.fault_matrix.certificates import write_certificates
from ansible_collections.specdec.serving.tests.support.fault_matrix.model import TLS, Fault, judged, prepared
from ansible_collections.specdec.serving.tests.support.fault_matrix.report import Report
from ansible_collections.specdec.serving.tests.support.lab.client import Host, down, up
from ansible_collections.specdec.serving.tests.support.observer import units
from ansible_collections.specdec.serving.tests.support.stand_in.harness import KERNEL_LOG

_FIRST_PORT = 32000
_GUEST = f"{units.COLLECTION}/tests/support/fault_matrix/guest.py"


def run(
    faults: t.Sequence[Fault], *, host_name: str, limit_s: float, side_by_side: int = 2, keep: bool = False
) -> Report:
    """Make the host, run the rows, judge them. Raises LabError where no lab host can run."""
    build = units.CHECKOUT / "tests/support/stand_in/build.py"
    subprocess.run([sys.executable, build], check=True, stdout=subprocess.DEVNULL)
    host = up([host_name], volumes=units.VOLUMES)[host_name]
    try:
        return run_on(host, faults, limit_s=limit_s, side_by_side=side_by_side)
    finally:
        if not keep:
            down([host_name])


def run_on(host: Host, faults: t.Sequence[Fault], *, limit_s: float, side_by_side: int = 2) -> Report:
    """Run the rows on a host that shows this checkout."""
    chosen = [fault for fault in faults if not fault.skip]
    write_certificates(host, TLS)
    if any(fault.needs == "kernel_log" for fault in chosen):
        host.exec(["sh", "-c", KERNEL_LOG])
    # The journal keeps what earlier units of a name logged.
    serial = time.time_ns() // 10**9
    rows = [
        prepared(fault, serial=serial, port=_FIRST_PORT + number, address=host.address)
        for number, fault in enumerate(chosen)
    ]
    plan = {"rows": rows, "side_by_side": side_by_side}
    lines = host.exec(["python3", "-B", _GUEST], input=json.dumps(plan)).stdout.splitlines()
    answers = [json.loads(line) for line in lines]
    machine = answers.pop()["machine"]
    found = {answer["id"]: answer for answer in answers}
    return Report(
        outcomes=tuple(
            judged(fault, found[fault.id], words=row["words"], limit_s=limit_s)
            for fault, row in zip(chosen, rows, strict=True)
        ),
        skipped={fault.id: fault.skip for fault in faults if fault.skip},
        machine=machine,
        limit_s=limit_s,
    )


__all__ = ("run", "run_on")
