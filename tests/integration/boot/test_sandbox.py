# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The units' sandbox where the host allows all of it, and where it is a container that may not do everything."""

from __future__ import annotations

import json
import re
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._hardening import HARDENING
from ansible_collections.specdec.serving.tests.integration.boot.conftest import Machine
from ansible_collections.specdec.serving.tests.integration.role.conftest import Deployment
from ansible_collections.specdec.serving.tests.support.lab.client import up
from ansible_collections.specdec.serving.tests.support.stand_in.inventory import instance

SETTINGS = {setting for directive in HARDENING for setting in directive.settings}


def written(machine: Machine) -> set[str]:
    return set(machine.host.exec(["cat", "/etc/systemd/system/sglang-a.service"]).stdout.splitlines()) & SETTINGS


def score(machine: Machine) -> float:
    told = machine.host.exec(["systemd-analyze", "security", "--no-pager", "sglang-a.service"]).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert found, told
    return float(found.group(1))


def test_all_of_it_works_on_a_host_that_may_do_everything(machine: Machine) -> None:
    play = machine.deploy(instance())
    assert play.returncode == 0, play.output
    assert "the units run without" not in play.output
    assert written(machine) == SETTINGS
    assert score(machine) <= 3.0
    pid = machine.shown("sglang-a.service", "MainPID")["MainPID"]
    status = machine.host.exec(["cat", f"/proc/{pid}/status"]).stdout
    for line in ("NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000"):
        assert line in status


#: Plays a host on which one setting cannot be had: systemd fails at step NAMESPACE.
REFUSING = """#!/bin/sh
for word; do case "$word" in ProtectProc=*) exit 226;; esac; done
exec /usr/bin/systemd-run "$@"
"""


@pytest.fixture
def refusing(machine: Machine) -> t.Iterator[Machine]:
    machine.host.write_file("/usr/local/bin/systemd-run", REFUSING, mode="0755")
    yield machine
    machine.host.exec(["rm", "/usr/local/bin/systemd-run"])


def test_what_the_host_refuses_is_left_out_and_told(refusing: Machine) -> None:
    play = refusing.deploy(instance())
    assert play.returncode == 0, play.output
    assert "the units run without ProtectProc=: systemd fails at step NAMESPACE" in play.output
    assert SETTINGS - written(refusing) == {"ProtectProc=invisible"}
    again = refusing.play()
    assert again.returncode == 0, again.output
    assert again.recap(refusing.host.name)["changed"] == 0
    # Where it works, it comes back, with a restart.
    refusing.host.exec(["mv", "/usr/local/bin/systemd-run", "/usr/local/bin/refusing"])
    play = refusing.play()
    refusing.host.exec(["mv", "/usr/local/bin/refusing", "/usr/local/bin/systemd-run"])
    assert play.returncode == 0, play.output
    assert written(refusing) == SETTINGS


#: Deploy, deploy again and look, in one play.
TWICE = [
    {
        "hosts": "sglang",
        "gather_facts": False,
        "become": True,
        "tasks": [
            *(
                {"name": name, "ansible.builtin.include_role": {"name": "specdec.serving.sglang", **tasks_from}}
                for name, tasks_from in (("Once", {}), ("Twice", {}), ("Look", {"tasks_from": "status"}))
            ),
            {"ansible.builtin.assert": {"that": "sglang_status | map(attribute='drift') == [[]]"}},
        ],
    }
]


@pytest.mark.long("a deployment more")
def test_the_role_run_twice_in_a_play_tries_all_of_it_each_time(refusing: Machine) -> None:
    """What was refused before is asked of the host again, and of two hosts each keeps its own."""
    deployment = refusing.deployment
    other = up(["boot-other"])["boot-other"]
    deployment.hosts["boot-other"] = Deployment(other, deployment.folder).connection()
    helper = deployment.folder / "twice.yml"
    helper.write_text(json.dumps(TWICE))
    play = refusing.play(str(helper))
    assert play.returncode == 0, play.output
    assert SETTINGS - written(refusing) == {"ProtectProc=invisible"}
    assert set(other.exec(["cat", "/etc/systemd/system/sglang-a.service"]).stdout.splitlines()) >= SETTINGS
    once = play.output.partition("TASK [Twice]")[0]
    for host in deployment.hosts:
        # What came after the first deployment found nothing to be changed.
        assert play.recap(host)["changed"] == len(re.findall(rf"^changed: \[{host}\]", once, re.MULTILINE)) > 0


@pytest.fixture
def private(machine: Machine) -> t.Iterator[Machine]:
    """The root mounted as container managers do it: credentials get lost on the way, and systemd 252 says nothing."""
    machine.host.exec(["mount", "--make-rprivate", "/"])
    yield machine
    machine.host.exec(["mount", "--make-rshared", "/"])


def test_where_credentials_get_lost_the_key_lies_in_a_file_for_the_service(private: Machine) -> None:
    play = private.deploy(instance(api_key="sk-planted-5be1c7"))
    assert play.returncode == 0, play.output
    assert "credentials do not reach a unit here" in play.output
    text = private.host.exec(["cat", "/etc/systemd/system/sglang-a.service"]).stdout
    assert "LoadCredential=" not in text
    assert "sk-planted-5be1c7" not in text
    modes = private.host.exec(["sh", "-c", "stat -c '%a %U %G' /etc/specdec/sglang/credentials/*"]).stdout.split("\n")
    assert modes == ["640 root sglang", ""]
    again = private.play()
    assert again.returncode == 0, again.output
    assert again.recap(private.host.name)["changed"] == 0
