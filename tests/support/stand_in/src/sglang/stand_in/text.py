# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The text that the stand-in generates: decided by the prompt alone, so that greedy answers repeat."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

_WORDS = """
the a of to and in is that it for on with as was at by an be this from or have are not but they which one you all were
when we there can more has their what some would make than first been its who now people my made over did down only way
find use may water long little very after words called just where most know token block draft verify accept model serve
ready load graph cache memory rank port unit host start answer question
"""
VOCABULARY = [" " + word for word in _WORDS.split()]
END_OF_TEXT = len(VOCABULARY)


def count_tokens(text: str) -> int:
    """About four characters a token, at least one."""
    return max(1, (len(text) + 3) // 4)


def decode(ids: Sequence[int]) -> str:
    return "".join(VOCABULARY[index] for index in ids if index != END_OF_TEXT)


class Stream:
    """The endless answer to one prompt, and the luck of its draft model."""

    def __init__(self, prompt: str) -> None:
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        self._tokens = random.Random("tokens" + digest)
        self._luck = random.Random("luck" + digest)
        # Where the answer ends by itself when end-of-text is respected.
        self.natural_length = self._tokens.randrange(24, 400)

    def take(self, count: int) -> list[int]:
        return [self._tokens.randrange(len(VOCABULARY)) for _ in range(count)]

    def correct_drafts(self, proposed: int) -> int:
        """How many of `proposed` draft tokens the target accepts, each with probability 0.7 after the one before."""
        correct = 0
        while correct < proposed and self._luck.random() < 0.7:
            correct += 1
        return correct
