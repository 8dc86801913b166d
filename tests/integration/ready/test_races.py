# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restarts at random moments while the old process drains and still answers: no verdict may be early, none about the old one."""

from __future__ import annotations

import json
import typing as t

RESTARTS = 50
RESTARTER = "/srv/specdec/ansible_collections/specdec/serving/tests/support/observer/restarts.py"
# A verdict is an observation of a moment ago: a stop that was asked for within it is not held against it.
SLACK_S = 0.05


def test_no_false_ready_over_restarts(
    make_server: t.Callable[[str], t.Any], record_property: t.Callable[[str, t.Any], None], seed: str
) -> None:
    # Three units drain for a second at each restart, one for 20 seconds, once.
    plans = [(1.0, 17), (1.0, 16), (1.0, 16), (20.0, 1)]
    assert sum(restarts for _drain, restarts in plans) == RESTARTS
    servers = []
    for drain, _restarts in plans:
        server = make_server("race")
        server.write(environment={"STAND_IN_DRAIN_S": str(drain)})
        server.systemctl("start")
        servers.append(server)
    for server in servers:
        assert server.observe()["ready"]
    units = [
        {"options": server.options(timeout="120"), "restarts": restarts, "impatience": 0.4}
        for server, (_drain, restarts) in zip(servers, plans, strict=True)
    ]
    done = servers[0].host.exec(
        ["env", "PYTHONPATH=/srv/specdec", "python3", "-B", RESTARTER], input=json.dumps({"seed": seed, "units": units})
    )
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    truth = {server.unit: _truth(server) for server in servers}
    false_ready = [
        verdict for verdict in verdicts if verdict["ready"] and not _was_ready(verdict, truth[verdict["unit"]])
    ]
    states: dict[str, int] = {}
    for verdict in verdicts:
        states[verdict["state"]] = states.get(verdict["state"], 0) + 1
    text = f"{len(verdicts)} restarts, verdicts {states}, false ready {len(false_ready)}, seed {seed}"
    print(text)
    record_property("races", text)
    assert len(verdicts) == RESTARTS
    assert false_ready == []
    # Every wait must follow the unit to an invocation that really became ready; none may give up.
    assert states == {"ready": RESTARTS}, [verdict for verdict in verdicts if not verdict["ready"]]
    drains = [_drained(server, truth[server.unit]) for server in servers]
    assert max(drains) >= 20.0, "the old process kept answering while the new one was awaited"


def _truth(server: t.Any) -> dict[str, dict[str, float]]:
    """Per invocation the first time of each event."""
    found: dict[str, dict[str, float]] = {}
    for line in server.host.exec(["cat", server.truth]).stdout.splitlines():
        entry = json.loads(line)
        found.setdefault(entry["invocation_id"], {}).setdefault(entry["event"], entry["monotonic"])
    return found


def _was_ready(verdict: dict[str, t.Any], truth: dict[str, dict[str, float]]) -> bool:
    events = truth.get(verdict["invocation_id"], {})
    at = verdict["detected_at_monotonic"]
    if verdict["invocation_id"] == verdict["replaces"] or "ready" not in events:
        return False
    ended = min((events[name] for name in ("term_received", "port_closed", "exited") if name in events), default=at)
    return bool(events["ready"] <= at <= ended + SLACK_S)


def _drained(server: t.Any, truth: dict[str, dict[str, float]]) -> float:
    return max(
        (
            events["port_closed"] - events["term_received"]
            for events in truth.values()
            if {"port_closed", "term_received"} <= set(events)
        ),
        default=0.0,
    )
