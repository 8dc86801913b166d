# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests of what a deployment left on a host, seen over SSH. Each runs for every host and every instance of it.

Run by the Molecule scenarios, or by hand on the demo's hosts:
``pytest tests/testinfra --ansible-inventory=inventories/demo``
"""

from __future__ import annotations

import dataclasses
import functools
import time
import typing as t
from pathlib import Path

import pytest
import testinfra
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager
from testinfra.host import Host

from ansible_collections.specdec.serving.tests.support.observer.task import answer_of, play_argv, start

#: Runs tasks on the host and gives the result of the last one.
Run = t.Callable[..., "dict[str, t.Any]"]


@dataclasses.dataclass(frozen=True)
class Instance:
    """What the inventory says of one instance."""

    name: str
    port: int
    served_model_name: str
    api_key: str = dataclasses.field(repr=False)

    @property
    def unit(self) -> str:
        return f"sglang-{self.name}.service"


@functools.cache
def _instances(inventory: str) -> list[tuple[str, Instance]]:
    """Return each host of the inventory with each of its instances, expressions worked out."""
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[inventory])
    variables = VariableManager(loader=loader, inventory=manager)
    found = []
    for host in manager.get_hosts("sglang"):
        known = variables.get_vars(host=host)
        for row in Templar(loader=loader, variables=known).template(known["sglang_instances"]):
            wanted = {field.name: row.get(field.name, "") for field in dataclasses.fields(Instance)}
            found.append((host.get_name(), Instance(**wanted)))
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test every pair of host and instance."""
    if "deployed" not in metafunc.fixturenames:
        return
    inventory = metafunc.config.getoption("--ansible-inventory")
    if not inventory:
        raise pytest.UsageError("tests/testinfra needs --ansible-inventory=INVENTORY")
    pairs = [pytest.param(pair, id=f"{pair[0]}-{pair[1].name}") for pair in _instances(inventory)]
    metafunc.parametrize("deployed", pairs, indirect=True, scope="module")


@pytest.fixture(scope="module")
def deployed(request: pytest.FixtureRequest) -> tuple[str, Instance]:
    """A host's name in the inventory and one of its instances."""
    pair: tuple[str, Instance] = request.param
    return pair


@pytest.fixture(scope="module")
def instance(deployed: tuple[str, Instance]) -> Instance:
    """What the inventory says of the instance."""
    return deployed[1]


@pytest.fixture(scope="module")
def host(deployed: tuple[str, Instance], request: pytest.FixtureRequest) -> t.Iterator[Host]:
    """The host that the instance belongs to, looked at as root by sudo.

    pytest-testinfra's own fixture would pair every host with every instance.
    """
    inventory = request.config.getoption("--ansible-inventory")
    login = testinfra.get_host(f"ansible://{deployed[0]}", ansible_inventory=inventory)
    with login.sudo():
        yield login


@pytest.fixture
def run(deployed: tuple[str, Instance], tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Run tasks on the host, and give the result of the last one."""
    inventory = Path(request.config.getoption("--ansible-inventory")).resolve()

    def tasks(*all_of_them: dict[str, t.Any]) -> dict[str, t.Any]:
        argv = play_argv(tmp_path, inventory, all_of_them, ["--limit", deployed[0]])
        return answer_of(start(argv), timeout=400)[1]

    return tasks


def restart_task(instance: Instance) -> dict[str, t.Any]:
    """Restart the unit, and do not wait. Restarts by hand count for the start limit too, as the role knows."""
    script = f"systemctl reset-failed {instance.unit}; systemctl restart --no-block {instance.unit}"
    return {"name": "Restart the unit", "ansible.builtin.shell": script}


def ready_task(instance: Instance, **options: t.Any) -> dict[str, t.Any]:
    """Prove that the unit is ready."""
    parameters = {"unit": instance.unit, "port": instance.port, "model": instance.served_model_name, **options}
    if instance.api_key:
        parameters["api_key"] = instance.api_key
    return {"name": "Prove readiness", "specdec.serving.sglang_ready": parameters}


def until(condition: t.Callable[[], bool], what: str, seconds: float = 180.0) -> None:
    """Wait for something on the host."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.5)


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
