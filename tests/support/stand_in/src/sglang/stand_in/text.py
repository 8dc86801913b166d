# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The text that the stand-in generates: decided by the prompt alone, so that greedy answers repeat, or scripted."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
from collections.abc import Sequence
from typing import Any

from sglang.stand_in import conditions

_WORDS = """
the a of to and in is that it for on with as was at by an be this from or have are not but they which one you all were
when we there can more has their what some would make than first been its who now people my made over did down only way
find use may water long little very after words called just where most know token block draft verify accept model serve
ready load graph cache memory rank port unit host start answer question
"""
VOCABULARY = [" " + word for word in _WORDS.split()]
END_OF_TEXT = len(VOCABULARY)
#: Scripted text has a token for each character: its code point above this.
CHARACTERS = 1000

_KEYS = {"match", "text", "tokens", "top", "with"}


@functools.lru_cache(maxsize=4)
def read_script(given: str) -> list[dict[str, Any]]:
    """The entries of STAND_IN_ANSWERS: a file, or JSON. Raises ValueError that says what is wrong with it."""
    if not given:
        return []
    source, content = "STAND_IN_ANSWERS", given
    if not given.lstrip().startswith("["):
        source = f"STAND_IN_ANSWERS: {given}"
        try:
            with open(given, encoding="utf-8") as file:
                content = file.read()
        except OSError as error:
            raise ValueError(f"{source} cannot be read: {error.strerror}") from None
    try:
        entries = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{source}: no JSON ({error})") from None
    for number, entry in enumerate(entries if isinstance(entries, list) else [None]):
        if not isinstance(entry, dict) or not isinstance(entry.get("match"), str) or set(entry) - _KEYS:
            raise ValueError(f"{source}: entry {number} must be an object with 'match' and some of {sorted(_KEYS)}")
        conditions.check(entry.get("with", {}), f"{source}: entry {number}")
        if not all(place.isdigit() for name in ("tokens", "top") for place in entry.get(name, {})):
            raise ValueError(f"{source}: entry {number}: 'tokens' and 'top' are by place, counted from 0")
    checked: list[dict[str, Any]] = entries
    return checked


def script_for(prompt: str) -> dict[str, Any]:
    """The first entry whose `match` stands in the prompt, and whose `with` holds; {} when there is none."""
    entries = read_script(os.environ.get("STAND_IN_ANSWERS", ""))
    fitting = (
        entry for entry in entries if conditions.holds(conditions.check(entry.get("with", {}), "STAND_IN_ANSWERS"))
    )
    return next((entry for entry in fitting if entry["match"] in prompt), {})


def top_logprobs(script: dict[str, Any], ids: Sequence[int]) -> list[list[list[Any]]]:
    """The two likeliest tokens of each place as [log-probability, token, text]: what was generated, and its neighbour."""
    found = []
    for place, token in enumerate(ids):
        pairs = script.get("top", {}).get(str(place)) or [[-0.125, token], [-2.5, (token + 1) % END_OF_TEXT]]
        found.append([[chance, other, None] for chance, other in pairs])
    return found


def count_tokens(text: str) -> int:
    """About four characters a token, at least one."""
    return max(1, (len(text) + 3) // 4)


def decode(ids: Sequence[int]) -> str:
    return "".join(
        chr(index - CHARACTERS) if index >= CHARACTERS else VOCABULARY[index] for index in ids if index != END_OF_TEXT
    )


class Stream:
    """The endless answer to one prompt, and the luck of its draft model."""

    def __init__(self, prompt: str) -> None:
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        self._tokens = random.Random("tokens" + digest)
        self._luck = random.Random("luck" + digest)
        # Where the answer ends by itself when end-of-text is respected.
        self.natural_length = self._tokens.randrange(24, 400)
        script = script_for(prompt)
        self._place = 0
        self._changed: dict[str, int] = script.get("tokens", {})
        self._scripted: list[int] | None = None
        if "text" in script:
            self._scripted = [CHARACTERS + ord(sign) for sign in script["text"]] or [END_OF_TEXT]
            self.natural_length = len(self._scripted)

    def take(self, count: int) -> list[int]:
        found = [self._tokens.randrange(len(VOCABULARY)) for _ in range(count)]
        if self._scripted is not None:
            part = self._scripted[self._place : self._place + count]
            found = part + [END_OF_TEXT] * (count - len(part))
        found = [self._changed.get(str(self._place + number), token) for number, token in enumerate(found)]
        self._place += count
        return found

    def correct_drafts(self, proposed: int) -> int:
        """How many of `proposed` draft tokens the target accepts, each with probability 0.7 after the one before."""
        correct = 0
        while correct < proposed and self._luck.random() < 0.7:
            correct += 1
        return correct
