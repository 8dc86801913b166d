# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The races: a plan that a seed decides, what is true of a race that was run, and the table of all.

A race is one restart of a unit with something in its way. `arena.py` runs them on a lab host; nothing here touches one.
"""

from __future__ import annotations

import dataclasses
import random
import typing as t

from ansible_collections.specdec.serving.tests.support.observer import baselines, truth

#: Kind of race to what stands in the way of the restart.
KINDS = {
    "plain": "nothing: a restart that just gets ready",
    "draining": "the old server drains and answers while the new one is awaited",
    "foreign": "a foreign server holds the port and answers",
    "neighbour": "another process shares the port from before the start (SO_REUSEPORT)",
    "late clash": "another process begins to share the port after the server has bound it",
    "killed": "a process of the start is killed at a random moment, or after the last HTTP check",
    "stale journal": "the journal holds markers and 'fired up' of an earlier start; this one loads on, or dies",
    "restarted again": "somebody restarts the unit again during the wait",
    "replaced": "the invocation is replaced between two checks of the wait",
    "survivor": "a server of the old start survives in the control group (KillMode=process)",
    "stopped": "somebody stops the unit during the wait",
}
#: Seconds of CLOCK_MONOTONIC between two looks of the baselines here: the loop's 15 s times 1/50, the modules' 1 s times
#: 1/10. A stand-in's start is about 1/400 of the story's, so both look more seldom than in their proportion.
INTERVALS = {"loop": 0.3, "uri": 0.1, "wait_for": 0.1, "journal": 0.3}
#: Where a race may strike between two checks, in the order in which the wait asks.
PATHS = ("/v1/models", "/model_info", "/server_info", "/ready", "/generate")
_NEVER_READY_TIMEOUT = 2.5
_TIMEOUT = 30.0


@dataclasses.dataclass(frozen=True)
class Action:
    """Something that is done to the unit.

    ``at``: seconds after the restart was ordered, or None: when the wait has had the answer to the ``nth`` request of
    ``path``, and ``delay`` seconds later. ``what``: restart, stop, kill (``whom``: scheduler, detokenizer, main), up or down
    (the neighbour).
    """

    what: str
    at: float | None = None
    path: str = ""
    nth: int = 1
    delay: float = 0.0
    whom: str = ""


@dataclasses.dataclass(frozen=True)
class Race:
    """One restart. ``old``: whether a server is up before, and how long it drains then; None = the unit is stopped.

    ``load``: seconds that loading takes beside the rest of the start. ``neighbour``: style of the other process, or ''.
    ``share``: whether the server's socket has SO_REUSEPORT. ``phases``: first look of each baseline.
    """

    number: int
    kind: str
    old: float | None = 0.0
    load: float = 0.1
    drain: float = 0.0
    neighbour: str = ""
    before: bool = False
    share: bool = False
    survivor: bool = False
    wait_delay: float = 0.0
    timeout: float = _TIMEOUT
    actions: tuple[Action, ...] = ()
    phases: t.Mapping[str, float] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, t.Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: t.Mapping[str, t.Any]) -> Race:
        return cls(**{**data, "actions": tuple(Action(**action) for action in data["actions"])})


def plan(seed: str, races: int) -> list[Race]:
    """As many races of each kind as possible, in an order and with moments that the seed decides."""
    kinds = list(KINDS)
    order = [kinds[number % len(kinds)] for number in range(races)]
    random.Random(f"{seed}:order").shuffle(order)
    return [_race(number, kind, random.Random(f"{seed}:{number}")) for number, kind in enumerate(order)]


def _race(number: int, kind: str, chance: random.Random) -> Race:
    race = Race(
        number=number,
        kind=kind,
        wait_delay=chance.uniform(0.0, 0.1),
        load=chance.uniform(0.05, 0.4),
        old=chance.choice((0.0, 0.0, None)),
        phases={name: chance.uniform(0.0, interval) for name, interval in INTERVALS.items()},
    )
    return dataclasses.replace(race, **_CHANGES[kind](chance))


def _foreign(chance: random.Random) -> dict[str, t.Any]:
    return {"neighbour": chance.choice(("model", "plain", "silent", "sglang")), "before": True, "old": None}


def _neighbour(chance: random.Random) -> dict[str, t.Any]:
    goes = chance.random() < 0.5
    return {
        "neighbour": chance.choice(("model", "plain", "silent")),
        "before": True,
        "share": True,
        "old": None,
        "timeout": _TIMEOUT if goes else _NEVER_READY_TIMEOUT,
        "actions": (Action("down", at=chance.uniform(0.2, 1.5)),) if goes else (),
    }


def _late_clash(chance: random.Random) -> dict[str, t.Any]:
    path = chance.choice(("", *PATHS))
    comes = Action("up", at=chance.uniform(0.4, 0.9)) if not path else Action("up", path=path)
    return {
        "neighbour": chance.choice(("model", "plain", "silent")),
        "share": True,
        "old": None,
        "timeout": _NEVER_READY_TIMEOUT,
        "actions": (comes,),
    }


def _killed(chance: random.Random) -> dict[str, t.Any]:
    whom = chance.choice(("scheduler", "scheduler", "scheduler", "detokenizer", "main"))
    if chance.random() < 0.5:
        return {"actions": (Action("kill", whom=whom, at=chance.uniform(0.0, 1.5)),)}
    delay = chance.choice((0.0, chance.uniform(0.0, 0.03)))
    return {"actions": (Action("kill", whom=whom, path="/generate", delay=delay),)}


def _stale_journal(chance: random.Random) -> dict[str, t.Any]:
    dies = chance.random() < 0.5
    return {
        "old": 0.0,
        "load": chance.uniform(0.8, 1.5),
        "actions": (Action("kill", whom=chance.choice(("scheduler", "main")), at=chance.uniform(0.2, 0.9)),)
        if dies
        else (),
    }


def _restarted_again(chance: random.Random) -> dict[str, t.Any]:
    moments = sorted(chance.uniform(0.0, 1.3) for _ in range(chance.choice((1, 1, 2))))
    return {
        "drain": chance.uniform(0.0, 0.5),
        "actions": tuple(Action("restart", at=moment) for moment in moments),
    }


def _replaced(chance: random.Random) -> dict[str, t.Any]:
    nth = chance.choice((1, 2))
    path = chance.choice(PATHS if nth == 1 else PATHS[:3])
    return {
        "drain": chance.choice((0.0, chance.uniform(0.0, 0.5))),
        "actions": (Action("restart", path=path, nth=nth),),
    }


def _stopped(chance: random.Random) -> dict[str, t.Any]:
    path = chance.choice(("", "", *PATHS))
    moment = Action("stop", path=path) if path else Action("stop", at=chance.uniform(0.0, 2.0))
    return {"actions": (moment,), "drain": chance.uniform(0.0, 0.3)}


_CHANGES: dict[str, t.Callable[[random.Random], dict[str, t.Any]]] = {
    "plain": lambda _chance: {},
    "draining": lambda chance: {"old": chance.uniform(0.3, 1.5)},
    "foreign": _foreign,
    "neighbour": _neighbour,
    "late clash": _late_clash,
    "killed": _killed,
    "stale journal": _stale_journal,
    "restarted again": _restarted_again,
    "replaced": _replaced,
    "survivor": lambda _chance: {"survivor": True, "old": 0.0, "timeout": _NEVER_READY_TIMEOUT},
    "stopped": _stopped,
}


# ---- judging --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Whose word was wrong in one race. ``served``: whether a start that was asked for served at any time."""

    served: bool
    ready: bool
    false_ready: tuple[str, ...]
    false_failed: bool
    broken: str = ""


