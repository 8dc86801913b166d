# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _given_files


def test_paths_begin_at_a_home_or_at_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert _given_files.expanded("~/w.yml", Path("/base")) == tmp_path / "w.yml"
    assert _given_files.expanded("w.yml", Path("/base")) == Path("/base/w.yml")
    assert _given_files.expanded("w.yml") == Path("w.yml")
    with pytest.raises(OSError, match=r"no home of such a user: '~nobody-of-that-name/w\.yml'"):
        _given_files.expanded("~nobody-of-that-name/w.yml")
    with pytest.raises(OSError, match="NUL"):
        _given_files.expanded("w\0.yml")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"1234")

    assert _given_files.read(tmp_path / "file", 4) == b"1234"
    for name, says in (("pipe", "a pipe"), ("", "directory"), ("missing", "No such file")):
        with pytest.raises(OSError, match=says):
            _given_files.read(tmp_path / name)
    with pytest.raises(OSError, match="more than 0 MiB"):
        _given_files.read(tmp_path / "file", 3)


def test_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        _given_files.read(tmp_path)
