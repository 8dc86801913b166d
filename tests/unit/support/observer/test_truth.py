# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.observer import truth
from ansible_collections.specdec.serving.tests.support.observer.truth import Serving, Span, Verdict

OLD, NEW = "a" * 32, "b" * 32


def event(name: str, at: float, invocation: str = NEW, pid: int = 7) -> dict[str, t.Any]:
    return {"event": name, "monotonic": at, "invocation_id": invocation, "main_pid": pid}


@pytest.mark.parametrize(
    ("events", "shadows", "spans"),
    [
        pytest.param([], [], [], id="nothing happened"),
        pytest.param([event("started", 1), event("port_bound", 2)], [], [], id="never ready"),
        pytest.param([event("ready", 5)], [], [(5, float("inf"))], id="still serves"),
        pytest.param([event("term_received", 9), event("ready", 5)], [], [(5, 9)], id="asked to end, in any order"),
        pytest.param([event("ready", 5), event("port_closed", 9), event("struck", 7)], [], [(5, 7)], id="struck first"),
        pytest.param([event("struck", 3), event("ready", 5)], [], [], id="struck before it was ready"),
        pytest.param([event("ready", 5), event("struck", 7, pid=8)], [], [(5, float("inf"))], id="another was struck"),
        pytest.param([event("ready", 5)], [Span(2, 8)], [(8, float("inf"))], id="shared until"),
        pytest.param([event("ready", 5)], [Span(6)], [(5, 6)], id="shared since"),
        pytest.param([event("ready", 5), event("exited", 9)], [Span(6, 7)], [(5, 6), (7, 9)], id="shared between"),
        pytest.param([event("ready", 5)], [Span(2)], [], id="shared all the time"),
    ],
)
def test_when_a_start_served(
    events: list[dict[str, t.Any]], shadows: list[Span], spans: list[tuple[float, float]]
) -> None:
    found = truth.serving(events, shadows=shadows)
    assert [(one.span.start, one.span.end) for one in found] == spans
    assert {one.invocation_id for one in found} <= {NEW}


SERVED = [Serving(OLD, 3, Span(0, 10)), Serving(NEW, 7, Span(20, 30))]


@pytest.mark.parametrize(
    ("verdict", "wrong"),
    [
        pytest.param(Verdict("ready", 21, 20.5, NEW), False, id="true"),
        pytest.param(Verdict("ready", 19.97, 19.9, NEW), False, id="before the server had noted it"),
        pytest.param(Verdict("ready", 19.9, 19.8, NEW), True, id="early"),
        pytest.param(Verdict("ready", 30.5, 29.9, NEW), False, id="ended during the last look"),
        pytest.param(Verdict("ready", 30.5, 30.1, NEW), True, id="ended before the last look"),
        pytest.param(Verdict("ready", 5, 4.9, OLD), True, id="the one to be replaced"),
        pytest.param(Verdict("ready", 21, 20.5, OLD), True, id="names the wrong one"),
        pytest.param(Verdict("ready", 5, 4.9), True, id="names none, the old one answered"),
        pytest.param(Verdict("ready", 15, 14.9), True, id="names none, nobody served"),
        pytest.param(Verdict("ready", 21, 20.9), False, id="names none, true"),
        pytest.param(Verdict("failed", 15, 14.9), False, id="did not say ready"),
    ],
)
def test_a_false_ready(verdict: Verdict, wrong: bool) -> None:
    assert truth.false_ready(verdict, SERVED, replaces=OLD) is wrong


@pytest.mark.parametrize(
    ("verdict", "until", "wrong"),
    [
        pytest.param(Verdict("failed", 25, 24), 40, True, id="it served"),
        pytest.param(Verdict("failed", 15, 14), 40, True, id="it came to serve"),
        pytest.param(Verdict("failed", 15, 14), 16, False, id="another order came before it could serve"),
        pytest.param(Verdict("failed", 31, 30.5), 40, False, id="it had ended"),
        pytest.param(Verdict("failed", 5, 4), 6, False, id="only the old one served"),
        pytest.param(Verdict("ready", 15, 14), 40, False, id="did not give up"),
    ],
)
def test_a_false_alarm(verdict: Verdict, until: float, wrong: bool) -> None:
    assert truth.false_failed(verdict, SERVED, replaces=OLD, until=until) is wrong
