# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trials of a unit on a real systemd: what runs, what is left, and what happens when nobody comes back."""

from __future__ import annotations

import json
import time
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _lease
from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError, up

pytestmark = pytest.mark.lab

CHECKOUT = Path(__file__).parents[3]
ROOT = "/srv/specdec-trial"
UTILS = "ansible_collections/specdec/serving/plugins/module_utils"
UNIT = "sglang-trial-a.service"
HOLD_S = 10.0

_CALL = f"""
import dataclasses, json, sys
sys.path.insert(0, {ROOT!r})
from ansible_collections.specdec.serving.plugins.module_utils import _lease, _runner, _trial_unit
name, options = json.load(sys.stdin)
runner = _runner.command_runner()
if name == "begin":
    made = lambda: _trial_unit.begin(_trial_unit.Trial(**options), runner)
elif name == "renew":
    made = lambda: _trial_unit.renew(options["unit"], options["hold_s"], runner)
elif name == "end":
    made = lambda: _trial_unit.end(options["unit"], runner, restart_hold_s=options.get("hold_s", 0.0))
elif name == "lease":
    lease = _lease.LeaseFile()
    made = lambda: lease.take(_lease.Owner(id="0123456789abcdef"), "test").lease
elif name == "renew lease":
    made = lambda: _lease.LeaseFile().renew(options["token"])
else:
    made = lambda: _trial_unit.observe(options["unit"])
try:
    print(json.dumps(dataclasses.asdict(made())))
except _trial_unit.TrialError as error:
    print(json.dumps({{"error": str(error)}}))
"""


class Machine:
    def __init__(self, host: Host) -> None:
        self.host = host

    def call(self, name: str, **options: t.Any) -> dict[str, t.Any]:
        done = self.host.exec(["python3", "-c", _CALL], input=json.dumps([name, {"unit": UNIT, **options}]), timeout=60)
        answer: dict[str, t.Any] = json.loads(done.stdout)
        return answer

    def begin(self, seconds: int, **changes: t.Any) -> dict[str, t.Any]:
        options = {
            "label": f"sleep {seconds}",
            "exec_start": f"/bin/sleep {seconds}",
            "environment_text": f'A="{seconds}"\n',
            "hold_s": HOLD_S,
        }
        return self.call("begin", **{**options, **changes})

    def systemctl(self, *words: str) -> str:
        return self.host.exec(["systemctl", *words], check=False).stdout.strip()

    def runs(self) -> tuple[list[str], dict[str, str]]:
        """The words and the environment of the unit's process; empty when it ends just now."""
        pid = self.systemctl("show", "--value", "--property=MainPID", UNIT)
        argv, lines = (
            self.host.exec(["cat", f"/proc/{pid}/{name}"], check=False).stdout.rstrip("\0").split("\0")
            for name in ("cmdline", "environ")
        )
        return argv, dict(line.split("=", 1) for line in lines if line)

    def timers(self) -> list[str]:
        return self.systemctl("list-units", "--all", "--plain", "--no-legend", "specdec-trial-*.timer").splitlines()


@pytest.fixture(scope="module")
def machine() -> Machine:
    try:
        host = up(["sweep"])["sweep"]
    except LabError as error:
        pytest.skip(f"no lab host: {error}")
    for path in sorted((CHECKOUT / "plugins" / "module_utils").glob("_*.py")):
        host.write_file(f"{ROOT}/{UTILS}/{path.name}", path.read_text(encoding="utf-8"))
    host.write_file("/srv/own.env", 'A="own"\nB="own"\n')
    host.write_file("/srv/a.1.secret.env", 'TOKEN="planted"\n', mode="0600")
    host.write_file(
        f"/etc/systemd/system/{UNIT}",
        "[Service]\nType=exec\nExecStart=/bin/sleep 1000\nRestart=on-failure\n"
        "EnvironmentFile=/srv/own.env\nEnvironmentFile=/srv/a.1.secret.env\n",
    )
    host.exec(["systemctl", "daemon-reload"])
    return Machine(host)


@pytest.fixture(autouse=True)
def own_configuration(machine: Machine) -> Iterator[None]:
    machine.systemctl("restart", UNIT)
    yield
    machine.call("end")
    # It would stand in the way of whoever deploys to this host next.
    machine.host.exec(["rm", "--force", _lease.PATH])
    assert machine.timers() == [], "no timer is left"


def is_own(machine: Machine) -> bool:
    argv, environment = machine.runs()
    return argv == ["/bin/sleep", "1000"] and environment.get("A") == "own" and "SGL_FORCE_SHUTDOWN" not in environment


def test_a_trial_and_the_way_back(machine: Machine) -> None:
    before = machine.host.exec(["cat", f"/etc/systemd/system/{UNIT}", "/srv/own.env"]).stdout
    answer = machine.begin(2000)
    assert (answer["active"], answer["changed"]) == (True, True)
    assert is_own(machine), "nothing is restarted by itself"
    machine.systemctl("restart", UNIT)
    argv, environment = machine.runs()
    assert argv == ["/bin/sleep", "2000"]
    assert (environment["A"], environment.get("B"), environment["TOKEN"]) == ("2000", None, "planted")
    assert machine.systemctl("show", "--value", "--property=Restart", UNIT) == "no"
    assert machine.begin(2000)["changed"] is False
    assert len(machine.timers()) == 1, "an earlier timer is stopped"
    assert "planted" not in json.dumps(machine.call("observe"))

    assert machine.call("end")["changed"] is True
    machine.systemctl("restart", UNIT)
    assert is_own(machine)
    assert machine.call("end")["changed"] is False
    assert machine.host.exec(["cat", f"/etc/systemd/system/{UNIT}", "/srv/own.env"]).stdout == before
    assert machine.systemctl("show", "--value", "--property=DropInPaths", UNIT) == ""


