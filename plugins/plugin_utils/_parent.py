# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a worker whose ansible-playbook is gone. PRIVATE to the collection.

Ansible ends its workers when it is interrupted, but not when it is killed: they would wait on, each with its ssh.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import threading
import time
import typing as t

_POLL_S = 1.0


def ansible_pid() -> int:
    """The pid of the ansible-playbook that made this worker, which may be gone."""
    # Noted when the worker was made: of one that is killed meanwhile, getppid(2) tells only who adopted us.
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def is_abandoned() -> bool:
    """Whether the ansible-playbook that made this worker is gone."""
    return os.getppid() != ansible_pid()


def end_with_parent(parent: int | None = None, end: t.Callable[[], None] | None = None) -> threading.Thread:
    """From now on call ``end`` when ``parent`` (default: `ansible_pid`) is gone; by default end this worker and what it started."""
    watched = ansible_pid() if parent is None else parent
    thread = threading.Thread(target=_watch, args=(watched, end or _end), daemon=True)
    thread.start()
    return thread


def _watch(parent: int, end: t.Callable[[], None]) -> None:
    _wait_for(parent)
    end()


def _wait_for(parent: int) -> None:
    try:
        descriptor = os.pidfd_open(parent)
    except (AttributeError, OSError):
        # No Linux, or an old one; or it is gone already.
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        return
    try:
        # Opened after its end, the number could be another process's.
        if os.getppid() == parent:
            select.select([descriptor], [], [])
    finally:
        os.close(descriptor)


def _end() -> None:
    # Ansible makes each worker the leader of a process group of its own; its ssh is in it, and must not outlive it: the
    # module at the other end runs as long as somebody could read its answer.
    if os.getpgrp() == os.getpid():
        with contextlib.suppress(OSError):
            os.killpg(os.getpgrp(), signal.SIGTERM)
    os._exit(1)


__all__ = ("ansible_pid", "end_with_parent", "is_abandoned")
