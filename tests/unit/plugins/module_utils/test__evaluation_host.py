# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What needs no host; the rest is tried on lab hosts, in tests/integration/evaluate."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._evaluation import EvaluationError
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_host import evaluate
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_options import ARGUMENT_SPEC


def test_a_folder_for_answers_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    params: dict[str, t.Any] = {name: option.get("default") for name, option in ARGUMENT_SPEC.items()}
    params.update(unit="sglang-a.service", port=30001, state_dir=f"{tmp_path}/file")

    with pytest.raises(EvaluationError, match=r"file.*lies below state_dir '/.*/file'\. Make room there"):
        evaluate(params)
