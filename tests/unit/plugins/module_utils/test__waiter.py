# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wait against a scripted host: time moves only in ``pause``, so nothing sleeps."""
# ruff: noqa: ARG002 - the scripted host has the real one's signatures and needs few of the arguments

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._http import HttpError, Response
from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry
from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import KernelLine
from ansible_collections.specdec.serving.plugins.module_utils._readiness import EngineProcess
from ansible_collections.specdec.serving.plugins.module_utils._starts import Start, Subject
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, UnitState
from ansible_collections.specdec.serving.plugins.module_utils._waiter import (
    STARTING_MESSAGE_ID,
    STOPPING_MESSAGE_ID,
    Host,
    OptionError,
    PortView,
    Waiter,
    defaults,
    options_from,
)

OLD, NEW = "a" * 32, "b" * 32
KEY = "sk-secret-123"
OWN = PortView(listening=True, owned=True, owners=("port 30001 is held by pid 87",), source="sock_diag")
FOREIGN = PortView(
    listening=True,
    owned=False,
    owners=("port 30001 is held by pid 111 (python) of user@0.service",),
    source="sock_diag",
)
ENGINE = frozenset(
    (EngineProcess("main", 87, 1), EngineProcess("scheduler", 90, 1), EngineProcess("detokenizer", 91, 1))
)


def running(**changes: t.Any) -> UnitState:
    values = {
        "id": "sglang-x.service",
        "load_state": "loaded",
        "active_state": "active",
        "sub_state": "running",
        "invocation_id": NEW,
        "main_pid": 87,
        "exec_main_pid": 87,
        "exec_main_start_us": 1_000_000_000,
        "control_group": "/system.slice/sglang-x.service",
        **changes,
    }
    return UnitState(**values)


def failed(code: int = 1, status: int = 3, result: str = "exit-code", **changes: t.Any) -> UnitState:
    return running(
        active_state="failed",
        sub_state="failed",
        main_pid=0,
        exec_main_code=code,
        exec_main_status=status,
        result=result,
        **changes,
    )


