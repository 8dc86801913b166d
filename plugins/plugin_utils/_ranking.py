# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what was measured to who won, with the reason why each other one did not. PRIVATE to the collection.

Only trials whose every level is valid and that pass the gates of the sweep file rank; the others keep their figures and
say why not. A difference within 2 MAD (of the noisier of the two) is a tie, and a tie is called one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import text_table
from ansible_collections.specdec.serving.plugins.plugin_utils._study import COMPLETE, DUPLICATE, Outcome, Row
from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import Objective, Sweep
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import (
    AGAIN,
    SCREEN,
    TIE_MADS,
    Point,
    beaten_by,
    changed_keys,
    is_better,
    point_key,
    without_marks,
)

__all__ = [
    "DRIFT",
    "PHASES",
    "Ranked",
    "doubted",
    "drift",
    "host_gap",
    "judge",
    "point_text",
    "ranking",
    "sweep_table",
    "time_spent",
    "told_apart",
]

#: Baselines of one sweep that differ by more than this share mark the sweep.
DRIFT: t.Final = 0.03
#: Steady in a level that is.
_THROUGHPUT: t.Final = "output_tok_s"
#: Where the time of a trial goes, in order.
PHASES: t.Final = ("claim", "preflight", "stop", "start", "benchmark", "evaluate", "other")


@dataclass(frozen=True)
class Ranked:
    """``place``: from 1, the same for ties with the best; None = does not rank. ``reason``: why it is not the winner."""

    row: Row
    place: int | None
    reason: str
    winner: bool = False


def _median(level: Mapping[str, t.Any], metric: str) -> tuple[float, float] | None:
    """Median and MAD of a metric of a level; None when it was not measured."""
    figures = (level.get("summary") or {}).get(metric)
    if not figures or figures.get("median") is None or not math.isfinite(figures["median"]):
        # A server that tells NaN must not win by it.
        return None
    return float(figures["median"]), float(figures.get("mad") or 0.0)


def _level(benchmarks: Mapping[str, Mapping[str, t.Any]], workload: str, concurrency: int) -> Mapping[str, t.Any]:
    levels = (benchmarks.get(workload) or {}).get("levels") or ()
    return next((level for level in levels if level.get("concurrency") == concurrency), {})


def _scatter(sweep: Sweep, level: Mapping[str, t.Any], workload: str, concurrency: int) -> list[tuple[str, str]]:
    """A level whose repeats lie further apart than the gate allows: in what it gives, or in what is ranked by it."""
    most = sweep.gates.max_cv
    ranked = [one.metric for one in sweep.objectives if (one.workload, one.level) == (workload, concurrency)]
    summary = level.get("summary") or {}
    for metric in dict.fromkeys([_THROUGHPUT, *ranked]):
        cv = (summary.get(metric) or {}).get("cv")
        # None of a single repeat: nothing is known of its noise.
        if most is not None and cv is not None and cv > most:
            text = f"the repeats of level {concurrency} of {workload} scatter: {metric} by {cv * 100:.1f} %"
            return [("unstable", f"{text} (coefficient of variation), at most {most * 100:g} % may be")]
    return []


def _gate_faults(
    sweep: Sweep, benchmarks: Mapping[str, Mapping[str, t.Any]], evaluation: Mapping[str, t.Any]
) -> list[tuple[str, str]]:
    """Gates of the sweep file that were not passed: (cause, why)."""
    gates, faults = sweep.gates, []
    for workload in sweep.workloads:
        for concurrency in sweep.levels:
            level = _level(benchmarks, workload, concurrency)
            if not level:
                faults.append(("not_measured", f"level {concurrency} of {workload} was not measured"))
            elif gates.valid and not level.get("valid"):
                why = "; ".join(f"{one['rule']}: {one['detail']}" for one in level.get("reasons") or ())
                faults.append(("invalid", f"level {concurrency} of {workload}: {why or 'not valid'}"))
            faults += _scatter(sweep, level, workload, concurrency)
            accepted = _median(level, "acceptance_length")
            if gates.min_acceptance_length is not None and accepted and accepted[0] < gates.min_acceptance_length:
                text = f"acceptance length {accepted[0]:.2f} at level {concurrency} of {workload}"
                faults.append(("acceptance_length", f"{text} is below {gates.min_acceptance_length:g}"))
    if gates.min_pass_at_1 is not None:
        share = (evaluation.get("coding") or {}).get("pass_at_1")
        if share is None:
            faults.append(("not_measured", "coding was not evaluated"))
        elif share < gates.min_pass_at_1:
            faults.append(("incorrect", f"pass@1 {share:.3f} is below {gates.min_pass_at_1:g}"))
    if gates.parity:
        parity = evaluation.get("parity") or {}
        if not parity:
            faults.append(("not_measured", "parity was not evaluated"))
        elif not parity.get("passed"):
            faults.append(("parity", str(parity.get("text") or "its greedy answers differ from the baseline's")))
    return faults


