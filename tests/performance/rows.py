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

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import text_table
from ansible_collections.specdec.serving.tests.performance import sweeps
from ansible_collections.specdec.serving.tests.support.observer import baselines, races

READY_LAG_GOAL_S, CRASH_LAG_GOAL_S, WAIT_CPU_GOAL_PERCENT = 0.25, 0.25, 1.0
#: What a deployment that changes nothing may take of a play that is written by hand.
NOOP_DEPLOY_GOAL = 1.3
#: What a wait for many servers may take of a wait for one.
FLEET_GOAL = 1.5
#: 3 % of the story's 210 s, of each trial, where starts take as long as below and longer.
SWEEP_OVERHEAD_GOAL_S, SWEEP_LEAST_START_S = 6.0, 20.0
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


def noop_deploy(ours: t.Sequence[float], by_hand: t.Sequence[float]) -> Row:
    """Seconds of runs that change nothing: of `deploy.yml`, and of the play that is written by hand."""
    measured = statistics.median(ours) / statistics.median(by_hand)
    return Row(
        id="noop_deploy_ratio",
        measured=round(measured, 3),
        goal=f"<= {NOOP_DEPLOY_GOAL:g} times a play of seven tasks written by hand, generation off in both",
        unit="times",
        met=measured <= NOOP_DEPLOY_GOAL,
        n=len(ours),
        baselines={"by_hand_s": spread(by_hand)},
        details={"ours_s": spread(ours)},
    )


def fleet_growth(one: t.Sequence[float], many: t.Sequence[float], *, number: int, load_s: float) -> Row:
    """Seconds of a wait for one server, and of a wait for ``number`` that load as long."""
    measured = statistics.median(many) / statistics.median(one)
    return Row(
        id=f"fleet_growth_{number}",
        measured=round(measured, 3),
        goal=f"<= {FLEET_GOAL:g} times the wait for one server",
        unit="times",
        met=measured <= FLEET_GOAL,
        n=len(many),
        baselines={},
        details={"one_s": spread(one), "many_s": spread(many), "load_s": load_s},
    )


def sweep_overhead(ours: sweeps.Swept, loop: sweeps.Swept | None) -> Row:
    """Of each trial that was started, what is neither stop, start, benchmark nor evaluation: the whole command's time without these.

    What a configuration that was never started took is shared by the others, and so are the start of Ansible, the look at the host
    and the end. ``reported``: the same of each trial by the sweep's own account.
    """
    started = [times for times in ours.trials if "start" in times]
    needed = sum(times.get(phase, 0.0) for times in ours.trials for phase in sweeps.NEEDED)
    measured = (ours.wall_s - needed - ours.put_back_s) / len(started)
    reported = [sum(seconds for phase, seconds in times.items() if phase not in sweeps.NEEDED) for times in started]
    starts = [times["start"] for times in started if "benchmark" in times]
    long_enough = min(starts) >= SWEEP_LEAST_START_S
    found = {
        "wall_s": round(ours.wall_s, 1),
        "wrong_rows": len(ours.wrong),
        "winner": ours.winner,
        "left_running": ours.left_running,
    }
    beside = {} if loop is None else {
        "shell_loop": {
            "wall_s": round(loop.wall_s, 1),
            "wrong_rows": len(loop.wrong),
            "wrong": dict(loop.wrong),
            "winner": loop.winner,
            "left_running": loop.left_running,
        }
    }  # fmt: skip
    return Row(
        id="sweep_overhead_s",
        measured=round(measured, 2),
        goal=f"<= {SWEEP_OVERHEAD_GOAL_S:g} a trial, with starts of {SWEEP_LEAST_START_S:g} s and more, and every row right",
        unit="s a trial",
        met=measured <= SWEEP_OVERHEAD_GOAL_S and long_enough and not ours.wrong,
        n=len(started),
        baselines=beside,
        details={
            **found,
            "reported": spread(reported),
            "starts": spread(starts),
            "put_back_s": ours.put_back_s,
            "phases": {
                phase: round(statistics.median(times.get(phase, 0.0) for times in started), 2)
                for phase in dict.fromkeys(phase for times in started for phase in times)
            },
            "wrong": dict(ours.wrong),
            "scale": sweeps.SCALE,
        },
    )


def table(rows: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """The rows for people; the baselines' 95th percentile, or their one figure."""
    lines: list[tuple[str, ...]] = [("row", "measured", "goal", "met", "n", "baselines")]
    for row in rows:
        others = (
            f"{name} {_figure(figures)}"
            + (f" ({figures['early']} early)" if isinstance(figures, dict) and figures.get("early") else "")
            for name, figures in row["baselines"].items()
            if figures is not None
        )
        words = (row["id"], f"{row['measured']:g}", row["goal"], "yes" if row["met"] else "NO", str(row["n"]))
        lines.append((*words, ", ".join(others)))
    return text_table(lines)


def _figure(figures: t.Any) -> str:
    if not isinstance(figures, dict):
        return str(figures)
    if "wrong_rows" in figures:
        return f"{figures['wall_s']:g} s with {figures['wrong_rows']} wrong rows"
    return str(figures["p95"])


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
    "fleet_growth",
    "noop_deploy",
    "own_lag",
    "p95",
    "ready_lag",
    "spread",
    "sweep_overhead",
    "table",
    "wait_cpu",
)
