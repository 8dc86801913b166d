# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wait seen from the controller: hosts that fall silent, a controller that dies, what a host remembers, the way of clients."""

from __future__ import annotations

import json
import os
import signal
import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.observer.task import interrupt

A, B = "controller-a", "controller-b"
KEY = "sk-planted-key-9"

#: As a user without our ansible.cfg has it: nothing looks after the connection.
BARE = {"ANSIBLE_SSH_ARGS": "-C -o ControlMaster=auto -o ControlPersist=60s"}


# ---- silence


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="ansible.cfg"),
        pytest.param(BARE, id="bare", marks=pytest.mark.long("another configuration of ssh")),
    ],
)
def test_a_host_that_falls_silent_for_a_while_is_waited_for(controller: t.Any, environment: dict[str, str]) -> None:
    controller.server.start(A, loads_for=40)
    play = controller.start(A, environment=environment, timeout="120")
    controller.until_module(A, runs=True)
    with controller.black_hole(A) as end:
        lost = play.until("connection lost, trying again", 60)
        end()
    answer = play.end()[A]
    assert (answer["ready"], answer["failed"]) == (True, False), play.output
    # Noticed by the keepalives, not by TCP.
    assert lost.at < play.lines[-1].at


@pytest.mark.long("a host that is silent for a minute")
def test_a_silent_host_does_not_hold_up_the_others(controller: t.Any) -> None:
    controller.server.start(A, loads_for=300)
    controller.server.start(B, loads_for=25)
    play = controller.start(A, B, timeout="30")
    controller.until_module(A, runs=True)
    controller.until_module(B, runs=True)
    with controller.black_hole(A):
        verdict = play.until(f"ok: [{B}]", 60)
        results = play.end()
    assert "connection lost, trying again" in play.output
    given_up = next(line for line in play.lines if f"[{A}]: UNREACHABLE!" in line.text)
    assert results[B]["ready"], play.output
    assert A not in results
    # B's verdict came with B's server, A was given up only after its own timeout.
    assert results[B]["elapsed"] < 30
    assert given_up.at - verdict.at > 15, play.output


# ---- a controller that dies


@pytest.mark.parametrize("environment", [{}, {"ANSIBLE_PIPELINING": "0"}], ids=["pipelining", "no pipelining"])
@pytest.mark.parametrize("how", ["KILL", "INT"])
def test_nothing_is_left_of_a_dead_controller(controller: t.Any, how: str, environment: dict[str, str]) -> None:
    controller.server.start(A, loads_for=300)
    play = controller.start(A, environment=environment)
    controller.until_module(A, runs=True)
    time.sleep(1.0)
    if how == "KILL":
        os.kill(play.process.pid, signal.SIGKILL)
    else:
        interrupt(play.process, patience=5.0)
    assert controller.until_module(A, runs=False) < 10
    play.process.wait(timeout=30)


def test_no_pipelining(controller: t.Any) -> None:
    controller.server.start(A, loads_for=2)
    play, results = controller.run(A, environment={"ANSIBLE_PIPELINING": "0", **BARE})
    assert results[A]["ready"], play.output


# ---- several hosts


def test_too_few_forks_are_told_once(controller: t.Any) -> None:
    for name in (A, B):
        controller.server.start(name)
    play, results = controller.run(A, B, switches=("--forks", "1"))
    assert all(answer["ready"] for answer in results.values()), play.output
    assert play.output.count("[WARNING]: sglang_ready waits on 2 hosts") == 1
    assert "--forks 2" in play.output
    enough, _results = controller.run(A, B)
    assert "sglang_ready waits on" not in enough.output


# ---- what a host remembers


def test_verified_starts_are_remembered(controller: t.Any) -> None:
    server, host = controller.server, controller.hosts[A]
    path = f"{server.state_dir}/starts.jsonl"
    server.start(A, loads_for=10)
    _play, results = controller.run(A, timeout="auto")
    first = results[A]
    assert (first["ready"], first["timeout"]) == (True, 1350.0)
    again, _results = controller.run(A)
    assert "estimate" not in again.output

    (record,) = [json.loads(line) for line in host.exec(["cat", path]).stdout.splitlines()]
    assert record["invocation_id"] == first["invocation_id"]
    assert (record["cache"], record["model_path"], record["draft_model_path"], record["tp_size"]) == (
        "cold",
        "/models/stand-in-target",
        "/models/stand-in-draft",
        2,
    )
    # The stand-in was told to load for 10 s; what comes before and after scales with the machine.
    assert 9 < record["total_s"] < 60
    assert [phase for phase, _seconds in record["phases"]] == [phase["phase"] for phase in first["timeline"]]
    assert host.exec(["stat", "-c", "%U %a", path]).stdout.split() == ["root", "600"]

    # As if that start had been a warm one of 600 s.
    record.update(cache="warm", total_s=600.0, phases=[["starting", 100.0], ["loading_weights", 500.0]])
    cold = {**record, "cache": "cold", "total_s": 9000.0}
    host.write_file(path, "".join(json.dumps(item) + "\n" for item in (cold, record)), mode="0600", owner="root")
    server.start(A, loads_for=30)
    play, results = controller.run(A, timeout="auto")
    assert results[A]["timeout"] == 1800.0
    line = play.line(f"{A} | {server.unit} | loading_weights").text
    assert " s left" in line
    assert 440 < float(line.rpartition("about ")[2].split()[0]) <= 500

    # ... and of 5 s: this one takes longer.
    record.update(total_s=5.0, phases=[["starting", 1.0], ["loading_weights", 4.0]])
    host.write_file(path, json.dumps(cold) + "\n" + json.dumps(record) + "\n", mode="0600", owner="root")
    server.start(A, loads_for=300)
    play = controller.start(A)
    play.until("longer than the earlier start (5 s at most)")
    interrupt(play.process)


def test_check_mode_and_looking_once_remember_nothing(controller: t.Any) -> None:
    controller.server.start(A)
    controller.run(A, switches=("--check",))
    controller.run(A, wait=False)
    assert controller.hosts[A].exec(["ls", controller.server.state_dir], check=False).stdout == ""


# ---- bad input


@pytest.mark.parametrize("timeout", ["0", "-5", "nan", "soon"])
def test_a_timeout_that_is_none(controller: t.Any, timeout: str) -> None:
    play, results = controller.run(A, timeout=timeout)
    assert results[A]["failed"]
    assert f"timeout {timeout!r}" in results[A]["msg"], play.output
