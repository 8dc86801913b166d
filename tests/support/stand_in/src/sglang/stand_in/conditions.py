# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`with`: what is switched on only for servers with certain arguments, so that one environment serves all trials of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_known: dict[str, Any] = {}


def know(resolved: Mapping[str, Any]) -> None:
    """From now on the arguments are known: in main, and in every child that it forks later."""
    _known.clear()
    _known.update(resolved)


def check(given: Any, source: str) -> Mapping[str, tuple[Any, ...]]:
    """The `with` of an entry, each argument with its values. Raises ValueError when it is none."""
    if not isinstance(given, dict):
        raise ValueError(
            f"{source}: 'with' is {given!r}: give an object of arguments, each with a value or a list of them"
        )
    return {name: tuple(value) if isinstance(value, list) else (value,) for name, value in given.items()}


def holds(given: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether this server has these arguments; nothing but an empty `with` holds before they are known."""
    return all(name in _known and _known[name] in values for name, values in given.items())
