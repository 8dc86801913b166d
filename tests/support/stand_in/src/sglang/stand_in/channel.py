# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Messages between the processes: JSON lines over a socket pair."""

from __future__ import annotations

import json
import select
import socket
import threading
from typing import Any


class Channel:
    """One end. `send` may be called by several threads, `receive` by one."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = b""
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError when the other side is gone."""
        with self._lock:
            self.socket.sendall((json.dumps(message) + "\n").encode())

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message; None after `timeout` seconds. Raises EOFError when the other side is gone."""
        while b"\n" not in self._buffer:
            if timeout is not None and not select.select([self.socket], [], [], timeout)[0]:
                return None
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError("the other process has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def ready(self) -> bool:
        """Whether a whole message lies in the buffer already (so that select would not tell)."""
        return b"\n" in self._buffer


def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return Channel(one), Channel(other)
