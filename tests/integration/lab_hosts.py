# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lab hosts with the stand-in, for the tests in the folders beside this file."""

from __future__ import annotations

import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError, up
from ansible_collections.specdec.serving.tests.support.observer import units

#: Begins what a test says that failed for what no slow machine explains. It is not run once more (tests/support/toolchain/tiers.py).
NEVER = "must never happen"
CHECKOUT = Path(__file__).resolve().parents[2]


def build_stand_in() -> None:
    """Make the wheelhouse that every lab host has; a moment where it is there."""
    subprocess.run(
        [sys.executable, CHECKOUT / "tests/support/stand_in/build.py"], check=True, stdout=subprocess.DEVNULL
    )


def lab_hosts(*names: str, truth: bool = False) -> dict[str, Host]:
    """Hosts by name; the test is skipped where there can be none. ``truth``: with the folder where servers tell what they did."""
    build_stand_in()
    try:
        hosts = up(names, volumes=units.VOLUMES if truth else None)
    except LabError as error:
        pytest.skip(f"no lab host: {error}")
    if truth:
        for host in hosts.values():
            host.exec(["mkdir", "-p", "-m", "0777", units.TRUTH])
    return hosts


def lab_host(name: str, *, truth: bool = False) -> Host:
    """One host, see :func:`lab_hosts`."""
    return lab_hosts(name, truth=truth)[name]


def remove_units(host: Host, *also: str, units: t.Sequence[str] = ("sglang-*",), then: str = "true") -> None:
    """Take away what an earlier test deployed; engines stay. ``also``: paths, ``units``: patterns of files, ``then``: a command at the end."""
    script = (
        f"cd /etc/systemd/system; for unit in $(ls -d {' '.join(units)} 2>/dev/null | grep -e 'service$' -e 'mount$'); do"
        " systemctl kill --signal=SIGKILL $unit; systemctl disable --now --quiet $unit; done;"
        f" rm -rf {' '.join(units)} /etc/specdec /var/lib/specdec {' '.join(also)};"
        f" systemctl daemon-reload; systemctl reset-failed; {then}"
    )
    host.exec(["sh", "-c", script], check=False)
