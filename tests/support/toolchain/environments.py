# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes the virtual environments of a checkout. Standard library only: it runs before there is any environment.

``.venv`` holds the controller's tools, ``.venv-py39`` what the unit tests of target-side code need on the oldest Python
of a managed host. Each is a link to ``build/venvs/NAME-KEY``, KEY being a hash of the requirements and the interpreter:
an unchanged environment costs a look at the link, a changed one is built beside the old one and switched to in one step,
and whatever was interrupted has no link and is built again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

#: Python versions that a pinned ansible-core runs on as a controller, best first. 3.11, which Debian 12 has, gets an
#: older ansible-core than the others.
CONTROLLER_VERSIONS = ((3, 13), (3, 12), (3, 14), (3, 11))
#: The oldest Python of a managed host (tests/config.yml).
TARGET_VERSIONS = ((3, 9),)

#: Asks an interpreter what it is, and whether it can make an environment: Debian's python3 without python3-venv cannot.
#: In a virtual environment, such as the one that is about to be replaced, the interpreter below it is meant.
_PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2], sys._base_executable, sep='\\n')"


class ToolchainError(Exception):
    """Something that the user has to put right; the message says what."""


class InterpreterNotFoundError(ToolchainError):
    """No Python of a wanted version works here."""


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """An interpreter that was run and can make environments. ``path`` is its own, outside of any environment."""

    path: str
    version: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Environment:
    """What goes into one environment.

    ``requirements`` are files below ``requirements/``; ``without_dependencies`` are requirement lines that are installed
    for an interpreter on which their own metadata would refuse, hence without their dependencies.
    """

    name: str
    versions: tuple[tuple[int, int], ...]
    requirements: tuple[str, ...]
    constraints: str = ""
    without_dependencies: tuple[str, ...] = ()


def requirement(*, file: Path, name: str) -> str:
    """Return ``name==version`` as the first line of a requirements file with that name says, without its marker."""
    for line in file.read_text(encoding="utf-8").splitlines():
        found = re.match(rf"{re.escape(name)}==[^ ;]+", line)
        if found:
            return found.group()
    raise ToolchainError(f"{file} pins no {name!r}: write a line {name}==VERSION")


def environment(*, name: str, root: Path = ROOT) -> Environment:
    """Return the environment called ``name``."""
    if name == ".venv":
        return Environment(
            name=name,
            versions=CONTROLLER_VERSIONS,
            requirements=("runtime.txt", "postgresql.txt", "test.txt", "lint.txt"),
            constraints="constraints.txt",
        )
    if name == ".venv-py39":
        core = requirement(file=root / "requirements" / "runtime.txt", name="ansible-core")
        return Environment(
            name=name, versions=TARGET_VERSIONS, requirements=("target-py39.txt",), without_dependencies=(core,)
        )
    raise ToolchainError(f"no environment is called {name!r}: .venv or .venv-py39")


def candidates(*, versions: tuple[tuple[int, int], ...], environ: t.Mapping[str, str]) -> list[str]:
    """List the interpreters to try, best first: $PYTHON, then by version those on PATH and in pyenv's folder."""
    found: list[str] = []
    if environ.get("PYTHON"):
        found.append(environ["PYTHON"])
    pyenv = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/")) / ".pyenv") / "versions"
    for major, minor in versions:
        on_path = shutil.which(f"python{major}.{minor}", path=environ.get("PATH", os.defpath))
        if on_path:
            found.append(on_path)
        # 3.13.10 is newer than 3.13.9
        builds = sorted(pyenv.glob(f"{major}.{minor}.*"), key=lambda p: [int(n) for n in re.findall(r"\d+", p.name)])
        found.extend(str(build / "bin" / "python") for build in reversed(builds))
    for name in ("python3", "python"):
        on_path = shutil.which(name, path=environ.get("PATH", os.defpath))
        if on_path:
            found.append(on_path)
    return list(dict.fromkeys(found))


def probe(path: str) -> Interpreter | str:
    """Run an interpreter and return what it is, or why it cannot be used."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return f"cannot be run: {exc}"
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != 2:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        return f"cannot make a virtual environment: it said {said!r}"
    major, minor = lines[0].split(".")
    return Interpreter(path=lines[1], version=(int(major), int(minor)))


def find_interpreter(*, versions: tuple[tuple[int, int], ...], environ: t.Mapping[str, str]) -> Interpreter:
    """Return the first candidate of a wanted version that works. The error names everything that was looked at."""
    looked_at: list[str] = []
    for path in candidates(versions=versions, environ=environ):
        answer = probe(path)
        if isinstance(answer, Interpreter) and answer.version in versions:
            return answer
        reason = answer if isinstance(answer, str) else f"is Python {answer.version[0]}.{answer.version[1]}"
        looked_at.append(f"  {path}: {reason}")
    wanted = ", ".join(f"{major}.{minor}" for major, minor in sorted(versions))
    raise InterpreterNotFoundError(
        f"no Python {wanted} with venv and ensurepip was found. Looked at:\n"
        + ("\n".join(looked_at) or "  (nothing: no python on PATH, no pyenv)")
        + f"\nInstall one (Debian: python{versions[0][0]}.{versions[0][1]}-venv; pyenv: pyenv install "
        f"{versions[0][0]}.{versions[0][1]}) or name it: make venv PYTHON=/path/to/python"
    )


def key(*, env: Environment, root: Path, python: str) -> str:
    """Hash what decides an environment's content."""
    digest = hashlib.sha256()
    digest.update(python.encode())
    for name in (*env.requirements, *filter(None, [env.constraints])):
        digest.update(b"\0" + name.encode() + b"\0" + (root / "requirements" / name).read_bytes())
    for line in env.without_dependencies:
        digest.update(b"\0" + line.encode())
    return digest.hexdigest()[:12]


