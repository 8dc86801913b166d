# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told while a block runs. The block waits for the lines, so nothing sleeps."""

from __future__ import annotations

import threading

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._heartbeat import heartbeat


def test_a_line_for_each_interval() -> None:
    now = 100.0
    lines: list[str] = []
    told = threading.Event()

    def wait(over: threading.Event, seconds: float) -> bool:
        nonlocal now
        if len(lines) == 2:
            told.set()
            return over.wait(30)
        now += seconds
        return False

    with heartbeat(lines.append, "ct200 | installing", every=20, wait=wait, monotonic=lambda: now):
        assert told.wait(30)
    assert lines == ["ct200 | installing: 20 s", "ct200 | installing: 40 s"]


def test_nothing_is_told_of_what_is_quick_or_fails() -> None:
    lines: list[str] = []
    with heartbeat(lines.append, "x"):
        pass
    with pytest.raises(ZeroDivisionError), heartbeat(lines.append, "x"):
        _ = 1 / 0
    assert lines == []
