# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install SGLang as an immutable engine: a venv that is never edited, complete or absent. PRIVATE to the collection.

An engine is complete when it holds ``engine.json``, which is written last. A folder without it is what an interrupted
installation left, and is removed. One lock per engine keeps two installations of it apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import shutil
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._engine_parser import cache_path
from ansible_collections.specdec.serving.plugins.module_utils._files import write_file
from ansible_collections.specdec.serving.plugins.module_utils._known_good import named_by_records
from ansible_collections.specdec.serving.plugins.module_utils._redact import mask_command
from ansible_collections.specdec.serving.plugins.module_utils._server_args import ServerArgsError, parse_release
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

__all__ = (
    "LOCK_FILE",
    "EngineError",
    "EngineRequest",
    "EngineResult",
    "complete_engines",
    "ensure_engine",
    "locked_version",
    "pip_environment",
    "read_engine",
)

#: The complete list of a wheelhouse's packages, ``name==version`` one a line.
LOCK_FILE = "requirements.lock"

_FORMAT = 1
_MARKER = "engine.json"
# importlib.metadata reads a text file; importing sglang would import torch.
_VERSION_PROGRAM = "import importlib.metadata as m; print(m.version('sglang'))"
_LOCKED_SGLANG = re.compile(r"^sglang==(?P<version>\S+)\s*(?:[;#\\].*)?$", re.MULTILINE)
_OUTPUT_LINES = 12


class EngineError(Exception):
    """The engine cannot be installed; nothing of it was left behind."""


@dataclasses.dataclass(frozen=True)
class EngineRequest:
    """What is to be installed where; ``wheelhouse`` '' = from an index."""

    path: str
    version: str
    python: str
    wheelhouse: str = ""
    requirements: tuple[str, ...] = ()
    index_url: str = ""
    keep: int = 3
    #: Holds the known-good records; '' = there are none.
    state_dir: str = ""


@dataclasses.dataclass
class EngineResult:
    """``removed``: older engines that were, or would be, removed."""

    changed: bool = False
    path: str = ""
    version: str = ""
    seconds: float = 0.0
    reason: str = ""
    removed: list[str] = dataclasses.field(default_factory=list)


def read_engine(path: str) -> dict[str, t.Any]:
    """The content of ``engine.json``, or {} for an engine that is incomplete or absent."""
    try:
        with open(f"{path}/{_MARKER}", encoding="utf-8") as file:
            content = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    complete = (
        isinstance(content, dict) and content.get("format") == _FORMAT and os.access(f"{path}/bin/python", os.X_OK)
    )
    return content if complete else {}


def complete_engines(folder: str) -> list[str]:
    """The names of the complete engines in a folder."""
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if read_engine(f"{folder}/{name}")]


def locked_version(lock_text: str) -> str:
    """The version of sglang in the text of a lock, or ''."""
    found = _LOCKED_SGLANG.search(lock_text)
    return found.group("version") if found else ""


def _same_release(left: str, right: str) -> bool:
    """Equal but for the local part (``0.5.23+cpu`` is 0.5.23)."""
    return left.partition("+")[0] == right.partition("+")[0]


def _tail(*texts: str) -> str:
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_OUTPUT_LINES:])


def _run(runner: Runner, argv: t.Sequence[str], what: str) -> str:
    code, stdout, stderr = runner(argv)
    if code != 0:
        # An index may be named with a password; pip masks it in its own output.
        raise EngineError(f"{what} failed with {code}: {mask_command(argv)}\n{_tail(stdout, stderr)}")
    return stdout


