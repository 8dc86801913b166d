# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Values of ``sglang_instances`` as their users wrote them, and how faults are told. PRIVATE to the collection."""

from __future__ import annotations

import difflib
import re
import typing as t
from collections.abc import Mapping, Sequence

__all__ = [
    "PLAIN_PATH",
    "InstancesError",
    "address_of",
    "integer",
    "mapping_of",
    "nearest",
    "plain_text",
    "text_of",
    "type_words",
]

PLAIN_PATH = re.compile(r"/[A-Za-z0-9_./+@=,-]*\Z")


class InstancesError(ValueError):
    """Instances that cannot be deployed; ``errors`` holds every reason."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


def plain_text(value: t.Any) -> str:
    """A plain str of a value that may be one of Ansible's tagged subclasses."""
    return "".join(value)


def type_words(value: t.Any) -> str:
    """The type of a value in words, without Ansible's tagged subclasses and without the value."""
    if value is None:
        return "null"
    for known, word in (
        (str, "text"),
        (bool, "a boolean"),
        ((int, float), "a number"),
        (Mapping, "a mapping"),
        (Sequence, "a list"),
    ):
        if isinstance(value, known):
            return word
    return type(value).__name__


def nearest(name: str, known: t.Iterable[str], *, cutoff: float = 0.6) -> str:
    """What was probably meant by a name that is not known, as the end of a message; '' when nothing is as like it as ``cutoff`` (0 to 1)."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def integer(value: t.Any) -> int | None:
    """A whole number, also one that came as text (-e); None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    return None


def mapping_of(value: t.Any, *, origin: str, errors: list[str]) -> dict[t.Any, t.Any]:
    """The mapping with plain keys; empty where nothing was given, and for a fault."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {plain_text(key) if isinstance(key, str) else key: item for key, item in value.items()}
    # The value is not quoted: whole instances with their keys end up here.
    errors.append(f"{origin}: expected a mapping, not {type_words(value)}")
    return {}


def text_of(value: t.Any, *, origin: str, errors: list[str]) -> str:
    """The text, '' where nothing was given, and for a fault."""
    if isinstance(value, str):
        return plain_text(value)
    if value is not None:
        errors.append(f"{origin}: {value!r} is no text; quote it if it is meant as text")
    return ""


def address_of(
    raw: Mapping[str, t.Any], key: str, parse: t.Callable[..., t.Any], *, origin: str, errors: list[str]
) -> str:
    """The address of another server, told when it is none before anything is restarted; '' = not given."""
    text = text_of(raw.get(key), origin=f"{origin}: {key}", errors=errors)
    try:
        if text:
            parse(text, name=f"{origin}: {key}")
    except ValueError as exc:
        errors.append(str(exc))
    return text
