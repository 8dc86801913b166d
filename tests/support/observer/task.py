# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a play of a few tasks through ansible-playbook, and gives back the last task's result as data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import typing as t
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
_MARK = "RESULT-AS-JSON "


def play_argv(
    folder: Path, inventory: Path | str, tasks: t.Sequence[t.Mapping[str, t.Any]], switches: t.Sequence[str] = ()
) -> list[str]:
    """Write the play into ``folder`` and give the command that runs it. The last task may fail: its result is the answer."""
    *before, last = tasks
    play = {
        "name": "Test",
        "hosts": "all",
        "gather_facts": False,
        "become": True,
        "tasks": [
            *before,
            {"ignore_errors": True, "register": "answer", **last},
            {"name": "Show the result", "ansible.builtin.debug": {"msg": _MARK + "{{ answer | to_json }}"}},
        ],
    }
    playbook = folder / "play.yml"
    playbook.write_text(json.dumps([play]), encoding="utf-8")
    return ["ansible-playbook", "-i", str(inventory), str(playbook), *switches]


def start(argv: t.Sequence[str], environment: t.Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start it in a session of its own, since Ctrl-C goes to the whole foreground group."""
    return subprocess.Popen(
        argv,
        cwd=CHECKOUT,
        env={**os.environ, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def interrupt(process: subprocess.Popen[t.Any], *, patience: float = 10.0, within: float = 30.0) -> None:
    """Press Ctrl-C, and once more after ``patience`` seconds where the first did not end it, as a person does.

    ansible-core 2.21 ends its workers at once. One that was putting its result into the queue of results keeps that queue's lock for ever, and
    StrategyBase.cleanup then waits for it (plugins/strategy/__init__.py:304; seen once in 37 of a playbook without anything of ours).
    """
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=within)


def answer_of(process: subprocess.Popen[str], timeout: float = 180) -> tuple[str, dict[str, t.Any]]:
    """Wait for it; give all that was printed, and the last task's result."""
    output = process.communicate(timeout=timeout)[0]
    line = next((line for line in output.splitlines() if _MARK in line), None)
    if line is None:
        raise AssertionError(f"the play did not get to its end:\n{output}")
    text = json.loads("{" + line.strip().rstrip(",") + "}")["msg"]
    return output, json.loads(text.removeprefix(_MARK))
