# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The transient unit in which the benchmark client runs, and the folder that it shares with us. PRIVATE to specdec.serving.

A run of the client takes minutes and must not depend on a connection: `systemd-run` starts it, and each call of the module looks at it
for a while. It ends by itself when nobody looks any more (the lease in `_bench_driver`), after `RuntimeMaxSec`, and with its cgroup.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import pwd
import re
import shutil
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _bench_driver
from ansible_collections.specdec.serving.plugins.module_utils._redact import is_secret_variable
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, show

__all__ = ("Folder", "JobError", "client_environment", "job_unit", "python_of", "start", "stop", "unit_user")

#: What the client may inherit of the server: where caches and modules lie, and what platform it is.
_INHERITED = re.compile(r"HOME|PATH|LANG|LC_\w+|TMPDIR|(?:HF|SGLANG|SGL|XDG|TRITON|TRANSFORMERS|FLASHINFER)_\w+")
_STOP_S = 15
_LOG_END = 4000


class JobError(Exception):
    """The client cannot be run; the message says why and what to do."""


def job_unit(unit: str) -> str:
    """The name of the client's unit: one for each server, so that two benchmarks of one server are refused."""
    return f"specdec-benchmark-{unit[: -len('.service')]}.service"


def python_of(program: str) -> str:
    """The engine's Python by the program of the server's ExecStart (`ENGINE/bin/python` or `ENGINE/bin/sglang`); '' = unknown."""
    if not program:
        return ""
    if re.fullmatch(r"python[\d.]*", os.path.basename(program)):
        return program
    beside = os.path.join(os.path.dirname(program), "python")
    return beside if os.access(beside, os.X_OK) else ""


def client_environment(environ: bytes) -> dict[str, str]:
    """The client's environment from that of the server, as in ``/proc/PID/environ``.

    It must see no GPU, ask no hub and use no proxy; secrets are left out.
    """
    found = {}
    for item in environ.split(b"\0"):
        name, separator, value = item.decode("utf-8", "replace").partition("=")
        if separator and _INHERITED.fullmatch(name) and not is_secret_variable(name):
            found[name] = value
    return {
        **found,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": "*",
        "TOKENIZERS_PARALLELISM": "false",
        "no_proxy": "*",
    }


def unit_user(runner: Runner, unit: str) -> str:
    """The unit's User=, '' = root."""
    _code, stdout, _stderr = runner(["systemctl", "show", "--no-pager", "--value", "--property", "User", "--", unit])
    return stdout.strip()


@dataclasses.dataclass(frozen=True)
class Folder:
    """What the client's unit and we share: readable to its user and root only."""

    path: str

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def make(
        self, job: t.Mapping[str, t.Any], keys: t.Mapping[str, str], files: t.Mapping[str, str], user: str
    ) -> None:
        """Begin with an empty folder. ``files`` are copied into it: name to path. Raises JobError."""
        try:
            self._make(job, keys, files, _account(user) if user else None)
        except OSError as error:
            raise JobError(
                f"the folder of the benchmark client cannot be made: {error}; make room there, or give another state_dir"
            ) from error

    def _make(
        self,
        job: t.Mapping[str, t.Any],
        keys: t.Mapping[str, str],
        files: t.Mapping[str, str],
        owner: pwd.struct_passwd | None,
    ) -> None:
        self.remove()
        os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
        os.mkdir(self.path, 0o700)
        texts = {
            "driver.py": inspect.getsource(_bench_driver),
            "job.json": json.dumps(job),
            "keys.json": json.dumps(keys),
            "alive": "",
            **{name: _text(path) for name, path in files.items()},
        }
        for name, text in texts.items():
            handle = os.open(self._at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                if owner is not None:
                    os.fchown(file.fileno(), owner.pw_uid, owner.pw_gid)
        if owner is not None:
            os.chown(self.path, owner.pw_uid, owner.pw_gid)

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)

    def discard(self) -> None:
        """As `remove`, after something that failed and is told: whatever cannot be removed is passed over."""
        shutil.rmtree(self.path, ignore_errors=True)

    def touch(self, *, ago: float = 0.0) -> None:
        """Say that somebody waits for the figures, or waited for them so many seconds ago."""
        at = time.time() - ago
        with contextlib.suppress(OSError):
            os.utime(self._at("alive"), (at, at), follow_symlinks=False)

    def _json(self, name: str) -> dict[str, t.Any]:
        try:
            content = json.loads(_text(self._at(name)))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def progress(self) -> dict[str, t.Any]:
        """How far it is, {} before the first word."""
        return self._json("progress.json")

    def end(self) -> dict[str, t.Any]:
        """``reason`` and ``detail`` once it has ended by itself, else {}."""
        return self._json("end.json")

    def keep(self, value: t.Mapping[str, t.Any]) -> None:
        """Put something aside until the last call."""
        handle = os.open(self._at("kept.json"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file)

    def kept(self) -> dict[str, t.Any]:
        """What was put aside."""
        return self._json("kept.json")

    def runs(self) -> list[dict[str, t.Any]]:
        """The runs that are over. A line that was being written when it was killed is left out."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for line in _text(self._at("runs.jsonl")).splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return [run for run in found if isinstance(run, dict)]

    def log(self) -> str:
        """The end of what the client printed."""
        try:
            with open(self._at("client.log"), "rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - _LOG_END, 0))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""


def _account(user: str) -> pwd.struct_passwd:
    # User= of a unit is a name or a number.
    try:
        return pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        raise JobError(f"User={user} of the server's unit is no account of this host; correct the unit") from None


def _text(path: str) -> str:
    # What lies in the folder is the client user's, who could put a link there for root to read.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle, encoding="utf-8", errors="replace") as file:
        return file.read()


def start(runner: Runner, unit: str, folder: Folder, *, python: str, user: str, longest_s: float) -> None:
    """Start the client's unit. Raises JobError."""
    argv = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", "--service-type=exec"]
    argv += [
        f"--property={name}={value}"
        for name, value in (
            ("Description", "Benchmark client of SGLang"),
            ("RuntimeMaxSec", f"{longest_s:.0f}"),
            ("TimeoutStopSec", str(_STOP_S)),
            ("WorkingDirectory", folder.path),
            ("StandardOutput", f"append:{folder.path}/client.log"),
            ("StandardError", "inherit"),
            ("LimitNOFILE", "65536"),
            *((("User", user),) if user else ()),
        )
    ]
    code, stdout, stderr = runner([*argv, "--", python, "-u", f"{folder.path}/driver.py", folder.path])
    if code != 0:
        raise JobError(f"the benchmark client could not be started ({unit}): {(stderr or stdout).strip() or code}")


def stop(runner: Runner, unit: str) -> None:
    """End the client's unit, which writes down what it has; nothing to do when it is gone."""
    if show(runner, unit).active_state not in ("inactive", "failed"):
        runner(["systemctl", "stop", "--", unit])
    runner(["systemctl", "reset-failed", "--", unit])
