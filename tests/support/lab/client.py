# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python interface to the lab hosts, for tests. Load it by its path; it finds its package itself.

``up(["a", "b"])`` gives ``{"a": Host, "b": Host}``; see ``Host`` for what a host can do.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent))

from labhosts.hosts import Host, Lab  # noqa: E402  the package lies beside this file and is not installed
from labhosts.inventory import render as render_inventory  # noqa: E402
from labhosts.processes import CommandFailed, LabError, NotPossible  # noqa: E402

__all__ = ["CommandFailed", "Host", "Lab", "LabError", "NotPossible", "down", "render_inventory", "up"]


def up(names: Sequence[str], *, volumes: Optional[Sequence[str]] = None, journal_size: Optional[str] = None) -> dict[str, Host]:
    """Hosts of this checkout by name, made where they are not there; see ``Lab.up``."""
    return Lab().up(names, volumes=volumes, journal_size=journal_size)


def down(names: Optional[Sequence[str]] = None) -> list[str]:
    """Remove these hosts of this checkout, or all; see ``Lab.down``."""
    return Lab().down(names)