class ScriptedHost(Host):
    """A machine whose state is set by the test, at once or at a time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.unit = running()
        self.alive: bool | None = True
        self.port_view = PortView()
        self.processes = ENGINE
        self.answers: dict[str, t.Any] = {
            "/v1/models": {"data": [{"id": "kimi-k2.6"}]},
            "/model_info": {"model_path": "/models/k26"},
            "/server_info": {
                "model_path": "/models/k26",
                "tp_size": 1,
                "version": "0.5.23",
                "api_key": KEY,
                "launch_command": f"python --api-key {KEY}",
                "max_total_num_tokens": 4096,
            },
            "/ready": (200, b""),
            "/generate": {"meta_info": {"completion_tokens": 4}},
        }
        self.leads: dict[str, t.Any] = {}
        self.requests: list[str] = []
        self.allowed: dict[str, float] = {}
        self.limits: list[float] = []
        self.bodies: dict[str, t.Any] = {}
        self.shows = 0
        self.arguments: dict[str, t.Any] = {}
        self.error = ""
        self.lost: list[Entry] = []
        self.kernel: list[str] = []
        self.kernel_error = ""
        self.installed = "0.5.23"
        self._entries: list[Entry] = []
        self._rest: list[Entry] = []
        self._events: list[tuple[float, t.Callable[[], None]]] = []
        self.logs_requests = True
        self.damage = ""
        self._serial = 0
        self.log_pid1("Starting sglang-x.service - SGLang x...", STARTING_MESSAGE_ID)

    # -- for the test

    def at(self, seconds: float, event: t.Callable[[], None]) -> None:
        self._events.append((1000.0 + seconds, event))
        self._events.sort(key=lambda item: item[0])

    def _entry(self, message: str, *, own: bool, message_id: str = "") -> Entry:
        self._serial += 1
        return Entry(
            cursor=f"c{self._serial}",
            realtime_us=0,
            monotonic_us=int(self.now * 1e6),
            pid=90 if own else 1,
            message=message,
            message_id=message_id,
            exit_code="",
            exit_status=None,
            unit_result="",
            n_dropped=0,
            line_break="",
            own=own,
        )

    def log(self, *messages: str) -> None:
        self._entries += [self._entry(f"[2026-11-29 14:24:24] {message}", own=True) for message in messages]

    def log_raw(self, *messages: str) -> None:
        self._entries += [self._entry(message, own=True) for message in messages]

    def log_pid1(self, message: str, message_id: str = "") -> None:
        self._entries.append(self._entry(message, own=False, message_id=message_id))

    def log_at_the_end(self, *messages: str) -> None:
        self._rest += [self._entry(message, own=True) for message in messages]

    def set(self, **changes: t.Any) -> t.Callable[[], None]:
        def change() -> None:
            for name, value in changes.items():
                setattr(self, name, value)

        return change

    def load(self) -> None:
        self.log(
            "Load weight begin. avail mem=21.60 GB",
            "Load weight end. elapsed=0.01 s, type=Qwen3ForCausalLM, avail mem=21.60 GB, mem usage=0.50 GB.",
        )

    def serve(self) -> None:
        self.load()
        self.log(
            "INFO:     Uvicorn running on http://127.0.0.1:30001 (Press CTRL+C to quit)",
            "The server is fired up and ready to roll!",
        )
        self.port_view = OWN

    # -- Host

    def monotonic(self) -> float:
        return self.now

    def realtime(self) -> float:
        return self.now + 1e9

    def boot_id(self) -> str:
        return "boot"

            "server_args=ServerArgs(model_path='/models/k26')",
    def show(self) -> UnitState:
        self.shows += 1
        return self.unit

    def watch(self, unit: UnitState) -> None:
        if unit.invocation_id == OLD:
            self._entries = []

    def main_alive(self) -> bool | None:
        return self.alive

    def main_arguments(self) -> t.Mapping[str, t.Any]:
        return self.arguments

    def engine(self, unit: UnitState) -> frozenset[EngineProcess]:
        return self.processes

    def port(self, unit: UnitState) -> PortView:
        return self.port_view

    def cursor(self) -> str | None:
        return f"c{self._serial}"

    def history(self, cursor: str | None) -> t.Iterator[list[Entry]]:
        if not self.error:
            yield self.follow()

    def journal_error(self) -> str:
        return self.error

    def follow(self) -> list[Entry]:
        entries, self._entries = self._entries, []
        return entries

    def last_entries(self) -> list[Entry]:
        entries, self._rest = self.follow() + self._rest, []
        return entries

    def orphans(self) -> list[Entry]:
        entries, self.lost = self.lost, []
        return entries

    def kernel_lines(self, unit: UnitState) -> tuple[tuple[KernelLine, ...], str]:
        return tuple(KernelLine(int(self.now * 1e6), text) for text in self.kernel), self.kernel_error

    def gpus(self) -> t.Mapping[str, str]:
        return {"0000:41:00": "/dev/nvidia3"}

    def release(self) -> str:
        return self.installed

    def request(self, method: str, path: str, *, timeout: float, payload: t.Any = None) -> Response:
        self.requests.append(path)
    def journal_damage(self) -> str:
        return self.damage

        self.allowed[path] = timeout
        self.limits.append(timeout)
        if payload is not None:
            self.bodies[path] = payload
        answer = self.answers[path]
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
        return Response(status=status, body=body, elapsed=0.001)

    def request_leader(self, method: str, path: str, *, timeout: float, payload: t.Any = None) -> Response:
        return self.request(method, f"leader:{path}", timeout=timeout, payload=payload)

    def driver(self) -> str:
        return "580.95.05"

    def pause(self, seconds: float) -> None:
        until = self.now + max(seconds, 0.001)
        if self._events and self._events[0][0] <= until:
            self.now, event = self._events.pop(0)
            event()
        else:
            self.now = until


PARAMS: dict[str, t.Any] = {
    **defaults(),
    "unit": "sglang-x.service",
    "port": 30001,
    "model": "kimi-k2.6",
    "model_path": "/models/k26",
    "settings": {"tp_size": 1},
}


def wait(
    host: ScriptedHost, *, check_mode: bool = False, starts: t.Sequence[Start] = (), **params: t.Any
) -> dict[str, t.Any]:
    return Waiter(options_from({**PARAMS, **params}, check_mode=check_mode), host, starts).run()


def gates(result: dict[str, t.Any]) -> dict[str, t.Any]:
    return {gate["name"]: gate["passed"] for gate in result["gates"]}


# -- followers ---------------------------------------------------------------------------------------------------------

NODES = {"tp_size": 2, "nnodes": 2, "node_rank": 1}


def follower(**info: t.Any) -> ScriptedHost:
    """A node of rank 1 whose own port answers 200 to everything, and whose leader does not listen yet."""
    host = ScriptedHost()
    host.load()
    host.port_view = OWN
    host.answers.update(
        {f"leader:{path}": HttpError("refused") for path in ("/v1/models", "/model_info", "/server_info", "/ready")}
    )
    host.leads = {
        "leader:/v1/models": host.answers["/v1/models"],
        "leader:/model_info": host.answers["/model_info"],
        "leader:/server_info": {
            **host.answers["/server_info"],
            "tp_size": 2,
            "nnodes": 2,
            "node_rank": 0,
            "port": 40000,
            **info,
        },
        if self.logs_requests:
            self.log_raw(f'INFO:     127.0.0.1:40000 - "{method} {path} HTTP/1.1" 200 OK')
        "leader:/ready": (200, b""),
        "leader:/generate": host.answers["/generate"],
    }
    return host


def test_a_follower_without_leader_is_no_failure_and_not_ready() -> None:
    host = follower()
    result = wait(host, settings=NODES)
    assert (result["state"], result["ready"], result["finished"], result["node_rank"]) == ("follower", False, True, 1)
    assert "msg" not in result
    assert host.requests == []
    assert gates(result) == {
        "unit": True,
        "port_owner": True,
        "markers": True,
        "identity": None,
        "serving": None,
        "stability": True,
    }
    assert any("give leader" in notice for notice in result["notices"])


def test_a_follower_is_known_by_its_command_line() -> None:
    host = follower()
    host.arguments = {"model_path": "/models/k26", "tp_size": "2", "nnodes": "2", "node_rank": "1"}
    assert wait(host, settings={})["state"] == "follower"


def test_a_follower_waits_for_its_own_ranks_first() -> None:
    host = ScriptedHost()
    host.at(30.0, host.load)
    result = wait(host, settings=NODES)
    assert (result["state"], result["elapsed"] >= 30.0) == ("follower", True)
    assert wait(ScriptedHost(), settings=NODES, timeout="5")["state"] == "loading"


def test_a_follower_without_schedulers_is_none_yet() -> None:
    host = follower()
    host.processes = frozenset((EngineProcess("main", 87, 1),))
    result = wait(host, settings=NODES, timeout="5")
    assert result["state"] == "loading"
    assert "no scheduler process" in result["diagnosis"]["summary"]


def test_a_follower_is_proven_by_its_leader() -> None:
    host = follower()
    host.at(60.0, lambda: host.answers.update(host.leads))
    result = wait(host, settings=NODES, leader="10.0.0.1:40000")
    assert (result["state"], result["ready"]) == ("ready", True)
    assert 60.0 <= result["elapsed"] <= 61.0
    assert set(gates(result).values()) == {True}
    assert not [path for path in host.requests if not path.startswith("leader:")]
    # A start that waits for another host must not flood it.
    assert len(host.requests) < 150


def test_a_leader_that_does_not_know_of_all_nodes_is_told() -> None:
    host = follower(nnodes=1)
    host.answers.update(host.leads)
    result = wait(host, settings=NODES, leader="10.0.0.1:40000")
    assert (result["state"], result["diagnosis"]["cause"]) == ("loading", "settings_mismatch")
    assert "nnodes asked 2, running 1" in result["diagnosis"]["summary"]


def test_a_follower_whose_rank_dies_is_not_ready() -> None:
    host = follower()
    host.answers.update(host.leads)

    def generate() -> t.Any:
        host.processes = frozenset(process for process in ENGINE if process.role != "scheduler")
        return {"meta_info": {"completion_tokens": 4}}

    host.answers["leader:/generate"] = generate
    result = wait(host, settings=NODES, leader="10.0.0.1:40000", timeout="5")
    assert not result["ready"]


def test_a_leader_is_not_asked_about_rank_0() -> None:
    host = ScriptedHost()
    host.serve()
    assert wait(host, leader="10.0.0.1:40000", settings={"node_rank": 0})["ready"]
    assert not [path for path in host.requests if path.startswith("leader:")]


# -- earlier starts ----------------------------------------------------------------------------------------------------


def earlier(total: float, **changes: t.Any) -> Start:
    phases = (("starting", 10.0), ("loading_weights", total - 10.0))
    subject = Subject(model_path="/models/k26", release="0.5.23", driver="580.95.05", gpus=("",))
    start = Start(subject=subject, invocation_id="c" * 32, at=1.0, cache="warm", phases=phases, total_s=total)
    return dataclasses.replace(start, **changes)


def test_the_automatic_timeout_follows_the_slowest_start() -> None:
    host = ScriptedHost()
    result = wait(host, timeout="auto", starts=[earlier(600.0), earlier(900.0)])
    assert (result["timeout"], result["elapsed"] // 1) == (2700.0, 2700.0)
    assert "2, the slowest 900 s" in result["diagnosis"]["summary"]


@pytest.mark.parametrize(
    "starts",
    [
        [],
        [earlier(100.0)],
        [earlier(900.0, cache="cold")],
        [earlier(900.0, subject=Subject(model_path="/models/other"))],
    ],
    ids=["none", "quick", "other cache state", "other model"],
)
def test_the_automatic_timeout_is_never_less_than_the_default(starts: list[Start]) -> None:
    host = ScriptedHost()
    host.at(1.0, host.serve)
    assert wait(host, timeout="auto", starts=starts)["timeout"] == 1350.0


def test_a_timeout_that_was_given_stays() -> None:
    host = ScriptedHost()
    result = wait(host, timeout="20", starts=[earlier(900.0)])
    assert (result["timeout"], result["elapsed"] // 1) == (20.0, 20.0)


def test_the_rest_is_estimated() -> None:
    host = ScriptedHost()
    host.at(10.0, lambda: host.log("Load weight begin. avail mem=21.60 GB"))
    result = wait(host, slice=20.0, starts=[earlier(100.0)])
    assert result["estimate"] == {
        "total_s": pytest.approx(100.0, abs=0.5),
        "left_s": pytest.approx(88.0, abs=0.5),
        "slowest_s": 100.0,
        "from": 1,
        "longer": False,
    }


def test_a_start_that_takes_longer_than_every_earlier_one_says_so() -> None:
    result = wait(ScriptedHost(), slice=101.0, starts=[earlier(90.0), earlier(100.0)])
    assert (result["estimate"]["longer"], result["estimate"]["from"]) == (True, 2)
    assert "estimate" not in wait(ScriptedHost(), slice=20.0)


# -- ready -------------------------------------------------------------------------------------------------------------


def test_a_server_that_was_ready_before_is_found_ready_at_once() -> None:
    host = ScriptedHost()
    host.serve()
    result = wait(host)
    assert (result["state"], result["ready"], result["finished"]) == ("ready", True, True)
    assert set(gates(result).values()) == {True}
    assert result["elapsed"] == 0
    assert result["weights"][0]["type"] == "Qwen3ForCausalLM"
    assert result["markers"] == {"seen": 1, "expected": 1}
    assert result["diagnosis"] == {}


def test_the_verdict_comes_with_the_event_and_not_later() -> None:
    host = ScriptedHost()
    host.at(60.0, host.load)
    host.at(150.0, host.serve)
    result = wait(host)
    assert result["ready"]
    assert 150.0 <= result["elapsed"] <= 150.2


def test_no_request_is_sent_before_the_port_is_ours() -> None:
    host = ScriptedHost()
    host.at(10.0, host.set(port_view=FOREIGN))
    host.at(20.0, host.serve)
    host.answers["/ready"] = lambda: (200, b"") if host.now >= 1020 else pytest.fail("asked a foreign server")
    assert wait(host)["ready"]


def test_warming_up_is_not_ready_and_is_not_flooded_with_requests() -> None:
    host = ScriptedHost()
    host.load()
    host.log("INFO:     Uvicorn running on http://127.0.0.1:30001 (Press CTRL+C to quit)")
    host.port_view = OWN
    host.answers["/ready"] = lambda: (200, b"") if host.now >= 1030 else (503, b"")
    host.at(30.0, lambda: host.log("The server is fired up and ready to roll!"))
    result = wait(host)
    assert result["ready"]
    assert 30.0 <= result["elapsed"] <= 30.2
    assert host.requests.count("/ready") <= 20


def test_a_release_without_ready_is_asked_for_its_health() -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/ready"] = (404, b"")
    host.answers["/health"] = (200, b"")
    assert wait(host)["ready"]


def test_markers_are_waited_for() -> None:
    host = ScriptedHost()
    host.log(
        "INFO:     Uvicorn running on http://127.0.0.1:30001 (Press CTRL+C to quit)",
        "The server is fired up and ready to roll!",
    )
    host.port_view = OWN
    host.at(1.0, host.load)
    result = wait(host)
    assert result["ready"]
    assert result["elapsed"] >= 1.0


def test_markers_of_the_draft_model_count() -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/generate"] = {"meta_info": {"completion_tokens": 17, "spec_verify_ct": 3}}
    host.answers["/server_info"].update(speculative_algorithm="DFLASH", speculative_num_draft_tokens=8)
    asked = {"speculative_algorithm": "DFLASH", "speculative_dflash_block_size": 8}
    result = wait(host, settings=asked, timeout="5")
    assert (result["ready"], gates(result)["markers"]) == (False, None)
    assert result["markers"] == {"seen": 1, "expected": 2}
    assert host.requests.count("/generate") <= 4, "what is missing comes by the journal, not by asking the server"
    assert host.bodies["/generate"]["sampling_params"]["max_new_tokens"] == 17


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param({"error": "no permission to read the journal"}, "no permission", id="no permission"),
        pytest.param({"unit": running(standard_output="append")}, "append", id="output to a file"),
    ],
)
def test_an_unusable_journal_leaves_it_to_the_other_gates(change: dict[str, t.Any], why: str) -> None:
    host = ScriptedHost()
    host.port_view = OWN
    host.set(**change)()
    result = wait(host)
    assert result["ready"]
    assert why in result["log_incomplete"]
    assert any(why in notice for notice in result["notices"])


def test_the_marker_can_be_required() -> None:
    host = ScriptedHost()
    host.port_view = OWN
    host.error = "no permission to read the journal"
    assert wait(host, markers="require", timeout="5")["ready"] is False


def test_stable_for() -> None:
    host = ScriptedHost()
    host.serve()
    result = wait(host, stable_for=5.0)
    assert result["ready"]
    assert 5.0 <= result["elapsed"] <= 6.5


def test_a_server_that_dies_while_it_should_be_stable_is_not_ready() -> None:
    host = ScriptedHost()
    host.serve()
    host.at(3.0, host.set(alive=False, unit=failed(2, 9, "signal"), port_view=PortView()))
    assert wait(host, stable_for=5.0)["state"] == "crashed"


def test_stable_for_counts_over_slices() -> None:
    host = ScriptedHost()
    host.serve()
    first = wait(host, slice=15.0, stable_for=20.0)
    assert first["finished"] is False
    kept = json.loads(json.dumps(first["resume"]))
    second = wait(host, slice=15.0, stable_for=20.0, resume=kept)
    assert second["ready"]
    assert 20.0 <= second["elapsed"] <= 21.5


def test_a_process_that_died_between_two_slices_was_not_stable() -> None:
    host = ScriptedHost()
    host.serve()
    kept = json.loads(json.dumps(wait(host, slice=15.0, stable_for=20.0)["resume"]))
    host.processes = ENGINE - {EngineProcess("detokenizer", 91, 1)}
    assert wait(host, slice=15.0, stable_for=20.0, resume=kept)["finished"] is False


def test_a_process_that_died_between_two_checks_was_not_stable() -> None:
    host = ScriptedHost()
    host.serve()
    host.at(2.5, host.set(processes=ENGINE - {EngineProcess("detokenizer", 91, 1)}))
    assert wait(host, stable_for=5.0)["elapsed"] >= 7.5


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"port_view": FOREIGN}, id="the port was shared"),
        pytest.param({"answers": {"/ready": HttpError("reset")}}, id="the server did not answer"),
    ],
)
def test_an_interruption_begins_the_time_anew(change: dict[str, t.Any]) -> None:
    host = ScriptedHost()
    host.serve()
    as_it_was = {name: getattr(host, name) for name in change}
    host.at(3.0, host.set(**change))
    host.at(4.5, host.set(**as_it_was))
    assert wait(host, stable_for=5.0)["elapsed"] >= 9.5


def test_a_journal_that_is_lost_on_the_way_leaves_it_to_the_other_gates() -> None:
    host = ScriptedHost()
    host.port_view = OWN
    host.log("server_args=ServerArgs(model_path='/models/k26')", "The server is fired up and ready to roll!")
    host.at(3.0, host.set(error="journalctl ended with -9: no message"))
    result = wait(host, timeout="30")
    assert result["ready"]
    assert 3.0 <= result["elapsed"] < 10
    assert "journalctl ended" in result["log_incomplete"]


def test_generation_can_be_left_out() -> None:
    host = ScriptedHost()
    host.serve()
    assert wait(host, generation_tokens=0)["ready"]
    assert "/generate" not in host.requests


# -- never confused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", [OLD, OLD.upper(), f" {OLD}\n", f"{OLD[:8]}-{OLD[8:12]}-{OLD[12:16]}-{OLD[16:]}"])
def test_the_old_invocation_is_never_ready(spelling: str) -> None:
    host = ScriptedHost()
    host.unit = running(invocation_id=OLD)
    host.serve()
    result = wait(host, replaces=spelling, timeout="30")
    assert (result["state"], result["ready"]) == ("loading", False)
    assert host.requests == []
    assert result["diagnosis"]["cause"] == "not_restarted"


def test_a_restart_is_followed_from_the_old_to_the_new_invocation() -> None:
    host = ScriptedHost()
    host.unit = running(invocation_id=OLD, job=9)
    host.port_view = OWN
    host.at(1.0, host.set(unit=running(invocation_id=OLD, active_state="deactivating", sub_state="stop-sigterm")))
    host.at(20.0, host.set(unit=running(active_state="inactive", main_pid=0, job=9), alive=False, port_view=PortView()))
    host.at(20.1, host.set(unit=running(), alive=True))
    host.at(25.0, host.serve)
    result = wait(host, replaces=OLD)
    assert result["ready"]
    assert result["invocation_id"] == NEW
    assert 25.0 <= result["elapsed"] <= 25.5


def test_a_foreign_server_on_the_port_is_named_and_never_ready() -> None:
    host = ScriptedHost()
    host.serve()
    host.port_view = FOREIGN
    result = wait(host, timeout="30")
    assert result["ready"] is False
    assert host.requests == []
    assert "pid 111" in result["msg"]
    assert "user@0.service" in result["msg"]


def test_fired_up_after_a_failed_bind_is_a_port_conflict() -> None:
    # The new process warms up against the server that holds the port, and says that it is ready.
    host = ScriptedHost()
    host.load()
    host.port_view = FOREIGN
    host.at(
        5.0,
        lambda: host.log(
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30001): address already in use",
            "The server is fired up and ready to roll!",
        ),
    )
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == ("crashed", "port_conflict")
    assert result["elapsed"] <= 5.2
    assert "pid 111" in result["msg"]
    assert any("[Errno 98]" in line for line in result["diagnosis"]["evidence"])


def test_a_server_on_another_port_than_asked_is_told() -> None:
    host = ScriptedHost()
    host.load()
    host.log("INFO:     Uvicorn running on http://127.0.0.1:30009 (Press CTRL+C to quit)")
    result = wait(host, timeout="5")
    assert (result["ready"], result["diagnosis"]["cause"]) == (False, "wrong_port")
    assert "http://127.0.0.1:30009" in result["msg"]


def test_an_unknown_owner_is_not_ready() -> None:
def test_a_server_whose_requests_do_not_show_is_not_heard() -> None:
    """journald drops lines and says so only with the first one that it lets pass again, maybe half a minute later."""
    host = ScriptedHost()
    host.logs_requests = False
    host.port_view = OWN
    host.log("server_args=ServerArgs(model_path='/models/k26')")
    result = wait(host, timeout="30")
    assert result["ready"]
    assert result["elapsed"] < 4.0
    assert "nothing of that reaches the journal" in result["log_incomplete"]


def test_a_beginning_that_is_cut_off_in_a_namespace_leaves_it_to_the_other_gates() -> None:
    """PID 1's lines are in the default journal, and still there."""
    host = ScriptedHost()
    host.port_view = OWN
    host.log("The server is fired up and ready to roll!")
    result = wait(host, timeout="30")
    assert result["ready"]
    assert "the beginning of this start" in result["log_incomplete"]


