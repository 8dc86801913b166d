# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts of evidence: masked and compressed in bounded memory, and lines of a journal for people. PRIVATE to the collection."""

from __future__ import annotations

import io
import re
import time
import typing as t
import zlib

from ansible_collections.specdec.serving.plugins.module_utils import _journal as journal
from ansible_collections.specdec.serving.plugins.module_utils._redact import Masker

__all__ = (
    "Blocks",
    "Spool",
    "entries_text",
    "entry_line",
    "safe_name",
    "stamp_of",
)

_MESSAGE_CHARACTERS = 64 * 1024


class Spool:
    """Masked text, compressed in memory. With ``limit`` only the last bytes stay, by whole blocks."""

    _BLOCK = 256 * 1024

    def __init__(self, masker: Masker, *, limit: int | None = None) -> None:
        self._masker = masker
        self._limit = limit
        self._pending: list[str] = []
        self._pending_size = 0
        self._blocks: list[tuple[int, bytes]] = []
        self.size = 0
        self.cut = False

    def add(self, line: str) -> None:
        """Add one line."""
        self._pending.append(line)
        self._pending_size += len(line) + 1
        if self._pending_size >= self._BLOCK:
            self.flush()

    def flush(self) -> None:
        """Take what was added so far into the blocks."""
        if not self._pending:
            return
        data = (self._masker.text("\n".join(self._pending)) + "\n").encode("utf-8", "replace")
        self._pending, self._pending_size = [], 0
        self._blocks.append((len(data), zlib.compress(data, 1)))
        self.size += len(data)
        while self._limit is not None and self.size > self._limit and len(self._blocks) > 1:
            self.size -= self._blocks.pop(0)[0]
            self.cut = True

    def clear(self) -> None:
        """Forget everything."""
        self._pending, self._pending_size = [], 0
        self._blocks = []
        self.size, self.cut = 0, False

    def take(self, other: Spool) -> None:
        """Append what another one holds."""
        self.flush()
        other.flush()
        self._blocks += other._blocks
        self.size += other.size

    def blocks(self) -> t.Iterator[bytes]:
        """The text in parts."""
        self.flush()
        for _size, packed in self._blocks:
            yield zlib.decompress(packed)


class Blocks(io.RawIOBase):
    """Parts of bytes as a file to read."""

    def __init__(self, parts: t.Iterable[bytes]) -> None:
        super().__init__()
        self._parts = iter(parts)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = part
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def stamp_of(wall: float, *, pattern: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    """A time in UTC."""
    return time.strftime(pattern, time.gmtime(wall))


def entry_line(entry: journal.Entry) -> str:
    """An entry of the journal as one line, or more where its message has them."""
    seconds, micros = divmod(entry.realtime_us, 1_000_000)
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z {entry.monotonic_us / 1e6:.6f}"
    fields = {
        "MESSAGE_ID": entry.message_id,
        "EXIT_CODE": entry.exit_code,
        "EXIT_STATUS": "" if entry.exit_status is None else str(entry.exit_status),
        "UNIT_RESULT": entry.unit_result,
        "N_DROPPED": str(entry.n_dropped or ""),
    }
    known = " ".join(f"{name}={value}" for name, value in fields.items() if value)
    message = entry.message
    if len(message) > _MESSAGE_CHARACTERS:
        message = message[:_MESSAGE_CHARACTERS] + f" [... {len(message) - _MESSAGE_CHARACTERS} more characters]"
    message = message.replace("\n", "\n    ")
    return f"{at} [{entry.pid}] {message}" + (f" {{{known}}}" if known else "")


def entries_text(output: str) -> str:
    """JSON of journalctl as text."""
    joiner = journal.LineJoiner()
    lines = []
    for raw in output.split("\n"):
        entry = journal.parse_entry(raw) if raw else None
        whole = joiner.feed(entry) if entry is not None else None
        if whole is not None:
            lines.append(entry_line(whole))
    return "\n".join(lines)


def safe_name(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)
