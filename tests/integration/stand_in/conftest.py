# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stand-ins on loopback, from the wheel that a host would install."""

from __future__ import annotations

import sys
import typing as t
import zipfile
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.stand_in import build
from ansible_collections.specdec.serving.tests.support.stand_in.harness import Factory, make_models


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheelhouse")
    build.build_wheelhouse(folder, "0.5.23")
    return folder


@pytest.fixture(scope="session")
def engine(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked: what site-packages of an installed engine would hold."""
    folder = tmp_path_factory.mktemp("engine")
    with zipfile.ZipFile(next(wheelhouse.glob("*.whl"))) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def stand_in(engine: Path, models: Path, tmp_path: Path) -> t.Iterator[Factory]:
    factory = Factory(engine, models, tmp_path, sys.executable)
    yield factory
    factory.close()
