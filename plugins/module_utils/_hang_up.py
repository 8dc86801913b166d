# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Noticing that nobody reads our answer any more. PRIVATE to the collection."""

from __future__ import annotations

import select

__all__ = ("HangUp", "hung_up", "is_hang_up")


class HangUp(Exception):
    """Nobody reads our answer any more: the connection or the controller is gone."""

    def __init__(self) -> None:
        super().__init__("nobody reads our answer any more")


def is_hang_up(event: int) -> bool:
    """Whether a poll of our own output, of which nothing is read, says so."""
    return bool(event & (select.POLLERR | select.POLLHUP))


def hung_up(descriptor: int = 1, *, within: float = 0.0) -> bool:
    """Whether nobody reads what is written there any more; waits for that so many seconds."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(is_hang_up(event) for _fd, event in poller.poll(within * 1000))
