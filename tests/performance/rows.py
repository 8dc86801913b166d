# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of `build/bench.json`: what is worked out of measurements, against which goal, and how rows are kept.

A row has ``id``, ``measured``, ``goal`` (text), ``unit``, ``met``, ``n``, ``baselines`` (name to figures), ``details``, ``seed``,
``machine`` and ``date``. Times are seconds. A further measurement adds a function that gives a ``Row``; nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.observer import baselines, races

READY_LAG_GOAL_S, CRASH_LAG_GOAL_S, WAIT_CPU_GOAL_PERCENT = 0.25, 0.25, 1.0
#: How many times ours must be faster than these at the 95th percentile.
FASTER = {"loop": 30.0, "uri": 5.0}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the bench."""

    id: str
    measured: float
    goal: str
    unit: str
    met: bool
    n: int
    baselines: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    details: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


def p95(values: t.Sequence[float]) -> float:
    """The 95th percentile by nearest rank: a value that was measured. Raises ValueError without any."""
    if not values:
        raise ValueError("no values to take a percentile of")
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def spread(values: t.Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and largest, in milliseconds' precision."""
    return {name: round(found, 4) for name, found in (
        ("median", statistics.median(values)), ("p95", p95(values)), ("max", max(values))
    )}  # fmt: skip


def own_lag(start: t.Mapping[str, t.Any]) -> float:
    """Seconds from the truth to our verdict, without the time that our requests took since; negative = early."""
    truth, at = start["ready"], start["wait"]["detected_at_monotonic"]
    asked = sum(max(ended - max(began, truth), 0.0) for _path, began, ended in start["wait"]["requests"])
    return float(at - truth) if at < truth else float(at - truth - asked)


def baseline_lag(looks: t.Iterable[t.Mapping[str, t.Any]], *, name: str, says: str, truth: float) -> tuple[bool, float]:
    """Whether its first word was early, and the lag of the first word that was not, without that look's own time."""
    said = sorted(
        (look for look in looks if look["name"] == name and look["says"] == says), key=lambda one: one["ended"]
    )
    early = said[0]["ended"] < truth
    first = next(look for look in said if look["ended"] >= truth)
    return early, max(first["began"] - truth, 0.0)


def ready_lag(records: t.Sequence[t.Mapping[str, t.Any]], returns: t.Sequence[float]) -> Row:
    """``records``: starts as `starts.py` gives them. ``returns``: seconds from the truth to the task's return on the controller."""
    starts = [record for record in records if record["kind"] == "start"]
    not_ready = [start["wait"] for start in starts if not start["wait"].get("ready")]
    if not_ready:
        raise ValueError(f"{len(not_ready)} starts that got ready were not told so: {not_ready[0]}")
    lags = [own_lag(start) for start in starts]
    others: dict[str, dict[str, t.Any]] = {}
    for name in baselines.INTERVALS:
        found = [
            baseline_lag(start["looks"], name=name, says=baselines.READY, truth=start["ready"]) for start in starts
        ]
        others[name] = {**spread([lag for _early, lag in found]), "early": sum(early for early, _lag in found)}
    early = sum(lag < 0 for lag in lags)
    measured = p95(lags)
    met = measured <= READY_LAG_GOAL_S and not early
    met = met and all(measured * times <= others[name]["p95"] for name, times in FASTER.items())
    raw = [start["wait"]["detected_at_monotonic"] - start["ready"] for start in starts]
    return Row(
        id="ready_lag_p95_s",
        measured=round(measured, 4),
        goal=f"<= {READY_LAG_GOAL_S}, and at most 1/30 of the loop's and 1/5 of uri's",
        unit="s",
        met=met,
        n=len(starts),
        baselines=others,
        details={
            **spread(lags),
            "early": early,
            "with_own_requests": spread(raw),
            "task_returned": {**spread(returns), "n": len(returns)} if returns else {},
        },
    )


