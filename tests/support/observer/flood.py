#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes lines as a chatty server does: `flood.py RATE SECONDS`, lines a second; to be run beside a server in its unit."""

from __future__ import annotations

import os
import sys
import time

_BURST = 500


def lines(first: int, count: int, stamp: str) -> str:
    """Decode and prefill batches of eight ranks, access lines, and lines of a debug level, all different."""
    found = []
    for number in range(first, first + count):
        rank, kind = number % 8, number % 4
        if kind == 0:
            found.append(
                f"[{stamp} TP{rank} EP{rank}] Decode batch. #running-req: {number % 37}, #token: {number}, token usage: "
                f"{number % 100 / 100:.2f}, accept len: {number % 800 / 100:.2f}, cuda graph: True, gen throughput (token/s): "
                f"{number % 9000 / 7:.2f}, #queue-req: 0,"
            )
        elif kind == 1:
            found.append(f'INFO:     127.0.0.1:{30000 + number % 30000} - "POST /generate HTTP/1.1" 200 OK')
        elif kind == 2:
            found.append(
                f"[{stamp} TP{rank} EP{rank}] Prefill batch. #new-seq: 1, #new-token: {number % 4096 + 2}, #cached-token: "
                f"{number % 100}, token usage: 0.{number % 100:02d}, #running-req: {number % 33}, #queue-req: 0,"
            )
        else:
            found.append(
                f"[{stamp}] request {number:032x} of client {number % 977} took {number % 1000 / 10:.1f} ms in stage prepare"
            )
    return "\n".join(found) + "\n"


def main() -> None:
    """Keep up the rate by the clock: what a stop held up is made up for."""
    rate, seconds = float(sys.argv[1]), float(sys.argv[2])
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    total, written, began = int(rate * seconds), 0, time.monotonic()
    while written < total:
        due = min(int((time.monotonic() - began) * rate) + 1, total)
        if due <= written:
            time.sleep(0.002)
            continue
        count = min(due - written, _BURST)
        data = memoryview(lines(written, count, stamp).encode())
        while data:
            data = data[os.write(1, data) :]
        written += count
    print(f"flood: {written} lines in {time.monotonic() - began:.2f} s", flush=True)


if __name__ == "__main__":
    main()
