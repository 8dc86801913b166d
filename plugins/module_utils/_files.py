# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that appear whole, or not at all: the one place that writes so. PRIVATE to the collection.

A file is written beside its place under a hidden name, with its owner and mode, and reaches the disk before it is renamed;
then the folder does. A crash of the machine leaves the old file or the new one. What a killed writer left is removed by the
next one. Two writers of one file never disturb each other: the last rename counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import typing as t

__all__ = ("commit", "discard", "remove_left_behind", "replacing", "stage", "sync_folder", "write_file")

_LEFT_BEHIND = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)\.new")


@contextlib.contextmanager
def _told(path: str) -> t.Iterator[None]:
    """An error names the file that was to be written: a full disk does not say which, and nobody knows the hidden name."""
    try:
        yield
    except OSError as exc:
        if exc.filename is None or _LEFT_BEHIND.fullmatch(os.path.basename(str(exc.filename))):
            raise OSError(exc.errno, exc.strerror, path) from exc
        raise


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def remove_left_behind(folder: str, name: str = "") -> None:
    """Remove what killed writers left in a folder, of the file ``name`` or of all; a writer that lives keeps its own."""
    for other in os.listdir(folder or "."):
        found = _LEFT_BEHIND.fullmatch(other)
        if not found or (name and found["name"] != name):
            continue
        # There is one writer of a file in a process.
        if int(found["pid"]) == os.getpid() or not _is_alive(int(found["pid"])):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, other))


def _open(path: str) -> tuple[int, str]:
    """A new file beside ``path`` that nobody else can read, and its name."""
    folder, name = os.path.split(path)
    remove_left_behind(folder, name)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    # Never readable by others, not even for a moment.
    return os.open(temporary, flags, 0o600), temporary


@contextlib.contextmanager
def _writing(path: str, mode: int, group_id: int | None) -> t.Iterator[tuple[t.BinaryIO, str]]:
    """The open file and its name; complete and on the disk when this ends, gone when it ends with an error."""
    with _told(path):
        descriptor, temporary = _open(path)
        complete = False
        try:
            with os.fdopen(descriptor, "wb") as out:
                yield t.cast("t.BinaryIO", out), temporary
                out.flush()
                os.fchown(out.fileno(), os.geteuid(), os.getegid() if group_id is None else group_id)
                os.fchmod(out.fileno(), mode)
                os.fsync(out.fileno())
            complete = True
        finally:
            if not complete:
                discard(temporary)


def sync_folder(path: str) -> None:
    """Let the names in a folder reach the disk."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stage(path: str, data: bytes | str, *, mode: int = 0o600, group_id: int | None = None) -> str:
    """Write ``data`` beside ``path``, complete and on the disk; return the name under which it lies there.

    Text is UTF-8 (surrogate escapes give back their bytes). The owner is the user of this process, the group ``group_id`` or
    that of this process. Raises OSError with the name ``path``.
    """
    content = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    with _writing(path, mode, group_id) as (out, temporary):
        out.write(content)
    return temporary


def commit(temporary: str, path: str) -> None:
    """Put what :func:`stage` wrote in its place, or remove it. Raises OSError with the name ``path``."""
    with _told(path):
        try:
            os.rename(temporary, path)
        except OSError:
            discard(temporary)
            raise
        sync_folder(os.path.dirname(path))


def discard(temporary: str) -> None:
    """Remove what :func:`stage` wrote; nothing happens when it is gone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)


def write_file(path: str, data: bytes | str, *, mode: int = 0o600, group_id: int | None = None) -> None:
    """:func:`stage` and :func:`commit` in one."""
    commit(stage(path, data, mode=mode, group_id=group_id), path)


@contextlib.contextmanager
def replacing(path: str, *, mode: int = 0o600, group_id: int | None = None) -> t.Iterator[t.BinaryIO]:
    """A binary file to write to, which takes its place when the block ends well, and is gone otherwise."""
    # pylint: disable-next=contextmanager-generator-missing-cleanup  # contextlib closes the generator
    with _writing(path, mode, group_id) as (out, temporary):
        yield out
    commit(temporary, path)
