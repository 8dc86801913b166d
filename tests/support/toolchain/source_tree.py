# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Copies the checkout as `git archive` would, but of the working tree. PRIVATE to this checkout.

ansible-test and antsibull-docs want a real folder ``ansible_collections/specdec/serving`` without links to folders, and
what is being written right now has to be checked before it is committed.
"""

from __future__ import annotations

import shutil
import subprocess
import typing as t
from pathlib import Path

NAMESPACE, NAME = "specdec", "serving"


def _git(*words: str, root: Path, text: str = "") -> list[str]:
    done = subprocess.run(["git", *words], cwd=root, input=text, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


def files(*, root: Path) -> list[str]:
    """List the files, as paths from ``root``, that are tracked or new and not ignored; deleted ones are left out."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate", root=root)
    return sorted(name for name in listed if (root / name).exists() or (root / name).is_symlink())


def exported(*, root: Path) -> list[str]:
    """List ``files`` less those that .gitattributes keeps out of archives (export-ignore on them or a folder above)."""
    names = files(root=root)
    above = {str(parent) for name in names for parent in Path(name).parents if str(parent) != "."}
    asked = "\0".join([*names, *sorted(above)])
    fields = iter(_git("check-attr", "-z", "--stdin", "export-ignore", root=root, text=asked))
    ignored = {path for path, _attribute, value in zip(fields, fields, fields) if value == "set"}
    return [name for name in names if not ignored & {name, *map(str, Path(name).parents)}]


def make(*, root: Path, into: Path) -> Path:
    """Make ``into/ansible_collections/specdec/serving`` anew from the working tree and return it."""
    tree = into / "ansible_collections" / NAMESPACE / NAME
    if tree.exists():
        shutil.rmtree(tree)
    for name in exported(root=root):
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target, follow_symlinks=False)
    return tree


def as_repository(tree: Path) -> None:
    """Make a tree a git repository of its own: ansible-test lists files by git and would else find the one around it."""
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=tree, check=True, stdin=subprocess.DEVNULL)


def links_leading_out(*, root: Path, names: t.Iterable[str]) -> list[str]:
    """List the links among ``names`` that are absolute or lead out of ``root``."""
    bad = []
    for name in names:
        path = root / name
        if path.is_symlink():
            target = path.readlink()
            if target.is_absolute() or not path.resolve().is_relative_to(root.resolve()):
                bad.append(f"{name} -> {target}")
    return bad
