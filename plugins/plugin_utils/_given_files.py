# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on the controller that users name: workloads, prompts, problems, records. PRIVATE to the collection."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_MEBIBYTE = 1 << 20
#: More than any file of prompts has.
MOST_BYTES = 1024 * _MEBIBYTE


def expanded(text: str, base: Path | None = None) -> Path:
    """The path with the home of a leading ``~``, relative to ``base`` (default: the current folder). Raises OSError."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        # pathlib raises it for a user that there is not, and says nothing of the path.
        raise OSError(errno.ENOENT, "no home of such a user", text) from None
    if "\0" in text:
        raise OSError(errno.EINVAL, "a path holds no NUL", text)
    return path if base is None else base / path


def read(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of a file of at most ``most`` bytes. Raises OSError, also for a pipe, which might never end."""
    # Opening a pipe would wait for somebody who writes.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(handle)
    if stat.S_ISDIR(found.st_mode):
        # fdopen() would say it of a number.
        os.close(handle)
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a file, but a pipe or a device", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most // _MEBIBYTE} MiB", str(path))
    return content


__all__ = ("MOST_BYTES", "expanded", "read")
