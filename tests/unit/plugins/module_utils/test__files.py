# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that appear whole, or not at all."""

from __future__ import annotations

import os
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_new_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    _files.write_file(str(path), "ä\udcff\n", mode=0o640)
    assert path.read_bytes() == b"\xc3\xa4\xff\n"
    assert path.stat().st_mode & 0o777 == 0o640
    _files.write_file(str(path), b"2")
    assert path.read_bytes() == b"2"
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["a"]


def test_what_is_staged_is_complete_and_elsewhere(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    _files.write_file(path, "old")
    temporary = _files.stage(path, "new")
    assert Path(path).read_text() == "old"
    assert Path(temporary).read_text() == "new"
    _files.commit(temporary, path)
    assert Path(path).read_text() == "new"
    _files.discard(temporary)  # nothing to do


@pytest.mark.parametrize("call", ["fsync", "fchown", "rename"])
def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_arguments: t.Any) -> None:
        raise OSError(28, "No space left on device")  # as the kernel says it: without a path

    path = str(tmp_path / "a")
    _files.write_file(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left on device") as caught:
            _files.write_file(path, "new")
    assert caught.value.filename == path
    assert Path(path).read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_a_folder_that_is_not_there_is_told_by_the_name_that_was_asked(tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "a")
    with pytest.raises(FileNotFoundError) as caught:
        _files.write_file(path, "x")
    assert caught.value.filename in (path, str(tmp_path / "none"))


def test_an_error_of_the_writer_itself_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), _files.replacing(str(tmp_path / "a")):
        Path("/nowhere/elsewhere").read_text()
    assert names(tmp_path) == []


def test_a_stream(tmp_path: Path) -> None:
    with _files.replacing(str(tmp_path / "a")) as out:
        out.write(b"1")
        assert "a" not in names(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"1"


def test_leftovers_of_killed_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    for name in (".a.99999999.new", f".a.{os.getppid()}.new", f".a.{os.getpid()}.new", ".b.99999999.new", ".a.x.new"):
        (tmp_path / name).write_text("half")
    _files.write_file(str(tmp_path / "a"), "whole")
    assert names(tmp_path) == sorted([".a.x.new", ".b.99999999.new", f".a.{os.getppid()}.new", "a"])
    _files.remove_left_behind(str(tmp_path))
    assert ".b.99999999.new" not in names(tmp_path)


def test_nobody_else_writes_so() -> None:
    plugins = Path(_files.__file__).parents[1]
    own = re.compile(r"os\.(rename|replace)\(|mkstemp|NamedTemporaryFile")
    found = {path.name for path in plugins.rglob("*.py") if own.search(path.read_text(encoding="utf-8"))}
    # The driver of the benchmark runs where nothing of the collection is.
    assert found == {"_files.py", "_bench_driver.py"}
