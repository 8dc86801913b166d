# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import collections
import json
import typing as t

from ansible_collections.specdec.serving.tests.support.observer import races


def record(**changes: t.Any) -> dict[str, t.Any]:
    return {
        "replaces": "a",
        "until": 50.0,
        "orders": [],
        "shadows": [],
        "events": [{"event": "ready", "monotonic": 20.0, "invocation_id": "b", "main_pid": 7}],
        "verdicts": {
            races.OURS: {"ready": True, "at": 20.3, "looked_at": 20.2, "invocation_id": "b"},
            "loop": {"ready": True, "at": 12.0, "looked_at": 11.9},
            "systemd": {"ready": False, "at": 11.0, "looked_at": 11.0},
        },
        **changes,
    }


def test_a_seed_decides_everything() -> None:
    assert races.plan("1", 50) == races.plan("1", 50)
    assert races.plan("1", 50) != races.plan("2", 50)


def test_every_kind_has_its_share() -> None:
    kinds = collections.Counter(race.kind for race in races.plan("1", 100))
    assert set(kinds) == set(races.KINDS)
    assert max(kinds.values()) - min(kinds.values()) <= 1


def test_a_plan_survives_its_way_to_the_host() -> None:
    plan = races.plan("1", 50)
    assert [races.Race.from_json(json.loads(json.dumps(race.to_json()))) for race in plan] == plan


def test_no_race_strikes_twice_between_checks() -> None:
    for race in races.plan("1", 300):
        assert sum(action.at is None for action in race.actions) <= 1
        assert all(action.path in ("", *races.PATHS) for action in race.actions)


def test_the_judge_names_who_was_wrong() -> None:
    judged = races.judge(record())
    assert (judged.ready, judged.served, judged.false_ready, judged.false_failed) == (True, True, ("loop",), False)


def test_what_was_struck_before_our_last_look_is_a_false_ready() -> None:
    struck = {"event": "struck", "monotonic": 20.1, "invocation_id": "b", "main_pid": 7}
    assert races.OURS in races.judge(record(events=[*record()["events"], struck])).false_ready


def test_a_shared_port_is_never_ready() -> None:
    assert races.OURS in races.judge(record(shadows=[[10.0, None]])).false_ready
    assert races.OURS not in races.judge(record(shadows=[[10.0, 20.1]])).false_ready


def test_giving_up_what_gets_ready_is_a_false_alarm() -> None:
    given_up = {races.OURS: {"ready": False, "at": 15.0, "looked_at": 14.9, "invocation_id": "b"}}
    assert races.judge(record(verdicts=given_up)).false_failed
    # Somebody stopped it in between: what came later was another's wish.
    assert not races.judge(record(verdicts=given_up, orders=[16.0])).false_failed


def test_no_verdict_is_no_success() -> None:
    assert races.judge(record(verdicts={})).broken
    assert races.judge(record(verdicts={races.OURS: {"ready": False, "at": None, "msg": "Traceback"}})).broken
    assert races.judge({"number": 1, "broken": "RuntimeError"}).broken


def test_the_table_counts_by_kind() -> None:
    (race,) = [race for race in races.plan("1", 11) if race.kind == "draining"]
    lines = races.table([(race, races.judge(record()))]).splitlines()
    assert lines[1].split() == [
        "race",
        "races",
        "ready",
        "not",
        "ready",
        "false",
        "failed",
        "sglang_ready",
        "loop",
        "uri",
        "wait_for",
        "systemd",
        "journal",
    ]
    assert lines[2].split() == ["draining", "1", "1", "0", "0", "0", "1", "0", "0", "0", "0"]
    assert lines[3].split()[0] == "all"