def test_a_damaged_journal_leaves_it_to_the_other_gates() -> None:
    host = ScriptedHost()
    host.damage = "Journal file /j/a.journal corrupted, ignoring file."
    host.port_view = OWN
    host.log("server_args=ServerArgs(model_path='/models/k26')")
    result = wait(host, timeout="30")
    assert (result["ready"], result["elapsed"]) == (True, 0.0)
    assert "/j/a.journal" in result["log_incomplete"]


def test_a_long_history_does_not_hold_up_the_other_gates() -> None:
    """The rest of it comes while the server is looked at."""
    host = ScriptedHost()
    host.serve()
    parts = [[entry] for entry in host.follow()]
    seen: list[int] = []

    def slow(cursor: str | None) -> t.Iterator[list[Entry]]:
        for number, part in enumerate([*parts, *([[]] * 100)]):
            host.now += 1.0
            seen.append(number)
            yield part

    vars(host)["history"] = slow
    host.at(4.0, lambda: host._entries.extend(entry for part in parts[len(seen) :] for entry in part))
    result = wait(host, timeout="30")
    assert result["ready"]
    assert (len(seen), result["elapsed"] < 5.0) == (2, True)


    host = ScriptedHost()
    host.serve()
    host.port_view = PortView(listening=True, owned=None, owners=(), source="neither can be read")
    result = wait(host, timeout="5")
    assert (result["ready"], gates(result)["port_owner"]) == (False, None)


