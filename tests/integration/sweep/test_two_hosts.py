# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts share a study: in one run of Ansible, and in two that share a database. Part of `make test-long`."""

from __future__ import annotations

import json
import re
import time
import typing as t
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.benchmark.conftest import measuring_host
from ansible_collections.specdec.serving.tests.integration.role.conftest import Deployment
from ansible_collections.specdec.serving.tests.integration.sweep.conftest import (
    SWEEP_VARIABLES,
    Sweeping,
    swept_instance,
)
from ansible_collections.specdec.serving.tests.support.lab.client import Host
from ansible_collections.specdec.serving.tests.support.postgresql import cluster as postgresql
from ansible_collections.specdec.serving.tests.support.toolchain.packages import MissingPackageError

pytestmark = pytest.mark.long("sweeps on two hosts")

#: Two hosts share them: so many that what each host does once weighs little.
CONFIGURATIONS = 16
#: Of a start; a tenth of the story's 210 s.
SCALE = "0.1"
#: At most so much of one host's time.
GOAL = 0.6
#: With what has to be quoted in a URL.
PASSWORD, QUOTED = "planted/p%w-1", "planted%2Fp%25w-1"


@pytest.fixture(scope="module")
def second_host(sweep_host: Host) -> Host:
    return measuring_host("sweep-2")


def connected(host: Host, folder: Path) -> dict[str, t.Any]:
    return Deployment(host, folder).connection()


@pytest.fixture
def both(sweep_host: Host, second_host: Host, tmp_path: Path) -> Sweeping:
    """One inventory with both hosts, each with the same instance."""
    variables = {**SWEEP_VARIABLES, "sglang_instances": [swept_instance(env={"STAND_IN_SCALE": SCALE})]}
    variables |= {"sglang_ready_timeout": "120", "sglang_ready_stall_timeout": 30, "sglang_trial_hold": 300}
    hosts = {"one": {}, "two": connected(second_host, tmp_path)}
    deployment = Deployment(sweep_host, tmp_path, hosts=hosts, variables=variables)
    deployed = deployment.play(timeout=600)
    assert deployed.returncode == 0, deployed.output[-4000:]
    return Sweeping(deployment, tmp_path)


def rows(output: str) -> list[tuple[int, str, str]]:
    """Trial, host and verdict of the last table; without a host where there was only one."""
    table = output[output.rindex("why not") :]
    return [
        (int(number), host, verdict)
        for number, host, verdict in re.findall(r"(?:^|\\n|\n)\s*[★\d]*\s+(\d+)\s+(?:(one|two)\s+)?([a-z_]+)\s", table)
    ]


def test_two_hosts_take_little_more_than_half_the_time(
    both: Sweeping, second_host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    took, shared = {}, []
    for name, limit in (("one", "one"), ("both", "one,two")):
        # Equal trials: a variable that nothing heeds. Each sweep is a study of its own.
        both.write({"env.SWEEP_TEST": [f"{name}-{number}" for number in range(CONFIGURATIONS)]})
        began = time.monotonic()
        swept = both.sweep("--limit", limit, timeout=3000, study=name)
        took[name] = time.monotonic() - began
        assert swept.returncode == 0, swept.output[-6000:]
        shared = rows(swept.output)
        assert all(verdict == "complete" for _number, _host, verdict in shared), swept.output[-6000:]
        # The instance as it is: first, in the middle and at the end; with two hosts on each of them first and at its end.
        assert len(shared) == CONFIGURATIONS + (3 if name == "one" else 4), swept.output[-6000:]
    hosts = Counter(host for _number, host, _verdict in shared)
    ratio = took["both"] / took["one"]
    with capsys.disabled():
        print(
            f"\n{CONFIGURATIONS} configurations on one host in {took['one']:.0f} s, on two in {took['both']:.0f} s:"
            f" {ratio:.3f} (goal {GOAL}); trials by host {dict(hosts)}"
        )
    # Each trial left one record, of the host that the table names.
    records = both.records()
    assert len(records) == 2 * CONFIGURATIONS + 3 + 4
    assert Counter(record["host"]["name"] for record in records) == hosts + Counter(one=CONFIGURATIONS + 3)
    assert both.is_own()
    assert Sweeping(Deployment(second_host, both.folder), both.folder).is_own()
    assert ratio <= GOAL


def test_the_winner_is_deployed_on_both_once_both_are_done(both: Sweeping, second_host: Host) -> None:
    slow, fast = ({"STAND_IN_TIMES": json.dumps({"decode_step": seconds})} for seconds in (2.0, 0.2))
    own = swept_instance(env={"STAND_IN_SCALE": "0.02", **slow})
    both.deployment.variables["sglang_instances"] = [own]
    assert both.deployment.play(timeout=600).returncode == 0
    both.write({"env.STAND_IN_TIMES": list(fast.values()), "speculative_dflash_block_size": [8, 4]})
    swept = both.sweep(sweep_apply=True, timeout=1200)
    assert swept.returncode == 0, swept.output[-6000:]
    for host in (both.host, second_host):
        assert f"STAND_IN_TIMES={fast['STAND_IN_TIMES']}" in both.environment(host)


@pytest.fixture
def storage(second_host: Host) -> Iterator[str]:
    try:
        with postgresql.running() as cluster:
            cluster.sql(f"CREATE ROLE sweeper LOGIN PASSWORD '{PASSWORD}'", "CREATE DATABASE studies OWNER sweeper")
            yield cluster.url("sweeper", QUOTED, "studies")
    except MissingPackageError as error:
        pytest.skip(str(error))


def test_two_runs_share_a_database_and_one_is_killed(
    both: Sweeping, second_host: Host, storage: str, tmp_path: Path
) -> None:
    # In the inventory, as a vault would give it; never in a command line.
    both.deployment.variables |= {"sglang_sweep_storage": storage, "sglang_trial_hold": 60}
    both.write({"env.SWEEP_TEST": ["1", "2", "3"]})
    (tmp_path / "other").mkdir()
    hosts = {"two": connected(second_host, tmp_path)}
    other = Sweeping(
        Deployment(second_host, tmp_path / "other", hosts=hosts, variables=both.deployment.variables),
        tmp_path / "other",
    )
    both.deployment.hosts.pop("two")
    other.sweep_file = both.sweep_file
    killed = other.start()
    try:
        assert other.wait_for_task("Note when it began", 1, killed)
        running = both.start()
        assert other.wait_for_task("Measure", 1, killed)
    finally:
        other.kill(killed)
    assert running.wait(900) == 0, both.output.read_text()[-6000:]
    output = both.output.read_text()
    ran = rows(output)
    assert all(verdict == "complete" for _number, _host, verdict in ran), output[-6000:]
    # Whatever the killed one had under way was recovered, but for a baseline, which is its host's own affair.
    again = other.sweep()
    assert again.returncode == 0, again.output[-6000:]
    ended = rows(again.output)
    numbers = [number for number, _host, _verdict in ended]
    assert sorted(numbers) == sorted(set(numbers))
    assert all(verdict == "complete" for _number, _host, verdict in ended), again.output[-6000:]
    for text in (output, other.output.read_text(), again.output, json.dumps(both.records())):
        assert PASSWORD not in text
        assert QUOTED not in text
    assert both.is_own()
    assert other.is_own()
