# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restarts with something in their way: no 'ready' may be false, and no start that gets ready may be given up."""

from __future__ import annotations

import collections
import json
import os
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError
from ansible_collections.specdec.serving.tests.support.observer import host as observer_host
from ansible_collections.specdec.serving.tests.support.observer import races
from ansible_collections.specdec.serving.tests.support.observer.units import CHECKOUT

pytestmark = pytest.mark.lab

#: How many races: SPECDEC_RACES, or this.
RACES = 100
RECORDS = CHECKOUT / "build" / "races.jsonl"


@pytest.fixture(scope="module")
def race_host() -> Host:
    try:
        return observer_host.make("races")
    except LabError as error:
        pytest.skip(f"no lab host: {error}")


def test_no_false_ready_and_no_false_alarm(
    race_host: Host, seed: str, record_property: t.Callable[[str, t.Any], None], capfd: pytest.CaptureFixture[str]
) -> None:
    number = int(os.environ.get("SPECDEC_RACES") or RACES)
    rows, bad = [], []
    RECORDS.parent.mkdir(exist_ok=True)
    with RECORDS.open("w", encoding="utf-8") as file:
        for race, record, judged in observer_host.race(race_host, seed=seed, number=number):
            rows.append((race, judged))
            line = json.dumps({"race": race.to_json(), "record": record})
            file.write(line + "\n")
            if judged.broken or judged.false_failed or races.OURS in judged.false_ready:
                bad.append((race, judged, line))
    text = f"{len(rows)} races, seed {seed}, records in {RECORDS}\n{races.table(rows)}"
    record_property("races", text)
    with capfd.disabled():
        print(f"\n{text}")
    assert bad == []
    assert len(rows) == number
    # Races in which nothing happened would prove nothing.
    kinds = collections.Counter(race.kind for race, _judged in rows)
    assert set(kinds) == set(races.KINDS)
    by_kind = {kind: [judged for race, judged in rows if race.kind == kind] for kind in races.KINDS}
    for kind in ("plain", "draining", "restarted again", "replaced"):
        assert all(judged.ready for judged in by_kind[kind]), kind
    for kind in ("foreign", "survivor"):
        assert not any(judged.ready for judged in by_kind[kind]), kind
    # The traps were real: those who look at the port or the journal alone fell into them.
    for name in ("loop", "wait_for", "journal"):
        assert any(name in judged.false_ready for _race, judged in rows), name
