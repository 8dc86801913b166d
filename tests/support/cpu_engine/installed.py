# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real engine installed on this machine as the role installs it, for tests that ask it or run its client."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils._engine import EngineRequest, ensure_engine
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner
from ansible_collections.specdec.serving.tests.support.cpu_engine import build

VERSION = "0.5.23"


def engine() -> Path:
    """`build/preflight/engines/NAME`, kept between runs: installing takes a minute and more.

    Raises BuildError when it cannot be made, with the reason.
    """
    wheelhouse = build.ROOT / "build/wheelhouse/cpu-engine"
    lock = wheelhouse / "requirements.lock"
    if not lock.is_file():
        raise build.BuildError(f"no wheelhouse of the real engine: run {build.__file__} wheelhouse")
    python = build.find_python()
    name = f"{VERSION}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    path = Path(os.environ.get("SPECDEC_ENGINES") or build.ROOT / "build/preflight/engines") / name
    request = EngineRequest(path=str(path), version=VERSION, python=python, wheelhouse=str(wheelhouse))
    ensure_engine(request, command_runner())
    return path


def models() -> Path:
    """The folder of the models `tiny` and `tiny-draft`. Raises BuildError when they are not there."""
    folder = build.ROOT / "build/models"
    if not all((folder / name / "config.json").is_file() for name in build.MODELS):
        raise build.BuildError(f"no models for the real engine: run {build.__file__} models")
    return folder
