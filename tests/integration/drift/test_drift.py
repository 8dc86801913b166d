# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Each way in which a host comes apart from its inventory: `status` names the value and the place, `deploy` heals it."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.tests.integration.drift.conftest import (
    KEY,
    MODEL,
    TOKEN,
    WHEELHOUSE,
    Row,
    status,
)
from ansible_collections.specdec.serving.tests.integration.role.conftest import Deployment

UNIT = "/etc/systemd/system/sglang-a.service"
DROP_IN = f"{UNIT}.d/override.conf"
OTHER_KEY, OTHER_TOKEN = "sk-planted-other-a61", "hf_planted_other_a61"
PLANTED = (KEY, TOKEN, OTHER_KEY, OTHER_TOKEN)


def shell(deployment: Deployment, script: str) -> str:
    return deployment.host.exec(["sh", "-ec", script]).stdout


def change(deployment: Deployment, **changes: t.Any) -> None:
    """Change the instance in the inventory; a mapping is added to what is there."""
    (asked,) = deployment.variables["sglang_instances"]
    merged = {
        name: {**asked.get(name, {}), **value} if isinstance(value, dict) else value for name, value in changes.items()
    }
    deployment.variables["sglang_instances"] = [{**asked, **merged}]


def heal(deployment: Deployment) -> None:
    play = deployment.play()
    assert play.returncode == 0, play.output
    after = status(deployment)
    assert (after.state, after.word, after.rows) == ("ready", "as asked", [])


def test_as_asked(deployed: Deployment) -> None:
    before = (deployed.snapshot(), deployed.invocation())
    for switches, pipelining in (("-vvvvv", "0"), ("--check", "1")):
        found = status(deployed, switches, environment={"ANSIBLE_PIPELINING": pipelining})
        assert (found.state, found.word, found.rows) == ("ready", "as asked", [])
        assert not [secret for secret in PLANTED if secret in found.play.output]
    assert (deployed.snapshot(), deployed.invocation()) == before


def test_the_unit_was_edited(deployed: Deployment) -> None:
    first = deployed.invocation()
    shell(deployed, f"sed -i -e 's/--page-size 64/--page-size 32/' -e 's/^TasksMax=.*/TasksMax=4000/' {UNIT}")
    files = [
        Row("unit file", "page_size", "64", "32", "deploy"),
        Row("unit file", "TasksMax", "infinity", "4000", "deploy"),
    ]
    process = Row("running process", "page_size", "32", "64", "deploy")
    found = status(deployed)
    assert found.rows == [*files, Row("systemd", "NeedDaemonReload", "no", "yes", "deploy"), process]
    assert (found.state, found.word) == ("ready", "4 differ")

    shell(deployed, "systemctl daemon-reload")
    assert status(deployed).rows == [*files, process]

    shell(deployed, "systemctl restart sglang-a.service")
    restarted = deployed.invocation()
    assert restarted != first
    # The server may not have answered yet; what it says is no news.
    assert status(deployed).rows == files

    heal(deployed)
    assert deployed.invocation() not in (first, restarted)


def test_the_environment_file_was_edited(deployed: Deployment) -> None:
    shell(deployed, "sed -i 's/^NCCL_DEBUG=.*/NCCL_DEBUG=\"WARN\"/' /etc/specdec/sglang/a.*.env")
    assert status(deployed).rows == [
        Row("environment file", "NCCL_DEBUG", "INFO", "WARN", "deploy"),
        Row("running process", "NCCL_DEBUG", "WARN", "INFO", "deploy"),
    ]
    heal(deployed)


def test_the_inventory_changed_and_was_not_deployed(deployed: Deployment) -> None:
    first = deployed.invocation()
    change(
        deployed,
        args={"mem_fraction_static": 0.8, "log_requests": True},
        env={"NCCL_DEBUG": None, "NCCL_P2P_DISABLE": "1", "HF_TOKEN": OTHER_TOKEN},
        api_key=OTHER_KEY,
        served_model_name="another",
    )
    found = status(deployed, "-vvv")
    assert [row for row in found.rows if row.name != "Description"] == [
        Row("unit file", "log_requests", "set", "-", "deploy"),
        Row("unit file", "mem_fraction_static", "0.8", "0.85", "deploy"),
        Row("unit file", "served_model_name", "another", "a", "deploy"),
        Row("environment file", "HF_TOKEN", "(secret)", "(another secret)", "deploy"),
        Row("environment file", "NCCL_DEBUG", "-", "INFO", "deploy"),
        Row("environment file", "NCCL_P2P_DISABLE", "1", "-", "deploy"),
        Row("key file", "api_key", "(secret)", "(another secret)", "deploy"),
    ]
    assert not [secret for secret in PLANTED if secret in found.play.output]
    assert deployed.invocation() == first
    heal(deployed)


@pytest.mark.long("one difference more")
def test_another_engine(deployed: Deployment) -> None:
    deployed.variables["sglang_wheelhouse"] = WHEELHOUSE
    (row,) = status(deployed).rows
    assert (row.where, row.name, row.needs) == ("engine", "engine", "deploy")
    assert row.asked.startswith("0.5.23-")
    assert row.found.startswith("0.5.23-")
    assert row.asked != row.found
    heal(deployed)


