# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why systemd did not start a unit, or let a start fail, before SGLang could say anything. PRIVATE to the collection.

systemd keeps some reasons as properties and logs the others once: a condition that is not met, a unit that is required and
failed, a line of the unit file that it cannot read, a command beside the main one (ExecStartPre=) that failed.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry, parse_entry
from ansible_collections.specdec.serving.plugins.module_utils._signatures import look_up
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

# sd-messages.h: after these words of PID 1 about a unit, what it said before is about another start.
_BEGINNINGS = frozenset(
    (
        "7d4958e842da4a758f6c1cdc7b36dcc5",  # Starting
        "de5b426a63be47a7b6ac3eaac82e2f6f",  # Stopping
        "9d1aaa27d60140bd96365438aad20286",  # Stopped
    )
)
_LINES = 30
_REQUIRED = ("Requires", "Requisite", "BindsTo")
_COMMANDS = ("ExecCondition", "ExecStartPre", "ExecStartPost")
_COMMAND = re.compile(
    r"^(?P<setting>\w+)=\{ path=.*? ; argv\[\]=(?P<argv>.*?) ; ignore_errors=(?P<ignored>yes|no) ;.*"
    r" ; code=(?P<code>\w+) ; status=(?P<status>\d+)"
)


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why it did not start: ``cause`` in one word, a sentence, what to do, the lines that show it."""

    cause: str
    summary: str
    remedy: str
    evidence: tuple[str, ...] = ()


def manager_lines(runner: Runner, unit: str, *, boot_id: str) -> list[Entry]:
    """What PID 1 said about a unit since the boot, the newest of it, oldest first."""
    runner(["journalctl", "--sync"])
    words = ["journalctl", "--quiet", "--no-pager", "--output=json", "--all", f"--lines={_LINES}"]
    _code, out, _err = runner([*words, "_PID=1", f"UNIT={unit}", f"_BOOT_ID={boot_id.replace('-', '')}"])
    return [entry for entry in map(parse_entry, out.splitlines()) if entry is not None]


def unit_file_reason(lines: t.Sequence[Entry], *, unit: str, path: str, load_error: str) -> Reason:
    """Why systemd cannot load a unit's file. It says so anew each time that it tries, so the last ones count."""
    said: list[str] = []
    for entry in reversed(lines):
        if entry.message in said:
            break
        said.insert(0, entry.message)
    # Its verdict comes last; what is wrong, and in which line, before.
    reasons = [line for line in said if re.search(r":\d+: ", line)] or said or ([load_error] if load_error else [])
    text = f"systemd cannot load {path or unit}" + (f": {reasons[-1]}" if reasons else "")
    if path and reasons and reasons[-1].startswith(f"{path}:"):
        text = f"systemd cannot load {reasons[-1]}"
    remedy = (
        f"Correct the file, then `systemctl daemon-reload`; `systemd-analyze verify {unit}` says what is wrong with it."
    )
    return Reason("bad_unit_file", text, remedy, tuple(said))


def failed_requirements(runner: Runner, unit: str) -> list[str]:
    """Units that this one cannot do without and that failed, or cannot be started, each with its state in words."""
    argv = ["systemctl", "show", "--no-pager", "--value", "--property", ",".join(_REQUIRED), "--", unit]
    names = sorted({name for line in runner(argv)[1].splitlines() for name in line.split()})
    if not names:
        return []
    out = runner(["systemctl", "show", "--no-pager", "--property", "Id,LoadState,ActiveState,Result", "--", *names])[1]
    found = []
    for block in out.split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        if values.get("LoadState", "loaded") != "loaded":
            found.append(f"{values.get('Id')} is {values['LoadState']}")
        elif values.get("ActiveState") == "failed":
            found.append(f"{values.get('Id')} failed (result {values.get('Result')})")
    return found


def not_started_reason(lines: t.Sequence[Entry], *, requirements: t.Sequence[str]) -> Reason | None:
    """Why a unit that is inactive did not start: by PID 1's last words about it; None = nobody tried, or it was stopped."""
    for entry in reversed(lines):
        seen = look_up(entry.message, "manager")
        if seen is not None and seen[0].cause in ("condition", "dependency_failed"):
            row = seen[0]
            more = f" ({'; '.join(requirements)})" if row.cause == "dependency_failed" and requirements else ""
            return Reason(row.cause, f"{row.summary}{more}: {entry.message}", row.remedy, (entry.message,))
        if entry.message_id in _BEGINNINGS:
            return None
    missing = [text for text in requirements if not text.endswith(")")]
    if missing:
        summary = f"systemd refuses to start it, since it requires units that cannot be started: {'; '.join(missing)}"
        return Reason("dependency_failed", summary, "Provide that unit, or take it out of Requires= and the like.")
    return None


def failed_command(runner: Runner, unit: str) -> Reason | None:
    """The command beside the main one (ExecStartPre= and the like) that made the start fail."""
    argv = ["systemctl", "show", "--no-pager", "--property", ",".join(_COMMANDS), "--", unit]
    for line in runner(argv)[1].splitlines():
        match = _COMMAND.match(line)
        if (
            match is None
            or match["ignored"] == "yes"
            or (match["code"], match["status"]) in (("(null)", "0"), ("exited", "0"))
        ):
            continue
        setting = match["setting"]
        ended = (
            f"exited with status {match['status']}"
            if match["code"] == "exited"
            else f"{match['code']} by signal {match['status']}"
        )
        before = (
            "before the server could start" if setting != "ExecStartPost" else "and systemd ended the server for it"
        )
        return Reason(
            {"ExecStartPre": "start_pre_failed", "ExecStartPost": "start_post_failed"}.get(setting, "condition"),
            f"{setting}={match['argv']} {ended}, {before}",
            f"Run the command by hand as the unit's user, and correct it; a '-' before it in {setting}= lets it fail.",
        )
    return None


__all__ = (
    "Reason",
    "failed_command",
    "failed_requirements",
    "manager_lines",
    "not_started_reason",
    "unit_file_reason",
)
