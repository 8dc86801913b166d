# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of the lease: who asks for it, and whether who holds it still lives. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import os
import socket
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._lease import Owner
from ansible_collections.specdec.serving.plugins.module_utils._processes import (
    PROC,
    boot_id,
    process_alive,
    read_process,
)

#: How often a lease that is waited for is asked for, and how often the wait says so.
POLL_S = 2.0
TOLD_EVERY_S = 30.0


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user id without a name.
        return str(os.getuid())


def _here(proc: str) -> tuple[str, str]:
    """This system and its process table; empty where they cannot be told (no Linux)."""
    try:
        return boot_id(proc=proc), os.readlink(f"{proc}/self/ns/pid")
    except OSError:
        return "", ""


def owner_of(pid: int, *, play: str = "", proc: str = PROC) -> Owner:
    """The run of Ansible whose process is ``pid``, on this controller."""
    boot, namespace = _here(proc)
    process = read_process(pid, proc=proc) if boot else None
    start_ticks = process.start_ticks if process is not None else 0
    host = socket.gethostname()
    identity = "\0".join((boot, namespace, host, str(pid), str(start_ticks)))
    return Owner(
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        host=host,
        user=_user(),
        pid=pid,
        start_ticks=start_ticks,
        boot=boot,
        pid_namespace=namespace,
        play=play,
    )


def is_seen(owner: t.Mapping[str, t.Any], *, proc: str = PROC) -> bool:
    """Whether the run is of this controller, so that its process tells whether it lives."""
    boot, namespace = _here(proc)
    same = (owner.get("boot"), owner.get("pid_namespace")) == (boot, namespace)
    return bool(boot) and same and bool(owner.get("start_ticks"))


def has_ended(owner: t.Mapping[str, t.Any], *, proc: str = PROC) -> bool:
    """Whether the run is known to have ended: it was of this controller, and its process is gone."""
    if not is_seen(owner, proc=proc):
        return False
    return not process_alive(int(owner["pid"]), int(owner["start_ticks"]), proc=proc)


@dataclasses.dataclass
class LeaseLoop:
    """Asks for a lease until it is had or ``wait`` seconds have passed.

    ``execute`` runs the module with extra arguments; ``abandoned`` tells whether ansible-playbook is gone.
    Raises ValueError then.
    """

    wait: float
    check_mode: bool
    execute: t.Callable[[dict[str, t.Any]], dict[str, t.Any]]
    ended: t.Callable[[t.Mapping[str, t.Any]], bool]
    report: t.Callable[[str], None]
    monotonic: t.Callable[[], float]
    sleep: t.Callable[[float], None]
    abandoned: t.Callable[[], bool]

    def run(self) -> dict[str, t.Any]:
        """The module's last answer."""
        deadline = self.monotonic() + self.wait
        told = float("-inf")
        extra: dict[str, t.Any] = {}
        while True:
            answer = self.execute(extra)
            lease = answer.get("lease") or {}
            if not answer.get("held_by_other"):
                return answer
            token = str(lease.get("token") or "")
            if token and not answer.get("busy") and extra.get("gone") != token and self.ended(lease.get("owner") or {}):
                # Named by its token, so that a lease that was taken meanwhile is not meant.
                extra = {"gone": token}
                continue
            now = self.monotonic()
            if self.check_mode or now >= deadline:
                return answer
            if now - told >= TOLD_EVERY_S:
                told = now
                self.report(
                    f"waiting up to {deadline - now:.0f} s for the lease of the host: {answer.get('holder', '')}"
                )
            self.sleep(min(POLL_S, deadline - now))
            if self.abandoned():
                raise ValueError("ansible-playbook is gone; the wait ends with it")


__all__ = ("POLL_S", "TOLD_EVERY_S", "LeaseLoop", "has_ended", "is_seen", "owner_of")
