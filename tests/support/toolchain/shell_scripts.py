# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs shellcheck on every shell script of the working tree. PRIVATE to this checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.toolchain import packages, source_tree
from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT

_SHEBANG = re.compile(rb"#!.*\b(?:ba|da|k)?sh\b")


def shell_scripts(*, root: Path, names: t.Iterable[str]) -> list[str]:
    """Return the files that a shell runs, by their name or their first line."""
    found = []
    for name in names:
        path = root / name
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            first = file.readline(200)
        if name.endswith(".sh") or _SHEBANG.match(first):
            found.append(name)
    return found


def main() -> int:
    """Check them; exit 1 with shellcheck's findings or one line about what is missing."""
    scripts = shell_scripts(root=ROOT, names=source_tree.files(root=ROOT))
    if not scripts:
        print("no shell script found, and there is at least .ci/run: is this a git checkout?")
        return 1
    try:
        packages.ensure({"shellcheck": "shellcheck"})
    except packages.MissingPackageError as exc:
        print(exc)
        return 1
    print(*scripts, sep="\n")
    return subprocess.run(["shellcheck", *scripts], cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
