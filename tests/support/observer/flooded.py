#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs one wait and measures what it takes: options as JSON on stdin, result and measurements as JSON on stdout.

Measured are the wait's process and its children (journalctl, systemctl): processor seconds by their rusage, seconds for which
they could have run and got no processor (schedstat), and resident memory by samples. Pages of files (Python's own, and of
journalctl the journal, which it maps) count apart: they are the page cache's, which gives them up when memory is short.
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
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    kib = {name: int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile", "RssShmem")}
    return kib["RssAnon"] * 1024, (kib["RssFile"] + kib["RssShmem"]) * 1024


def waited(pid: int) -> float:
    """Seconds for which a process could have run and had no processor."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()[1]) / 1e9
    except OSError:
        return 0.0


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    """Those that run a program of their own: before that they share the memory of their parent."""
    try:
        found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []
    own = command(pid)
    return [child for child in found if command(child) != own]


class Watch(threading.Thread):
    """Samples a process and its children until it is told to end."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.over = threading.Event()
        self.own_mib = 0.0
        self.with_files_mib = 0.0
        self.waits: dict[int, float] = {}
        self._pid = pid

    def run(self) -> None:
        while not self.over.wait(_SAMPLE_S):
            pids = (self._pid, *children(self._pid))
            found = [memory(pid) for pid in pids]
            self.own_mib = max(self.own_mib, sum(own for own, _files in found) / 2**20)
            self.with_files_mib = max(self.with_files_mib, sum(map(sum, found)) / 2**20)
            for pid in pids:
                self.waits[pid] = max(waited(pid), self.waits.get(pid, 0.0))


def main() -> None:
    """Read, run, measure, write."""
    options, began = sys.stdin.read(), time.monotonic()
    words = [sys.executable, "-B", str(OBSERVER)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        watch = Watch(process.pid)
        watch.start()
        process.stdin.write(options)
        process.stdin.close()
        output = process.stdout.read()
        watch.over.set()
        watch.join()
        _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    measured = {
        "result": json.loads(output),
        "seconds": time.monotonic() - began,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "waited_s": sum(watch.waits.values()),
        "own_mib": watch.own_mib,
        "with_files_mib": watch.with_files_mib,
    }
    json.dump(measured, sys.stdout)


if __name__ == "__main__":
    main()
