# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes, against processes of this machine."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    ExitWatch,
    all_pids,
    boot_id,
    environ_of,
    process_alive,
    read_process,
)

# Writes a line once it is set up, then waits for its end.
_CHILD = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def child(comm: str = "a (b) c", **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process of that name. It is ended and reaped."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, comm],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def start_of(pid: int) -> int:
    process = read_process(pid)
    assert process is not None
    return process.start_ticks


@pytest.mark.parametrize("comm", ["python", "a (b) c", ") S 1 1", "sglang::scheduler_TP0"])
def test_read_process(comm: str) -> None:
    with child(comm) as running:
        process = read_process(running.pid)
        assert process is not None
        assert (process.pid, process.ppid, process.comm) == (running.pid, os.getpid(), comm[:15])
        assert process.cmdline == (sys.executable, "-c", _CHILD, comm)
        assert process.start_ticks >= start_of(os.getpid())
        assert running.pid in all_pids()
        assert process_alive(running.pid, process.start_ticks)
        assert not process_alive(running.pid, process.start_ticks + 1)


def test_a_zombie_is_not_alive() -> None:
    with child() as running:
        start = start_of(running.pid)
        running.kill()
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        process = read_process(running.pid)
        assert process is not None
        assert (process.state, process.cmdline) == ("Z", ())
        assert not process_alive(running.pid, start)
    assert read_process(running.pid) is None


def test_environ_of() -> None:
    with child(INVOCATION_ID="ab" * 16, JOURNAL_STREAM="8:1", SECRET="s") as running:
        assert environ_of(running.pid) == {"INVOCATION_ID": "ab" * 16, "JOURNAL_STREAM": "8:1"}


def test_boot_id() -> None:
    assert len(boot_id()) == 32
    int(boot_id(), 16)


def has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


@pytest.mark.skipif(not has_pidfd(), reason="no pidfd_open here (Python or kernel too old, or a seccomp filter)")
def test_exit_is_noticed_by_pidfd_even_before_it_is_reaped() -> None:
    with child() as running, ExitWatch(running.pid, start_of(running.pid)) as watch:
        fd = watch.fileno()
        assert fd is not None
        assert select.select([fd], [], [], 0)[0] == []
        assert not watch.exited()
        running.send_signal(signal.SIGKILL)
        assert select.select([fd], [], [], 10)[0] == [fd]
        assert watch.exited()


def test_exit_is_noticed_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "not there")

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    with child() as running:
        watch = ExitWatch(running.pid, start_of(running.pid))
        assert watch.fileno() is None
        assert not watch.exited()
        running.kill()
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        assert watch.exited()


def test_a_process_that_is_gone_or_another_has_exited() -> None:
    with child() as running:
        start = start_of(running.pid)
        with ExitWatch(running.pid, start - 1) as other:
            assert other.exited()
    with ExitWatch(running.pid, start) as gone:
        assert gone.exited()
