# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main() with what it refuses; installations are in tests/integration/modules."""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.modules import sglang_engine


@pytest.fixture
def options(tmp_path: Path) -> dict[str, t.Any]:
    return {
        "path": str(tmp_path / "engines" / "0.5.23-aaaaaaaaaaaa"),
        "version": "0.5.23",
        "python": sys.executable,
        "wheelhouse": str(tmp_path),
    }


def test_check_mode(options: dict[str, t.Any], run_module: t.Any) -> None:
    code, result = run_module(sglang_engine, _ansible_check_mode=True, **options)
    assert (code, result["changed"], result["reason"]) == (0, True, "not installed")
    assert not Path(options["path"]).parent.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"version": "newest"}, "'newest' is no SGLang version", id="version"),
        pytest.param({"wheelhouse": ""}, "give 'wheelhouse', or 'requirements'", id="nothing-to-install"),
        pytest.param({"python": "/no/python"}, "making the venv failed with 127", id="python"),
    ],
)
def test_refused(options: dict[str, t.Any], run_module: t.Any, changes: dict[str, str], message: str) -> None:
    code, result = run_module(sglang_engine, **{**options, **changes})
    assert code == 1
    assert message in result["msg"]
    assert not Path(options["path"]).exists()
