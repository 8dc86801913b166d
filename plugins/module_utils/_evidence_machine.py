# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What evidence is read by: commands side by side, the journal, small files; all in bounded time. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import errno
import os
import select
import selectors
import stat
import subprocess
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _journal as journal
from ansible_collections.specdec.serving.plugins.module_utils._runner import clean_environment, command_runner
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState, show

__all__ = (
    "Machine",
    "Output",
    "read_or_why",
    "read_small",
    "run_all",
)

_COMMAND_BYTES = 4 * 1024 * 1024
_SMALL_FILE = 64 * 1024


@dataclasses.dataclass(frozen=True)
class Output:
    """What a command printed, and why that is not all ('' = it is)."""

    text: str
    note: str = ""


def run_all(
    commands: t.Mapping[str, t.Sequence[str]], *, timeout: float, limit: int = _COMMAND_BYTES
) -> dict[str, Output]:
    """Run commands side by side without input; none holds us up for longer than ``timeout`` seconds.

    One that hangs in the driver cannot be killed: it is sent the signal and left alone. Of more than ``limit`` bytes the
    last ones are kept. A program that is not there gives the note `not found`.
    """
    running: dict[str, subprocess.Popen[bytes]] = {}
    output: dict[str, bytearray] = {}
    notes: dict[str, str] = {}
    with selectors.DefaultSelector() as selector:
        for name, argv in commands.items():
            output[name] = bytearray()
            try:
                process = subprocess.Popen(  # pylint: disable=ansible-bad-function  # several at once, in bounded time
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=clean_environment(),
                )
            except OSError as error:
                notes[name] = "not found" if error.errno == errno.ENOENT else str(error.strerror or error)
                continue
            running[name] = process
            if process.stdout is not None:
                os.set_blocking(process.stdout.fileno(), False)
                selector.register(process.stdout, selectors.EVENT_READ, name)
        deadline = time.monotonic() + timeout
        while selector.get_map() and time.monotonic() < deadline:
            for key, _events in selector.select(max(deadline - time.monotonic(), 0)):
                part = os.read(key.fd, 64 * 1024)
                if not part:
                    selector.unregister(key.fileobj)
                    continue
                kept = output[key.data]
                kept += part
                if len(kept) > 2 * limit:
                    del kept[:-limit]
                    notes[key.data] = f"only the last {limit} bytes"
        late = {str(key.data) for key in selector.get_map().values()}
    for name, process in running.items():
        if name in late:
            notes[name] = f"no end after {timeout:.1f} s"
            process.kill()
        if process.stdout is not None:
            process.stdout.close()
        try:
            if name not in late and process.wait(timeout=1.0) != 0:
                notes.setdefault(name, f"ended with {process.returncode}")
        except subprocess.TimeoutExpired:  # it closed its output and stays
            process.kill()
    return {name: Output(bytes(kept).decode("utf-8", "replace"), notes.get(name, "")) for name, kept in output.items()}


def _read_journal(
    invocation_id: str, namespace: str, lines: int | None, deadline: float
) -> t.Iterator[list[journal.Entry]]:
    """The journal of one start in parts, until its end or ``deadline`` (monotonic); with ``lines`` the newest ones only."""
    with journal.Follower(invocation_id=invocation_id, namespace=namespace, follow=False, lines=lines) as reader:
        while not reader.ended and time.monotonic() < deadline:
            select.select([reader.fileno()], [], [], 0.2)
            yield reader.read()
        if not reader.ended:
            raise TimeoutError("the journal takes too long to read")
        if reader.error:
            raise OSError(reader.error)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What is needed of the host, for tests to replace."""

    run_all: t.Callable[..., dict[str, Output]] = run_all
    show: t.Callable[[str], UnitState] = dataclasses.field(
        default_factory=lambda: lambda unit: show(command_runner(timeout=5.0), unit)
    )
    journal: t.Callable[[str, str, int | None, float], t.Iterator[list[journal.Entry]]] = _read_journal
    monotonic: t.Callable[[], float] = time.monotonic
    wall: t.Callable[[], float] = time.time
    sleep: t.Callable[[float], None] = time.sleep
    proc: str = "/proc"
    cgroup_root: str = "/sys/fs/cgroup"


def read_small(path: str, limit: int = _SMALL_FILE) -> str:
    """A small file's text; raises OSError, also for what is no plain file: a pipe would be waited for, and emptied."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no plain file")
        return file.read(limit).decode("utf-8", "replace")


def read_or_why(path: str) -> str:
    """A small file's text, or why there is none."""
    try:
        return read_small(path).rstrip("\n")
    except OSError as error:
        return f"({error.strerror or error})"