def test_keys_that_changed_since_the_start(deployed: Deployment) -> None:
    script = (
        f"sed -i 's/{TOKEN}/{OTHER_TOKEN}/' /etc/specdec/sglang/a*.secret.env;"
        f" sed -i 's/{KEY}/{OTHER_KEY}/' /etc/specdec/sglang/credentials/a*.yaml"
    )
    shell(deployed, script)
    change(deployed, api_key=OTHER_KEY, env={"HF_TOKEN": OTHER_TOKEN})
    found = status(deployed, "-vvv")
    assert found.rows[:2] == [
        Row("running process", "HF_TOKEN", "(secret)", "(another secret)", "restart"),
        Row("running process", "api_key", "(secret)", "(another secret)", "restart"),
    ]
    assert not [secret for secret in PLANTED if secret in found.play.output]
    heal(deployed)


def test_a_drop_in(deployed: Deployment) -> None:
    first = deployed.invocation()
    lines = r"[Service]\nEnvironment=NCCL_P2P_DISABLE=1\nTasksMax=4000\n"
    shell(deployed, f"mkdir -p {UNIT}.d; printf '{lines}' > {DROP_IN}")
    there = [
        Row(f"drop-in {DROP_IN}", "NCCL_P2P_DISABLE", "-", "1", "nothing"),
        Row(f"drop-in {DROP_IN}", "TasksMax", "infinity", "4000", "nothing"),
    ]
    process = Row("running process", "NCCL_P2P_DISABLE", "1", "-", "restart")
    assert status(deployed).rows == [Row("systemd", "NeedDaemonReload", "no", "yes", "deploy"), *there, process]

    # A deployment takes it as it is: it is read, the server restarted with it, and its author told.
    play = deployed.play()
    assert play.returncode == 0, play.output
    assert deployed.invocation() != first
    assert f"the drop-in {DROP_IN} sets Environment, TasksMax" in " ".join(play.output.split())
    assert status(deployed).rows == there
    assert deployed.play().recap("role")["changed"] == 0

    shell(deployed, f"rm -r {UNIT}.d; systemctl daemon-reload")
    process = Row("running process", "NCCL_P2P_DISABLE", "-", "1", "restart")
    assert status(deployed).rows == [process]
    # A variable may come from elsewhere: no deployment restarts a server for that.
    assert deployed.play().recap("role")["changed"] == 0
    shell(deployed, "systemctl restart sglang-a.service")
    heal(deployed)


def test_another_model_is_served(deployed: Deployment) -> None:
    command = shell(deployed, "cat /proc/$(systemctl show -P MainPID sglang-a.service)/cmdline | tr '\\0' ' '").strip()
    words = command.replace("/models/stand-in-target", MODEL).replace(
        "/run/credentials/sglang-a.service", "${CREDENTIALS_DIRECTORY}"
    )
    deployed.host.exec(["mkdir", "-p", f"{UNIT}.d"])
    deployed.host.write_file(DROP_IN, f"[Service]\nExecStart=\nExecStart={words}\n")
    shell(deployed, "systemctl daemon-reload; systemctl restart sglang-a.service")
    found = status(deployed)
    assert found.rows == [Row(f"drop-in {DROP_IN}", "model_path", "/models/stand-in-target", MODEL, "nothing")]

    play = deployed.play()
    assert play.returncode != 0
    assert "wrong_model_path" in play.failure("role")
    assert status(deployed).state == "not as asked"

    # Its author took it back, and did not restart: the files are as asked, and systemd has read them.
    shell(deployed, f"rm -r {UNIT}.d; systemctl daemon-reload")
    assert status(deployed).rows == [Row("running process", "model_path", "/models/stand-in-target", MODEL, "restart")]
    assert deployed.play("deploy.yml", "--check").returncode == 0
    heal(deployed)
    assert deployed.play().recap("role")["changed"] == 0


@pytest.mark.long("one difference more")
def test_boot_and_what_does_not_run(deployed: Deployment) -> None:
    shell(deployed, "systemctl disable --quiet sglang-a.service")
    assert status(deployed).rows == [Row("start at boot", "UnitFileState", "enabled", "disabled", "deploy")]
    heal(deployed)
    assert deployed.play("stop.yml").returncode == 0
    found = status(deployed)
    assert (found.state, found.word) == ("stopped", "as asked")
    change(deployed, args={"page_size": 16})
    assert status(deployed).rows == [Row("unit file", "page_size", "16", "64", "deploy")]

    shell(deployed, f"rm {UNIT}; systemctl daemon-reload")
    assert status(deployed).rows == [Row("unit file", "file", UNIT, "-", "deploy")]
    heal(deployed)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        pytest.param({"sglang_wheelhouse": "/nowhere"}, "'/nowhere' is no folder on this host", id="no wheelhouse"),
    ],
)
def test_what_cannot_be_compared_is_still_shown(deployed: Deployment, variables: dict[str, t.Any], reason: str) -> None:
    deployed.variables.update(variables)
    found = status(deployed)
    assert (found.state, found.word, found.rows) == ("ready", "not compared", [])
    assert reason in found.play.output
