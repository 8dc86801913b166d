# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ground truth: what really happened and when, one JSON object a line in STAND_IN_TRUTH.

STAND_IN_TRUTH is a file (appended to) or a folder (one file `PID.jsonl` per server). Every line holds `event`,
`monotonic` and `realtime` (seconds), `pid` (the writer), `main_pid` and `invocation_id` (null outside systemd).
Lines are written by one `write` to a file opened for appending, so several processes share it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any


class Truth:
    """Writer; silent without STAND_IN_TRUTH. Raises OSError when the place cannot be written."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._main_pid = os.getpid()
        self._invocation_id = environment.get("INVOCATION_ID")
        self._fd = -1
        place = environment.get("STAND_IN_TRUTH", "")
        if place:
            if os.path.isdir(place):
                place = os.path.join(place, f"{self._main_pid}.jsonl")
            self._fd = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def is_main(self) -> bool:
        """Whether the calling process is the server's main process."""
        return os.getpid() == self._main_pid

    def note(self, event: str, **details: Any) -> None:
        if self._fd < 0:
            return
        entry = {
            "event": event,
            "monotonic": time.monotonic(),
            "realtime": time.time(),
            "pid": os.getpid(),
            "main_pid": self._main_pid,
            "invocation_id": self._invocation_id,
            **details,
        }
        os.write(self._fd, (json.dumps(entry) + "\n").encode())