OURS = "sglang_ready"
OBSERVERS = (OURS, *baselines.NAMES)


def judge(record: t.Mapping[str, t.Any]) -> Judgement:
    """Judge what `arena.py` recorded of one race: ``events``, ``shadows``, ``orders``, ``replaces``, ``verdicts``, ``until``."""
    if "broken" in record:
        return Judgement(served=False, ready=False, false_ready=(), false_failed=False, broken=record["broken"])
    verdicts = {
        name: truth.Verdict(
            says="ready" if found["ready"] else "failed",
            at=found["at"],
            looked_at=found["looked_at"],
            invocation_id=found.get("invocation_id", ""),
        )
        for name, found in record["verdicts"].items()
        if found.get("at") is not None
    }
    shadows = [truth.Span(start, float("inf") if end is None else end) for start, end in record["shadows"]]
    served = truth.serving(record["events"], shadows=shadows)
    replaces = record["replaces"]
    ours = verdicts.get(OURS)
    if ours is None:
        said = record["verdicts"].get(OURS, {}).get("msg", "no verdict")
        return Judgement(served=False, ready=False, false_ready=(), false_failed=False, broken=str(said))
    until = min([record["until"], *(order for order in record["orders"] if order > ours.at)])
    wrong = [name for name, verdict in verdicts.items() if truth.false_ready(verdict, served, replaces=replaces)]
    return Judgement(
        served=any(one.invocation_id != replaces for one in served),
        ready=ours.ready,
        false_ready=tuple(wrong),
        false_failed=truth.false_failed(ours, served, replaces=replaces, until=until),
    )


def table(rows: t.Sequence[tuple[Race, Judgement]]) -> str:
    """One line a kind: races, what became of them, and whose 'ready' was false how often."""
    head = ("race", "races", "ready", "not ready", "false failed", *OBSERVERS)
    lines: list[tuple[str, ...]] = [head]
    for kind in (*KINDS, "all"):
        of_kind = [judged for race, judged in rows if kind in (race.kind, "all")]
        if not of_kind:
            continue
        lines.append(
            (
                kind,
                str(len(of_kind)),
                str(sum(judged.ready for judged in of_kind)),
                str(sum(not judged.ready for judged in of_kind)),
                str(sum(judged.false_failed for judged in of_kind)),
                *(str(sum(name in judged.false_ready for judged in of_kind)) for name in OBSERVERS),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    span = len("  ".join(" " * width for width in widths[:5])) + 2
    return "\n".join([" " * span + "false ready of", *text])


__all__ = ("INTERVALS", "KINDS", "OBSERVERS", "OURS", "PATHS", "Action", "Judgement", "Race", "judge", "plan", "table")
