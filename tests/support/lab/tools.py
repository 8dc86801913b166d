# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that the lab needs, and installing what is missing where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Callable

from ansible_collections.specdec.serving.tests.support.lab.machine import Plan
from ansible_collections.specdec.serving.tests.support.lab.processes import NotPossible

__all__ = ["PACKAGES", "ensure", "install_command", "missing", "needed"]

# Program -> Debian packages. Older netavark drives iptables, newer nft.
PACKAGES = {
    "podman": ("podman",),
    "runc": ("runc",),
    "mmdebstrap": ("mmdebstrap", "debian-archive-keyring"),
    "iptables": ("iptables",),
    "nft": ("nftables",),
    "ssh": ("openssh-client",),
    "ssh-keygen": ("openssh-client",),
}
# sbin folders are not in every user's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def needed(plan: Plan, *, image: bool) -> list[str]:
    """Programs needed under *plan*; with *image* also those that build the image."""
    names = ["podman", "iptables", "nft", "ssh", "ssh-keygen"]
    if plan.runtime is not None:
        names.append(plan.runtime)
    if image:
        names.append("mmdebstrap")
    return names


def _which(name: str) -> str | None:
    return shutil.which(name, path=SEARCH_PATH)


def missing(names: Iterable[str], *, which: Callable[[str], str | None] = _which) -> list[str]:
    """Those of *names* that are not installed."""
    return [name for name in names if which(name) is None]


def install_command(names: Iterable[str], *, root: bool) -> list[str]:
    """The command that installs the packages of *names*."""
    packages = sorted({package for name in names for package in PACKAGES[name]})
    command = ["apt-get", "install", "-y", "-o", "DPkg::Lock::Timeout=600", *packages]
    return command if root else ["sudo", *command]


def _call(argv: Sequence[str]) -> int:
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    return subprocess.run(list(argv), stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env, check=False).returncode


def ensure(names: Sequence[str]) -> None:
    """Install what is missing, as root or by sudo without a password; else NotPossible with the one command to run."""
    absent = missing(names)
    if not absent:
        return
    root = os.geteuid() == 0
    command = install_command(absent, root=root)
    shown = " ".join(command)
    if _which("apt-get") is None:
        raise NotPossible(
            f"missing here: {', '.join(absent)}. Install them with this system's package manager and run again."
        )
    prefix = [] if root else ["sudo", "-n"]
    if not root and (_which("sudo") is None or _call([*prefix, "true"]) != 0):
        raise NotPossible(f"missing here: {', '.join(absent)}. Run this, then run again:\n  {shown}")
    print(f"lab: installing {', '.join(absent)}", file=sys.stderr)
    bare = install_command(absent, root=True)
    # A machine whose package lists are missing or old fails the first time; then they are fetched.
    if _call([*prefix, *bare]) != 0 and (
        _call([*prefix, "apt-get", "-o", "DPkg::Lock::Timeout=600", "update"]) != 0 or _call([*prefix, *bare]) != 0
    ):
        raise NotPossible(f"could not install {', '.join(absent)}. Run this, then run again:\n  {shown}")
    still = missing(names)
    if still:
        raise NotPossible(f"installed, but not found afterwards: {', '.join(still)}")
