# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Process titles and death with the parent, without a compiled module.

The real server uses setproctitle, which overwrites the memory of argv. So do we: the start and end of that memory are
in /proc/self/stat (proc(5), fields 48 and 49).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

_libc = ctypes.CDLL(None, use_errno=True)


def _argv_memory() -> tuple[int, int]:
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stream:
        fields = stream.read().rpartition(")")[2].split()
    # The first field after the name is field 3.
    return int(fields[48 - 3]), int(fields[49 - 3])


def set_title(title: str) -> None:
    """Show `title` as command line (NUL between words allowed) and its first 15 bytes as name."""
    start, end = _argv_memory()
    data = title.encode()[: end - start - 1]
    ctypes.memmove(start, data + b"\0" * (end - start - len(data)), end - start)
    _libc.prctl(_PR_SET_NAME, data.split(b"\0")[0][:15] + b"\0", 0, 0, 0)


def set_spawn_title(code: str) -> None:
    """Look like a fresh `multiprocessing` child: `PYTHON -c CODE`, named like the interpreter."""
    set_title(f"{sys.executable}\0-c\0{code}")
    _libc.prctl(_PR_SET_NAME, os.path.basename(sys.executable).encode()[:15] + b"\0", 0, 0, 0)


def default_action(number: int) -> None:
    """Take a signal's handler away; works in every thread, unlike signal.signal."""
    _libc.signal(number, 0)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends (engine: utils/common.py:3432)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