def test_an_invocation_replaced_during_the_checks_is_not_ready() -> None:
    host = ScriptedHost()
    host.serve()
    replaced = iter([True])

    def generate() -> dict[str, t.Any]:
        if next(replaced, False):
            host.unit = running(invocation_id="c" * 32, main_pid=99)
        return {"meta_info": {"completion_tokens": 4}}

    host.answers["/generate"] = generate
    result = wait(host, timeout="0.5", markers="ignore")
    # The second pass may find the replacement ready, but never the first invocation.
    assert result["invocation_id"] == "c" * 32
    assert host.requests.count("/generate") == 2


def test_a_scheduler_that_died_during_the_checks_is_not_ready() -> None:
    host = ScriptedHost()
    host.serve()

    def generate() -> dict[str, t.Any]:
        host.processes = frozenset(process for process in ENGINE if process.role != "scheduler")
        host.at(host.now - 1000 + 1.0, host.set(alive=False, unit=failed(2, 9, "signal"), port_view=PortView()))
        return {"meta_info": {"completion_tokens": 4}}

    host.answers["/generate"] = generate
    host.answers["/ready"] = lambda: (200, b"") if len(host.processes) == 3 else (503, b"")
    assert wait(host)["state"] == "crashed"


# -- other ends --------------------------------------------------------------------------------------------------------


