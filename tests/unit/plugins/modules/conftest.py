# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What tests of modules share."""

from __future__ import annotations

import pytest
from ansible.module_utils import _internal


@pytest.fixture(autouse=True)
def _as_on_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a module report its warnings itself: tests of controller code may have been loaded into the same process."""
    monkeypatch.setattr(_internal, "is_controller", False)
