# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a sweep did not have to do, and how long its starts took. PRIVATE to the collection.

What was saved is an estimate: the median of the trials that were measured in full, times those that were not run. It is
said rule by rule, so that a rule that saves nothing can be taken out.
"""

from __future__ import annotations

import statistics
import typing as t
from collections.abc import Iterable, Sequence

from ansible_collections.specdec.serving.plugins.plugin_utils._study import COMPLETE, DUPLICATE, IMPLIED, Row
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_failure import REJECTED
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import SCREEN, point_key, without_marks

__all__ = ["TOO_SMALL", "durations", "savings", "starts"]

#: Cause of a start that was given up because its KV cache is too small.
TOO_SMALL: t.Final = "kv_cache_too_small"
#: What follows the start in a trial.
_AFTER_START: t.Final = ("benchmark", "evaluate")


def _times(row: Row) -> dict[str, float]:
    times = (row.outcome.details.get("times") if row.outcome else None) or {}
    return {phase: float(seconds) for phase, seconds in times.items()}


def _was_measured(row: Row) -> bool:
    return bool(row.outcome and row.outcome.state == COMPLETE and _times(row))


def _is_cold(row: Row) -> bool:
    return bool(row.outcome and row.outcome.details.get("cold"))


def durations(rows: Iterable[Row]) -> list[float]:
    """Seconds of trials that were measured: of those whose start found warm caches, if there are any."""
    measured = [row for row in rows if _was_measured(row)]
    return [sum(_times(row).values()) for row in [row for row in measured if not _is_cold(row)] or measured]


def starts(rows: Iterable[Row]) -> dict[str, t.Any]:
    """Seconds from start to ready. The first start on a host that needs certain weights or kernels is ``cold``, and no measure of others."""
    ready = [(row, _times(row)["start"]) for row in rows if _was_measured(row) and "start" in _times(row)]
    warm = [seconds for row, seconds in ready if not _is_cold(row)]
    return {
        "warm": len(warm),
        "median": statistics.median(warm) if warm else None,
        "cold": [{"number": row.number, "seconds": seconds} for row, seconds in ready if _is_cold(row)],
    }


def savings(rows: Sequence[Row]) -> list[dict[str, t.Any]]:
    """``rule`` in words, ``trials`` that it concerned, ``seconds`` that it saved; only rules that did something."""
    full = [row for row in rows if SCREEN not in row.point]
    took = durations(full)
    trial = statistics.median(took) if took else 0.0
    after = [sum(_times(row).get(phase, 0.0) for phase in _AFTER_START) for row in full if _was_measured(row)]
    measured_in_full = {point_key(without_marks(row.point)) for row in full}
    screened = [row for row in rows if SCREEN in row.point and _was_measured(row)]
    spared = sum(point_key(without_marks(row.point)) not in measured_in_full for row in screened)

    def ended_by(cause: str) -> list[Row]:
        return [row for row in rows if row.outcome and cause in (row.outcome.cause, row.outcome.state)]

    def saved(cause: str) -> tuple[int, float]:
        found = ended_by(cause)
        return len(found), sum(max(trial - sum(_times(row).values()), 0.0) for row in found)

    too_small = len(ended_by(TOO_SMALL))
    found = {
        "the same configuration as another": saved(DUPLICATE),
        "refused before it was started": saved(REJECTED),
        "told by a rule under 'monotone'": saved(IMPLIED),
        "start given up, its KV cache is too small": (
            too_small,
            too_small * (statistics.median(after) if after else 0.0),
        ),
        "screened, and not measured in full": (
            spared,
            trial * spared - sum(sum(_times(row).values()) for row in screened),
        ),
    }
    return [
        {"rule": rule, "trials": count, "seconds": round(seconds, 3)}
        for rule, (count, seconds) in found.items()
        if count
    ]
