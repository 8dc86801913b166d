# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Playbooks that want the same host at once, are killed, or lose it to another one."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import re

import pytest

from ansible_collections.specdec.serving.tests.integration.lease.conftest import Lab, slow_instance, wait_until

#: A start that takes long enough for others to come, and one that does not end.
SOME_SECONDS = {"STAND_IN_SCALE": "0.002", "STAND_IN_TIMES": json.dumps({"load_target": 2500})}
LONGER = {"STAND_IN_SCALE": "0.002", "STAND_IN_TIMES": json.dumps({"load_target": 12_000})}
FOR_EVER = {"STAND_IN_SCALE": "0.002", "STAND_IN_TIMES": json.dumps({"load_target": 100_000})}
WITHOUT_PIPELINING = {"ANSIBLE_PIPELINING": "0"}


def loading(lab: Lab) -> bool:
    return bool(lab.lease()["held"]) and lab.state() == "active"


def test_two_at_once(lab: Lab) -> None:
    assert lab.play().returncode == 0
    labs = []
    for number in (0, 1):
        folder = lab.folder / str(number)
        folder.mkdir()
        one = slow_instance(env={**SOME_SECONDS, "WHO": f"run-{number}"}, description=f"run-{number}")
        labs.append(dataclasses.replace(lab, folder=folder, variables={**lab.variables, "sglang_instances": [one]}))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        plays = list(pool.map(Lab.play, labs))
    assert sorted(play.returncode for play in plays) == [0, 2], [play.output for play in plays]
    winner = 0 if plays[0].returncode == 0 else 1
    said = plays[1 - winner].failure("role")
    assert said.startswith("another run holds the lease of this host: ")
    assert "play 'Deploy SGLang'), for deploy, since " in said
    assert plays[1 - winner].recap("role")["changed"] == 0
    # Nothing is mixed.
    text = lab.unit_text()
    assert f"Description=run-{winner}\n" in text
    assert f"run-{1 - winner}" not in text
    (variables,) = lab.host.exec(["sh", "-c", "cat /etc/specdec/sglang/a.*.env | grep WHO"]).stdout.splitlines()
    assert variables == f'WHO="run-{winner}"'
    assert lab.lease()["held"] is False

    # One that is willing to wait has its turn.
    labs[winner].variables["sglang_instances"] = [slow_instance(env=LONGER)]
    with labs[winner].beside() as first:
        wait_until(lambda: lab.lease()["held"])
        play = labs[1 - winner].play(sglang_lease_wait=100)
        assert play.returncode == 0, play.output
        assert first.result().returncode == 0
    assert re.search(r"waiting up to \d+ s for the lease of the host: ", play.output), play.output
    assert f"Description=run-{1 - winner}\n" in lab.unit_text()


@pytest.mark.parametrize(
    "pipelining",
    [
        pytest.param({}, id="pipelining"),
        pytest.param(WITHOUT_PIPELINING, id="files", marks=pytest.mark.long("files instead of a pipe")),
    ],
)
def test_one_that_was_killed_stands_in_nobodys_way(lab: Lab, pipelining: dict[str, str]) -> None:
    lab.variables["sglang_instances"] = [slow_instance(env=FOR_EVER)]
    with lab.beside(environment=pipelining) as killed:
        wait_until(lambda: loading(lab))
        killed.kill()
        lab.variables["sglang_instances"] = [slow_instance()]
        if not pipelining:
            told = lab.play("status.yml").output
            assert "for deploy, since" in told
            assert "its ansible-playbook has ended, so the next run takes it" in told
        play = lab.play(environment=pipelining)
    assert play.returncode == 0, play.output
    assert "its ansible-playbook has ended" in play.output
    assert lab.lease()["held"] is False


def test_one_of_another_controller(lab: Lab) -> None:
    lab.variables["sglang_instances"] = [slow_instance(env=FOR_EVER)]
    with lab.beside() as killed:
        wait_until(lambda: loading(lab))
        killed.kill()
    record = lab.lease()
    elsewhere = {**record["owner"], "boot": "0" * 32, "host": "elsewhere"}
    lab.edit_lease(owner=elsewhere)
    lab.variables["sglang_instances"] = [slow_instance()]
    before = lab.snapshot()
    play = lab.play("deploy.yml", "--check")
    assert play.returncode == 0, play.output
    assert "A real run would fail" in play.output
    for playbook in ("deploy.yml", "stop.yml"):
        play = lab.play(playbook)
        assert play.returncode == 2, play.output
        assert "@elsewhere (ansible-playbook with pid" in play.failure("role")
    assert lab.snapshot() == before
    # Looking needs no lease.
    play = lab.play("status.yml")
    assert play.returncode == 0, play.output
    assert re.search(r"role: held by \S+@elsewhere .*, for deploy, since .*; it expires in \d+ s unless", play.output)
    assert "has ended" not in play.output
    assert "no trial is in force" in play.output
    assert lab.play("deploy.yml", "--tags", "sglang_preflight").returncode == 0

    # It expires: the clock of the host is what counts.
    lab.edit_lease(renewed=record["renewed"] - 900)
    play = lab.play()
    assert play.returncode == 0, play.output
    assert "it had expired" in play.output


def test_taken_over_midway(lab: Lab) -> None:
    lab.variables["sglang_instances"] = [slow_instance(env=FOR_EVER, description="first")]
    with lab.beside() as first:
        wait_until(lambda: loading(lab))
        lab.variables["sglang_instances"] = [slow_instance(description="second")]
        assert lab.play().returncode == 2
        play = lab.play(sglang_lease_force=True)
        assert play.returncode == 0, play.output
        assert "it was taken by force" in play.output
        invocation, before = lab.invocation(), lab.snapshot()
        said = first.result()
    assert said.returncode == 2, said.output
    assert "the lease of this host was taken over, so this run changes nothing here any more" in said.failure("role")
    assert (lab.invocation(), lab.snapshot()) == (invocation, before)
    assert "Description=second\n" in lab.unit_text()


def test_a_failed_run_and_several_in_one_play_give_it_back(lab: Lab) -> None:
    lab.variables["sglang_instances"] = [
        slow_instance(
            env={
                **SOME_SECONDS,
                "STAND_IN_FAULT": json.dumps({"at": "load_target", "do": "exit", "code": 1, "who": "ranks"}),
            }
        )
    ]
    assert lab.play().returncode == 2
    assert lab.lease()["held"] is False

    lab.variables["sglang_instances"] = [slow_instance()]
    helper = lab.folder / "twice.yml"
    helper.write_text(
        json.dumps(
            [
                {
                    "hosts": "sglang",
                    "gather_facts": False,
                    "become": True,
                    "tasks": [
                        {
                            "specdec.serving.sglang_lease": {"purpose": "sweep"},
                            "register": "outer",
                        },
                        *(
                            {
                                "ansible.builtin.include_role": {"name": "specdec.serving.sglang"},
                                "vars": {"number": number},
                            }
                            for number in (1, 2)
                        ),
                        {"specdec.serving.sglang_lease": {"state": "shown"}, "register": "shown"},
                        {
                            "ansible.builtin.assert": {
                                "that": [
                                    "shown.lease.purposes == ['sweep']",
                                    "shown.lease.token == outer.token",
                                ]
                            }
                        },
                        {"specdec.serving.sglang_lease": {"state": "free", "token": "{{ outer.token }}"}},
                    ],
                }
            ]
        )
    )
    play = lab.play(str(helper))
    assert play.returncode == 0, play.output
    assert lab.lease()["held"] is False
