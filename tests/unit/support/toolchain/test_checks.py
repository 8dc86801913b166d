# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.toolchain import self_contained, shell_scripts, source_tree
from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    files = {
        ".gitattributes": "/.hidden export-ignore\n*.secret export-ignore\n",
        ".gitignore": "ignored\n",
        ".hidden/link": "",
        "a b.txt": "tracked",
        "deep/er/file": "tracked",
        "deep/x.secret": "",
        "gone": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    subprocess.run(["git", "add", "--all"], cwd=root, check=True)
    (root / "gone").unlink()
    (root / "a b.txt").write_text("changed")
    (root / "new").write_text("")
    (root / "ignored").write_text("")
    return root


def test_the_tree_is_the_working_tree_as_an_archive(repository: Path, tmp_path: Path) -> None:
    tree = source_tree.make(root=repository, into=tmp_path / "into")
    assert tree == tmp_path / "into" / "ansible_collections" / "specdec" / "serving"
    held = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    assert held == [".gitattributes", ".gitignore", "a b.txt", "deep/er/file", "new"]
    assert (tree / "a b.txt").read_text() == "changed"


def test_a_tree_is_made_anew(repository: Path, tmp_path: Path) -> None:
    tree = source_tree.make(root=repository, into=tmp_path / "into")
    (tree / "left-over").write_text("")
    source_tree.make(root=repository, into=tmp_path / "into")
    assert not (tree / "left-over").exists()


def test_the_tree_is_a_repository_of_its_own(repository: Path, tmp_path: Path) -> None:
    tree = source_tree.make(root=repository, into=tmp_path / "into")
    source_tree.as_repository(tree)
    assert "deep/er/file" in source_tree.files(root=tree)


def test_links_leading_out_are_found(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "inside").symlink_to("..")
    (root / "sub" / "outside").symlink_to("../../other")
    (root / "absolute").symlink_to(root / "sub")
    names = ["sub/inside", "sub/outside", "absolute"]
    assert source_tree.links_leading_out(root=root, names=names) == [
        "sub/outside -> ../../other",
        f"absolute -> {root}/sub",
    ]


def test_this_checkouts_link_stays_inside() -> None:
    names = source_tree.files(root=ROOT)
    assert ".collections/ansible_collections/specdec/serving" in names
    assert source_tree.links_leading_out(root=ROOT, names=names) == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("see ../{s}/notes.md", "a folder beside the checkout"),
        ("cd {root}/tests", "this checkout's own path"),
        ("cd {root}", "this checkout's own path"),
        ("cd {root}-other", None),
        ("{home}/.{p}/versions", "a home folder's Python"),
        ("/root/.{p}/bin", "a home folder's Python"),
        ("the ~/.{p} folder", None),
        ("../{s}r/notes.md", None),
    ],
    ids=["beside", "own path", "own path at the end", "longer name", "home", "root", "tilde", "other name"],
)
def test_pointers_outside_are_found(tmp_path: Path, line: str, what: str | None) -> None:
    text = line.format(s="shared", root=tmp_path, home="/home/me", p="pyenv")
    (tmp_path / "file").write_text(f"first\n{text}\n")
    found = self_contained.findings(root=tmp_path, names=["file"], home=Path("/home/me"))
    assert found == ([f"file:2: {what}: {text}"] if what else [])


def test_recorded_output_and_binary_files_are_left_alone(tmp_path: Path) -> None:
    recorded = "tests/unit/fixtures/x.log"
    (tmp_path / recorded).parent.mkdir(parents=True)
    (tmp_path / recorded).write_text(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff" + str(tmp_path).encode())
    assert self_contained.findings(root=tmp_path, names=[recorded, "binary"], home=Path("/home/me")) == []


def test_shell_scripts_are_found_by_name_or_first_line(tmp_path: Path) -> None:
    files = {
        "a.sh": "",
        "run": "#!/usr/bin/env bash\n",
        "posix": "#!/bin/sh -e\n",
        "other": "#!/usr/bin/env python3\n",
        "text": "sh\n",
        "fish": "#!/usr/bin/fish\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert shell_scripts.shell_scripts(root=tmp_path, names=files) == ["a.sh", "run", "posix"]
