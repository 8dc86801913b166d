# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of what a trial does, and what is left when a step fails. What systemd makes of it is tried on a lab host."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._trial_unit import (
    Trial,
    TrialError,
    begin,
    end,
    observe,
    renew,
)

UNIT = "sglang-a@0.service"
SHOW = "LoadState=loaded\nFragmentPath=/etc/systemd/system/sglang-a@0.service\n"


class Systemd:
    """Answers like systemd; notes each command with whether the drop-in was there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.timers: list[str] = []
        self.steps: list[tuple[str, bool]] = []
        self.failing = ""
        self.state = SHOW

    @property
    def drop_in(self) -> Path:
        return self.root / f"run/systemd/system/{UNIT}.d/90-specdec-trial.conf"

    def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        words = list(argv)
        name = words[0] if words[0] == "systemd-run" else words[1]
        if name == "show":
            return 0, self.state, ""
        name = f"{name} client" if words[-1] == "specdec-benchmark-sglang-a@0.service" else name
        self.steps.append((name, self.drop_in.exists()))
        if name == self.failing:
            return 1, "", "no"
        if name == "systemd-run":
            self.timers.append(
                next(word for word in words if word.startswith("--unit=")).removeprefix("--unit=") + ".timer"
            )
        elif name == "stop":
            self.timers = [timer for timer in self.timers if timer not in words]
        elif name == "list-units":
            return 0, "".join(f"  {timer} loaded active waiting x\n" for timer in self.timers), ""
        return 0, "", ""

    def names(self) -> list[str]:
        return [name for name, _there in self.steps if name != "list-units"]


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    own = tmp_path / "etc/systemd/system" / UNIT
    own.parent.mkdir(parents=True)
    own.write_text("[Service]\nEnvironmentFile=/etc/x/a.0123.env\nEnvironmentFile=/etc/x/a.77.secret.env\n")
    return Systemd(tmp_path)


def start(systemd: Systemd, **changes: t.Any) -> t.Any:
    values = {"unit": UNIT, "label": "x", "exec_start": "/bin/b 1", "environment_text": 'A="1"\n', "hold_s": 60.0}
    check_mode = changes.pop("check_mode", False)
    return begin(
        Trial(**{**values, **changes}), systemd, wall=lambda: 1000.0, check_mode=check_mode, root=str(systemd.root)
    )


def test_there_is_a_timer_before_there_is_a_trial(systemd: Systemd) -> None:
    report = start(systemd)
    assert systemd.steps[1] == ("systemd-run", False)
    assert systemd.names() == ["systemd-run", "daemon-reload"]
    assert (report.active, report.restore_at) == (True, 1060.0)
    text = systemd.drop_in.read_text()
    assert "EnvironmentFile=\nEnvironmentFile=" in text
    assert "/etc/x/a.77.secret.env" in text
    assert "0123" not in text


def test_a_later_timer_is_there_before_the_earlier_one_goes(systemd: Systemd) -> None:
    start(systemd)
    first = list(systemd.timers)
    systemd.steps.clear()
    assert renew(UNIT, 30.0, systemd, wall=lambda: 1000.0, root=str(systemd.root)).restore_at == 1030.0
    assert systemd.names() == ["systemd-run", "stop"]
    assert len(systemd.timers) == 1
    assert systemd.timers != first


def test_the_trial_goes_before_its_timer(systemd: Systemd) -> None:
    start(systemd)
    systemd.steps.clear()
    report = end(UNIT, systemd, root=str(systemd.root))
    assert (report.changed, report.was_active, report.active) == (True, True, False)
    assert not end(UNIT, systemd, root=str(systemd.root)).was_active
    assert systemd.names() == ["daemon-reload", "stop client", "stop"]
    assert systemd.timers == []
    assert not observe(UNIT, root=str(systemd.root)).active
    assert [path for path in (systemd.root / "run").rglob("*") if path.is_file()] == []


def test_a_restart_that_is_asked_for_comes_before_the_timer_goes(systemd: Systemd) -> None:
    start(systemd)
    first = list(systemd.timers)
    systemd.steps.clear()
    report = end(UNIT, systemd, restart_hold_s=60.0, root=str(systemd.root))
    assert (report.was_active, report.active) == (True, False)
    assert systemd.names() == ["daemon-reload", "stop client", "reset-failed", "restart", "systemd-run", "stop"]
    assert len(systemd.timers) == 1
    assert systemd.timers != first
    script = (systemd.root / "run/specdec/trials/sglang-a@0.restore").read_text()
    assert "is-failed" in script
    assert "restart" not in script
    systemd.steps.clear()
    assert not end(UNIT, systemd, root=str(systemd.root)).changed
    assert systemd.names() == ["stop"]
    assert systemd.timers == []


def test_a_drop_in_that_was_removed_by_hand_leaves_a_server_to_restart(systemd: Systemd) -> None:
    start(systemd)
    systemd.drop_in.unlink()
    systemd.steps.clear()
    report = end(UNIT, systemd, restart_hold_s=60.0, root=str(systemd.root))
    assert report.was_active
    assert "restart" in systemd.names()


def test_what_its_timer_ended_has_a_second_try_as_well(systemd: Systemd) -> None:
    start(systemd)
    (systemd.root / "run/specdec/trials/sglang-a@0.expired").write_text("1\n")
    systemd.drop_in.unlink()
    systemd.steps.clear()
    report = end(UNIT, systemd, restart_hold_s=60.0, root=str(systemd.root))
    assert (report.was_active, report.expired) == (False, True)
    assert systemd.names() == ["daemon-reload", "stop client", "systemd-run", "stop"]
    assert len(systemd.timers) == 1
    assert end(UNIT, systemd, root=str(systemd.root)).expired
    assert systemd.timers == []


def test_nothing_is_asked_where_nothing_is(systemd: Systemd) -> None:
    assert not end(UNIT, systemd, root=str(systemd.root)).changed
    assert systemd.steps == []


def test_no_restart_where_there_was_no_trial(systemd: Systemd) -> None:
    assert not end(UNIT, systemd, restart_hold_s=60.0, root=str(systemd.root)).was_active
    assert systemd.names() == []


def left_by(systemd: Systemd, lease: Path, **changes: t.Any) -> str:
    """What the program in the timer's script says, with that lease."""
    record = {"held": True, "owner": {"id": "0123456789abcdef"}, "generation": 3, "renewed": 0.0, **changes}
    lease.write_text(json.dumps(record))
    start(systemd, lease="0123456789abcdef.3")
    line = (systemd.root / "run/specdec/trials/sglang-a@0.restore").read_text().split("left=$(")[1].split(" 2>")[0]
    words = shlex.split(line)
    words[words.index("/run/specdec/sglang/lease.json")] = str(lease)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_timer_that_fires_asks_the_lease(systemd: Systemd, tmp_path: Path) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    lease = tmp_path / "lease.json"
    assert 20 <= int(left_by(systemd, lease, renewed=now - 30)) <= 31
    assert left_by(systemd, lease, renewed=now - 61) == "0"
    assert left_by(systemd, lease, renewed=now, generation=4) == "0"
    assert left_by(systemd, lease, renewed=now, held=False) == "0"


