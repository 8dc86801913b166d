# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Marks of processes, and commands that fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.lab.processes import (
    CommandFailed,
    LabError,
    ProcessMark,
    mark_process,
    parse_stat,
    run,
)

STAT = (
    "18474 ({name}) {state} 1 18474 18474 0 -1 4194560 94 0 0 0 0 0 0 0 20 0 1 0 {start} 2822144 219 1844 1 1 0 0 0 0\n"
)


@pytest.mark.parametrize("name", ["sleep", "a) Z 1 (b", "two words"])
def test_stat_fields_are_counted_from_the_last_bracket(name: str) -> None:
    assert parse_stat(STAT.format(name=name, state="S", start=115564)) == ("S", 115564)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("d7e211da\n")
    (tmp_path / "18474").mkdir()
    (tmp_path / "18474/stat").write_text(STAT.format(name="sleep", state="S", start=115564))
    return tmp_path


def test_a_mark_is_read_back_and_alive(proc: Path) -> None:
    mark = mark_process(18474, proc=proc)
    assert mark == ProcessMark(pid=18474, start_time=115564, boot_id="d7e211da")
    assert ProcessMark.from_json(vars(mark)) == mark
    assert mark.alive(proc=proc)


@pytest.mark.parametrize(
    ("state", "start", "boot_id"),
    [
        pytest.param("Z", 115564, "d7e211da", id="zombie"),
        pytest.param("S", 115565, "d7e211da", id="number-used-again"),
        pytest.param("S", 115564, "another", id="machine-booted-again"),
    ],
)
def test_a_mark_of_something_else_is_dead(proc: Path, state: str, start: int, boot_id: str) -> None:
    mark = mark_process(18474, proc=proc)
    (proc / "18474/stat").write_text(STAT.format(name="sleep", state=state, start=start))
    (proc / "sys/kernel/random/boot_id").write_text(boot_id)
    assert not mark.alive(proc=proc)


def test_a_process_that_is_gone_is_dead_and_cannot_be_marked(proc: Path) -> None:
    mark = mark_process(18474, proc=proc)
    (proc / "18474/stat").unlink()
    assert not mark.alive(proc=proc)
    with pytest.raises(LabError, match="18474 is gone"):
        mark_process(18474, proc=proc)


def test_a_failed_command_shows_what_it_said() -> None:
    with pytest.raises(CommandFailed) as failure:
        run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert failure.value.returncode == 3
    assert "status 3" in str(failure.value)
    assert "out\nerr" in str(failure.value)


def test_a_command_without_input_reads_nothing() -> None:
    assert run([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]).stdout == "''\n"
