# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people see while servers are drained. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

#: s, for which a host may stay away during a drain before it counts as unreachable.
LIMIT_S = 300.0


def progress_lines(answer: t.Mapping[str, t.Any]) -> list[str]:
    """One line for each unit that has not ended: unit, what it does, requests left, seconds."""
    elapsed, timeout = float(answer.get("elapsed") or 0), float(answer.get("timeout") or 0)
    lines = []
    for name, unit in (answer.get("units") or {}).items():
        if unit.get("phase") == "ended":
            continue
        left, what = unit.get("requests_left"), "draining"
        if unit.get("phase") == "stopping":
            what = "stopping"
        requests = "requests not known" if left is None else f"{left} request{'' if left == 1 else 's'} left"
        limit = f" of {timeout:.0f}" if what == "draining" else ""
        lines.append(f"{name} | {what:<8} | {requests} | {elapsed:4.0f}{limit} s")
    return lines


__all__ = ("LIMIT_S", "progress_lines")