def test_a_crash_is_noticed_at_once_and_explained() -> None:
    host = ScriptedHost()
    host.log_at_the_end(
        "[2026-11-29 14:24:24] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "model_runner.py", line 1, in load',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    )
    host.at(41.0, host.set(alive=False))
    host.at(41.3, host.set(unit=failed(2, 9, "signal")))
    result = wait(host)
    assert result["state"] == "crashed"
    assert 41.3 <= result["elapsed"] <= 41.4
    assert (result["diagnosis"]["id"], result["diagnosis"]["cause"]) == ("F5", "gpu_out_of_memory")
    assert "CUDA out of memory" in result["diagnosis"]["summary"]
    assert "--cuda-graph-max-bs-decode" in result["diagnosis"]["remedy"]
    assert result["diagnosis"]["exit"] == "killed by signal 9"
    assert "CUDA out of memory" in result["msg"]


def test_a_gpu_fault_in_the_kernels_log_is_the_cause() -> None:
    host = ScriptedHost()
    host.log_at_the_end(
        "[2026-11-29 14:24:24 TP3] Scheduler hit an exception: Traceback (most recent call last):",
        "torch.AcceleratorError: CUDA error: unknown error",
    )
    host.kernel = ["NVRM: Xid (PCI:0000:41:00): 79, pid=0, GPU has fallen off the bus."]
    host.alive, host.unit = False, failed(2, 9, "signal")
    diagnosis = wait(host)["diagnosis"]
    assert (diagnosis["id"], diagnosis["cause"], diagnosis["severity"]) == ("XID79", "gpu_fault", "critical")
    assert "/dev/nvidia3" in diagnosis["summary"]
    assert diagnosis["rank"] == "TP3"


def test_a_kernel_log_that_cannot_be_read_is_told() -> None:
    host = ScriptedHost()
    host.kernel_error = "no permission to read the journal"
    host.alive, host.unit = False, failed(2, 9, "signal")
    result = wait(host)
    assert result["diagnosis"]["cause"] == "signal"
    assert any("kernel's log was not looked at" in notice for notice in result["notices"])


def test_remedies_name_the_flags_of_the_installed_release() -> None:
    host = ScriptedHost()
    host.installed = "0.5.12"
    host.log_at_the_end(
        "[2026-11-29 14:24:24 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/e/site-packages/sglang/srt/speculative/dflash_worker.py", line 5, in forward_batch_generation',
        '  File "/e/site-packages/sglang/srt/model_executor/cuda_graph_runner.py", line 9, in replay',
        "TypeError: 'NoneType' object is not subscriptable",
    )
    host.alive, host.unit = False, failed(2, 9, "signal")
    result = wait(host)
    assert (result["diagnosis"]["id"], result["diagnosis"]["cause"]) == ("S1", "dflash_graph_crash")
    assert "--disable-cuda-graph" in result["msg"]


@pytest.mark.parametrize(
    ("unit", "cause", "part"),
    [
        pytest.param(failed(1, 217), "exec_failed", "217/USER", id="user"),
        pytest.param(failed(1, 234), "exec_failed", "status 234", id="a status without a row"),
        pytest.param(failed(0, 0, "start-limit-hit"), "start_limit", "reset-failed", id="start limit"),
        pytest.param(failed(2, 9, "oom-kill"), "host_out_of_memory", "OOM killer", id="oom"),
        pytest.param(failed(1, 1), "exited", "exited with status 1", id="nothing known"),
    ],
)
def test_what_systemd_says_of_the_end(unit: UnitState, cause: str, part: str) -> None:
    host = ScriptedHost()
    host.alive, host.unit = False, unit
    result = wait(host)
    assert result["diagnosis"]["cause"] == cause
    assert part in result["msg"]


def test_a_timeout_tells_what_the_log_says() -> None:
    host = ScriptedHost()
    host.log("Init parallel begin.")
    result = wait(host, timeout="20")
    assert (result["diagnosis"]["id"], result["diagnosis"]["cause"]) == ("F30", "timeout")
    assert "NCCL_P2P" in result["msg"]


def test_a_ready_server_that_runs_slowly_says_so() -> None:
    host = ScriptedHost()
    host.serve()
    host.log("Disable DFLASH draft cuda graph because the backend does not support it")
    result = wait(host)
    assert result["ready"]
    assert any("slowly" in notice for notice in result["notices"])


def test_refused_arguments_are_told() -> None:
    host = ScriptedHost()
    host.unit = failed(1, 2)
    host.alive = None
    host.log_at_the_end("sglang serve: error: unrecognized arguments: --no-such-flag")
    result = wait(host)
    assert result["diagnosis"]["cause"] == "argument_error"
    assert "--no-such-flag" in result["msg"]


def test_last_words_that_journald_could_not_attribute_are_looked_for() -> None:
    host = ScriptedHost()
    host.unit, host.alive = failed(1, 1), None
    host.log_at_the_end("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'sglang'")
    host.lost, host._rest = host._rest, []
    assert "No module named 'sglang'" in wait(host)["msg"]


def test_a_crash_loop() -> None:
    host = ScriptedHost()
    host.at(5.0, host.set(alive=False, unit=running(invocation_id="c" * 32, main_pid=99, n_restarts=1)))
    assert wait(host)["state"] == "crash_loop"


def test_a_tolerated_restart() -> None:
    host = ScriptedHost()
    host.at(
        5.0,
        host.set(
            alive=False,
            unit=running(
                active_state="activating", sub_state="auto-restart", main_pid=0, exec_main_code=1, exec_main_status=1
            ),
        ),
    )
    host.at(20.0, host.set(alive=True, unit=running(invocation_id="c" * 32, main_pid=99, n_restarts=1)))
    host.at(25.0, host.serve)
    assert wait(host, max_restarts=1)["ready"]


@pytest.mark.parametrize(
    ("message_id", "state"),
    [pytest.param(STOPPING_MESSAGE_ID, "stopped", id="on request"), pytest.param("", "crashed", id="by itself")],
)
def test_an_exit_with_0(message_id: str, state: str) -> None:
    host = ScriptedHost()
    host.at(5.0, lambda: host.log_pid1("Stopping sglang-x.service...", message_id))
    host.at(6.0, host.set(alive=False, unit=running(active_state="inactive", main_pid=0, exec_main_code=1)))
    assert wait(host)["state"] == state


@pytest.mark.parametrize(
    ("path", "answer", "options", "cause"),
    [
        pytest.param("/v1/models", {"data": [{"id": "org/model-a"}]}, {}, "wrong_model", id="wrong model"),
        pytest.param("/model_info", {"model_path": "/models/other"}, {}, "wrong_model_path", id="wrong path"),
        pytest.param("/server_info", {"tp_size": 4}, {}, "settings_mismatch", id="wrong settings"),
        pytest.param("/v1/models", (401, b'{"error":"Unauthorized"}'), {}, "unauthorized", id="no key"),
        pytest.param(
            "/v1/models", (401, b'{"error":"Unauthorized"}'), {"api_key": "wrong-key-1"}, "unauthorized", id="wrong key"
        ),
    ],
)
def test_what_waiting_cannot_change_ends_the_wait(
    path: str, answer: t.Any, options: dict[str, t.Any], cause: str
) -> None:
    host = ScriptedHost()
    host.serve()
    host.answers[path] = answer
    result = wait(host, **options)
    assert (result["ready"], result["diagnosis"]["cause"], result["elapsed"]) == (False, cause, 0)


def test_speculation_that_does_not_run_ends_the_wait() -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/server_info"].update(speculative_algorithm="NGRAM", speculative_num_draft_tokens=4)
    host.answers["/generate"] = {"meta_info": {"completion_tokens": 9}}
    result = wait(host, settings={"speculative_algorithm": "NGRAM"})
    assert result["diagnosis"]["cause"] == "speculation_not_exercised"


def test_generation_that_fails_is_tried_again_and_then_given_up() -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/generate"] = (500, b"boom")
    result = wait(host)
    assert (result["ready"], result["diagnosis"]["cause"]) == (False, "generation_failed")
    assert host.requests.count("/generate") == 3


def test_a_reset_connection_is_no_verdict() -> None:
    host = ScriptedHost()
    host.serve()
    answers = iter([HttpError("reset"), {"meta_info": {"completion_tokens": 4}}])
    host.answers["/generate"] = lambda: next(answers)
    assert wait(host)["ready"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((200, b"[" * 100_000), id="deeply nested"),
        pytest.param((200, b'{"tp_size": 1, "pp_size": 1e999}'), id="infinite size"),
        pytest.param({"tp_size": 1, "cuda_graph_config": {"decode": 5}}, id="number for a mapping"),
        pytest.param({"tp_size": 1, "cuda_graph_config": [7]}, id="list for a mapping"),
        pytest.param({"tp_size": 1, "internal_states": 4}, id="number for a list"),
        pytest.param({"tp_size": 1, "internal_states": [4]}, id="number for an item"),
        pytest.param({"tp_size": 1, "speculative_algorithm": "X", "speculative_num_draft_tokens": "y"}, id="no number"),
    ],
)
def test_nonsense_from_the_server_is_no_fault_of_ours(answer: t.Any) -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/server_info"] = answer
    asked = {"tp_size": 1, "max_running_requests": 8, "cuda_graph_backend_decode": "full"}
    result = wait(host, settings=asked, timeout="5")
    assert result["finished"]
    assert result["state"] in ("loading", "ready")