@contextlib.contextmanager
def _locked(
    path: str, timeout: float, clock: t.Callable[[], float], sleep: t.Callable[[float], None]
) -> t.Iterator[None]:
    deadline = clock() + timeout
    with open(path, "a", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Were we killed, pip would go on writing: the commands hold the lock as well.
                os.set_inheritable(file.fileno(), True)
                break
            except OSError as exc:
                if exc.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if clock() >= deadline:
                    raise EngineError(f"another installation holds {path!r} for more than {timeout:.0f} s") from exc
                sleep(0.5)
        yield


def _make_readable_folders(path: str) -> None:
    umask = os.umask(0o022)
    try:
        os.makedirs(path, exist_ok=True)
    finally:
        os.umask(umask)


def _remove_tree(path: str) -> None:
    """Remove a folder so that what an interruption leaves of it is not taken for an engine."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}/{_MARKER}")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def pip_environment(request: EngineRequest) -> dict[str, str]:
    """What steers pip. The URL of an index may hold a password, and everybody on the host can read a command line."""
    if request.wheelhouse:
        # It must not read the login's or the host's settings where a wheelhouse says everything.
        return {"PIP_CONFIG_FILE": "/dev/null"}
    return {"PIP_INDEX_URL": request.index_url} if request.index_url else {}


def _install(request: EngineRequest, runner: Runner, clock: t.Callable[[], float]) -> str:
    started = clock()
    _run(runner, [request.python, "-m", "venv", request.path], "making the venv")
    pip = [
        f"{request.path}/bin/python",
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ]
    if request.wheelhouse:
        lock = f"{request.wheelhouse}/{LOCK_FILE}"
        pip += ["--no-index", "--no-deps", "--find-links", request.wheelhouse, "--requirement", lock]
    else:
        pip += ["--", *request.requirements]
    _run(runner, pip, "installing SGLang")
    version = _run(
        runner, [f"{request.path}/bin/python", "-c", _VERSION_PROGRAM], "reading the version of SGLang"
    ).strip()
    if not _same_release(version, request.version):
        where = f"{request.wheelhouse}/{LOCK_FILE}" if request.wheelhouse else "the requirements"
        raise EngineError(
            f"{where} installed SGLang {version!r}, not {request.version!r}; correct sglang_version or the lock"
        )
    packages = _run(runner, [*pip[:3], "freeze", "--disable-pip-version-check"], "listing the packages").split("\n")
    content = {
        "format": _FORMAT,
        "installed_in_s": round(clock() - started, 1),
        "packages": sorted(line for line in packages if line),
        "python": request.python,
        "version": version,
        "wheelhouse": request.wheelhouse,
    }
    # What pip wrote must be on the disk before the file that says it is complete.
    os.sync()
    write_file(f"{request.path}/{_MARKER}", json.dumps(content, indent=1, sort_keys=True) + "\n", mode=0o644)
    return version


def _in_use(engines: str, unit_dir: str, proc: str) -> str:
    """The text of all unit files and command lines that may name an engine."""
    texts: list[str] = []
    for folder, _folders, names in os.walk(unit_dir):
        for name in names:
            if name.endswith((".service", ".conf")):
                with contextlib.suppress(OSError), open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
                    texts.append(file.read())
    for pid in os.listdir(proc):
        if pid.isdigit():
            with (
                contextlib.suppress(OSError),
                open(f"{proc}/{pid}/cmdline", encoding="utf-8", errors="replace") as file,
            ):
                texts.append(file.read())
    return "\n".join(text for text in texts if engines in text)


def _superfluous(request: EngineRequest, unit_dir: str, proc: str) -> list[str]:
    """Complete engines beyond the newest ``keep``, except those that a unit, a process or a known-good record names."""
    engines = os.path.dirname(request.path)
    with contextlib.suppress(FileNotFoundError):
        found = [
            (os.stat(f"{engines}/{name}/{_MARKER}").st_mtime, f"{engines}/{name}")
            for name in os.listdir(engines)
            if read_engine(f"{engines}/{name}")
        ]
        older = [path for _time, path in sorted(found, reverse=True) if path != request.path][
            max(request.keep - 1, 0) :
        ]
        if older:
            used = _in_use(engines, unit_dir, proc)
            kept = named_by_records(request.state_dir) if request.state_dir else set()
            return sorted(path for path in older if f"{path}/" not in used and path not in kept)
    return []


def ensure_engine(
    request: EngineRequest,
    runner: Runner,
    *,
    check_mode: bool = False,
    lock_timeout: float = 1800.0,
    unit_dir: str = "/etc/systemd/system",
    proc: str = "/proc",
    clock: t.Callable[[], float] = time.monotonic,
    sleep: t.Callable[[float], None] = time.sleep,
) -> EngineResult:
    """Install the engine unless it is complete, and remove older ones beyond ``keep``.

    :raises EngineError: when it cannot be installed; then its folder is gone.
    """
    try:
        parse_release(request.version)
    except ServerArgsError as exc:
        raise EngineError(str(exc)) from exc
    found = read_engine(request.path)
    if found:
        # Other engines are looked at only when one is added: this path is taken by every run that changes nothing.
        return EngineResult(path=request.path, version=str(found.get("version", "")), reason="complete")
    engines = os.path.dirname(request.path)
    partial = os.path.lexists(request.path)
    result = EngineResult(changed=True, path=request.path, version=request.version)
    result.reason = "an earlier installation was not completed" if partial else "not installed"
    if check_mode:
        result.removed = _superfluous(request, unit_dir, proc)
        return result
    _make_readable_folders(engines)
    with _locked(f"{engines}/.{os.path.basename(request.path)}.lock", lock_timeout, clock, sleep):
        found = read_engine(request.path)
        if found:
            return EngineResult(path=request.path, version=str(found.get("version", "")), reason="installed meanwhile")
        started = clock()
        _remove_tree(request.path)
        # The service user must be able to read it, whatever the login's umask is.
        umask = os.umask(0o022)
        try:
            result.version = _install(request, runner, clock)
        except BaseException:
            _remove_tree(request.path)
            raise
        finally:
            os.umask(umask)
        result.seconds = round(clock() - started, 1)
    result.removed = _superfluous(request, unit_dir, proc)
    for path in result.removed:
        _remove_tree(path)
        for beside in (f"{engines}/.{os.path.basename(path)}.lock", cache_path(path)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
    return result
