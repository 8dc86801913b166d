# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One server over two hosts: rank 0 answers, rank 1 says 200 to /health whatever happens."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.tests.support.observer import units

A, B = "controller-a", "controller-b"


def start_node(controller: t.Any, name: str, rank: int, **options: t.Any) -> None:
    address = controller.hosts[A].address
    words = f"--nnodes 2 --node-rank {rank} --dist-init-addr {address}:31200"
    controller.server.start(name, *words.split(), **options)


def settings(rank: int, **changes: t.Any) -> dict[str, t.Any]:
    return {**units.SETTINGS, "nnodes": 2, "node_rank": rank, **changes}


def gates(answer: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {gate["name"]: gate["passed"] for gate in answer["gates"]}


def test_a_follower_is_ready_with_its_leader(controller: t.Any) -> None:
    start_node(controller, A, 0, loads_for=10)
    start_node(controller, B, 1, loads_for=0.1)
    leader = f"{controller.hosts[A].address}:31100"
    # The command line tells the rank; on rank 0 the leader is not used.
    play, results = controller.run(A, B, settings=settings(0, node_rank=None), leader=leader)
    assert results[A]["ready"], play.output
    assert results[B]["ready"], play.output
    assert results[B]["node_rank"] == 1
    assert "node_rank" not in results[A]
    assert results[B]["markers"] == {"seen": 2, "expected": 2}
    # One rank of two, and no server of its own.
    assert set(gates(results[B]).values()) == {True}

    # The follower's own port answers 200, which is why it must not be asked.
    health = controller.hosts[B].exec(
        ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:31100/health"]
    )
    assert health.stdout == "200"

    # Its rank dies, and with it all of the server.
    pid = controller.hosts[B].exec(["pgrep", "--full", "--oldest", "^sglang::scheduler"]).stdout.strip()
    controller.hosts[B].exec(["kill", "-KILL", pid])
    _play, results = controller.run(B, settings=settings(1), leader=leader, timeout="10")
    assert results[B]["failed"]
    assert not results[B]["ready"]


def test_a_follower_alone_is_neither_ready_nor_a_failure(controller: t.Any) -> None:
    start_node(controller, A, 0)
    start_node(controller, B, 1)
    play, results = controller.run(B, settings=settings(1))
    answer = results[B]
    assert (answer["state"], answer["ready"], answer["failed"]) == ("follower", False, False), play.output
    assert "give leader" in play.output
    assert (gates(answer)["identity"], gates(answer)["serving"]) == (None, None)


def test_a_follower_of_a_leader_that_is_not_there(controller: t.Any) -> None:
    start_node(controller, B, 1)
    leader = f"{controller.hosts[A].address}:31100"
    _play, results = controller.run(B, settings=settings(1), leader=leader, timeout="6")
    assert (results[B]["state"], results[B]["failed"]) == ("loading", True)


def test_a_leader_of_another_server_is_told(controller: t.Any) -> None:
    start_node(controller, A, 0)
    start_node(controller, B, 1)
    leader = f"{controller.hosts[A].address}:31100"
    play, results = controller.run(B, settings=settings(1), leader=leader, model="another")
    assert results[B]["diagnosis"]["cause"] == "wrong_model", play.output
    play, results = controller.run(B, settings=settings(1, nnodes=4), leader=leader, markers="ignore")
    assert results[B]["diagnosis"]["cause"] == "settings_mismatch", play.output
    assert "nnodes asked 4, running 2" in results[B]["msg"]