def test_the_last_answer_stays_the_reason_until_the_next_one() -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/v1/models"] = (500, b"out of order")
    for timeout in ("1.0", "1.05", "2.02"):
        result = wait(host, timeout=timeout)
        assert "answered 500" in result["msg"]


def test_a_request_is_not_given_more_time_than_the_wait() -> None:
    host = ScriptedHost()
    host.serve()
    wait(host, timeout="3")
    assert max(host.limits) <= 3.0


def test_the_timeout_names_the_phase() -> None:
    host = ScriptedHost()
    host.log("Load weight begin. avail mem=21.60 GB")
    result = wait(host, timeout="90")
    assert (result["state"], result["finished"]) == ("loading", True)
    assert 90.0 <= result["elapsed"] <= 90.2
    assert "not ready within 90 s; in phase loading_weights" in result["msg"]
    # A quiet wait asks systemd rarely.
    assert host.shows < 25


def test_observing_once_never_fails_and_does_not_wait() -> None:
    host = ScriptedHost()
    result = wait(host, wait=False)
    assert (result["state"], result["finished"], result["elapsed"]) == ("loading", True, 0)
    assert "msg" not in result


@pytest.mark.parametrize(("waits", "allowed"), [(True, 120.0), (False, 20.0)])
def test_who_looks_once_is_not_kept_by_a_generation_that_hangs(waits: bool, allowed: float) -> None:
    host = ScriptedHost()
    host.serve()
    assert wait(host, wait=waits)["ready"]
    assert host.allowed["/generate"] == allowed


