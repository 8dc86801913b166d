# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Following a journal, against real processes that write like journalctl."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry, Follower
from ansible_collections.specdec.serving.plugins.module_utils._processes import process_alive, read_process

INVOCATION = "aba3052d65e14c38bf15c6d11bf2cfe8"
CHECKOUT = Path(__file__).parents[3]
RECORDED = CHECKOUT / "tests" / "unit" / "fixtures" / "systemd-252"

_HEAD = f"""
import json, os, sys, time
def line(number, message="x", **fields):
    fields = {{"__CURSOR": f"i={{number}}", "__MONOTONIC_TIMESTAMP": str(number), "MESSAGE": message,
              "_PID": "40", "_SYSTEMD_INVOCATION_ID": "{INVOCATION}", **fields}}
    return "".join(f"{{name}}={{value}}\\n" for name, value in fields.items()) + "\\n"
def put(text):
    sys.stdout.write(text)
    sys.stdout.flush()
"""

Program = Callable[[str], "list[str]"]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a command that stands for journalctl out of a few lines of Python."""

    def make(body: str) -> list[str]:
        script = tmp_path / "journalctl.py"
        script.write_text(_HEAD + body, encoding="utf-8")
        return [sys.executable, str(script)]

    return make


def read_until(follower: Follower, enough: Callable[[list[Entry]], bool], *, within: float = 20.0) -> list[Entry]:
    entries: list[Entry] = []
    deadline = time.monotonic() + within
    while not enough(entries) and not follower.ended:
        assert time.monotonic() < deadline, f"only {len(entries)} entries within {within} s"
        select.select([follower.fileno()], [], [], 1.0)
        entries += follower.read()
    return entries


def read_all(follower: Follower) -> list[Entry]:
    return read_until(follower, lambda _entries: False)


def test_entries_arrive_as_they_are_written_and_read_never_blocks(program: Program) -> None:
    words = program("put(line(1)); put(line(2)[:20]); time.sleep(0.2); put(line(2)[20:]); time.sleep(60)")
    with Follower(invocation_id=INVOCATION, program=words) as follower:
        assert [entry.monotonic_us for entry in read_until(follower, lambda got: len(got) == 2)] == [1, 2]
        before = time.monotonic()
        assert follower.read() == []
        assert time.monotonic() - before < 0.5
        assert (follower.drained, follower.ended, follower.error, follower.cursor) == (True, False, "", "i=2")


def test_arguments_and_environment_reach_it(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMD_COLORS", "1")
    words = program('put(line(1, json.dumps([sys.argv[1:], os.environ["SYSTEMD_COLORS"], os.environ["LC_ALL"]])))')
    with Follower(invocation_id=INVOCATION, cursor="s=a b;i=0", namespace="sgl", program=words) as follower:
        (entry,) = read_all(follower)
    arguments, colours, locale = json.loads(entry.message)
    assert {"--output=export", "--follow", "--lines=all", "--all", "--namespace=+sgl", "--cursor=s=a b;i=0"} <= set(
        arguments
    )
    assert (colours, locale) == ("0", "C.UTF-8")


def test_the_entry_of_the_cursor_is_dropped(program: Program) -> None:
    words = program("put(line(1) + line(2) + line(3))")
    with Follower(invocation_id=INVOCATION, cursor="i=1", program=words) as follower:
        assert [entry.monotonic_us for entry in read_all(follower)] == [2, 3]
        assert follower.cursor == "i=3"


def test_what_comes_before_the_cursor_is_dropped_though_the_clock_was_set() -> None:
    """Recorded: back an hour, forth two, back to 1970; asked for what follows the fourth entry, journalctl shows all."""
    program = ["sh", "-c", f"cat '{RECORDED / 'journal-clock-set.export'}'"]
    with Follower(invocation_id=INVOCATION, program=program) as follower:
        entries = read_all(follower)
    assert [entry.monotonic_us // 10**6 for entry in entries] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert [entry.realtime_us for entry in entries] != sorted(entry.realtime_us for entry in entries)
    with Follower(invocation_id=INVOCATION, cursor=entries[3].cursor, program=program) as follower:
        assert read_all(follower) == entries[4:]


def test_entries_of_one_moment_are_told_apart_by_their_number(program: Program) -> None:
    body = "".join(
        f'put(line(9, "{text}", __CURSOR="s={sequence};i={number};m=9"))\n'
        for text, sequence, number in (("known", "a", "1"), ("last", "a", "2"), ("next", "a", "a"), ("other", "b", "1"))
    )
    with Follower(invocation_id=INVOCATION, cursor="s=a;i=2;m=9", program=program(body)) as follower:
        assert [entry.message for entry in read_all(follower)] == ["next", "other"]


def test_a_chatty_server_waits_in_the_pipe(program: Program) -> None:
    words = program('put(line(0)); count = 0\nfor number in range(1, 20001): put(line(number, "y" * 500))')
    with Follower(invocation_id=INVOCATION, program=words, chunk=64 * 1024) as follower:
        select.select([follower.fileno()], [], [], 10)
        first = follower.read()
        assert len(first) <= 64 * 1024 // 500
        entries = first + read_all(follower)
    assert [entry.monotonic_us for entry in entries] == list(range(20001))
    assert follower.malformed == 0


def test_a_line_without_end_is_given_up_and_the_next_one_read(program: Program) -> None:
    words = program(
        'put(line(1)); put(line(0, "x" * 3000000)); put(line(2)); put("no field\\n\\n"); put(line(3).rstrip())'
    )
    with Follower(invocation_id=INVOCATION, program=words, longest_line=1024 * 1024) as follower:
        assert [entry.monotonic_us for entry in read_all(follower)] == [1, 2, 3]
        assert follower.malformed == 2


def test_long_lines_are_joined_over_reads(program: Program) -> None:
    body = 'part = dict(_LINE_BREAK="line-max", _STREAM_ID="s")\n'
    body += 'put(line(1, "a" * 49152, **part)); time.sleep(0.2); put(line(2, "b" * 49152, **part) + line(3, "c", _STREAM_ID="s"))'
    with Follower(invocation_id=INVOCATION, program=program(body)) as follower:
        (entry,) = read_all(follower)
    assert entry.message == "a" * 49152 + "b" * 49152 + "c"
    assert follower.cursor == "i=3"


@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        pytest.param("pass", 0, "", id="no lines"),
        pytest.param(
            'sys.exit("No journal files were opened due to insufficient permissions.")',
            1,
            "no permission to read the journal",
            id="no permission",
        ),
        pytest.param(
            'sys.exit("Failed to seek to cursor: Invalid argument")', 1, "does not know the cursor", id="cursor"
        ),
        pytest.param("os.kill(os.getpid(), 9)", -9, "journalctl ended with -9", id="killed"),
    ],
)
def test_the_end_and_its_reason(program: Program, body: str, code: int, error: str) -> None:
    with Follower(invocation_id=INVOCATION, program=program(body)) as follower:
        assert read_all(follower) == []
        assert (follower.ended, follower.returncode) == (True, code)
        assert error in follower.error
        assert bool(follower.error) is bool(error)


@pytest.mark.parametrize("quick", [False, True])
def test_no_journalctl_is_told(quick: bool) -> None:
    with Follower(invocation_id=INVOCATION, quick=quick, program=["/nonexistent/journalctl"]) as follower:
        assert read_all(follower) == []
        assert "/nonexistent/journalctl: No such file or directory" in follower.error


def test_a_damaged_file_is_told_and_the_rest_read(program: Program) -> None:
    told = "Journal file /j/a.journal corrupted, ignoring file."
    words = program(f'sys.stderr.write("{told}\\n"); put(line(1))')
    with Follower(invocation_id=INVOCATION, program=words) as follower:
        assert len(read_all(follower)) == 1
        assert (follower.error, follower.damage) == ("", told)


def test_much_on_stderr_does_not_stop_it(program: Program) -> None:
    words = program(
        'for number in range(100): put(line(number)); sys.stderr.write("w" * 10000 + "\\n"); sys.stderr.flush()'
    )
    with Follower(invocation_id=INVOCATION, program=words) as follower:
        assert len(read_all(follower)) == 100


def is_gone(pid: int, start_ticks: int, *, within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while process_alive(pid, start_ticks):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("ignores", [False, True], ids=["ends at SIGTERM", "ignores SIGTERM"])
def test_close_ends_it(program: Program, ignores: bool) -> None:
    body = ("import signal; signal.signal(15, signal.SIG_IGN);" if ignores else "") + "put(line(1)); time.sleep(60)"
    follower = Follower(invocation_id=INVOCATION, program=program(body))
    read_until(follower, lambda got: len(got) == 1)
    process = read_process(follower.pid)
    assert process is not None
    assert any(word.endswith("journalctl.py") for word in process.cmdline), (
        "the guard is gone, the program took its pid"
    )
    follower.close()
    follower.close()
    assert is_gone(process.pid, process.start_ticks, within=0.1)
    assert follower.read() == []


_PARENT = """
import sys, time
from ansible_collections.specdec.serving.plugins.module_utils._journal import Follower
follower = Follower(invocation_id=sys.argv[1], quick=sys.argv[2] == "quick", program=sys.argv[3:])
while not follower.read():
    time.sleep(0.01)
print(follower.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("start", ["guarded", "quick"])
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_it_dies_with_its_parent_even_while_silent(program: Program, signal_: signal.Signals, start: str) -> None:
    # It never writes again, so it would never notice that nobody reads.
    words = program("put(line(1)); time.sleep(600)")
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, INVOCATION, start, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / ".collections")},
    )
    assert parent.stdout is not None
    try:
        process = read_process(int(parent.stdout.readline()))
        assert process is not None
        parent.send_signal(signal_)
        parent.wait(timeout=10)
        assert is_gone(process.pid, process.start_ticks)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
