# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wait of sglang_ready in a forked process of its own, with notes of when it looked and what it asked.

A fork of a process that has loaded everything costs milliseconds; a Python of its own for each wait a quarter of a second
of CPU. The wait has what it has as a module: its own main thread (journalctl dies with it) and its own output, whose
hang-up ends it. ``Strike`` lets something happen to the server between two of its looks.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._host import PortView
from ansible_collections.specdec.serving.plugins.module_utils._http import Response
from ansible_collections.specdec.serving.plugins.module_utils._ready_host import SystemHost
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import defaults, options_from
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState
from ansible_collections.specdec.serving.plugins.module_utils._waiter import Waiter

#: What is kept of a result.
KEPT = ("state", "ready", "invocation_id", "detected_at_monotonic", "elapsed", "msg", "phase")


@dataclasses.dataclass
class Strike:
    """``act`` is called once, when the answer to the ``nth`` request of ``path`` has come and before the wait goes on."""

    path: str
    nth: int
    act: t.Callable[[], None]

    def answered(self, path: str) -> None:
        if path == self.path:
            self.nth -= 1
            if self.nth == 0:
                self.act()


class WatchedHost(SystemHost):
    """The real host; notes looks and requests."""

    strike: Strike | None = None

    def note(self, strike: Strike | None) -> WatchedHost:
        self.strike = strike
        self.looked_at = 0.0
        self.requests: list[tuple[str, float, float]] = []
        return self

    def show(self) -> UnitState:
        self.looked_at = time.monotonic()
        return super().show()

    def port(self, unit: UnitState) -> PortView:
        self.looked_at = time.monotonic()
        return super().port(unit)

    def request(self, method: str, path: str, *how: t.Any, **more: t.Any) -> Response:
        began = time.monotonic()
        try:
            return super().request(method, path, *how, **more)
        finally:
            self.requests.append((path, began, time.monotonic()))
            if self.strike is not None:
                self.strike.answered(path)


def wait(options: t.Mapping[str, t.Any], strike: Strike | None = None) -> dict[str, t.Any]:
    """One wait in this process; gives what is kept of its result, and the notes."""
    checked = options_from({**defaults(), **options})
    host = WatchedHost(checked.unit, checked.endpoint, checked.listen_host).note(strike)
    with host:
        result = Waiter(checked, host).run()
    return {
        **{name: result.get(name) for name in KEPT},
        "cause": result["diagnosis"].get("cause", ""),
        "summary": result["diagnosis"].get("summary", ""),
        "looked_at": host.looked_at,
        "requests": host.requests,
    }


def fork(body: t.Callable[[], t.Any]) -> tuple[int, int]:
    """Run ``body`` in a child that dies with us; give its pid and the pipe that its output comes through."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    status = 1
    try:
        ctypes.CDLL(None).prctl(
            1, ctypes.c_ulong(signal.SIGKILL), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
        )
        if os.getppid() == parent:
            os.close(ours)
            os.dup2(theirs, 1)
            os.close(theirs)
            body()
            status = 0
    except BaseException:  # noqa: BLE001  a forked child must never return into its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def say(message: t.Mapping[str, t.Any]) -> None:
    """One line to who forked us, in one write."""
    os.write(1, (json.dumps(message) + "\n").encode())


def gather(bodies: t.Sequence[t.Callable[[], None]]) -> None:
    """Run all side by side, each in a child, and pass on the lines that they say."""
    pipes: dict[int, tuple[int, bytes]] = {}
    for body in bodies:
        pid, pipe = fork(body)
        pipes[pipe] = (pid, b"")
    while pipes:
        for fd in select.select(list(pipes), [], [])[0]:
            pid, rest = pipes[fd]
            data = os.read(fd, 1 << 16)
            if not data:
                os.close(fd)
                os.waitpid(pid, 0)
                del pipes[fd]
                continue
            whole, newline, rest = (rest + data).rpartition(b"\n")
            os.write(1, whole + newline)
            pipes[fd] = (pid, rest)


def fork_wait(options: t.Mapping[str, t.Any], strike: Strike | None = None) -> tuple[int, int]:
    """``wait`` in a child; its only line is what ``wait`` gives, or state ``observer failed``."""

    def body() -> None:
        try:
            found = wait(options, strike)
        except Exception:  # noqa: BLE001  told as a verdict, which the caller cannot overlook
            found = {"state": "observer failed", "ready": False, "msg": traceback.format_exc()[-3000:]}
        say(found)
        for thread in threading.enumerate():
            if thread is not threading.current_thread():  # a strike that is still to come
                thread.join()

    return fork(body)


__all__ = ("KEPT", "Strike", "WatchedHost", "fork", "fork_wait", "gather", "say", "wait")
