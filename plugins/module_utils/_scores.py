# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts of coding problems, and what they sum up to. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import math
import typing as t

PASSED = "passed"
WRONG_ANSWER = "wrong_answer"
SYNTAX_ERROR = "syntax_error"
TIMEOUT = "timeout"
MEMORY = "memory"
FORBIDDEN = "forbidden"
TRUNCATED = "truncated"
NO_CODE = "no_code"

VERDICTS = (PASSED, WRONG_ANSWER, SYNTAX_ERROR, TIMEOUT, MEMORY, FORBIDDEN, TRUNCATED, NO_CODE)

#: Of the standard normal distribution, for an interval of 95 %.
_Z = 1.959963984540054
_DIFFICULTIES = ("easy", "medium", "hard")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One problem's answer, judged. ``seconds``: of its generation; ``sandbox_s``: of its program."""

    task_id: str
    verdict: str
    detail: str = ""
    difficulty: str = ""
    #: Where in the answer the code was, see ``_code_extract.Extraction``.
    source: str = ""
    finish_reason: str = ""
    #: The answer ends in a repetition.
    loop: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_characters: int = 0
    seconds: float = 0.0
    sandbox_s: float = 0.0


def wilson(passed: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson's score interval); (0, 1) of nothing."""
    if not count:
        return 0.0, 1.0
    share = passed / count
    spread = _Z * _Z / count
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max((middle - half) / (1 + spread), 0.0), min((middle + half) / (1 + spread), 1.0)


def _share(outcomes: t.Sequence[Outcome]) -> dict[str, t.Any]:
    passed = sum(outcome.verdict == PASSED for outcome in outcomes)
    low, high = wilson(passed, len(outcomes))
    return {
        "passed": passed,
        "problems": len(outcomes),
        "pass_at_1": round(passed / len(outcomes), 4) if outcomes else 0.0,
        "low": round(low, 4),
        "high": round(high, 4),
    }


def summary(outcomes: t.Iterable[Outcome]) -> dict[str, t.Any]:
    """pass@1 with its 95 % interval (``low``, ``high``), the same by difficulty, counts by verdict, loops, tokens, seconds."""
    found = list(outcomes)
    kinds = sorted(
        {outcome.difficulty for outcome in found if outcome.difficulty},
        key=lambda kind: (_DIFFICULTIES.index(kind) if kind in _DIFFICULTIES else len(_DIFFICULTIES), kind),
    )
    ran = [outcome.sandbox_s for outcome in found if outcome.sandbox_s]
    return {
        **_share(found),
        "by_difficulty": {kind: _share([one for one in found if one.difficulty == kind]) for kind in kinds},
        "verdicts": {verdict: sum(one.verdict == verdict for one in found) for verdict in VERDICTS},
        "loops": sum(one.loop for one in found),
        "completion_tokens": sum(one.completion_tokens for one in found),
        "generation_s": round(sum(one.seconds for one in found), 3),
        "programs": len(ran),
        "program_s": round(sum(ran) / len(ran), 3) if ran else 0.0,
    }


__all__ = (
    "FORBIDDEN",
    "MEMORY",
    "NO_CODE",
    "PASSED",
    "SYNTAX_ERROR",
    "TIMEOUT",
    "TRUNCATED",
    "VERDICTS",
    "WRONG_ANSWER",
    "Outcome",
    "summary",
    "wilson",
)
