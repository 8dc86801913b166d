# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sweep in text for a terminal: its plan, and its end. PRIVATE to the collection."""

from __future__ import annotations

import itertools
import typing as t
from collections.abc import Mapping, Sequence

import yaml

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import bar, duration

__all__ = ["sweep_plan", "sweep_summary", "trial_times"]

_BAR = 24
#: Phases of a trial, in order, with the moment that ends each.
_PHASE_ENDS = (
    ("claim", "began"),
    ("preflight", "prepared"),
    ("stop", "stopped"),
    ("start", "ready"),
    ("benchmark", "measured"),
    ("evaluate", "evaluated"),
)


def trial_times(noted: Mapping[str, t.Any], now: float) -> dict[str, float]:
    """Seconds by phase from the moments that were noted (seconds since 1970); the phase that is under way ends now.

    ``since`` (the end of the trial before), ``began``, ``prepared``, ``stopped``, ``ready``, ``measured``, ``evaluated``: each the
    end of the phase before it. One that was left out counts to the next.
    """
    times: dict[str, float] = {}
    since, under_way = float(noted["since"]), _PHASE_ENDS[0][0]
    for (phase, end), (following, _end) in itertools.pairwise((*_PHASE_ENDS, ("other", ""))):
        if end in noted:
            times[phase] = round(max(float(noted[end]) - since, 0.0), 3)
            since, under_way = float(noted[end]), following
    return {**times, under_way: round(max(now - since, 0.0), 3)}


def sweep_plan(
    planned: Mapping[str, t.Any],
    checks: Sequence[Mapping[str, t.Any]] = (),
    timeline: Sequence[Mapping[str, t.Any]] = (),
) -> str:
    """The trials to come, which of them the host would refuse, and how long their starts will take.

    :param checks: results of sglang_preflight, each with its trial as ``item``.
    :param timeline: of sglang_ready, the start of the instance as it runs.
    """
    refused: dict[int, str] = {}
    for check in checks:
        if check.get("errors") or check.get("failed"):
            errors = [str(one) for one in check.get("errors") or [check.get("msg")]]
            refused[int(check["item"]["number"])] = errors[0].splitlines()[0]
    would_start = 0
    waiting = planned["waiting"]
    lines = [f"{waiting} trial{'s' * (waiting != 1)} of {planned['instance']} would run"]
    for trial in planned["trials"]:
        verdict = ""
        if trial["state"] == "duplicate":
            verdict = f"the same as trial {trial['details'].get('of')}"
        elif trial["state"] != "waiting":
            verdict = f"known already: {trial['cause'] or trial['state']}"
        elif trial["faults"]:
            verdict = f"would be refused: {trial['faults'][0]}"
        elif trial["number"] in refused:
            verdict = f"would be refused: {refused[trial['number']]}"
        lines.append(f"{trial['number']:>5}  {trial['configuration']}{'  -  ' if verdict else ''}{verdict}")
        would_start += trial["state"] == "waiting" and not verdict
    start = max((phase["start"] + phase["duration"] for phase in timeline), default=0.0)
    if start and would_start:
        each = f"the instance as it is took {duration(start)} to start"
        starts = "1 such start takes" if would_start == 1 else f"{would_start} such starts take"
        lines.append(
            f"{each}: {starts} {duration(start * would_start)}, and measuring comes on top"
            " (a grid of three and more also measures the baseline again)"
        )
    return "\n".join(lines)


def _run_times(shown: Mapping[str, t.Any], run: Mapping[str, t.Any] | None) -> dict[str, float]:
    """What this run spent beside its trials."""
    if not run:
        return {}
    moments = {name: float(moment) for name, moment in run.items()}
    put_back = moments["restored"] - moments["restoring"]
    rest = moments["ended"] - moments["began"] - put_back - float(shown["run_s"])
    return {"put back": put_back, "rest": max(rest, 0.0)}


def sweep_summary(shown: Mapping[str, t.Any], over: str = "", run: Mapping[str, t.Any] | None = None) -> str:
    """All trials, the best first; where the time went; the variables of the winner to paste into an inventory.

    :param shown: result of sglang_trial with state=shown.
    :param over: why no further trial was begun.
    :param run: moments of this run (seconds since 1970): ``began``, ``restoring`` and ``restored`` (its own configuration), ``ended``.
    """
    lines = [f"sweep ended: {over}"] if over else []
    lines += [shown["table"], ""]
    lines += [f"note: {notice}" for notice in shown["notices"]]
    spent = {phase: seconds for phase, seconds in {**shown["times"], **_run_times(shown, run)}.items() if seconds}
    total = sum(spent.values())
    if total:
        lines.append(f"time: {duration(total)}")
        since = 0.0
        for phase, seconds in spent.items():
            share = f"{seconds / total * 100:3.0f} %"
            lines.append(f"  {phase:<9} {duration(seconds):>12} {share}  {bar(since, seconds, total, _BAR)}")
            since += seconds
    lines += _starts_text(shown["starts"])
    lines += _savings_text(shown["savings"])
    lines += _steps_text(shown["steps"])
    winner = shown["winner"]
    if winner and winner["point"]:
        parts = {key: winner[key] for key in ("args", "env") if winner[key]}
        lines += [
            "",
            f"to deploy trial {winner['number']}, give the instance",
            yaml.safe_dump(parts, sort_keys=False).rstrip(),
        ]
    elif winner:
        lines += ["", "nothing is better than the instance as it is"]
    else:
        lines += ["", "no trial passed its gates; the instance stays as it is"]
    return "\n".join(lines)


def _starts_text(starts: Mapping[str, t.Any]) -> list[str]:
    told = [f"{starts['warm']} in {duration(starts['median'])} (median)"] if starts["warm"] else []
    cold = ", ".join(f"trial {one['number']} in {duration(one['seconds'])}" for one in starts["cold"])
    if cold:
        told.append(f"with cold caches and not compared: {cold}")
    return [f"starts: {'; '.join(told)}"] if told else []


def _savings_text(savings: Sequence[Mapping[str, t.Any]]) -> list[str]:
    if not savings:
        return []
    width = max(len(one["rule"]) for one in savings)
    lines = ["saved, by the median of what was measured in full:"]
    for one in savings:
        seconds = f"{'-' * (one['seconds'] < 0)}{duration(abs(one['seconds']))}"
        lines.append(
            f"  {one['rule']:<{width}}  {one['trials']:>3} trial{'s' * (one['trials'] != 1):<1}  about {seconds}"
        )
    return lines


def _steps_text(steps: Sequence[Mapping[str, t.Any]]) -> list[str]:
    """A ladder from its bottom up."""
    if not steps:
        return []
    width = max(len(one["configuration"]) for one in steps)
    lines = ["", "ladder:"]
    for one in steps:
        value = f"{one['values'][0]:.2f}" if one["values"] else "-"
        lines.append(
            f"  {one['verdict']:<7}  trial {one['number']:>3}  {value:>10}  {one['configuration']:<{width}}  {one['reason']}"
        )
    return lines
