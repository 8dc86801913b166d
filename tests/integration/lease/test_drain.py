# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Servers with requests of clients are stopped and restarted."""

from __future__ import annotations

import json
import time

import pytest

from ansible_collections.specdec.serving.tests.integration.lease.conftest import SECOND, Lab, slow_instance

KEY = "sk-planted-77aa01"
ADMIN_KEY = "adm-planted-77aa01"
NEW_KEY = "sk-planted-77aa02"


@pytest.fixture
def serving(lab: Lab) -> Lab:
    play = lab.play()
    assert play.returncode == 0, play.output
    return lab


@pytest.mark.parametrize("pipelining", ["1", pytest.param("0", marks=pytest.mark.long("files instead of a pipe"))])
def test_stop_lets_requests_end(serving: Lab, pipelining: str) -> None:
    client = serving.request(8)
    play = serving.play("stop.yml", "-v", environment={"ANSIBLE_PIPELINING": pipelining})
    assert play.returncode == 0, play.output
    assert client.answer() == {"reason": "length", "tokens": 8 * SECOND}
    assert serving.state() == "inactive"
    assert "its 1 request ended within" in play.output
    assert play.recap("role")["changed"] == 1


def test_stop_aborts_what_takes_too_long(serving: Lab) -> None:
    short, long = serving.request(5), serving.request(1000)
    started = time.monotonic()
    play = serving.play("stop.yml", "-v", sglang_drain_timeout=20)
    assert play.returncode == 0, play.output
    assert time.monotonic() - started < 60
    assert short.answer()["reason"] == "length"
    assert long.answer()["reason"] == "abort"
    assert serving.state() == "inactive"
    assert "sglang-a.service: 1 request was aborted after 20" in play.output
    # The line of a slice.
    assert "sglang-a.service | draining | 1 request left" in play.output


@pytest.mark.parametrize("change", ["stop", "deploy"])
def test_without_time_it_is_refused_unless_by_force(serving: Lab, change: str) -> None:
    client = serving.request(1000)
    invocation = serving.invocation()
    if change == "deploy":
        serving.variables["sglang_instances"] = [slow_instance(description="changed")]
    playbook = f"{change}.yml"
    play = serving.play(playbook, "--check", "--diff", sglang_drain_timeout=0)
    assert play.returncode == 0, play.output
    assert "sglang-a.service has requests running: 1. A real run would fail" in play.output
    play = serving.play(playbook, sglang_drain_timeout=0)
    assert play.returncode == 2, play.output
    assert "sglang-a.service has 1 request running. No time was given" in play.failure("role")
    assert (serving.invocation(), serving.state()) == (invocation, "active")
    assert client.waits()
    assert serving.lease()["held"] is False

    started = time.monotonic()
    play = serving.play(playbook, sglang_drain_timeout=0, sglang_force=True)
    assert play.returncode == 0, play.output
    assert time.monotonic() - started < 30
    assert client.answer()["reason"] == "abort"
    assert serving.invocation() != invocation or serving.state() == "inactive"


def test_a_restart_waits_and_tells_the_number(serving: Lab) -> None:
    serving.variables["sglang_instances"] = [slow_instance(description="changed"), slow_instance("b", port=30101)]
    assert serving.play().returncode == 0
    before = serving.invocation("sglang-a.service"), serving.invocation("sglang-b.service")
    clients = [serving.request(10), serving.request(10), serving.request(1000, port=30101)]
    serving.variables["sglang_instances"] = [slow_instance(description="again"), slow_instance("b", port=30101)]
    play = serving.play("deploy.yml", "--check")
    assert "sglang-a.service has requests running: 2. A real run would wait up to 60 s for them" in play.output
    play = serving.play("deploy.yml", "-v")
    assert play.returncode == 0, play.output
    assert [client.answer()["reason"] for client in clients[:2]] == ["length", "length"]
    assert serving.invocation("sglang-a.service") != before[0]
    # The one that did not change goes on.
    assert serving.invocation("sglang-b.service") == before[1]
    assert clients[2].waits()


@pytest.mark.long("a drain more")
def test_port_and_key_are_those_of_the_server_that_runs(lab: Lab) -> None:
    lab.variables["sglang_instances"] = [slow_instance(api_key=KEY, admin_api_key=ADMIN_KEY)]
    assert lab.play().returncode == 0
    clients = [lab.request(6, key=KEY), lab.request(1000, key=KEY)]
    lab.variables["sglang_instances"] = [slow_instance(port=30105, api_key=NEW_KEY)]
    play = lab.play("deploy.yml", "-vvv", sglang_drain_timeout=12)
    assert play.returncode == 0, play.output
    assert [client.answer()["reason"] for client in clients] == ["length", "abort"]
    for key in (KEY, ADMIN_KEY, NEW_KEY):
        assert key not in play.output


@pytest.mark.long("a drain more")
def test_a_server_that_cannot_be_asked_is_stopped_all_the_same(lab: Lab) -> None:
    fault = {"on": ["/v1/loads", "/get_load", "/metrics"], "do": "delay"}
    lab.variables["sglang_instances"] = [
        slow_instance(env={**slow_instance()["env"], "STAND_IN_FAULT": json.dumps(fault)})
    ]
    # Its handlers do not end either, so that systemd has to end it.
    lab.variables["sglang_stop_timeout"] = 10
    assert lab.play().returncode == 0
    started = time.monotonic()
    play = lab.play("stop.yml", "-v", sglang_drain_timeout=100)
    assert play.returncode == 0, play.output
    assert time.monotonic() - started < 60
    assert "could not be asked for its requests" in play.output
    # It was killed.
    assert lab.state() == "failed"
