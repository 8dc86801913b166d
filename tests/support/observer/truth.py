# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was true: when which start really served, from the servers' own notes and the notes of who struck them.

Times are seconds of CLOCK_MONOTONIC, which all processes of a machine share. A start serves from its own ``ready`` until
the first sign of its end, or until somebody struck it, and while no other listener shares its port.
"""

from __future__ import annotations

import dataclasses
import typing as t

#: Events after which a server no longer serves: a request sent then may fail.
ENDS = frozenset(("term_received", "unhealthy", "port_closed", "crashing", "exited", "crashed", "struck"))
#: The server notes its readiness just after it came about; a probe may be answered in between.
NOTED_LATE_S = 0.05


@dataclasses.dataclass(frozen=True)
class Span:
    """From ``start`` to ``end`` (infinite = still so)."""

    start: float
    end: float = float("inf")

    def meets(self, start: float, end: float) -> bool:
        """Whether there is an instant in both."""
        return self.start <= end and start <= self.end

    def without(self, other: Span) -> list[Span]:
        """What is left of it outside of the other."""
        if not self.meets(other.start, other.end):
            return [self]
        parts = [Span(self.start, other.start), Span(other.end, self.end)]
        return [part for part in parts if part.start < part.end]


@dataclasses.dataclass(frozen=True)
class Serving:
    """One server process that really served, and the invocation that it belongs to."""

    invocation_id: str
    main_pid: int
    span: Span


def serving(events: t.Iterable[t.Mapping[str, t.Any]], *, shadows: t.Sequence[Span] = ()) -> list[Serving]:
    """When which start served.

    ``events``: objects with ``event``, ``monotonic``, ``invocation_id`` and ``main_pid``, in any order. ``struck`` ends the
    process of its ``main_pid``. ``shadows``: when another listener shared the port.
    """
    ready: dict[tuple[str, int], float] = {}
    ended: dict[tuple[str, int], float] = {}
    for event in events:
        key = (str(event["invocation_id"]), int(event["main_pid"]))
        at = float(event["monotonic"])
        if event["event"] == "ready":
            ready[key] = min(at, ready.get(key, at))
        elif event["event"] in ENDS:
            ended[key] = min(at, ended.get(key, at))
    found = []
    for (invocation_id, main_pid), start in sorted(ready.items(), key=lambda item: item[1]):
        end = ended.get((invocation_id, main_pid), float("inf"))
        spans = [Span(start, end)] if end > start else []
        for shadow in shadows:
            spans = [part for span in spans for part in span.without(shadow)]
        found += [Serving(invocation_id, main_pid, span) for span in spans]
    return found


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What an observer said. ``looked_at``: when its last look began, since what comes later no observer can see."""

    says: str
    at: float
    looked_at: float
    invocation_id: str = ""

    @property
    def ready(self) -> bool:
        return self.says == "ready"


def false_ready(verdict: Verdict, truth: t.Sequence[Serving], *, replaces: str) -> bool:
    """Whether it said ready of a start that did not serve at any instant of its last look.

    Who names an invocation must name the one that served; who names none may mean any but the one to be replaced.
    """
    if not verdict.ready:
        return False
    return not any(
        one.span.meets(verdict.looked_at, verdict.at + NOTED_LATE_S)
        for one in truth
        if one.invocation_id != replaces and verdict.invocation_id in ("", one.invocation_id)
    )


def false_failed(verdict: Verdict, truth: t.Sequence[Serving], *, replaces: str, until: float) -> bool:
    """Whether it gave up a start that served then, or came to serve before ``until``.

    ``until``: when somebody ordered the next start or stop, or the end of the watch.
    """
    if verdict.ready:
        return False
    return any(one.span.meets(verdict.at, until) for one in truth if one.invocation_id != replaces)


__all__ = ("ENDS", "NOTED_LATE_S", "Serving", "Span", "Verdict", "false_failed", "false_ready", "serving")
