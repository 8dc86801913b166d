# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd knows about one unit, read with ``systemctl show``. PRIVATE to the collection.

Only scalar properties and lists of paths are asked for (``org.freedesktop.systemd1(5)``), so one line is one property.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import typing as t

#: Takes an argument vector, gives (exit code, stdout, stderr).
Runner = t.Callable[[t.Sequence[str]], "tuple[int, str, str]"]

#: ``ExecMainCode`` is a CLD_* number (``sigaction(2)``).
EXIT_CODES = {1: "exited", 2: "killed", 3: "dumped"}

_PROPERTIES = (
    "ActiveState",
    "ControlGroup",
    "DropInPaths",
    "ExecMainCode",
    "ExecMainExitTimestampMonotonic",
    "ExecMainStartTimestampMonotonic",
    "ExecMainStatus",
    "FragmentPath",
    "Id",
    "InvocationID",
    "Job",
    "LoadError",
    "LoadState",
    "LogNamespace",
    "MainPID",
    "NRestarts",
    "NeedDaemonReload",
    "Result",
    "StandardError",
    "StandardOutput",
    "StateChangeTimestampMonotonic",
    "SubState",
    "Type",
    "UnitFileState",
)

_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")


class SystemdError(Exception):
    """systemctl could not answer, or the unit is none that can be asked about."""


@dataclasses.dataclass(frozen=True)
class UnitState:
    """One answer of ``systemctl show``; times are microseconds of CLOCK_MONOTONIC, 0 = never."""

    id: str = ""
    load_state: str = "not-found"
    load_error: str = ""
    active_state: str = "inactive"
    sub_state: str = "dead"
    result: str = "success"
    invocation_id: str = ""
    main_pid: int = 0
    exec_main_code: int = 0
    exec_main_status: int = 0
    exec_main_start_us: int = 0
    exec_main_exit_us: int = 0
    state_change_us: int = 0
    n_restarts: int = 0
    job: int = 0
    type: str = ""
    control_group: str = ""
    need_daemon_reload: bool = False
    standard_output: str = "journal"
    standard_error: str = "inherit"
    log_namespace: str = ""
    fragment_path: str = ""
    unit_file_state: str = ""
    #: Files beside the unit file that systemd has read, in that order.
    drop_in_paths: tuple[str, ...] = ()

    @property
    def main_exited(self) -> bool:
        """The main process of this invocation has ended (its exit status is known)."""
        return self.exec_main_code in EXIT_CODES and self.main_pid == 0

    @property
    def log_output(self) -> str:
        """Where SGLang's log goes, as `NAME is VALUE`: it is written to the standard error output (systemd.exec(5))."""
        if self.standard_error == "inherit":
            return f"StandardOutput is {self.standard_output!r}"
        return f"StandardError is {self.standard_error!r}"

    @property
    def logs_to_journal(self) -> bool:
        """False when the log goes to a file, a tty or nowhere: then the journal holds no markers."""
        output = self.standard_output if self.standard_error == "inherit" else self.standard_error
        # With kmsg the lines go to the kernel's log as well.
        return output.startswith(("journal", "kmsg", "syslog"))

    def exit_text(self) -> str:
        """How the main process ended, in words (``systemd.exec(5)``, "PROCESS EXIT CODES"), or ''."""
        how = EXIT_CODES.get(self.exec_main_code)
        if how is None:
            return ""
        if how == "exited":
            return f"exited with status {self.exec_main_status}"
        return f"{how} by signal {self.exec_main_status}"


def check_unit_name(unit: str) -> str:
    """Give ``unit`` back, or raise SystemdError when it cannot name one service (``systemd.unit(5)``)."""
    if not _UNIT_NAME.fullmatch(unit):
        raise SystemdError(f"{unit!r} is no valid unit name: letters, digits and ':_.\\@-' only, 255 at most")
    if not unit.endswith(".service"):
        raise SystemdError(f"{unit!r} is no service: give the full name, such as 'sglang-k26-dflash.service'")
    if unit.endswith("@.service"):
        raise SystemdError(f"{unit!r} is a template: name one instance of it, such as {unit[:-8] + '0.service'!r}")
    return unit