def current(*, env: Environment, root: Path, environ: t.Mapping[str, str]) -> Path | None:
    """Return the environment if it is there, complete and of these requirements, running nothing but a $PYTHON that was named."""
    link = root / env.name
    if not link.is_symlink():
        return None
    venv = link.resolve()
    python = venv / "bin" / "python"
    try:
        made_with = (venv / "made-with").read_text(encoding="utf-8")
    except OSError:
        return None
    if not os.access(python, os.X_OK):
        return None
    if environ.get("PYTHON"):
        asked = probe(environ["PYTHON"])
        if not isinstance(asked, Interpreter) or asked.path != made_with:
            return None
    return venv if venv.name == f"{env.name.lstrip('.')}-{key(env=env, root=root, python=made_with)}" else None


def _run(argv: t.Sequence[str | Path]) -> None:
    words = [str(word) for word in argv]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"{' '.join(words)!r} ended with {done.returncode}; its output is above")


def build(*, env: Environment, root: Path, interpreter: Interpreter) -> Path:
    """Build an environment beside the present one and switch the link to it."""
    venvs = root / "build" / "venvs"
    venv = venvs / f"{env.name.lstrip('.')}-{key(env=env, root=root, python=interpreter.path)}"
    if venv.exists():
        shutil.rmtree(venv)
    venvs.mkdir(parents=True, exist_ok=True)
    _run([interpreter.path, "-m", "venv", venv])
    pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    words: list[str | Path] = [*pip]
    if env.constraints:
        words += ["--constraint", root / "requirements" / env.constraints]
    for name in env.requirements:
        words += ["--requirement", root / "requirements" / name]
    _run(words)
    if env.without_dependencies:
        _run([*pip, "--no-deps", "--ignore-requires-python", *env.without_dependencies])
    (venv / "made-with").write_text(interpreter.path, encoding="utf-8")
    link, fresh = root / env.name, root / f"{env.name}.new"
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    fresh.symlink_to(venv.relative_to(root))
    if link.is_dir() and not link.is_symlink():
        raise ToolchainError(f"{link} is a folder that was not made here: move it away")
    before = link.resolve() if link.is_symlink() else None
    fresh.replace(link)
    # The one before is kept: a command that runs right now may still use it.
    for other in venvs.glob(f"{env.name.lstrip('.')}-*"):
        if re.fullmatch(rf"{re.escape(env.name.lstrip('.'))}-[0-9a-f]{{12}}", other.name) and other not in (
            venv,
            before,
        ):
            shutil.rmtree(other)
    return venv


def ensure(*, name: str, root: Path, environ: t.Mapping[str, str]) -> Path:
    """Return the environment ``name``, made or renewed where needed. Safe to call from several processes at once."""
    env = environment(name=name, root=root)
    venv = current(env=env, root=root, environ=environ)
    if venv:
        return venv
    (root / "build").mkdir(exist_ok=True)
    with (root / "build" / f"{name.lstrip('.')}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        venv = current(env=env, root=root, environ=environ)  # another process may have made it meanwhile
        if venv:
            return venv
        interpreter = find_interpreter(versions=env.versions, environ=environ)
        print(f"{name}: making it with {interpreter.path} from requirements/*.txt", file=sys.stderr, flush=True)
        return build(env=env, root=root, interpreter=interpreter)


def main(argv: list[str] | None = None) -> int:
    """Make the named environments; exit 0 made or unchanged, 1 with one clear error, 3 skipped with its reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help=".venv, .venv-py39")
    parser.add_argument(
        "--may-lack", action="store_true", help="a missing interpreter is a printed skip (exit 3), not an error"
    )
    options = parser.parse_args(argv)
    for name in options.names:
        # $PYTHON chooses the controller's interpreter; the target's is looked for by its version.
        environ = {k: v for k, v in os.environ.items() if k != "PYTHON" or name == ".venv"}
        try:
            ensure(name=name, root=ROOT, environ=environ)
        except ToolchainError as exc:
            if options.may_lack and isinstance(exc, InterpreterNotFoundError):
                print(f"SKIPPED {name}: {exc}", flush=True)
                return 3
            print(f"error: {exc}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
