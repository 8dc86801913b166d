# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real wait over stand-ins of several releases: ready when it is true, and failures told as the release tells them."""

from __future__ import annotations

import json
import typing as t

import pytest

EAGLE = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
DFLASH = "--speculative-algorithm DFLASH --speculative-dflash-block-size 8"
#: Release -> (speculation on its command line, the same as settings, phases of a start with graphs).
ONE_ROUND = [
    "starting",
    "loading_weights",
    "loading_draft",
    "allocating_kv_cache",
    "capturing_graphs",
    "binding",
    "warming_up",
]
TWO_ROUNDS = [
    "starting",
    "loading_weights",
    "allocating_kv_cache target",
    "capturing_graphs target",
    "loading_draft",
    "allocating_kv_cache draft",
    "capturing_graphs draft",
    "binding",
    "warming_up",
]
RELEASES: dict[str, tuple[str, dict[str, t.Any], list[str]]] = {
    "0.4.6": (EAGLE, {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}, TWO_ROUNDS),
    "0.5.9": (EAGLE, {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}, TWO_ROUNDS),
    "0.5.12": (DFLASH, {"speculative_algorithm": "DFLASH", "speculative_dflash_block_size": 8}, TWO_ROUNDS),
    "0.5.23": (DFLASH, {"speculative_algorithm": "DFLASH", "speculative_dflash_block_size": 8}, ONE_ROUND),
}


class Started(t.NamedTuple):
    server: t.Any
    settings: dict[str, t.Any]
    phases: list[str]

    def observe(self, **changes: t.Any) -> dict[str, t.Any]:
        return t.cast("dict[str, t.Any]", self.server.observe(settings=self.settings, **changes))


def written(server: t.Any, release: str, *arguments: str, environment: t.Mapping[str, str] | None = None) -> Started:
    """A unit of that release, with graphs, not started."""
    words, settings, phases = RELEASES[release]
    command = (
        "/usr/bin/python3 -m sglang.launch_server --model-path /models/stand-in-target --served-model-name kimi-k2.6 "
        f"--port {server.port} --tp-size 2 --speculative-draft-model-path /models/stand-in-draft {words}"
    )
    server.write(
        command=" ".join([command, *arguments]), environment={"STAND_IN_RELEASE": release, **(environment or {})}
    )
    return Started(server, {"tp_size": 2, **settings}, phases)


@pytest.fixture(params=list(RELEASES))
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_ready_when_it_is_true(server: t.Any, release: str) -> None:
    started = written(server, release)
    server.systemctl("start")
    result = started.observe()
    assert result["ready"], result
    assert {gate["passed"] for gate in result["gates"]} == {True}
    assert result["server"]["version"] == release
    assert result["markers"] == {"seen": 4, "expected": 4}
    assert [(model["role"], model["ranks"]) for model in result["weights"]] == [("target", 2), ("draft", 2)]
    phases = [" ".join(filter(None, (phase["phase"], phase.get("model", "")))) for phase in result["timeline"]]
    assert phases == started.phases
    assert result["server"]["engine_changed"] == []
    truth = server.true_events(result["invocation_id"])
    # Never before; how soon after is measured elsewhere.
    assert result["detected_at_monotonic"] >= truth["ready"]
    assert result["notices"] == []


def test_a_warm_up_that_lasts_is_waited_for(server: t.Any, release: str) -> None:
    """The port is open and /v1/models is 200 all the while; in 0.4.6 so is /health."""
    started = written(server, release, environment={"STAND_IN_TIMES": json.dumps({"warm_up": 2000})})
    server.systemctl("start")
    result = started.observe(generation_tokens=0)
    assert result["ready"], result
    truth = server.true_events(result["invocation_id"])
    assert result["detected_at_monotonic"] >= truth["ready"] >= truth["port_bound"] + 3.0


def test_other_settings_are_told(server: t.Any, release: str) -> None:
    started = written(server, release, "--disable-cuda-graph")
    server.systemctl("start")
    asked = {**started.settings, "disable_cuda_graph": False, "max_running_requests": 12}
    result = server.observe(settings=asked)
    assert (result["state"], result["diagnosis"]["cause"]) == ("loading", "settings_mismatch")
    assert "disable_cuda_graph asked False, running True" in result["diagnosis"]["summary"]


def test_a_scheduler_that_is_killed_while_it_loads(server: t.Any, release: str) -> None:
    started = written(server, release, environment={"STAND_IN_TIMES": json.dumps({"load_target": 20000})})
    server.systemctl("start")
    server.until(lambda: "Load weight begin" in server.host.journal(server.unit))
    cgroup = server.property("ControlGroup")
    script = (
        f"for pid in $(cat /sys/fs/cgroup{cgroup}/cgroup.procs); do"
        " grep -qa 'scheduler_TP0' /proc/$pid/cmdline && kill -KILL $pid; done; true"
    )
    server.host.exec(["sh", "-c", script])
    result = started.observe()
    assert (result["state"], result["diagnosis"]["exit"]) == ("crashed", "exited with status 1"), result["diagnosis"]
    assert result["diagnosis"]["cause"] in ("scheduler_killed", "child_died"), result["diagnosis"]


def test_an_argument_of_another_release(server: t.Any, release: str) -> None:
    flag = "--cuda-graph-max-bs-decode" if release != "0.5.23" else "--disable-piecewise-cuda-graph"
    started = written(server, release, flag, *(["8"] if release != "0.5.23" else []))
    server.systemctl("start")
    result = started.observe()
    assert (result["state"], result["diagnosis"]["cause"]) == ("crashed", "argument_error")
    assert flag in result["diagnosis"]["summary"]
    assert result["diagnosis"]["exit"] == "exited with status 2"


def test_a_stop_is_no_crash(server: t.Any, release: str) -> None:
    """Up to 0.5.17 the server ends a drain by SIGKILL of itself, which systemd calls a failure."""
    started = written(server, release)
    server.systemctl("start")
    assert started.observe()["ready"]
    server.systemctl("stop")
    result = started.observe(wait=False)
    assert (result["state"], result["diagnosis"]["cause"]) == ("stopped", "stopped"), result["diagnosis"]


def test_a_port_that_another_sglang_holds(server: t.Any, make_server: t.Any, release: str) -> None:
    holder = make_server("holder")
    holder.write()
    holder.systemctl("start")
    assert holder.observe()["ready"]
    server.port = holder.port
    started = written(server, release)
    server.systemctl("start")
    result = started.observe()
    assert (result["state"], result["ready"]) == ("crashed", False)
    assert result["diagnosis"]["cause"] == "port_conflict"
    assert holder.unit in result["diagnosis"]["summary"]