def test_one_trial_after_the_other(machine: Machine) -> None:
    machine.begin(2000)
    machine.systemctl("restart", UNIT)
    assert machine.begin(3000)["label"] == "sleep 3000"
    machine.systemctl("restart", UNIT)
    assert machine.runs()[0] == ["/bin/sleep", "3000"]


def test_a_trial_that_nobody_renews_ends_by_itself(machine: Machine) -> None:
    machine.begin(2000)
    machine.systemctl("restart", UNIT)
    time.sleep(HOLD_S / 2)
    machine.call("renew", hold_s=HOLD_S)
    time.sleep(HOLD_S * 0.7)
    assert machine.runs()[0] == ["/bin/sleep", "2000"], "it was renewed"
    deadline = time.monotonic() + HOLD_S
    while not is_own(machine):
        assert time.monotonic() < deadline, "it was not restored"
        time.sleep(0.2)
    assert machine.call("observe")["active"] is False
    assert "is over" in machine.call("renew", hold_s=HOLD_S)["error"]


def test_a_trial_is_held_for_as_long_as_its_lease_is_renewed(machine: Machine) -> None:
    lease = machine.call("lease")
    token = f"{lease['owner']['id']}.{lease['generation']}"
    machine.begin(2000, lease=token)
    machine.systemctl("restart", UNIT)
    began = time.monotonic()
    while time.monotonic() - began < HOLD_S * 2.2:
        machine.call("renew lease", token=token)
        time.sleep(HOLD_S / 4)
        assert machine.runs()[0] == ["/bin/sleep", "2000"], "it was renewed"
    deadline = time.monotonic() + HOLD_S + 2
    while not is_own(machine):
        assert time.monotonic() < deadline, "it was not restored"
        time.sleep(0.2)
    seen = machine.call("observe")
    assert (seen["active"], seen["expired"]) == (False, True)
    assert machine.call("end")["expired"] is True
    assert machine.call("observe")["expired"] is False


def test_the_lease_of_another_run_holds_nothing(machine: Machine) -> None:
    machine.call("lease")
    machine.begin(2000, lease="fedcba9876543210.1")
    machine.systemctl("restart", UNIT)
    deadline = time.monotonic() + HOLD_S + 5
    while not is_own(machine):
        assert time.monotonic() < deadline, "it was not restored"
        time.sleep(0.2)


def test_the_way_back_has_a_second_try(machine: Machine) -> None:
    path = f"/etc/systemd/system/{UNIT}"
    own = machine.host.exec(["cat", path]).stdout
    machine.begin(2000)
    machine.systemctl("restart", UNIT)
    machine.host.write_file(path, own.replace("/bin/sleep 1000", "/bin/false"))
    assert machine.call("end", hold_s=HOLD_S)["was_active"] is True
    deadline = time.monotonic() + 5
    while machine.systemctl("is-failed", UNIT) != "failed":
        assert time.monotonic() < deadline, "it was not restarted"
        time.sleep(0.2)
    # What was in its way is gone when the timer fires.
    machine.host.write_file(path, own)
    machine.systemctl("daemon-reload")
    deadline = time.monotonic() + HOLD_S + 5
    while machine.systemctl("is-active", UNIT) != "active":
        assert time.monotonic() < deadline, "there was no second try"
        time.sleep(0.2)
    assert is_own(machine)
    machine.call("end")


def test_the_second_try_leaves_alone_what_runs(machine: Machine) -> None:
    machine.begin(2000)
    machine.systemctl("restart", UNIT)
    machine.call("end", hold_s=HOLD_S)
    time.sleep(1)
    invocation = machine.systemctl("show", "--value", "--property=InvocationID", UNIT)
    time.sleep(HOLD_S + 1)
    assert machine.timers() == [], "it fired"
    assert machine.systemctl("show", "--value", "--property=InvocationID", UNIT) == invocation


def test_the_timer_restores_also_what_crashed(machine: Machine) -> None:
    machine.begin(2000, exec_start="/bin/false")
    machine.systemctl("restart", UNIT)
    assert machine.systemctl("is-active", UNIT) in ("failed", "activating")
    deadline = time.monotonic() + HOLD_S + 5
    while machine.systemctl("is-active", UNIT) != "active":
        assert time.monotonic() < deadline, "it was not restored"
        time.sleep(0.2)
    assert is_own(machine)


def test_a_unit_that_is_not_deployed_is_refused(machine: Machine) -> None:
    assert "deploy it first" in machine.begin(1, unit="sglang-unknown.service")["error"]
    assert "at least 10 s" in machine.begin(1, hold_s=1.0)["error"]
    assert machine.timers() == []
    assert is_own(machine)


def test_what_systemd_refuses_leaves_nothing(machine: Machine) -> None:
    # A folder where the drop-in's file has to be.
    machine.host.exec(["mkdir", "-p", f"/run/systemd/system/{UNIT}.d/90-specdec-trial.conf/x"])
    try:
        with pytest.raises(Exception, match="Is a directory"):
            machine.begin(2000)
    finally:
        machine.host.exec(["rm", "-r", f"/run/systemd/system/{UNIT}.d"])
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", UNIT)
    assert is_own(machine)
