# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps what explains a failed start, as one archive on the host. PRIVATE to the collection.

What a hung server does is gone with its next restart, and a journal is rotated away. So the moment a wait ends without
readiness, everything that a bug report needs is collected: within bounds of time and memory, without secrets, and without
ever changing the verdict. Archives lie in ``STATE_DIR/evidence/UNIT/TIME-LABEL-INVOCATION.tar.gz``; the label is the state, or
the cause where the state says too little. One is written under another name first, so that a name like this is a whole archive.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import stat
import tarfile
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._evidence_collector import WRITING_S, Collector
from ansible_collections.specdec.serving.plugins.module_utils._evidence_machine import Machine
from ansible_collections.specdec.serving.plugins.module_utils._evidence_text import Blocks, Spool, stamp_of
from ansible_collections.specdec.serving.plugins.module_utils._files import remove_left_behind, replacing
from ansible_collections.specdec.serving.plugins.module_utils._readiness import (
    CRASH_LOOP,
    CRASHED,
    LOADING,
    NOT_FOUND,
    READY,
    STOPPED,
)
from ansible_collections.specdec.serving.plugins.module_utils._runner import within

__all__ = (
    "FOLDER",
    "Archives",
    "keep",
)

#: Below the folder of the records.
FOLDER = "evidence"

#: All of it, from the verdict to the archive.
BUDGET_S = 15.0

#: No start has failed: nothing was there, nobody asked for one, or it serves.
_NO_FAILED_START = (READY, NOT_FOUND, STOPPED, "follower")

#: Verdicts about processes that have gone.
_DEAD = (CRASHED, CRASH_LOOP)


class EvidenceError(Exception):
    """An archive cannot be kept; the message says why."""


_ARCHIVE = re.compile(r"(?P<stamp>\d{8}T\d{6}Z)-(?P<label>[A-Za-z0-9_]+)-(?P<invocation>[0-9a-f]{32}|none)\.tar\.gz\Z")


class Archives:
    """The archives of one unit in ``state_dir/evidence/UNIT``. Only one process changes them at a time."""

    def __init__(self, state_dir: str, unit: str) -> None:
        self.folder = os.path.join(state_dir, FOLDER, unit)
        self._lock: int | None = None

    def open(self, wait: t.Callable[[], bool]) -> None:
        """Make the folder and take its lock; ``wait`` pauses a moment and tells whether to try again. Raises EvidenceError, OSError."""
        parent = os.path.dirname(self.folder)
        os.makedirs(os.path.dirname(parent), mode=0o755, exist_ok=True)
        for folder in (parent, self.folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise EvidenceError(f"{folder} is no folder of user id {os.geteuid()}: move it away")
            if stat.S_IMODE(found.st_mode) != 0o700:
                os.chmod(folder, 0o700)
        self._lock = os.open(
            os.path.join(self.folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait():
                    raise EvidenceError("another wait is keeping evidence of this unit at the same time") from None
        # Whoever left these behind does not hold the lock any more: it was killed.
        remove_left_behind(self.folder)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def names(self) -> list[str]:
        """The archives, the oldest first."""
        return sorted(name for name in os.listdir(self.folder) if _ARCHIVE.match(name))

    def write(self, name: str, files: t.Mapping[str, str | Spool], *, at: float) -> str:
        """Write an archive whole or not at all; gives its path. ``at`` is the time of its files. Raises OSError."""
        path = os.path.join(self.folder, name)
        root = name[: -len(".tar.gz")]
        with (
            replacing(path) as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as archive,
        ):
            for inner, content in files.items():
                _add_member(archive, f"{root}/{inner}", content, at)
        return path

    def prune(self, newest: str, keep: int) -> None:
        """Remove what ``newest`` replaces, and all but the last ``keep``.

        One start judged again replaces its archive, unless the earlier one saw processes that have gone since.
        """
        new = _ARCHIVE.match(newest)
        names = self.names()
        others = []
        for name in names:
            old = _ARCHIVE.match(name)
            if name == newest or old is None or new is None:
                continue
            same = old.group("invocation") == new.group("invocation")
            dead_again = new.group("label") in _DEAD and old.group("label") not in _DEAD
            if same and not dead_again:
                os.unlink(os.path.join(self.folder, name))
            else:
                others.append(name)
        for name in others[: max(len(others) - (keep - 1), 0)]:
            os.unlink(os.path.join(self.folder, name))


def _add_member(archive: tarfile.TarFile, name: str, content: str | Spool, at: float) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = int(at)
    member.mode = 0o600
    if isinstance(content, Spool):
        content.flush()
        member.size = content.size
        archive.addfile(member, t.cast("t.IO[bytes]", io.BufferedReader(Blocks(content.blocks()))))
    else:
        data = content.encode("utf-8", "replace")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


def _label(result: t.Mapping[str, t.Any]) -> str:
    cause = str((result.get("diagnosis") or {}).get("cause") or "")
    state = str(result["state"])
    return re.sub(r"[^A-Za-z0-9_]", "_", cause if state == LOADING and cause else state)[:40]


def _keep(result: dict[str, t.Any], params: t.Mapping[str, t.Any], machine: Machine) -> str:
    deadline = machine.monotonic() + BUDGET_S
    collector = Collector(machine, result, params, deadline)
    collector.collect()
    archives = Archives(str(params["state_dir"]), str(result["unit"]))

    def wait() -> bool:
        machine.sleep(0.1)
        return machine.monotonic() < deadline

    try:
        archives.open(wait)
        now = machine.wall()
        invocation = str(result.get("invocation_id") or "") or "none"
        name = f"{stamp_of(now, pattern='%Y%m%dT%H%M%SZ')}-{_label(result)}-{invocation}.tar.gz"
        path = archives.write(name, {"index.txt": collector.index(), **collector.files}, at=now)
        archives.prune(name, int(params["keep_evidence"]))
    finally:
        archives.close()
    return path


def keep(
    result: dict[str, t.Any], params: t.Mapping[str, t.Any], *, wait: bool, machine: Machine | None = None
) -> None:
    """Keep the evidence of a failed start; the result gets the key ``evidence``, and its message says where that is.

    Nothing is done for a start that has not failed, without ``wait`` (also in check mode), between slices, and where ``state_dir`` is
    empty or ``keep_evidence`` 0. What goes wrong is a notice of the result, never an exception: the verdict stands.
    """
    if not wait or not result.get("finished") or result.get("ready") or result.get("state") in _NO_FAILED_START:
        return
    if not params.get("state_dir") or int(params.get("keep_evidence") or 0) <= 0:
        return
    folder = os.path.join(str(params["state_dir"]), FOLDER, str(result["unit"]))
    try:
        kept = dict(result)
        path = within(BUDGET_S + WRITING_S, lambda: _keep(kept, params, machine or Machine()))
    except Exception as error:  # noqa: BLE001  a bug here must not cost the verdict; it is told
        why = f"{type(error).__name__}: {error}" if not isinstance(error, EvidenceError) else str(error)
        result.setdefault("notices", []).append(f"evidence of this failed start was not kept in {folder}: {why}")
        return
    result["evidence"] = path
    told = f"Evidence is on the host: {path}; `ansible-playbook specdec.serving.collect` fetches it."
    result["msg"] = " ".join(part for part in (str(result.get("msg", "")), told) if part)
