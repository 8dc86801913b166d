# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import os
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._lease_holder import LeaseLoop, has_ended, owner_of


def as_mapping(owner: t.Any) -> dict[str, t.Any]:
    return dataclasses.asdict(owner)


def test_the_owner_is_a_process_of_this_controller() -> None:
    owner = owner_of(os.getpid(), play="Deploy")
    assert owner == owner_of(os.getpid(), play="Deploy")
    assert (owner.pid, owner.play) == (os.getpid(), "Deploy")
    assert owner.start_ticks > 0
    assert owner.boot
    assert owner.pid_namespace.startswith("pid:[")
    assert owner.id != owner_of(os.getppid()).id
    assert not has_ended(as_mapping(owner))


def test_a_process_that_ended() -> None:
    process = subprocess.Popen(["sleep", "60"])
    owner = as_mapping(owner_of(process.pid))
    assert not has_ended(owner)
    process.kill()
    # Not waited for yet: a zombie has ended as well.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(owner)
    process.wait()
    assert has_ended(owner)


@pytest.mark.parametrize(
    "change",
    [{"boot": "another"}, {"pid_namespace": "pid:[1]"}, {"start_ticks": 0}, {"boot": ""}],
    ids=["boot", "container", "start", "unknown"],
)
def test_of_others_nothing_is_known(change: dict[str, t.Any]) -> None:
    process = subprocess.Popen(["true"])
    owner = {**as_mapping(owner_of(os.getpid())), "pid": process.pid}
    process.wait()
    assert has_ended(owner)
    assert not has_ended({**owner, **change})


def test_a_number_that_is_another_process_by_now() -> None:
    owner = as_mapping(owner_of(os.getpid()))
    assert has_ended({**owner, "start_ticks": owner["start_ticks"] - 1})


def test_where_there_is_no_proc(tmp_path: Path) -> None:
    owner = owner_of(os.getpid(), proc=str(tmp_path))
    assert (owner.boot, owner.pid_namespace, owner.start_ticks) == ("", "", 0)
    assert owner.id
    assert not has_ended(as_mapping(owner), proc=str(tmp_path))


HELD = {
    "failed": True,
    "held_by_other": True,
    "busy": False,
    "holder": "bob",
    "lease": {"token": "t.1", "owner": {"pid": 1}},
}
TAKEN = {"held_by_other": False, "token": "t.2"}


class Host:
    """A scripted module; ``dead``: the runs that have ended."""

    def __init__(self, *script: dict[str, t.Any], dead: bool = False) -> None:
        self.script, self.dead, self.now, self.abandoned = list(script), dead, 0.0, False
        self.calls: list[dict[str, t.Any]] = []
        self.told: list[str] = []

    def execute(self, extra: dict[str, t.Any]) -> dict[str, t.Any]:
        self.calls.append(extra)
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, wait: float = 0.0, *, check_mode: bool = False) -> dict[str, t.Any]:
        return LeaseLoop(
            wait=wait,
            check_mode=check_mode,
            execute=self.execute,
            ended=lambda owner: self.dead and owner == {"pid": 1},
            report=self.told.append,
            monotonic=lambda: self.now,
            sleep=self.sleep,
            abandoned=lambda: self.abandoned,
        ).run()


def test_one_question_without_a_wait() -> None:
    for answer in (TAKEN, HELD, {"failed": True, "msg": "no"}):
        host = Host(answer)
        assert host.ask() == answer
        assert (host.calls, host.told, host.now) == ([{}], [], 0.0)


def test_of_a_run_that_has_ended_it_is_taken_at_once() -> None:
    host = Host(HELD, TAKEN, dead=True)
    assert host.ask() == TAKEN
    assert host.calls == [{}, {"gone": "t.1"}]
    # Somebody else was quicker: that one lives.
    other = {**HELD, "lease": {"token": "x.2", "owner": {"pid": 2}}}
    host = Host(HELD, other, dead=True)
    assert host.ask() == other
    assert host.calls == [{}, {"gone": "t.1"}]


def test_but_not_while_a_task_of_it_changes_the_host() -> None:
    busy = {**HELD, "busy": True}
    assert Host(busy, dead=True).ask() == busy
    host = Host(busy, HELD, TAKEN, dead=True)
    assert host.ask(wait=10) == TAKEN
    assert host.calls == [{}, {}, {"gone": "t.1"}]


def test_a_damaged_lease_names_nobody() -> None:
    damaged = {**HELD, "lease": {}}
    assert Host(damaged, dead=True).ask() == damaged


def test_waiting() -> None:
    host = Host(*[HELD] * 40, TAKEN)
    assert host.ask(wait=100) == TAKEN
    assert host.now == 80
    assert host.told == [f"waiting up to {left} s for the lease of the host: bob" for left in (100, 70, 40)]


def test_waiting_in_vain() -> None:
    host = Host(HELD)
    assert host.ask(wait=5) == HELD
    assert host.now == 5


def test_check_mode_does_not_wait() -> None:
    host = Host(HELD)
    assert host.ask(wait=100, check_mode=True) == HELD
    assert host.now == 0


def test_a_wait_ends_with_its_playbook() -> None:
    class Killed(Host):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.abandoned = True

    with pytest.raises(ValueError, match="ansible-playbook is gone"):
        Killed(HELD).ask(wait=100)
