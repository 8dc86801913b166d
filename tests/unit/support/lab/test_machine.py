# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading the machine and deciding how containers run on it."""

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.tests.support.lab.machine import (
    Machine,
    cgroup_layout,
    has_capability,
    make_plan,
)
from ansible_collections.specdec.serving.tests.support.lab.processes import NotPossible

V2 = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0\n"
HYBRID = (
    "tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0\n"
    "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n"
    "cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n"
)


@pytest.mark.parametrize(
    ("mounts", "layout"),
    [
        pytest.param(V2, "v2", id="v2"),
        pytest.param(HYBRID, "hybrid", id="hybrid"),
        pytest.param("tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", "v1", id="v1"),
        pytest.param("proc /proc proc rw 0 0\n", "none", id="none"),
        pytest.param("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n" + V2, "v2", id="v2-mounted-over-a-tmpfs"),
        pytest.param("none /mnt/cgroup2 cgroup2 rw 0 0\n", "none", id="v2-only-elsewhere"),
    ],
)
def test_layout_of_the_cgroup_mounts(mounts: str, layout: str) -> None:
    assert cgroup_layout(mounts) == layout


@pytest.mark.parametrize(
    ("status", "has"),
    [
        pytest.param("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n", False, id="all-but-this"),
        pytest.param("Name:\tx\nCapEff:\t000001ffffffffff\n", True, id="all"),
        pytest.param("Name:\tx\nCapEff:\t0000000000000000\n", False, id="none"),
        pytest.param("Name:\tx\n", False, id="no-line"),
    ],
)
def test_capability_is_read_from_the_effective_set(status: str, has: bool) -> None:
    assert has_capability(status, 24) is has


def machine(*, root: bool = True, cgroups: str = "v2", may_raise_limits: bool = True, nofile: int = 20000) -> Machine:
    return Machine(root=root, cgroups=cgroups, may_raise_limits=may_raise_limits, nofile=nofile, nproc=96364)


@pytest.mark.parametrize(
    ("given", "own_namespace", "runtime", "limits"),
    [
        pytest.param(machine(), False, None, (), id="v2-root"),
        pytest.param(machine(root=False, may_raise_limits=False), False, None, (), id="v2-rootless"),
        pytest.param(machine(cgroups="hybrid"), True, None, (), id="hybrid-root"),
        pytest.param(machine(cgroups="v1"), True, None, (), id="v1-root"),
        pytest.param(
            machine(cgroups="hybrid", may_raise_limits=False),
            True,
            "runc",
            ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=32768:32768"),
            id="hybrid-root-that-may-not-raise-limits",
        ),
        pytest.param(
            machine(may_raise_limits=False, nofile=2**62),
            False,
            "runc",
            ("--ulimit", "nofile=1048576:1048576", "--ulimit", "nproc=32768:32768"),
            id="v2-root-that-may-not-raise-limits",
        ),
    ],
)
def test_plan_follows_from_the_machine(
    given: Machine, own_namespace: bool, runtime: str | None, limits: tuple[str, ...]
) -> None:
    plan = make_plan(given)
    assert plan.own_namespace is own_namespace
    assert plan.runtime == runtime
    assert plan.run_options == ("--pids-limit=-1", *limits)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(machine(root=False, cgroups="hybrid"), "as root", id="hybrid-without-root"),
        pytest.param(machine(cgroups="none"), "no cgroup file system", id="no-cgroups"),
    ],
)
def test_a_machine_that_cannot_is_told_why(given: Machine, says: str) -> None:
    with pytest.raises(NotPossible, match=says):
        make_plan(given)
