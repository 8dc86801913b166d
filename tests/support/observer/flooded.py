#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs one wait and measures what it takes: options as JSON on stdin, result and measurements as JSON on stdout.

Measured are the wait's process and its children (journalctl, systemctl): processor seconds by their rusage, and memory by
samples. Of journalctl the pages of the journal's own files count apart: they are the page cache's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

OBSERVER = Path(__file__).with_name("observe.py")
_SAMPLE_S = 0.05


def memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process: its own, and those of files and shared memory. (0, 0) when it is gone."""
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    except OSError:
        return 0, 0
    kib = {name: int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile", "RssShmem")}
    return kib["RssAnon"] * 1024, (kib["RssFile"] + kib["RssShmem"]) * 1024


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main() -> None:
    """Read, run, measure, write."""
    options = sys.stdin.read()
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-B", str(OBSERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    peaks = {"module_mib": 0.0, "own_mib": 0.0, "total_mib": 0.0}

    def watch() -> None:
        while process.returncode is None:
            found = [memory(pid) for pid in (process.pid, *children(process.pid))]
            now = {
                "module_mib": sum(found[0]),
                "own_mib": sum(own for own, _files in found),
                "total_mib": sum(own + files for own, files in found),
            }
            for name, value in now.items():
                peaks[name] = max(peaks[name], round(value / 2**20, 1))
            time.sleep(_SAMPLE_S)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(options)
    process.stdin.close()
    output = process.stdout.read()
    _pid, _status, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    watcher.join()
    seconds = time.monotonic() - began
    cpu = usage.ru_utime + usage.ru_stime
    json.dump({"result": json.loads(output), "seconds": seconds, "cpu_s": cpu, "peaks": peaks}, sys.stdout)


if __name__ == "__main__":
    main()
