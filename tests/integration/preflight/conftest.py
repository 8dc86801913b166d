# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real engine on this machine, installed as the role installs it, to be asked and never started."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._engine import EngineRequest, ensure_engine
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.tests.support.cpu_engine import build

CHECKOUT = Path(__file__).resolve().parents[3]
VERSION = "0.5.23"


@pytest.fixture(scope="session")
def engine() -> Path:
    """`build/preflight/engines/NAME`, kept between runs: installing takes a minute and more."""
    wheelhouse = CHECKOUT / "build/wheelhouse/cpu-engine"
    lock = wheelhouse / "requirements.lock"
    if not lock.is_file():
        pytest.skip(f"no wheelhouse of the real engine: run {build.__file__} wheelhouse")
    try:
        python = build.find_python()
    except build.BuildError as exc:
        pytest.skip(f"no Python for the real engine: {exc}")
    name = f"{VERSION}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    path = Path(os.environ.get("SPECDEC_ENGINES") or CHECKOUT / "build/preflight/engines") / name
    ensure_engine(
        EngineRequest(path=str(path), version=VERSION, python=python, wheelhouse=str(wheelhouse)), command_runner()
    )
    return path


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of the models `tiny` and `tiny-draft`."""
    folder = CHECKOUT / "build/models"
    if not (folder / "tiny/config.json").is_file() or not (folder / "tiny-draft/config.json").is_file():
        pytest.skip(f"no models for the real engine: run {build.__file__} models")
    return folder