def test_check_mode_observes_once_and_generates_nothing() -> None:
    host = ScriptedHost()
    host.serve()
    assert wait(host, check_mode=True)["ready"]
    assert "/generate" not in host.requests


# -- slices ------------------------------------------------------------------------------------------------------------


def test_a_slice_ends_at_its_length_and_the_next_goes_on() -> None:
    host = ScriptedHost()
    host.at(4.0, lambda: host.log("Load weight begin. avail mem=21.60 GB"))
    first = wait(host, slice=15.0)
    assert (first["finished"], first["phase"]) == (False, "loading_weights")
    assert 6.0 <= first["elapsed"] <= 6.3, "a new phase that held for two seconds is reported"
    second = wait(host, slice=15.0, resume=json.loads(json.dumps(first["resume"])))
    assert second["finished"] is False
    assert 21.0 <= second["elapsed"] <= 21.5
    host.log("Load weight end. elapsed=0.01 s, type=Qwen3ForCausalLM, avail mem=21.60 GB, mem usage=0.50 GB.")
    host.log("The server is fired up and ready to roll!")
    host.port_view = OWN
    third = wait(host, slice=15.0, resume=json.loads(json.dumps(second["resume"])))
    assert third["ready"]
    assert [phase["phase"] for phase in third["timeline"]][:2] == ["starting", "loading_weights"]


