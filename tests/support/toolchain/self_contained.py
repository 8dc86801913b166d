# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks that nothing in the tree points outside of it or at the machine it was written on. PRIVATE to this checkout."""

from __future__ import annotations

import re
import sys
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.toolchain import source_tree
from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT

#: Folders in which a path is a fact about another machine: recorded output is kept byte for byte.
RECORDED = ("tests/unit/fixtures/",)


def patterns(*, root: Path, home: Path) -> dict[str, re.Pattern[str]]:
    """Return what must not occur, by the word for it. Pieces are joined so that this file does not match itself."""
    return {
        "a folder beside the checkout": re.compile(r"\.\./" + r"shared\b"),
        "this checkout's own path": re.compile(re.escape(str(root)) + r"(?![\w.-])"),
        "a home folder's Python": re.compile(
            r"(?:" + re.escape(str(home)) + r"|/home/\w+|/root)/\." + r"(?:pyenv|venv)\b"
        ),
    }


def findings(*, root: Path, names: t.Iterable[str], home: Path) -> list[str]:
    """Return ``file:line: what`` for each line of a text file that points outside."""
    wanted = patterns(root=root, home=home)
    found = []
    for name in names:
        if name.startswith(RECORDED) or not (root / name).is_file() or (root / name).is_symlink():
            continue
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            found += [
                f"{name}:{number}: {what}: {line.strip()}" for what, pattern in wanted.items() if pattern.search(line)
            ]
    return found


def main() -> int:
    """Print the findings; exit 1 if there are any."""
    names = source_tree.files(root=ROOT)
    found = findings(root=ROOT, names=names, home=Path.home())
    found += [f"{link}: a link that leads outside" for link in source_tree.links_leading_out(root=ROOT, names=names)]
    for line in found:
        print(line)
    print(f"{len(names)} files looked at, {len(found)} point outside")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
