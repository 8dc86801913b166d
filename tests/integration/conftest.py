# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Marks the tests that need lab hosts."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They are those that ask for a host."""
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if any(name.endswith(("_host", "_hosts")) for name in fixtures):
            item.add_marker(pytest.mark.lab)
