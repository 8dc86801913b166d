# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real engine on this machine, installed as the role installs it, to be asked and never started."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.cpu_engine import build, installed


@pytest.fixture(scope="session")
def engine() -> Path:
    try:
        return installed.engine()
    except build.BuildError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of the models `tiny` and `tiny-draft`."""
    try:
        return installed.models()
    except build.BuildError as exc:
        pytest.skip(str(exc))
