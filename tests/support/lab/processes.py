# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running commands and recognising a process again later."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CommandFailed", "LabError", "NotPossible", "ProcessMark", "mark_process", "parse_stat", "run"]

PROC = Path("/proc")


class LabError(Exception):
    """The lab could not do what was asked; the text says why and what to do."""


class NotPossible(LabError):
    """This machine lacks something that the lab needs and may not install by itself."""


class CommandFailed(LabError):
    """A command ended with a status that the caller did not expect."""

    def __init__(self, argv: Sequence[str], returncode: int, stdout: str, stderr: str) -> None:
        self.argv = list(argv)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        said = "\n".join(part.strip() for part in (stdout, stderr) if part.strip())
        super().__init__(f"{' '.join(argv)!r} ended with status {returncode}:\n{said or '(no output)'}")


def run(
    argv: Sequence[str],
    *,
    input: str | None = None,  # noqa: A002  the name that subprocess.run has
    check: bool = True,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run *argv*, capture its text output.

    Without *input* the command reads nothing (``/dev/null``), so that it cannot eat the caller's input.
    Raises CommandFailed on a non-zero status unless *check* is false.
    """
    done = subprocess.run(
        list(argv),
        input=input,
        stdin=None if input is not None else subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout,
        env=None if env is None else dict(env),
        check=False,
    )
    if check and done.returncode != 0:
        raise CommandFailed(argv, done.returncode, done.stdout, done.stderr)
    return done


def parse_stat(text: str) -> tuple[str, int]:
    """State letter and start time (clock ticks since boot) of ``/proc/PID/stat`` (proc(5), fields 3 and 22).

    The command name may hold spaces and brackets, so fields are counted from the last bracket.
    """
    fields = text[text.rindex(")") + 1 :].split()
    return fields[0], int(fields[19])


@dataclass(frozen=True)
class ProcessMark:
    """One process, told apart from a later one with the same number."""

    pid: int
    start_time: int
    boot_id: str

    def alive(self, *, proc: Path = PROC) -> bool:
        """Is just this process still there? A zombie is dead: only its parent has not looked yet."""
        if (proc / "sys/kernel/random/boot_id").read_text().strip() != self.boot_id:
            return False
        try:
            state, start_time = parse_stat((proc / str(self.pid) / "stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            return False
        return start_time == self.start_time and state not in ("Z", "X")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProcessMark:
        return cls(pid=int(value["pid"]), start_time=int(value["start_time"]), boot_id=str(value["boot_id"]))


def mark_process(pid: int, *, proc: Path = PROC) -> ProcessMark:
    """The mark of a running process; LabError when there is none with this number."""
    try:
        _state, start_time = parse_stat((proc / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        raise LabError(f"process {pid} is gone") from None
    return ProcessMark(pid=pid, start_time=start_time, boot_id=(proc / "sys/kernel/random/boot_id").read_text().strip())
