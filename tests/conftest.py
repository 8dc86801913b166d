# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every test can use."""

from __future__ import annotations

import os
import random

import pytest

SEED = int(os.environ.get("SPECDEC_SEED") or random.SystemRandom().randrange(2**32))


def pytest_report_header() -> str:
    return f"seed: {SEED} (repeat with SPECDEC_SEED={SEED})"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """A seed for this test alone: the run's seed and the test's name, so that choosing tests does not change it."""
    return f"{SEED}:{request.node.nodeid}"
