# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Installs the distribution's packages that a check needs, where that is allowed. PRIVATE to this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t


class MissingPackageError(Exception):
    """A command is missing and may not be installed here; the message is the one command to run."""


def _can_sudo() -> bool:
    if not shutil.which("sudo"):
        return False
    return (
        subprocess.run(["sudo", "-n", "true"], capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode
        == 0
    )


def ensure(commands: t.Mapping[str, str]) -> None:
    """Have every command, a key of ``commands``, on PATH; its value is the Debian package that holds it.

    Installs with apt-get as root, or by sudo without a password. Raises MissingPackageError with the command to run
    elsewhere.
    """
    missing = [package for command, package in commands.items() if not shutil.which(command)]
    if not missing:
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") and (not prefix or _can_sudo()):
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["apt-get", "update", "--quiet"], install):
            # Waits for another apt-get instead of failing on its lock.
            full = [*prefix, words[0], "-o", "DPkg::Lock::Timeout=120", *words[1:]]
            subprocess.run(full, env=environ, stdin=subprocess.DEVNULL, check=False)
    still = [package for command, package in commands.items() if not shutil.which(command)]
    if still:
        raise MissingPackageError(f"missing here: {', '.join(still)}. Run: sudo apt-get install {' '.join(still)}")
