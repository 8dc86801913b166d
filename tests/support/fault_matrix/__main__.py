# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts every fault through the real wait on a lab host, prints one table, and fails if a verdict is wrong or late."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import sys

from ansible_collections.specdec.serving.tests.support.fault_matrix.matrix import run
from ansible_collections.specdec.serving.tests.support.fault_matrix.model import LIMIT_S
from ansible_collections.specdec.serving.tests.support.fault_matrix.rows import faults
from ansible_collections.specdec.serving.tests.support.observer.units import CHECKOUT


def main() -> int:
    """Run the matrix, or the faults whose names fit; exit 0 when every row is as expected and in time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names of faults, with wildcards; default: all")
    parser.add_argument("--host", default="matrix", help="name of the lab host")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds from the fault to the verdict")
    parser.add_argument("--side-by-side", type=int, default=2, help="rows that run at the same time")
    parser.add_argument("--slow", action="store_true", help="also rows that take minutes")
    parser.add_argument("--keep", action="store_true", help="leave the lab host for the next run")
    options = parser.parse_args()
    chosen = [
        fault for fault in faults() if any(fnmatch.fnmatch(fault.id, pattern) for pattern in options.patterns or ["*"])
    ]
    chosen = [
        dataclasses.replace(fault, skip="takes minutes: --slow runs it") if fault.slow and not options.slow else fault
        for fault in chosen
    ]
    if not chosen:
        parser.error(f"no fault is called {' or '.join(options.patterns)}")
    report = run(
        chosen, host_name=options.host, limit_s=options.limit, side_by_side=options.side_by_side, keep=options.keep
    )
    report.write(CHECKOUT / "build")
    print(report.markdown())
    return 1 if report.wrong or report.late else 0


if __name__ == "__main__":
    sys.exit(main())
