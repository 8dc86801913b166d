# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read from a host what ``_drift.py`` compares. Changes nothing. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import glob
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._drift import (
    Asked,
    Running,
    Seen,
    credential_path,
    environment_paths,
    started_otherwise,
)
from ansible_collections.specdec.serving.plugins.module_utils._drop_ins import drop_ins_of, show_with_drop_ins
from ansible_collections.specdec.serving.plugins.module_utils._processes import PROC, environ_of, read_process
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, UnitState
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import Layout, UnitReport, apply_present

__all__ = ("look", "look_for_restart")


def _read(path: str) -> str | None:
    """The text of a file; None when there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _environment_files(paths: t.Iterable[str]) -> dict[str, str]:
    found = {}
    for path in paths:
        # systemd.exec(5): a pattern stands for all files that it fits.
        texts = [_read(name) for name in sorted(glob.glob(path)) or [path]]
        found[path] = "\n".join(text for text in texts if text is not None)
    return found


def _running(state: UnitState, name: str, proc: str) -> Running | None:
    """The main process of this invocation; None when there is none, or it is not to be seen."""
    if not state.main_pid or not state.invocation_id:
        return None
    try:
        environment = environ_of(state.main_pid, None, proc=proc)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    process = read_process(state.main_pid, proc=proc)
    # Another invocation's, or one that has written over its environment.
    if process is None or environment.get("INVOCATION_ID") != state.invocation_id:
        return None
    folder = environment.get("CREDENTIALS_DIRECTORY", "")
    credential = _read(f"{folder}/{name}.yaml") if folder else None
    return Running(process.cmdline, environment, credential)


def _manager_variables(runner: Runner) -> frozenset[str]:
    _code, stdout, _stderr = runner(["systemctl", "show-environment"])
    return frozenset(line.partition("=")[0] for line in stdout.splitlines() if "=" in line)


def _seen(asked: Asked, state: UnitState, layout: Layout, proc: str) -> Seen:
    """The files and the process, without what has to be asked for."""
    instance = asked.instance
    unit_text = _read(f"{layout.unit_dir}/{instance.unit}")
    drop_ins = drop_ins_of(state, instance.unit, layout.unit_dir)
    names = [path for text in (unit_text or "", *(item.text for item in drop_ins)) for path in environment_paths(text)]
    credential = credential_path(unit_text or "", layout.config_dir)
    return Seen(
        state=state,
        unit_text=unit_text,
        report=UnitReport(instance.name, instance.unit),
        environment_files=_environment_files(names),
        drop_ins=drop_ins,
        credential=_read(credential) if credential else None,
        running=_running(state, instance.name, proc),
    )


def look(asked: Asked, layout: Layout, runner: Runner, *, proc: str = PROC) -> Seen:
    """What this host has of one instance.

    :raises UnitError: where a deployment could not even be planned.
    :raises SystemdError: when systemd cannot be asked.
    """
    instance = asked.instance
    state = show_with_drop_ins(runner, instance.unit, layout.unit_dir)
    if state.load_state == "masked":
        return Seen(state, None, UnitReport(instance.name, instance.unit))
    reports, folders = apply_present(
        [instance],
        layout,
        {instance.name: asked.secrets} if asked.secrets else {},
        runner,
        enabled=asked.enabled,
        check_mode=True,
    )
    return dataclasses.replace(
        _seen(asked, state, layout, proc),
        report=reports[0],
        folders=tuple(folders),
        manager_variables=_manager_variables(runner),
    )


def look_for_restart(asked: Asked, state: UnitState, layout: Layout, *, proc: str = PROC) -> list[str]:
    """Names of what the running process has otherwise than its files say; see :func:`_drift.started_otherwise`."""
    return started_otherwise(asked, _seen(asked, state, layout, proc))