def test_the_timeout_counts_over_slices() -> None:
    host = ScriptedHost()
    first = wait(host, slice=15.0, timeout="20")
    second = wait(host, slice=15.0, timeout="20", resume=first["resume"])
    assert (first["finished"], second["finished"]) == (False, True)
    assert 20.0 <= second["elapsed"] <= 20.2


def test_an_open_port_keeps_the_slice_open() -> None:
    host = ScriptedHost()
    host.load()
    host.log("INFO:     Uvicorn running on http://127.0.0.1:30001 (Press CTRL+C to quit)")
    host.port_view = OWN
    host.answers["/ready"] = (503, b"")
    assert wait(host, slice=15.0)["elapsed"] >= 15.0


# -- secrets and options -----------------------------------------------------------------------------------------------


def test_no_secret_in_any_field() -> None:
    host = ScriptedHost()
    host.log_raw(f"[2026-11-29 14:24:24] server_args={{'api_key': '{KEY}'}}")
    host.serve()
    for result in (wait(host, api_key=KEY), wait(host, api_key=KEY, model="another")):
        assert KEY not in json.dumps(result)


@pytest.mark.parametrize("key", ["r", "ready", "load", "abc"])
def test_a_short_key_of_the_server_does_not_mask_the_verdict(key: str) -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/server_info"]["admin_api_key"] = key
    assert wait(host)["state"] == "ready"


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"timeout": "0"}, "above 0"),
        ({"timeout": "-5"}, "above 0"),
        ({"timeout": "nan"}, "above 0"),
        ({"timeout": "inf"}, "above 0"),
        ({"timeout": "soon"}, "neither a number of seconds nor"),
        ({"port": 0}, "1 to 65535"),
        ({"port": 70000}, "1 to 65535"),
        ({"leader": "b300"}, "neither host:port nor a URL"),
        ({"leader": "http://b300:30001/v1"}, "has a path"),
        ({"client_url": "serve.example"}, "no URL"),
        ({"client_url": "http://user:secret-word@serve.example"}, "user name or password"),
        ({"max_restarts": -1}, "must not be below 0"),
        ({"stable_for": -0.5}, "must not be below 0"),
        ({"api_key": "short"}, "at least 8"),
        ({"api_key": "port_owner"}, "equals a state"),
        ({"api_key": "kimi-k2.6-x", "model": "kimi-k2.6-x"}, "equals a state"),
        ({"api_key": "with space"}, "white space"),
        ({"settings": {"tp_size": "many"}}, "tp_size"),
        ({"replaces": f"InvocationID={OLD}"}, "no InvocationID"),
        ({"replaces": OLD[:-1]}, "no InvocationID"),
        ({"replaces": "none"}, "no InvocationID"),
    ],
)
def test_options_that_cannot_be_used(params: dict[str, t.Any], part: str) -> None:
    with pytest.raises(OptionError, match=part):
        wait(ScriptedHost(), **params)


def test_a_unit_that_is_no_service_is_refused() -> None:
    with pytest.raises(SystemdError, match="template"):
        options_from({**PARAMS, "unit": "sglang-x@.service"})


@pytest.mark.parametrize("name", ["stall_timeout", "spin_timeout"])
def test_options_of_a_later_release_say_so(name: str) -> None:
    host = ScriptedHost()
    host.serve()
    params: dict[str, t.Any] = {name: 60.0}
    assert any(name in notice for notice in wait(host, **params)["notices"])
