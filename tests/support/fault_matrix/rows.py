# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All rows of the fault matrix."""

from __future__ import annotations

from ansible_collections.specdec.serving.tests.support.fault_matrix import (
    rows_catalogue,
    rows_journal,
    rows_server,
    rows_systemd,
)
from ansible_collections.specdec.serving.tests.support.fault_matrix.model import Fault


def faults() -> tuple[Fault, ...]:
    """Every row, each under a name of its own."""
    found = (*rows_systemd.ROWS, *rows_server.ROWS, *rows_journal.ROWS, *rows_catalogue.rows())
    names = [fault.id for fault in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two faults are called {', '.join(twice)}")
    return found


__all__ = ("faults",)
