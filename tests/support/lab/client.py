# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python interface to the lab hosts, for tests.

``up(["a", "b"])`` gives ``{"a": Host, "b": Host}``; see ``Host`` for what a host can do.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.specdec.serving.tests.support.lab.hosts import Host, Lab
from ansible_collections.specdec.serving.tests.support.lab.inventory import render as render_inventory
from ansible_collections.specdec.serving.tests.support.lab.processes import CommandFailed, LabError, NotPossible

__all__ = ["CommandFailed", "Host", "Lab", "LabError", "NotPossible", "down", "remove_made", "render_inventory", "up"]

#: Hosts that this process made.
_made: set[str] = set()


def up(
    names: Sequence[str], *, volumes: Sequence[str] | None = None, journal_size: str | None = None
) -> dict[str, Host]:
    """Hosts of this checkout by name, made where they are not there; see ``Lab.up``."""
    lab = Lab()
    new = set(names) - set(lab.records())
    hosts = lab.up(names, volumes=volumes, journal_size=journal_size)
    _made.update(new)
    return hosts


def remove_made() -> None:
    """Remove the hosts that this process made.

    Each systemd takes several of the inotify instances that the kernel gives a user (128 by default): some twenty hosts at once
    are too many, and the next one ends as soon as it boots.
    """
    if _made:
        down(sorted(_made))
        _made.clear()


def down(names: Sequence[str] | None = None) -> list[str]:
    """Remove these hosts of this checkout, or all; see ``Lab.down``."""
    return Lab().down(names)