def _error_text(text: str) -> str:
    """A D-Bus error as systemctl prints it (``NAME "text"``) without its name."""
    match = re.fullmatch(r'\S+ "(.*)"', text)
    return match.group(1) if match else text


def _paths(text: str) -> tuple[str, ...]:
    """A list as systemctl prints it: quoted for a shell where that is needed."""
    try:
        return tuple(shlex.split(text))
    except ValueError:  # no list of ours
        return tuple(text.split())


def _number(text: str) -> int:
    # Unset numbers print as "[not set]" or "infinity".
    return int(text) if text.isdigit() else 0


def parse_show(text: str) -> UnitState:
    """Parse the ``KEY=VALUE`` lines of one unit; unknown keys are passed over, missing ones keep their default."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            values[key] = value
    default = UnitState()
    return UnitState(
        id=values.get("Id", ""),
        load_state=values.get("LoadState", default.load_state),
        load_error=_error_text(values.get("LoadError", "")),
        active_state=values.get("ActiveState", default.active_state),
        sub_state=values.get("SubState", default.sub_state),
        result=values.get("Result", default.result),
        invocation_id=values.get("InvocationID", ""),
        main_pid=_number(values.get("MainPID", "")),
        exec_main_code=_number(values.get("ExecMainCode", "")),
        exec_main_status=_number(values.get("ExecMainStatus", "")),
        exec_main_start_us=_number(values.get("ExecMainStartTimestampMonotonic", "")),
        exec_main_exit_us=_number(values.get("ExecMainExitTimestampMonotonic", "")),
        state_change_us=_number(values.get("StateChangeTimestampMonotonic", "")),
        n_restarts=_number(values.get("NRestarts", "")),
        job=_number(values.get("Job", "")),
        type=values.get("Type", ""),
        control_group=values.get("ControlGroup", ""),
        need_daemon_reload=values.get("NeedDaemonReload") == "yes",
        standard_output=values.get("StandardOutput", default.standard_output),
        standard_error=values.get("StandardError", default.standard_error),
        log_namespace=values.get("LogNamespace", ""),
        fragment_path=values.get("FragmentPath", ""),
        unit_file_state=values.get("UnitFileState", ""),
        drop_in_paths=_paths(values.get("DropInPaths", "")),
    )


def show(runner: Runner, unit: str) -> UnitState:
    """Ask systemd about ``unit``. An unknown unit is no error: its ``load_state`` is ``not-found``.

    Raises SystemdError when systemctl itself fails (no systemd, no bus).
    """
    # "--" since a unit name may begin with "-" (the root slice does).
    argv = ["systemctl", "show", "--no-pager", "--property", ",".join(_PROPERTIES), "--", unit]
    code, stdout, stderr = runner(argv)
    if code != 0 or "LoadState=" not in stdout:
        raise SystemdError(
            f"systemctl show {unit!r} failed with {code}: {stderr.strip() or stdout.strip() or 'no output'}. "
            "Is systemd PID 1 on this host, and may this user ask it?"
        )
    return parse_show(stdout)


_PROGRAM = re.compile(r"ExecStart=\{ path=(\S+) ;")


def show_program(runner: Runner, unit: str) -> str:
    """The program of the unit's ExecStart; "" when systemd does not tell."""
    _code, stdout, _stderr = runner(["systemctl", "show", "--no-pager", "--property", "ExecStart", "--", unit])
    found = _PROGRAM.search(stdout)
    return found.group(1) if found else ""


__all__ = ("EXIT_CODES", "Runner", "SystemdError", "UnitState", "check_unit_name", "parse_show", "show", "show_program")
