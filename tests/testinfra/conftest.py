# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests of what a deployment left on a host, seen over SSH. Each runs for every host and every instance of it.

Run by the Molecule scenarios, or by hand on the demo's hosts:
``pytest tests/testinfra --hosts=ansible://sglang --ansible-inventory=inventories/demo``
"""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import typing as t

import pytest
from testinfra.host import Host


@dataclasses.dataclass(frozen=True)
class Instance:
    """What the inventory says of one instance; expressions in it are not worked out."""

    name: str
    port: int
    served_model_name: str

    @property
    def unit(self) -> str:
        return f"sglang-{self.name}.service"


@functools.cache
def _variables(inventory: str, host: str) -> dict[str, t.Any]:
    words = ["ansible-inventory", "--inventory", inventory, "--host", host]
    answer: dict[str, t.Any] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return answer


@functools.cache
def _hosts(inventory: str) -> list[str]:
    words = ["ansible-inventory", "--inventory", inventory, "--list"]
    answer = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    hosts: list[str] = answer["sglang"]["hosts"]
    return hosts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test every pair of host and instance, so that a host without an instance cannot pass unseen."""
    if "instance" not in metafunc.fixturenames:
        return
    inventory = metafunc.config.getoption("--ansible-inventory")
    if not inventory:
        raise pytest.UsageError("tests/testinfra needs --ansible-inventory=INVENTORY")
    pairs = [
        pytest.param(
            f"ansible://{host}",
            Instance(name=row["name"], port=row["port"], served_model_name=row["served_model_name"]),
            id=f"{host}-{row['name']}",
        )
        for host in _hosts(inventory)
        for row in _variables(inventory, host)["sglang_instances"]
    ]
    metafunc.parametrize(("_testinfra_host", "instance"), pairs, indirect=["_testinfra_host"], scope="module")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> t.Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failed test what the host knows about the unit."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    host, instance = arguments.get("host"), arguments.get("instance")
    if report.failed and isinstance(host, Host) and isinstance(instance, Instance):
        for command in (
            f"systemctl show --no-pager {instance.unit}",
            f"journalctl --no-pager --lines=200 --unit={instance.unit}",
            f"ss -H --listening --numeric --tcp --processes 'sport = :{instance.port}'",
        ):
            done = host.run(command)
            report.sections.append((f"{command} (exit status {done.rc})", done.stdout + done.stderr))
    return report
