# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run commands for the utilities that take a runner. PRIVATE to the collection."""

from __future__ import annotations

import os
import subprocess
import threading
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

__all__ = ("TooLate", "clean_environment", "command_runner", "within")

#: Variables of the login that would change what a command does or prints.
_DROPPED_PREFIXES = ("PIP_", "PYTHON", "VIRTUAL_ENV", "SYSTEMD_", "UV_")


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment for commands: plain output, and nothing of the login that steers Python, pip or systemd."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED_PREFIXES)}
    return {**kept, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", **changes}


_Result = t.TypeVar("_Result")


class TooLate(Exception):
    """There was no result in time."""


def within(seconds: float, work: t.Callable[[], _Result]) -> _Result:
    """What ``work`` gives. Raises TooLate when it takes longer: a file of a mount that does not answer holds its reader for ever.

    It is done in a thread that is left behind then, so it must not change what the caller goes on with.
    """
    done: list[_Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001  it is raised again below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TooLate(f"no end after {seconds:g} s: something that is read does not answer, such as a mount")
    return done[0]


def command_runner(*, timeout: float | None = None, **environment: str) -> Runner:
    """A runner that executes argument vectors as they are, without a shell and without input.

    A program that cannot be executed gives status 127, as in a shell.

    :param timeout: seconds after which the command is killed, with status 124; None = no limit.
    :param environment: variables on top of :func:`clean_environment`.
    """

    def run(argv: t.Sequence[str]) -> tuple[int, str, str]:
        try:
            done = subprocess.run(  # pylint: disable=ansible-bad-function  # there is no AnsibleModule here
                list(argv),
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                # Nothing is inherited that was not made so (PEP 446): a lock, for one, is meant to outlive us in them.
                close_fds=False,
                env=clean_environment(**environment),
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as exc:
            return 124, "", f"no end after {exc.timeout} s"
        except OSError as exc:
            return 127, "", str(exc)
        return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")

    return run
