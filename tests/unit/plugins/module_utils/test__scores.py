# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _scores
from ansible_collections.specdec.serving.plugins.module_utils._scores import Outcome


@pytest.mark.parametrize(
    ("passed", "count", "low", "high"),
    [
        # From the formula worked out by hand with z = 1.96: (p + z2/2n +- z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n).
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson(passed: int, count: int, low: float, high: float) -> None:
    found = _scores.wilson(passed, count)
    assert found == pytest.approx((low, high), abs=5e-4)


def test_the_interval_of_the_shipped_problems_is_as_wide_as_the_documentation_says() -> None:
    widths = [high - low for low, high in (_scores.wilson(passed, 36) for passed in range(8, 33))]
    assert 0.2 <= min(widths) <= max(widths) <= 0.32


def outcome(name: str, verdict: str, difficulty: str, *, sandbox_s: float = 0.0, loop: bool = False) -> Outcome:
    return Outcome(
        name, verdict, difficulty=difficulty, completion_tokens=10, seconds=1.0, sandbox_s=sandbox_s, loop=loop
    )


def test_the_summary_counts() -> None:
    found = _scores.summary(
        [
            outcome("1", "passed", "hard", sandbox_s=0.2),
            outcome("2", "no_code", "easy"),
            outcome("3", "passed", "easy", sandbox_s=0.4),
            outcome("4", "timeout", "", loop=True),
        ]
    )
    assert (found["passed"], found["problems"], found["pass_at_1"]) == (2, 4, 0.5)
    assert (found["low"], found["high"]) == pytest.approx(_scores.wilson(2, 4), abs=1e-4)
    assert list(found["by_difficulty"]) == ["easy", "hard"]
    assert found["by_difficulty"]["easy"]["pass_at_1"] == 0.5
    assert set(found["verdicts"]) == set(_scores.VERDICTS)
    assert (found["verdicts"]["timeout"], found["verdicts"]["memory"]) == (1, 0)
    assert (found["loops"], found["completion_tokens"], found["programs"]) == (1, 40, 2)
    assert found["program_s"] == pytest.approx(0.3)


def test_nothing_sums_up_to_nothing() -> None:
    found = _scores.summary([])
    assert (found["problems"], found["pass_at_1"], found["low"], found["high"]) == (0, 0.0, 0.0, 1.0)
