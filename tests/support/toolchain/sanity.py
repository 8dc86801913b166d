# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs ansible-test sanity and antsibull-docs on a copy of the working tree. PRIVATE to this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.toolchain import source_tree
from ansible_collections.specdec.serving.tests.support.toolchain.environments import ROOT

#: ansible-test fetches pip's bootstrap script from a host of its own. Python brings the same, without a download.
_GET_PIP = 'import ensurepip\n\nensurepip._main(["--default-pip"])\n'


def sanity_environ(*, home: Path, environ: t.Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which ansible-test keeps what it makes in ``home``, with the user's pip settings."""
    user = Path(environ.get("HOME", "/"))
    return {
        **environ,
        "HOME": str(home),
        "XDG_CONFIG_HOME": environ.get("XDG_CONFIG_HOME") or str(user / ".config"),
        "XDG_CACHE_HOME": environ.get("XDG_CACHE_HOME") or str(user / ".cache"),
        "ANSIBLE_HOME": str(home / ".ansible"),
        "PYENV_ROOT": environ.get("PYENV_ROOT") or str(user / ".pyenv"),
    }


def pip_version(ansible_test: Path) -> str:
    """Read which pip ansible-test would bootstrap from the source of its own virtual environments."""
    source = (ansible_test / "_util" / "target" / "setup" / "requirements.py").read_text(encoding="utf-8")
    source += (ansible_test / "_internal" / "python_requirements.py").read_text(encoding="utf-8")
    found = re.search(r"""['"]?pip['"]?\s*[:=]\s*['"]([0-9.]+)['"]""", source)
    if not found:
        raise LookupError(f"no pip version found in {ansible_test}: look where ansible-test keeps it now")
    return found.group(1)


def write_get_pip(*, home: Path, version: str) -> None:
    """Put the bootstrap script where ansible-test looks before it downloads one."""
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(_GET_PIP, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Run ``sanity`` or ``docs`` (the only argument) and return its exit status."""
    (what,) = argv if argv is not None else sys.argv[1:]
    tree = source_tree.make(root=ROOT, into=ROOT / "build" / "lint" / what)
    source_tree.as_repository(tree)
    if what == "docs":
        words = ["antsibull-docs", "lint-collection-docs", "--plugin-docs", "--validate-collection-refs=self", "."]
        return subprocess.run(words, cwd=tree, stdin=subprocess.DEVNULL, check=False).returncode
    import ansible_test  # only in the environment with ansible-core

    home = ROOT / "build" / "lint" / "home"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    write_get_pip(home=home, version=pip_version(Path(ansible_test.__path__[0])))
    words = ["ansible-test", "sanity", "--local", "--python", version, "--requirements", "--color", "no"]
    environ = sanity_environ(home=home, environ=os.environ)
    return subprocess.run(words, cwd=tree, env=environ, stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
