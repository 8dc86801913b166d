# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The log: SGLang's prefixes and uvicorn's, one `write` a line, straight to stderr or stdout."""

from __future__ import annotations

import os
import time

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def _level(name: str) -> int:
    if name.lower() not in _LEVELS:
        # The text of the real server, which asks the logging module for it.
        raise AttributeError(f"module 'logging' has no attribute {name.upper()!r}")
    return _LEVELS[name.lower()]


class Log:
    """Writes lines as `[2026-11-29 14:24:10 TP0 EP0] text`.

    level and http_level name the lowest level that is written (`--log-level`, `--log-level-http`);
    AttributeError for one that logging does not know.
    """

    def __init__(self, level: str, http_level: str | None = None, prefix: str = "") -> None:
        self._level = _level(level)
        self._http_level = _level(http_level or level)
        self.prefix = prefix
        self._milliseconds = os.environ.get("SGLANG_LOG_MS", "").lower() in ("1", "true")

    def stamp(self) -> str:
        now = time.time()
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        if self._milliseconds:
            text += f".{int(now % 1 * 1000):03d}"
        return f"[{text}{self.prefix}]"

    def _write(self, text: str, fd: int) -> None:
        data = text.encode()
        while data:
            data = data[os.write(fd, data) :]

    def _line(self, level: int, text: str) -> None:
        if level >= self._level:
            self._write(f"{self.stamp()} {text}\n", 2)

    def info(self, text: str) -> None:
        self._line(20, text)

    def warning(self, text: str) -> None:
        self._line(30, text)

    def error(self, text: str) -> None:
        self._line(40, text)

    def raw(self, text: str) -> None:
        """Text with no prefix, as libraries print it (progress bars); written whatever the level."""
        self._write(text, 2)

    def uvicorn(self, level: str, text: str) -> None:
        if _LEVELS[level] >= self._http_level:
            name = f"{level.upper()}:"
            self._write(f"{self.stamp()} {name:<9} {text}\n", 2)

    def access(self, text: str) -> None:
        """An access line; uvicorn sends these to stdout."""
        if self._http_level <= 20:
            self._write(f"{self.stamp()} INFO:     {text}\n", 1)