def _other_starts(
    benchmarks: Mapping[str, Mapping[str, t.Any]], evaluation: Mapping[str, t.Any], invocation: str
) -> list[tuple[str, str]]:
    seen = [str(one.get("invocation_id") or invocation) for one in (*benchmarks.values(), evaluation)]
    others = sorted({one for one in seen if invocation and one != invocation})
    return [("invocation_changed", f"start {one} was measured, not the trial's {invocation}") for one in others]


def judge(
    sweep: Sweep,
    *,
    benchmarks: Mapping[str, Mapping[str, t.Any]],
    evaluation: Mapping[str, t.Any] | None = None,
    details: Mapping[str, t.Any] | None = None,
) -> Outcome:
    """The outcome of a trial that was measured.

    :param benchmarks: workload to the result of sglang_benchmark.
    :param evaluation: the result of sglang_evaluate.
    :param details: what else is known of it, such as ``times`` (phase to seconds), ``records`` (paths) and ``invocation_id``: what
        was measured of any other start is not the trial's.
    """
    faults = _other_starts(benchmarks, evaluation or {}, str((details or {}).get("invocation_id") or ""))
    faults += _gate_faults(sweep, benchmarks, evaluation or {})
    figures: list[tuple[float, float] | None] = [
        _median(_level(benchmarks, one.workload, one.level), one.metric) for one in sweep.objectives
    ]
    for objective, found in zip(sweep.objectives, figures, strict=True):
        if found is None:
            faults.append(
                ("not_measured", f"{objective.metric} at level {objective.level} of {objective.workload} is missing")
            )
    shown = {
        "objectives": [
            {"metric": one.metric, "level": one.level, "workload": one.workload, "median": found[0], "mad": found[1]}
            for one, found in zip(sweep.objectives, figures, strict=True)
            if found
        ],
        "faults": [text for _cause, text in faults],
        **(details or {}),
    }
    values = None if faults else tuple(found[0] for found in figures if found)
    return Outcome(COMPLETE, values, faults[0][0] if faults else "", shown)


def point_text(point: Point, width: int = 0, *, known: t.Collection[str] = ()) -> str:
    """A point for people: ``tp_size=8 env.X=1``, ``baseline``; cut to ``width`` signs where one is given, but for what marks it.

    Where it has to be cut, the words in ``known`` are left out first.
    """
    words = _words(point)
    marks = (" (again)" if AGAIN in point else "") + (" (screened)" if SCREEN in point else "")
    room = width - len(marks)
    text = " ".join(words) or "baseline"
    if width and len(text) > room:
        apart = [word for word in words if word not in known]
        text = " ".join(["…", *apart]) if known and apart else text
        text = text if len(text) <= room else f"{text[: room - 1]}…"
    return text + marks


def _words(point: Point) -> list[str]:
    # As a sweep file says that an argument is left out.
    return [f"{key}={'null' if point[key] is None else point[key]}" for key in changed_keys(point)]


def told_apart(points: Iterable[Point], width: int) -> list[str]:
    """Each point for people. Those that would look the same once they are cut say only what tells them apart."""
    points = list(points)
    cut = [point_text(point, width) for point in points]
    alike: dict[str, list[list[str]]] = {}
    for text, point in zip(cut, points, strict=True):
        alike.setdefault(text, []).append(_words(point))
    shared = {text: set(same[0]).intersection(*same) for text, same in alike.items() if len(same) > 1}
    return [
        point_text(point, width, known=shared[text]) if text in shared else text
        for text, point in zip(cut, points, strict=True)
    ]


def _mads(row: Row) -> list[float]:
    details = row.outcome.details if row.outcome else {}
    return [float(one["mad"]) for one in details.get("objectives") or ()]


def _gain(objective: Objective, one: float, other: float) -> float:
    """How much better ``one`` is than ``other``; negative = worse."""
    return one - other if objective.direction == "maximize" else other - one


def _ranks(row: Row) -> bool:
    """A baseline that was measured again is there for the drift; the first one ranks. What was screened ranks once measured in full."""
    return bool(_has_values(row) and AGAIN not in row.point and SCREEN not in row.point)


