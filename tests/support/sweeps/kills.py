# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sweeps that are killed: when, in which phase of a trial it struck, what the study says afterwards. Nothing here touches a host."""

from __future__ import annotations

import dataclasses
import json
import random
import typing as t

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import text_table

BEFORE, CLAIM, RESTORE, AFTER = "before", "claim", "restore", "after"
#: Phase to the tasks of tasks/sweep_run.yml and tasks/trial.yml that begin in it. A task that is not named here belongs to the phase that is under way.
TASKS = {
    BEFORE: ("Take the lease of the host",),
    CLAIM: ("Claim the next trial",),
    "preflight": ("Note when it began",),
    "prepare": ("Give the unit the trial's configuration for a while",),
    "stop": ("Stop what ran before, once its requests have ended",),
    "start": ("Start",),
    "benchmark": ("Measure",),
    "evaluate": ("Evaluate",),
    "record": ("See that it was the trial to the end", "Record what was measured"),
    RESTORE: ("Take the trial's configuration away, and restart with its own",),
    AFTER: ("Give the lease back",),
}
#: Phases of a trial, and for how long each lasts about, in seconds; a kill strikes somewhere within.
LASTS = {"preflight": 1.5, "prepare": 1.0, "stop": 2.0, "start": 4.0, "benchmark": 15.0, "record": 0.8}
_OTHERS = {BEFORE: 2.0, CLAIM: 1.0, RESTORE: 4.0}
#: What is planned, again and again, those first that a short run is to have.
_ROUND = (
    *("benchmark", "start", "record", "prepare", "benchmark", "stop", "start", "preflight", "record", "benchmark"),
    *("start", CLAIM, "stop", "benchmark", "record", "prepare", "start", RESTORE, "benchmark", BEFORE),
)

#: Of Optuna's journal (storages/journal/_storage.py, JournalOperation), and of its TrialState.
_STUDY_ATTR, _STATE = 2, 6
_FINISHED = (1, 2, 3)


@dataclasses.dataclass(frozen=True)
class Kill:
    """``phase`` of the ``number``-th trial of the run, ``after`` so many seconds. ``waits``: until the host has restored itself, before the next run."""

    phase: str
    number: int
    after: float
    interrupt: bool = False
    waits: bool = True

    def __str__(self) -> str:
        how = "Ctrl-C" if self.interrupt else "SIGKILL"
        return f"{how} {self.after:.2f} s into {self.phase} {self.number}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One kill. ``phase``: where it struck, by the last task that had begun. ``restored_s``: None = nobody waited for it."""

    kill: Kill
    phase: str
    restored_s: float | None
    ended: int


@dataclasses.dataclass(frozen=True)
class Study:
    """A study's journal: how often each trial was told to Optuna, and its results, of which there must be one."""

    told: dict[int, int]
    results: dict[int, list[dict[str, t.Any]]]

    @property
    def wrong(self) -> list[str]:
        found = [f"trial {number} was told {count} times" for number, count in self.told.items() if count != 1]
        found += [f"trial {number} has {len(all_)} results" for number, all_ in self.results.items() if len(all_) != 1]
        found += [f"trial {number} was told without a result" for number in self.told if number not in self.results]
        return found


def plan(seed: str, number: int) -> list[Kill]:
    """``number`` kills, spread over the phases of trials. Every fourth is an interruption; after every third the same command follows at once."""
    choose = random.Random(seed)
    kills = []
    for position in range(number):
        phase = _ROUND[position % len(_ROUND)]
        nth = choose.randint(1, 2) if phase in LASTS and position >= 3 else 1
        after = round(choose.uniform(0, {**LASTS, **_OTHERS}[phase]), 3)
        kills.append(Kill(phase, nth, after, interrupt=position % 4 == 2, waits=position % 3 != 1))
    choose.shuffle(kills)
    return kills


def phase_of(tasks: t.Iterable[str]) -> str:
    """The phase in which a run is, by the tasks that have begun."""
    begins = {task: phase for phase, names in TASKS.items() for task in names}
    found = BEFORE
    for name in tasks:
        found = begins.get(name.rpartition(" : ")[2], found)
    return found


def anchor(kill: Kill) -> str:
    """The task from whose beginning a kill's seconds count."""
    return TASKS[kill.phase][-1]


def read(journal: str) -> Study:
    """The journal of a study, without a last line that was not finished: the next one who opens it drops that."""
    told: dict[int, int] = {}
    results: dict[int, list[dict[str, t.Any]]] = {}
    for line in journal.split("\n")[:-1]:
        entry = json.loads(line)
        if entry["op_code"] == _STATE and entry["state"] in _FINISHED:
            told[entry["trial_id"]] = told.get(entry["trial_id"], 0) + 1
        for name, value in (entry.get("user_attr") or {}).items() if entry["op_code"] == _STUDY_ATTR else ():
            if name.startswith("result:"):
                results.setdefault(int(name.partition(":")[2]), []).append(value)
    return Study(told, results)


def lost(before: Study, after: Study) -> list[int]:
    """Trials that had ended before and whose result is not the same any more."""
    return [number for number, results in before.results.items() if after.results.get(number, [])[:1] != results[:1]]


def table(rows: t.Sequence[Row]) -> str:
    """How many struck where, and one line for each kill."""
    inside = [row for row in rows if row.phase in (*LASTS, "evaluate")]
    by_phase = {phase: sum(row.phase == phase for row in rows) for phase in TASKS}
    counted = ", ".join(f"{phase} {count}" for phase, count in by_phase.items() if count)
    waited = [row.restored_s for row in rows if row.restored_s is not None]
    lines = [f"{len(inside)} of {len(rows)} inside a trial; by phase: {counted}"]
    if waited:
        lines.append(
            f"own configuration back {sum(waited) / len(waited):.1f} s after a kill, {max(waited):.1f} s at most"
        )
    heads = ("KILL", "STRUCK", "RESTORED AFTER", "TRIALS ENDED")
    cells = [heads] + [
        (
            str(row.kill),
            row.phase,
            "the next run followed at once" if row.restored_s is None else f"{row.restored_s:.1f} s",
            str(row.ended),
        )
        for row in rows
    ]
    return "\n".join([*lines, text_table(cells)])
