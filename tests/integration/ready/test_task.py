# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The task as users write it: ansible-playbook over SSH with sudo, in slices."""

from __future__ import annotations

import json
import subprocess
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.lab.client import render_inventory
from ansible_collections.specdec.serving.tests.support.observer.task import answer_of, interrupt, play_argv, start

KEY = "sk-planted-key-9"


class Task:
    """One sglang_ready task about one server."""

    def __init__(self, server: t.Any, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.inventory = folder / "inventory.yml"
        self.inventory.write_text(render_inventory([server.host]), encoding="utf-8")

    def start(
        self,
        *switches: str,
        task: t.Mapping[str, t.Any] | None = None,
        environment: t.Mapping[str, str] | None = None,
        **options: t.Any,
    ) -> subprocess.Popen[str]:
        ready = {
            "name": "Prove readiness",
            "specdec.serving.sglang_ready": self.server.options(**options),
            **(task or {}),
        }
        return start(play_argv(self.folder, self.inventory, [ready], switches), environment)

    def run(self, *switches: str, **options: t.Any) -> tuple[str, dict[str, t.Any]]:
        return answer_of(self.start(*switches, **options))


@pytest.fixture
def task(server: t.Any, tmp_path: Path) -> Task:
    return Task(server, tmp_path)


def loads_for(seconds: float) -> dict[str, str]:
    return {"STAND_IN_TIMES": json.dumps({"load_target": seconds / 0.002})}


@pytest.mark.parametrize("pipelining", ["1", "0"])
def test_ready(server: t.Any, task: Task, pipelining: str) -> None:
    server.write()
    server.systemctl("start")
    _output, answer = task.run(environment={"ANSIBLE_PIPELINING": pipelining})
    assert (answer["state"], answer["ready"], answer["failed"], answer["changed"]) == ("ready", True, False, False)


def test_a_crash_fails_the_task_with_its_diagnosis(server: t.Any, task: Task) -> None:
    server.write("--no-such-flag")
    server.systemctl("start")
    _output, answer = task.run()
    assert (answer["failed"], answer["state"]) == (True, "crashed")
    assert "--no-such-flag" in answer["msg"]


def test_check_mode_looks_once_and_never_fails(server: t.Any, task: Task) -> None:
    server.write(environment=loads_for(60))
    server.systemctl("start")
    _output, answer = task.run("--check")
    assert (answer["failed"], answer["state"]) == (False, "loading")


def test_async_is_refused(server: t.Any, task: Task) -> None:
    server.write()
    output, answer = task.run(task={"async": 60, "poll": 0})
    assert answer["failed"]
    assert "async" in output


def test_a_dropped_connection_is_survived(server: t.Any, task: Task) -> None:
    server.write(environment=loads_for(25))
    server.systemctl("start")
    process = task.start()
    server.until(lambda: module_runs(server), 30)
    # The session's sshd, not the listening one.
    server.host.exec(["sh", "-c", "pgrep -f '^sshd: deploy' | xargs -r kill -KILL"])
    output, answer = answer_of(process)
    assert answer["ready"], output
    assert "connection lost, trying again" in output
    truth = server.true_events(answer["invocation_id"])
    assert 0 <= answer["detected_at_monotonic"] - truth["ready"] < 2.0


def test_progress_is_printed_and_the_timeout_counts_over_slices(server: t.Any, task: Task) -> None:
    server.write(environment=loads_for(120))
    server.systemctl("start")
    output, answer = task.run(timeout=18)
    assert (answer["failed"], answer["state"]) == (True, "loading")
    assert 18.0 <= answer["elapsed"] < 20.0
    line = f"{server.host.name} | {server.unit} | loading_weights     | ranks 0/4 |   15 s"
    # The start is older than the wait by as long as Ansible took to begin it, which the line tells from 2 s on.
    assert any(shown.startswith(line) for shown in output.splitlines()), output


def test_ctrl_c_leaves_nothing_behind(server: t.Any, task: Task) -> None:
    server.write(environment=loads_for(120))
    server.systemctl("start")
    process = task.start()
    server.until(lambda: module_runs(server), 30)
    time.sleep(1)
    interrupt(process)
    server.until(lambda: not module_runs(server), 10)


def test_the_key_is_nowhere(server: t.Any, task: Task) -> None:
    server.write(f"--api-key {KEY}")
    server.systemctl("start")
    output, answer = task.run("-vvvvv", "--diff", api_key=KEY)
    assert answer["ready"]
    assert KEY not in output
    assert (
        KEY
        not in server.host.exec(
            ["journalctl", "--no-pager", "--identifier=ansible-specdec.serving.sglang_ready"]
        ).stdout
    )


def module_runs(server: t.Any) -> bool:
    done: subprocess.CompletedProcess[str] = server.host.exec(["pgrep", "--exact", "journalctl"], check=False)
    return done.stdout.strip() != ""
