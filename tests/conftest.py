# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every test can use."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

#: With it those tests run as well that are marked as long.
LONG = "SPECDEC_LONG"
SEED = int(os.environ.get("SPECDEC_SEED") or random.SystemRandom().randrange(2**32))


def pytest_configure() -> None:
    """Let tests find the commands of the environment that runs them, also where it is not activated."""
    tools = str(Path(sys.executable).parent)
    if tools not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([tools, os.environ.get("PATH", os.defpath)])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the long ones to `make test-long`."""
    for item in items if not os.environ.get(LONG) else ():
        for marker in item.iter_markers("long"):
            item.add_marker(pytest.mark.skip(reason=f"{marker.args[0]}: make test-long sets {LONG}"))


def pytest_report_header() -> str:
    return f"seed: {SEED} (repeat with SPECDEC_SEED={SEED})"


def pytest_sessionfinish() -> None:
    """Leave no lab hosts where many sessions follow each other; a person keeps them for the next run."""
    # Who did not import it made no hosts, and may run on a Python that it is not made for.
    client = sys.modules.get("ansible_collections.specdec.serving.tests.support.lab.client")
    if client is not None and os.environ.get("SPECDEC_REMOVE_HOSTS"):
        client.remove_made()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """A seed for this test alone: the run's seed and the test's name, so that choosing tests does not change it."""
    return f"{SEED}:{request.node.nodeid}"
