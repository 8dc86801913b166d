# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main() with the real venv and pip, on a wheelhouse that holds one tiny wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.specdec.serving.plugins.modules import sglang_engine


def make_wheel(folder: Path, version: str) -> None:
    """A wheel called sglang that holds one module."""
    info = f"sglang-{version}.dist-info"
    files = {
        "sglang/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"sglang-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> t.Callable[..., tuple[int, dict[str, t.Any]]]:
    def call(**params: t.Any) -> tuple[int, dict[str, t.Any]]:
        with patch_module_args(params), pytest.raises(SystemExit) as exit_:
            sglang_engine.main()
        return int(exit_.value.code or 0), json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def options(tmp_path: Path) -> dict[str, t.Any]:
    wheelhouse = tmp_path / "wheelhouse"
    wheelhouse.mkdir()
    make_wheel(wheelhouse, "0.5.23+tiny")
    (wheelhouse / "requirements.lock").write_text("sglang==0.5.23+tiny\n")
    return {
        "path": str(tmp_path / "engines" / "0.5.23-aaaaaaaaaaaa"),
        "version": "0.5.23",
        "python": sys.executable,
        "wheelhouse": str(wheelhouse),
    }


def test_install_for_real(options: dict[str, t.Any], run: t.Any) -> None:
    code, result = run(_ansible_check_mode=True, **options)
    assert (code, result["changed"], result["reason"]) == (0, True, "not installed")
    assert not Path(options["path"]).exists()

    code, result = run(**options)
    assert (code, result["changed"], result["version"]) == (0, True, "0.5.23+tiny")
    content = json.loads(Path(options["path"], "engine.json").read_text())
    assert "sglang==0.5.23+tiny" in content["packages"]

    code, result = run(**options)
    assert (code, result["changed"], result["reason"]) == (0, False, "complete")


def test_a_lock_that_the_wheelhouse_cannot_serve(options: dict[str, t.Any], run: t.Any) -> None:
    Path(options["wheelhouse"], "requirements.lock").write_text("sglang==0.5.23+tiny\nnot-there==1.0\n")
    code, result = run(**options)
    assert code == 1
    assert "not-there==1.0" in result["msg"]
    assert options["path"] in result["msg"]
    assert not Path(options["path"]).exists()
