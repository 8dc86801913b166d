# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model folder holds, and what has changed in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _manifest
from ansible_collections.specdec.serving.plugins.module_utils._manifest import changes, manifest
from ansible_collections.specdec.serving.plugins.module_utils._runner import TooLate


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "blob").write_bytes(b"12345")
    (folder / "model-1.safetensors").symlink_to(tmp_path / "blob")
    (folder / "gone.safetensors").symlink_to(tmp_path / "nothing")
    return folder


def test_a_folder(model: Path) -> None:
    assert manifest(str(model)) == {
        "path": str(model),
        "files": {"config.json": 2, "model-1.safetensors": 5},
        "sha256": {"config.json": hashlib.sha256(b"{}").hexdigest()},
        "bytes": 7,
        "problem": "",
    }


def test_one_file(model: Path) -> None:
    assert manifest(str(model / "config.json"))["files"] == {"config.json": 2}


def test_a_model_id_and_what_cannot_be_looked_at(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert manifest("org/name")["files"] == {}
    assert manifest("org/name")["problem"] == ""

    def late(_seconds: float, _work: object) -> None:
        raise TooLate("no end after 10 s")

    monkeypatch.setattr(_manifest, "within", late)
    assert manifest(str(model))["problem"] == "no end after 10 s"


def test_changes(model: Path) -> None:
    before = manifest(str(model))
    assert changes(before, manifest(str(model))) == []
    (model / "config.json").write_text("[]")
    (model / "extra.json").write_text("1")
    (model / "model-1.safetensors").unlink()
    found = changes(before, manifest(str(model)))
    assert found == ["model-1.safetensors is gone", "extra.json is new", "config.json has another content"]
    (model / "config.json").write_text("[1]")
    assert "config.json has 3 bytes, not 2" in changes(before, manifest(str(model)))
    assert changes(before, {**before, "files": {}, "problem": "a mount"}) == []