def test_without_a_lease_a_timer_asks_nothing(systemd: Systemd) -> None:
    start(systemd)
    script = (systemd.root / "run/specdec/trials/sglang-a@0.restore").read_text()
    assert "left" not in script
    assert script.index("stop --no-block specdec-benchmark-sglang-a@0.service") < script.index("restart --no-block")


def test_it_is_told_when_a_timer_ended_the_last_trial(systemd: Systemd) -> None:
    start(systemd)
    expired = systemd.root / "run/specdec/trials/sglang-a@0.expired"
    assert str(expired) in (systemd.root / "run/specdec/trials/sglang-a@0.restore").read_text()
    systemd.drop_in.unlink()
    expired.write_text("1\n")
    seen = observe(UNIT, root=str(systemd.root))
    assert (seen.active, seen.expired) == (False, True)
    start(systemd)
    assert not observe(UNIT, root=str(systemd.root)).expired
    expired.write_text("1\n")
    assert end(UNIT, systemd, root=str(systemd.root)).expired
    assert not expired.exists()


def test_a_reload_that_fails_leaves_no_trial_but_its_timer(systemd: Systemd) -> None:
    systemd.failing = "daemon-reload"
    with pytest.raises(TrialError, match="daemon-reload"):
        start(systemd)
    assert not systemd.drop_in.exists()
    assert len(systemd.timers) == 1


def test_no_timer_no_trial(systemd: Systemd) -> None:
    systemd.failing = "systemd-run"
    with pytest.raises(TrialError, match="systemd-run"):
        start(systemd)
    assert not systemd.drop_in.exists()


def test_check_mode_shows_and_does_nothing(systemd: Systemd) -> None:
    report = start(systemd, check_mode=True)
    assert (report.active, report.changed, systemd.steps) == (False, True, [])
    assert {entry["after_header"].rsplit("/", 1)[1] for entry in report.diff} == {
        "90-specdec-trial.conf",
        "sglang-a@0.env",
    }
    assert not (systemd.root / "run").exists()


@pytest.mark.parametrize(
    ("state", "changes", "wanted"),
    [
        pytest.param("LoadState=not-found\nFragmentPath=\n", {}, "not-found on this host", id="not deployed"),
        pytest.param("LoadState=masked\nFragmentPath=/x\n", {}, "is masked", id="masked"),
        pytest.param(SHOW, {"hold_s": 9.0}, "hold is 9 s", id="a short hold"),
    ],
)
def test_refused(systemd: Systemd, state: str, changes: dict[str, t.Any], wanted: str) -> None:
    systemd.state = state
    with pytest.raises(TrialError, match=wanted):
        start(systemd, **changes)
    assert systemd.steps == []


def test_a_trial_that_is_over_cannot_be_renewed(systemd: Systemd) -> None:
    start(systemd)
    systemd.drop_in.unlink()
    with pytest.raises(TrialError, match="is over"):
        renew(UNIT, 30.0, systemd, root=str(systemd.root))


def test_a_timer_that_fires_during_the_renewal_is_noticed(systemd: Systemd) -> None:
    start(systemd)

    def fires(argv: t.Sequence[str]) -> tuple[int, str, str]:
        if argv[0] == "systemd-run":
            systemd.drop_in.unlink()
        return systemd(argv)

    with pytest.raises(TrialError, match="ended just now"):
        renew(UNIT, 30.0, fires, root=str(systemd.root))
    assert systemd.timers == []