def crash_lag(records: t.Sequence[t.Mapping[str, t.Any]]) -> Row:
    """``records``: crashes as `starts.py` gives them."""
    crashes = [record for record in records if record["kind"] == "crash"]
    lags = [crash["wait"]["detected_at_monotonic"] - crash["ended"] for crash in crashes]
    undiagnosed = [
        crash["crash"]
        for crash in crashes
        if crash["wait"]["state"] != "crashed" or not crash["wait"]["cause"] or not crash["wait"]["summary"]
    ]
    loop = [
        baseline_lag(crash["looks"], name="loop", says=baselines.FAILED, truth=crash["ended"])[1] for crash in crashes
    ]
    kinds = {
        kind: {
            **spread([lag for lag, crash in zip(lags, crashes, strict=True) if crash["crash"] == kind]),
            "causes": sorted({crash["wait"]["cause"] for crash in crashes if crash["crash"] == kind}),
        }
        for kind in sorted({crash["crash"] for crash in crashes})
    }
    measured = p95(lags)
    return Row(
        id="crash_lag_p95_s",
        measured=round(measured, 4),
        goal=f"<= {CRASH_LAG_GOAL_S} after the process ended, each with its diagnosis",
        unit="s",
        met=measured <= CRASH_LAG_GOAL_S and not undiagnosed,
        n=len(crashes),
        # The others do not look at the unit: they run into their own time limit.
        baselines={"loop": spread(loop), "uri": None, "wait_for": None, "journal": None},
        details={**spread(lags), "undiagnosed": undiagnosed, "kinds": kinds},
    )


def false_ready(rows: t.Sequence[tuple[races.Race, races.Judgement]]) -> Row:
    """``rows``: races with their judgements."""
    broken = [judged.broken for _race, judged in rows if judged.broken]
    if broken:
        raise ValueError(f"{len(broken)} races gave no verdict: {broken[0]}")
    counts = {name: sum(name in judged.false_ready for _race, judged in rows) for name in races.OBSERVERS}
    per_thousand = {name: round(1000 * count / len(rows), 2) for name, count in counts.items()}
    false_failed = sum(judged.false_failed for _race, judged in rows)
    return Row(
        id="false_ready_per_1000",
        measured=per_thousand[races.OURS],
        goal="0, and no start that gets ready is given up",
        unit="per 1000 races",
        met=not counts[races.OURS] and not false_failed,
        n=len(rows),
        baselines={name: figure for name, figure in per_thousand.items() if name != races.OURS},
        details={
            "false_failed": false_failed,
            "ready": sum(judged.ready for _race, judged in rows),
            "table": races.table(rows).splitlines(),
        },
    )


def wait_cpu(record: t.Mapping[str, t.Any]) -> Row:
    """``record``: the quiet wait as `starts.py` gives it."""
    percent = 100 * record["cpu_s"] / record["seconds"]
    return Row(
        id="wait_cpu_percent",
        measured=round(percent, 3),
        goal=f"<= {WAIT_CPU_GOAL_PERCENT:g} of one core, journalctl and systemctl included",
        unit="% of one core",
        met=percent <= WAIT_CPU_GOAL_PERCENT,
        n=1,
        details={
            "seconds": round(record["seconds"], 1),
            "ranks": record["ranks"],
            "start_of_the_wait_cpu_s": round(record["first_cpu_s"], 3),
        },
    )


def table(rows: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """The rows for people; the baselines' 95th percentile, or their one figure."""
    lines: list[tuple[str, ...]] = [("row", "measured", "goal", "met", "n", "baselines")]
    for row in rows:
        others = (
            f"{name} {figures['p95'] if isinstance(figures, dict) else figures}"
            + (f" ({figures['early']} early)" if isinstance(figures, dict) and figures.get("early") else "")
            for name, figures in row["baselines"].items()
            if figures is not None
        )
        words = (row["id"], f"{row['measured']:g}", row["goal"], "yes" if row["met"] else "NO", str(row["n"]))
        lines.append((*words, ", ".join(others)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def keep(file: Path, rows: t.Sequence[Row], about: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
    """Write the rows, each with what it is about (seed, machine, date); rows of other ids stay. Gives all, in order."""
    known = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    fresh = [{**dataclasses.asdict(row), **about} for row in rows]
    ids = {row["id"] for row in fresh}
    merged = [row for row in known if row["id"] not in ids] + fresh
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"rows": merged}, indent=1) + "\n", encoding="utf-8")
    return merged


__all__ = (
    "Row",
    "baseline_lag",
    "crash_lag",
    "false_ready",
    "keep",
    "own_lag",
    "p95",
    "ready_lag",
    "spread",
    "table",
    "wait_cpu",
)
