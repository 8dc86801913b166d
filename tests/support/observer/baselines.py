# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The usual ways to wait for a server, watching the same starts as sglang_ready: what each would say, and when.

They are small re-implementations of what these do (no Ansible process a poll): ``loop`` is the shell loop that curls
/v1/models for an "id" and asks ``systemctl is-failed``; ``uri`` is ``ansible.builtin.uri`` on /health with ``until`` and
``delay``; ``wait_for`` is ``ansible.builtin.wait_for`` on the port; ``journal`` greps the unit's last journal lines for the
server's own "fired up". (``systemd``, the return of ``ansible.builtin.systemd_service state=restarted``, is the return of
the ``systemctl restart`` that the module runs; whoever drives the start observes that.) An interval of a loop is the
sleep between two looks; a look takes the time that it takes.
"""

from __future__ import annotations

import dataclasses
import http.client
import socket
import subprocess
import threading
import time
import typing as t

READY = "ready"
FAILED = "failed"
#: Every baseline, in the order of tables.
NAMES = ("loop", "uri", "wait_for", "systemd", "journal")
#: Seconds between two looks as people write them: the loop's clock, ``delay: 1``, and wait_for's own sleep.
INTERVALS = {"loop": 15.0, "uri": 1.0, "wait_for": 1.0, "journal": 15.0}
_FIRED_UP = b"The server is fired up and ready to roll!"


@dataclasses.dataclass(frozen=True)
class Look:
    """One look: what it says ('' = nothing yet), and when it began and ended (CLOCK_MONOTONIC)."""

    says: str
    began: float
    ended: float


@dataclasses.dataclass(frozen=True)
class Target:
    """What is looked at."""

    unit: str
    port: int
    host: str = "127.0.0.1"
    timeout: float = 5.0

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; (0, b"") when there is no answer, as for curl without --fail."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


def look_by_loop(target: Target) -> str:
    failed = subprocess.run(["systemctl", "is-failed", "--quiet", target.unit], check=False).returncode == 0
    if failed:
        return FAILED
    return READY if b'"id"' in target.get("/v1/models")[1] else ""


def look_by_uri(target: Target) -> str:
    return READY if target.get("/health")[0] == 200 else ""


def look_by_wait_for(target: Target) -> str:
    try:
        socket.create_connection((target.host, target.port), timeout=target.timeout).close()
    except OSError:
        return ""
    return READY


def look_by_journal(target: Target) -> str:
    words = ["journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=200", f"--unit={target.unit}"]
    return READY if _FIRED_UP in subprocess.run(words, check=False, capture_output=True).stdout else ""


LOOKS: dict[str, t.Callable[[Target], str]] = {
    "loop": look_by_loop,
    "uri": look_by_uri,
    "wait_for": look_by_wait_for,
    "journal": look_by_journal,
}


def looks(
    look: t.Callable[[], str],
    *,
    interval: float,
    phase: float = 0.0,
    monotonic: t.Callable[[], float] = time.monotonic,
    sleep: t.Callable[[float], t.Any] = time.sleep,
) -> t.Iterator[Look]:
    """Look for ever: first after ``phase`` seconds, then ``interval`` after the end of each look."""
    sleep(phase)
    while True:
        began = monotonic()
        says = look()
        yield Look(says=says, began=began, ended=monotonic())
        sleep(interval)


def watch(
    target: Target,
    *,
    intervals: t.Mapping[str, float],
    phases: t.Mapping[str, float],
    say: t.Callable[[str, Look], bool],
) -> list[threading.Thread]:
    """Watch with each baseline that has an interval, in a thread of its own.

    ``say(name, look)`` gets every look that says something, from these threads, and answers whether to go on looking.
    """

    def one(name: str) -> None:
        for seen in looks(lambda: LOOKS[name](target), interval=intervals[name], phase=phases.get(name, 0.0)):
            if seen.says and not say(name, seen):
                return

    threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in intervals]
    for thread in threads:
        thread.start()
    return threads


__all__ = ("FAILED", "INTERVALS", "LOOKS", "NAMES", "READY", "Look", "Target", "looks", "watch")