def _has_values(row: Row) -> bool:
    return bool(row.outcome and row.outcome.state == COMPLETE and row.outcome.values)


def _screened(sweep: Sweep, rows: Sequence[Row]) -> dict[int, str]:
    """Of each trial that was screened and passed: its place there, and where it was measured in full."""
    passed = [row for row in rows if SCREEN in row.point and _has_values(row)]
    all_values = [_values(row) for row in passed]
    in_full = {point_key(row.point): row.number for row in rows if SCREEN not in row.point}
    found = {}
    for row in passed:
        number = in_full.get(point_key(without_marks(row.point)))
        further = "not measured in full" if number is None else f"measured in full as trial {number}"
        found[row.number] = (
            f"{beaten_by(sweep, _values(row), all_values) + 1} of {len(passed)} in the screening, {further}"
        )
    return found


def _dominates(sweep: Sweep, one: Row, other: Row) -> bool:
    gains = [
        _gain(objective, mine, theirs)
        for objective, mine, theirs in zip(sweep.objectives, _values(one), _values(other), strict=True)
    ]
    return all(gain >= 0 for gain in gains) and any(gain > 0 for gain in gains)


def _values(row: Row) -> tuple[float, ...]:
    """Of a trial that ranks."""
    return (row.outcome.values if row.outcome else None) or ()


def _worse_text(objective: Objective, value: float, best: float) -> str:
    share = abs(value - best) / abs(best) * 100 if best else 0.0
    word = "less" if objective.direction == "maximize" else "more"
    return f"{share:.1f} % {word} {objective.metric}"


def _unranked_reason(row: Row) -> str:
    outcome = row.outcome
    if outcome is None:
        return row.state
    if outcome.state == DUPLICATE:
        return f"the same as trial {outcome.details.get('of')}"
    if AGAIN in row.point:
        return f"the baseline once more, of {row.point[AGAIN]['host']}"
    faults = outcome.details.get("faults") or ()
    return "; ".join([*faults, *filter(None, [outcome.details.get("summary")])]) or outcome.cause or outcome.state


def ranking(sweep: Sweep, rows: Sequence[Row]) -> list[Ranked]:
    """All trials, the best first, those that do not rank last by number.

    One objective: the winner is the best; among ties with it the one that changes least, then the earlier one. Two: all that
    no other one beats in both are winners. Hosts whose baselines lie apart are compared by what a trial brought against the
    baseline of its own host.
    """
    able = [row for row in _compared(rows) if _ranks(row)]
    screened = _screened(sweep, rows)
    others = [Ranked(row, None, screened.get(row.number) or _unranked_reason(row)) for row in rows if not _ranks(row)]
    if len(sweep.objectives) > 1:
        return [*_pareto(sweep, able), *others]
    objective = sweep.objectives[0]
    able.sort(key=lambda row: (-_gain(objective, _values(row)[0], 0.0), row.number))
    if not able:
        return others
    best = able[0]
    tied = [row for row in able if _is_tie(row, best)]
    winner = min(tied, key=lambda row: (len(changed_keys(row.point)), row.number))
    found = []
    for index, row in enumerate(able):
        if row is winner:
            reason = (
                "" if len(tied) == 1 else f"tied with {', '.join(str(one.number) for one in tied if one is not row)}"
            )
            if row is not best:
                reason += "; it changes less"
        elif row in tied:
            reason = f"tied with {winner.number}, which {'changes less' if winner is not best else 'is not worse'}"
        else:
            reason = f"{_worse_text(objective, _values(row)[0], _values(best)[0])} than trial {best.number}"
        found.append(Ranked(row, 1 if row in tied else index + 1, reason, winner=row is winner))
    found.sort(key=lambda one: not one.winner)
    return [*found, *others]


def _is_tie(one: Row, other: Row) -> bool:
    if one is other:
        return True
    noise = max([*_mads(one)[:1], *_mads(other)[:1], 0.0])
    return abs(_values(one)[0] - _values(other)[0]) <= TIE_MADS * noise


def _pareto(sweep: Sweep, able: Sequence[Row]) -> list[Ranked]:
    found = []
    for row in able:
        better = [one for one in able if _dominates(sweep, one, row)]
        reason = f"trial {better[0].number} is better in both" if better else ""
        found.append(Ranked(row, len(better) + 1, reason, winner=not better))
    return sorted(found, key=lambda one: (one.place or 0, one.row.number))


