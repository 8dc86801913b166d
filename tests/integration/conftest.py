# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Marks the tests that need lab hosts, and leaves the long ones to `make test-long`."""

from __future__ import annotations

import os

import pytest

#: With it those tests run as well that are marked as long.
LONG = "SPECDEC_LONG"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that need hosts are those that ask for one."""
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if any(name.endswith(("_host", "_hosts")) for name in fixtures):
            item.add_marker(pytest.mark.lab)
        for marker in item.iter_markers("long") if not os.environ.get(LONG) else ():
            item.add_marker(pytest.mark.skip(reason=f"{marker.args[0]}: make test-long sets {LONG}"))
