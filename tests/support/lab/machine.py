# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine allows, read from the kernel, and how containers must be run on it."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.lab.processes import NotPossible

__all__ = ["Machine", "Plan", "cgroup_layout", "detect", "has_capability", "make_plan"]

CAP_SYS_RESOURCE = 24  # linux/capability.h
# podman gives a container these limits unless told otherwise; raising a limit takes CAP_SYS_RESOURCE.
PODMAN_NOFILE = 1048576
PODMAN_NPROC = 32768


def cgroup_layout(mounts: str) -> str:
    """``v2``, ``hybrid``, ``v1`` or ``none``, from the text of ``/proc/self/mounts``."""
    at_root = ""
    versions = set()
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point, kind = fields[1], fields[2]
        if point == "/sys/fs/cgroup":
            at_root = kind  # the last one mounted there is the one in force
        if kind in ("cgroup", "cgroup2") and point.startswith("/sys/fs/cgroup"):
            versions.add(kind)
    if at_root == "cgroup2":
        return "v2"
    if "cgroup2" in versions:
        return "hybrid"
    return "v1" if versions else "none"


def has_capability(status: str, number: int) -> bool:
    """Is the capability in the effective set, from the text of ``/proc/self/status``?"""
    for line in status.splitlines():
        name, _colon, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> number & 1)
    return False


@dataclass(frozen=True)
class Machine:
    """The facts that decide how containers run."""

    root: bool
    cgroups: str
    may_raise_limits: bool
    nofile: int
    nproc: int


@dataclass(frozen=True)
class Plan:
    """How to call podman: in a mount namespace of our own, with which runtime, with which extra ``run`` options."""

    own_namespace: bool
    runtime: str | None
    run_options: tuple[str, ...]


def _hard_limit(which: int) -> int:
    hard = resource.getrlimit(which)[1]
    return 2**62 if hard == resource.RLIM_INFINITY else hard


def detect(*, proc: Path = Path("/proc")) -> Machine:
    """Read this machine's facts."""
    return Machine(
        root=os.geteuid() == 0,
        cgroups=cgroup_layout((proc / "self/mounts").read_text()),
        may_raise_limits=has_capability((proc / "self/status").read_text(), CAP_SYS_RESOURCE),
        nofile=_hard_limit(resource.RLIMIT_NOFILE),
        nproc=_hard_limit(resource.RLIMIT_NPROC),
    )


def make_plan(machine: Machine) -> Plan:
    """Decide how to run containers; NotPossible where there is no way."""
    if machine.cgroups == "none":
        raise NotPossible(
            "no cgroup file system is mounted below /sys/fs/cgroup: systemd cannot run in a container here"
        )
    own_namespace = machine.cgroups != "v2"
    if own_namespace and not machine.root:
        raise NotPossible(
            f"/sys/fs/cgroup is {machine.cgroups!r} here, not cgroup v2: lab hosts need a private view of it, which only root"
            " can make. Run the same command as root."
        )
    runtime = None
    options = ["--pids-limit=-1"]  # a real host has none, and the hybrid tree has no pids controller to set one
    if machine.root and not machine.may_raise_limits:
        runtime = "runc"  # crun raises RLIMIT_MEMLOCK before it starts and is refused
        options += [
            "--ulimit",
            f"nofile={min(machine.nofile, PODMAN_NOFILE)}:{min(machine.nofile, PODMAN_NOFILE)}",
            "--ulimit",
            f"nproc={min(machine.nproc, PODMAN_NPROC)}:{min(machine.nproc, PODMAN_NPROC)}",
        ]
    return Plan(own_namespace=own_namespace, runtime=runtime, run_options=tuple(options))