def _baselines(rows: Sequence[Row], objective: int = 0) -> dict[str, list[float]]:
    """What the instance as it is brought on each host."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.outcome and row.outcome.values and row.outcome.state == COMPLETE and not changed_keys(row.point):
            found.setdefault(row.host, []).append(_values(row)[objective])
    return found


def _compared(rows: Sequence[Row]) -> list[Row]:
    """The rows with values that can be compared: of hosts that lie apart as if each had the mean host's baseline."""
    gap = host_gap(rows)
    if gap is None or gap <= DRIFT:
        return list(rows)
    count = max(len(_values(row)) for row in rows)
    medians = [
        {host: statistics.median(values) for host, values in _baselines(rows, objective).items()}
        for objective in range(count)
    ]
    found = []
    for row in rows:
        outcome = row.outcome
        if outcome is not None and outcome.values and row.host in medians[0]:
            values = tuple(
                value * statistics.mean(of.values()) / of[row.host] if of[row.host] else value
                for value, of in zip(outcome.values, medians, strict=True)
            )
            row = dataclasses.replace(row, outcome=dataclasses.replace(outcome, values=values))
        found.append(row)
    return found


def drift(rows: Sequence[Row]) -> dict[str, float]:
    """How far apart the baselines of each host lie, as a share of its first one; only of hosts with more than one."""
    return {
        host: (max(values) - min(values)) / abs(values[0])
        for host, values in _baselines(rows).items()
        if len(values) > 1 and values[0]
    }


def doubted(sweep: Sweep, rows: Sequence[Row]) -> str:
    """Why the winner may be none: it brought less than its host's baselines differ by. Empty = it is one, or there is none."""
    winner = next((one.row for one in ranking(sweep, rows) if one.winner), None)
    if winner is None or not changed_keys(winner.point) or len(sweep.objectives) > 1:
        return ""
    own = _baselines([row for row in rows if row.host == winner.host]).get(winner.host) or []
    apart = drift(rows).get(winner.host)
    if apart is None or apart <= DRIFT:
        return ""
    direction = sweep.objectives[0].direction
    best = max(own) if direction == "maximize" else min(own)
    mine = next(_values(row)[0] for row in rows if row.number == winner.number)
    if is_better(direction, mine, best):
        return ""
    return (
        f"trial {winner.number} is not better than every measurement of the baseline, so it is not deployed by itself:"
        " measure both again when the host is quiet"
    )


def host_gap(rows: Sequence[Row]) -> float | None:
    """How far apart the hosts lie, by the medians of their baselines, as a share of the lowest; None with fewer than two."""
    medians = [statistics.median(values) for values in _baselines(rows).values()]
    if len(medians) < 2 or not min(map(abs, medians)):
        return None
    return (max(medians) - min(medians)) / min(map(abs, medians))


def time_spent(rows: Sequence[Row]) -> dict[str, float]:
    """Seconds by phase, over all trials that noted their times."""
    spent = dict.fromkeys(PHASES, 0.0)
    for row in rows:
        for phase, seconds in ((row.outcome.details.get("times") or {}) if row.outcome else {}).items():
            spent[phase if phase in spent else "other"] += float(seconds)
    return spent


def sweep_table(sweep: Sweep, rows: Sequence[Row], *, width: int = 48) -> str:
    """The trials as text, the best first: place, trial, verdict, values, what it changes, why it is not the winner.

    Where several hosts took part, each trial names its own.
    """
    heads = [f"{one.metric}@{one.level}" for one in sweep.objectives]
    hosts = {row.host for row in rows if row.host}
    named = len(hosts) > 1
    lines = [["", "trial", *(["host"] if named else []), "verdict", *heads, "configuration", "why not"]]
    places = ranking(sweep, rows)
    for ranked, text in zip(places, told_apart((one.row.point for one in places), width), strict=True):
        row, outcome = ranked.row, ranked.row.outcome
        measured = {
            (one["metric"], one["level"], one["workload"]): one
            for one in (outcome.details.get("objectives") or () if outcome else ())
        }
        cells = []
        for one in sweep.objectives:
            figures = measured.get((one.metric, one.level, one.workload))
            # One repeat has no spread.
            spread = f" ±{figures['mad']:.2f}" if figures and figures["mad"] else ""
            cells.append(f"{figures['median']:.2f}{spread}" if figures else "-")
        verdict = row.state if not outcome or not outcome.cause else outcome.cause
        place = "★" if ranked.winner else str(ranked.place or "")
        host = [row.host or "-"] if named else []
        lines.append([place, str(row.number), *host, verdict, *cells, text, ranked.reason])
    return text_table(lines)
