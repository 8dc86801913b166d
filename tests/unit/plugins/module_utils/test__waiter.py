# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wait against a scripted host: time moves only in ``pause``, so nothing sleeps."""
# ruff: noqa: ARG002 - the scripted host has the real one's signatures and needs few of the arguments

from __future__ import annotations

import dataclasses
import functools
import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._gpus import GpuState, GpuView
from ansible_collections.specdec.serving.plugins.module_utils._host import Host, PortView
from ansible_collections.specdec.serving.plugins.module_utils._http import HttpError, Response
from ansible_collections.specdec.serving.plugins.module_utils._journal import MESSAGE_STARTED, Entry
from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import KernelLine
from ansible_collections.specdec.serving.plugins.module_utils._not_started import Reason
from ansible_collections.specdec.serving.plugins.module_utils._progress import ProcessSample
from ansible_collections.specdec.serving.plugins.module_utils._readiness import EngineProcess
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import OptionError, defaults, options_from
from ansible_collections.specdec.serving.plugins.module_utils._starts import Start, Subject
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, UnitState
from ansible_collections.specdec.serving.plugins.module_utils._waiter import (
    STARTING_MESSAGE_ID,
    STOPPING_MESSAGE_ID,
    Waiter,
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


#: CPU, bytes read and bytes of memory a second.
DOING = {
    "busy": (1.0, 50e6, 10e6),
    "reading": (0.01, 200e3, 0.0),
    "growing": (0.01, 0.0, 400e3),
    "spinning": (1.0, 0.0, 0.0),
    "still": (0.005, 2000.0, 50.0),
}
#: An answer that never comes.
NEVER = object()


class ScriptedHost(Host):
    """A machine whose state is set by the test, at once or at a time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.unit = running()
        self.alive: bool | None = True
        self.port_view = PortView()
        self.open_connections: frozenset[bytes] | None = None
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
        self.logs_requests = True
        self.damage = ""
        self.requests: list[str] = []
        self.allowed: dict[str, float] = {}
        self.limits: list[float] = []
        self.bodies: dict[str, t.Any] = {}
        self.shows = 0
        self.arguments: dict[str, t.Any] = {}
        #: What each process does, by role and rank: `busy`, `reading`, `spinning` or `still`.
        self.doing: dict[tuple[str, str], str] = {("scheduler", ""): "busy"}
        self.letters: dict[tuple[str, str], str] = {}
        self._used: dict[tuple[str, str], list[float]] = {}
        self._used_at = self.now
        self.sampled = 0
        self.is_frozen = False
        self.gpu = GpuView()
        self.gpu_questions: list[float] = []
        self.error = ""
        self.lost: list[Entry] = []
        self.kernel: list[str] = []
        self.kernel_error = ""
        self.known_reason: Reason | None = None
        self.asked_about: list[str] = []
        self.installed = "0.5.23"
        self._entries: list[Entry] = []
        self._rest: list[Entry] = []
        self._events: list[tuple[float, t.Callable[[], object]]] = []
        self._serial = 0
        self.log_pid1("Starting sglang-x.service - SGLang x...", STARTING_MESSAGE_ID)

    # -- for the test

    def at(self, seconds: float, event: t.Callable[[], object]) -> None:
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

    def stopping_at_the_end(self) -> None:
        self._rest.append(self._entry("Stopping sglang-x.service...", own=False, message_id=STOPPING_MESSAGE_ID))

    def set(self, **changes: t.Any) -> t.Callable[[], None]:
        def change() -> None:
            for name, value in changes.items():
                setattr(self, name, value)

        return change

    def load(self) -> None:
        self.log(
            "server_args=ServerArgs(model_path='/models/k26')",
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

    def clients(self) -> frozenset[bytes] | None:
        return self.open_connections

    def cursor(self) -> str | None:
        return f"c{self._serial}"

    def history(self, cursor: str | None) -> t.Iterator[list[Entry]]:
        if not self.error:
            yield self.follow()

    def journal_error(self) -> str:
        return self.error

    def journal_damage(self) -> str:
        return self.damage

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

    def reason(self, unit: UnitState) -> Reason | None:
        self.asked_about.append(unit.active_state)
        return self.known_reason

    def release(self) -> str:
        return self.installed

    # -- Machine

    def samples(self, unit: UnitState) -> tuple[ProcessSample, ...]:
        self.sampled += 1
        seconds, self._used_at = self.now - self._used_at, self.now
        found = []
        for number, (who, doing) in enumerate(self.doing.items()):
            used = self._used.setdefault(who, [0.0, 0.0, 0.0])
            for index, share in enumerate(DOING[doing]):
                used[index] += share * seconds
            found.append(
                ProcessSample(
                    pid=90 + number,
                    start_ticks=1,
                    role=who[0],
                    rank=who[1],
                    state=self.letters.get(who, "S"),
                    cpu_s=used[0],
                    children_cpu_s=0.0,
                    rss_bytes=2**30 + int(used[2]),
                    io_bytes=int(used[1]),
                )
            )
        return tuple(found)

    def frozen(self, unit: UnitState) -> bool:
        return self.is_frozen

    def wait_channel(self, pid: int) -> str:
        return "do_signal_stop" if pid == 91 else "futex_wait_queue"

    def ask_gpus(self) -> None:
        self.gpu_questions.append(self.now)

    def gpu_view(self, pids: t.Collection[int]) -> GpuView:
        return self.gpu

    def _never(self, timeout: float, abort: t.Callable[[], bool]) -> HttpError:
        """What a server gives that takes a request and does not answer it."""
        deadline = self.now + timeout
        while self.now < deadline:
            self.pause(0.05)
            if abort():
                return HttpError("given up")
        return HttpError("no complete answer before the deadline")

    def request(
        self, method: str, path: str, *, timeout: float, payload: t.Any = None, abort: t.Callable[[], bool]
    ) -> Response:
        self.requests.append(path)
        if self.logs_requests:
            self.log_raw(f'INFO:     127.0.0.1:40000 - "{method} {path} HTTP/1.1" 200 OK')
        self.allowed[path] = timeout
        self.limits.append(timeout)
        if payload is not None:
            self.bodies[path] = payload
        answer = self.answers[path]
        if callable(answer):
            answer = answer()
        if answer is NEVER:
            answer = self._never(timeout, abort)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
        return Response(status=status, body=body, elapsed=0.001)

    def request_leader(
        self, method: str, path: str, *, timeout: float, payload: t.Any = None, abort: t.Callable[[], bool]
    ) -> Response:
        return self.request(method, f"leader:{path}", timeout=timeout, payload=payload, abort=abort)

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
    assert [(one["name"], one["asked"], one["running"]) for one in result["server"]["mismatched"]] == [("nnodes", 2, 1)]


def test_a_follower_whose_rank_dies_is_not_ready() -> None:
    host = follower()
    host.answers.update(host.leads)

    def generate() -> t.Any:
        host.processes = frozenset(process for process in ENGINE if process.role != "scheduler")
        return {"meta_info": {"completion_tokens": 4}}

    host.answers["leader:/generate"] = generate
    result = wait(host, settings=NODES, leader="10.0.0.1:40000", timeout="5")
    assert not result["ready"]


@pytest.mark.parametrize("cause", ["refused", "reset", "no_answer", ""])
def test_a_leader_that_does_not_answer_is_named(cause: str) -> None:
    host = follower()
    host.answers["leader:/v1/models"] = HttpError("GET http://10.0.0.1:40000/v1/models: no luck", cause)
    result = wait(host, settings=NODES, leader="10.0.0.1:40000", timeout="5")
    assert (result["state"], result["diagnosis"]["cause"]) == ("loading", "leader_unreachable")
    assert "the leader http://10.0.0.1:40000 does not answer" in result["msg"]
    assert "rank 0 runs" in result["diagnosis"]["remedy"]
    # What listens on its own port says nothing of how far it is.
    assert result["phase"] == result["timeline"][-1]["phase"] == "loading_weights"


def test_a_leader_of_another_kind_is_told_as_it_is() -> None:
    host = follower()
    host.answers["leader:/v1/models"] = HttpError("the answer is no HTTP", "not_http")
    result = wait(host, settings=NODES, leader="10.0.0.1:40000", timeout="5")
    assert result["diagnosis"]["cause"] == "not_http"


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


@pytest.mark.parametrize(
    ("seen", "latest"),
    [pytest.param(True, 30.2, id="connections are seen"), pytest.param(False, 32.1, id="they are not")],
)
def test_the_end_of_the_warm_up_is_noticed_before_the_log_tells_it(seen: bool, latest: float) -> None:
    host = ScriptedHost()
    host.load()
    host.log("INFO:     Uvicorn running on http://127.0.0.1:30001 (Press CTRL+C to quit)")
    host.port_view = OWN
    host.answers["/ready"] = (503, b"")
    if seen:
        host.open_connections = frozenset((b"warm-up", b"router"))
        host.at(30.0, host.set(open_connections=frozenset((b"router",))))
    # The server says "up" to itself a moment after its own request ended; its log would tell it later still.
    host.at(30.05, lambda: host.answers.update({"/ready": (200, b"")}))
    result = wait(host)
    assert result["ready"]
    assert 30.05 <= result["elapsed"] <= latest
    # The server's log is not flooded.
    assert host.requests.count("/ready") <= 25


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


def test_a_release_without_ready_is_asked_for_a_health_that_generates() -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/ready"] = (404, b"")
    # In 0.4.6 it is 200 as soon as the port is open.
    host.answers["/health"] = (200, b"")
    host.answers["/health_generate"] = (503, b"")
    result = wait(host, generation_tokens=0, timeout="10")
    assert (result["ready"], "/health" in host.requests) == (False, False)
    host.answers["/health_generate"] = (200, b"")
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


def test_a_log_that_lags_a_moment_costs_no_second_generation() -> None:
    host = ScriptedHost()
    host.port_view = OWN
    host.at(0.3, host.serve)
    result = wait(host)
    assert result["ready"]
    assert 0.3 <= result["elapsed"] <= 0.4
    assert host.requests.count("/generate") == 1


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


def test_a_port_that_systemd_holds_for_a_socket_unit_is_not_pid_1s_fault() -> None:
    text = "port 30001 is held by systemd for web.socket, which starts web.service, listening on 127.0.0.1"
    view = PortView(listening=True, owned=False, owners=(text,), socket_units=("web.socket",), source="sock_diag")
    host = ScriptedHost()
    host.load()
    host.port_view = view
    result = wait(host, timeout="5")
    assert result["diagnosis"]["cause"] == "port_owned_by_other"
    assert "systemctl disable --now web.socket" in result["diagnosis"]["remedy"]
    assert "web.service" in result["msg"]


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


@pytest.mark.parametrize(
    ("port", "words"),
    [
        pytest.param(PortView(), "nothing listens on port 30001", id="a free port"),
        pytest.param(FOREIGN, "port 30001 is held by pid 111 (python)", id="somebody else's port"),
    ],
)
def test_a_server_on_another_port_than_asked_ends_the_wait(port: PortView, words: str) -> None:
    host = ScriptedHost()
    host.load()
    host.port_view = port
    host.at(3.0, lambda: host.log("INFO:     Uvicorn running on http://127.0.0.1:30009 (Press CTRL+C to quit)"))
    host.at(5.0, lambda: host.log("The server is fired up and ready to roll!"))
    result = wait(host)
    assert (result["ready"], result["diagnosis"]["cause"]) == (False, "wrong_port")
    assert 5.0 <= result["elapsed"] <= 5.2
    assert f"{words}: " in result["diagnosis"]["summary"].replace(" of user@0.service", "")
    assert "the server says that it runs on http://127.0.0.1:30009" in result["msg"]
    # The port that was asked for by mistake may be that of sshd.
    assert "Stop the process" not in result["msg"]


def test_one_of_several_ports_that_a_server_opens_is_not_the_verdict() -> None:
    host = ScriptedHost()
    host.load()
    host.log("INFO:     Uvicorn running on http://127.0.0.1:30009 (Press CTRL+C to quit)")
    host.at(3.0, host.serve)
    assert wait(host)["ready"]


def test_a_server_on_another_address_than_asked_ends_the_wait() -> None:
    host = ScriptedHost()
    host.load()
    host.port_view = PortView(elsewhere=("::1",))
    host.at(3.0, lambda: host.log("INFO:     Uvicorn running on http://[::1]:30001 (Press CTRL+C to quit)"))
    result = wait(host)
    assert (result["ready"], result["diagnosis"]["cause"]) == (False, "wrong_address")
    assert 3.0 <= result["elapsed"] <= 3.2
    assert "port 30001 of 127.0.0.1: the server listens on ::1" in result["msg"]


@pytest.mark.parametrize("how", ["the journal is cut", "a log level without markers"])
def test_a_proxy_in_the_unit_is_not_the_model(how: str) -> None:
    """It holds the port and gives the answers of another server; where the log proves nothing, a process must."""
    host = ScriptedHost()
    host.port_view = OWN
    host.processes = frozenset((EngineProcess("main", 87, 1),))
    host.now += 10.0
    if how.startswith("a log level"):
        host.answers["/server_info"]["log_level"] = "error"
    result = wait(host, timeout="20")
    assert (result["state"], result["diagnosis"]["cause"]) == ("loading", "no_scheduler")
    assert "no scheduler process" in result["msg"]
    assert host.requests.count("/generate") <= 12
    host.processes = ENGINE
    assert wait(host, timeout="20")["ready"]


def test_a_server_in_another_network_ends_the_wait() -> None:
    host = ScriptedHost()
    host.load()
    host.port_view = PortView(other_network=True)
    host.at(3.0, lambda: host.log("INFO:     Uvicorn running on http://127.0.0.1:30001 (Press CTRL+C to quit)"))
    result = wait(host)
    assert (result["ready"], result["diagnosis"]["cause"]) == (False, "other_network")
    assert 3.0 <= result["elapsed"] <= 3.2
    assert "network namespace of its own" in result["msg"]
    assert "PrivateNetwork" in result["diagnosis"]["remedy"]


@pytest.mark.parametrize("type_", ["oneshot", "forking", "notify", "dbus"])
def test_a_type_that_never_becomes_active_is_told(type_: str) -> None:
    host = ScriptedHost()
    host.unit = running(active_state="activating", sub_state="start", type=type_)
    host.serve()
    result = wait(host, timeout="5")
    assert (result["state"], result["diagnosis"]["cause"]) == ("loading", "unit_type")
    assert f"Type={type_}, so systemd waits for" in result["msg"]
    assert "Type=exec" in result["diagnosis"]["remedy"]


@pytest.mark.parametrize(
    ("type_", "message_id", "ready"),
    [
        pytest.param("simple", MESSAGE_STARTED, False, id="simple, from its beginning"),
        pytest.param("idle", MESSAGE_STARTED, False, id="idle, from its beginning"),
        pytest.param("exec", STARTING_MESSAGE_ID, False, id="exec, from its beginning"),
        pytest.param("simple", "", True, id="simple, without its beginning"),
        pytest.param("exec", MESSAGE_STARTED, True, id="exec, without its beginning"),
    ],
)
def test_the_first_line_about_a_start_depends_on_its_type(type_: str, message_id: str, ready: bool) -> None:
    """PID 1 logs no "Starting X..." of Type=simple: without it the markers must all the same be there."""
    host = ScriptedHost()
    host.unit = running(type=type_)
    host.follow()
    host.log_pid1("Started sglang-x.service.", message_id)
    host.now += 10.0
    host.serve()
    result = wait(host, expected_markers=2, timeout="20")
    assert (result["ready"], result["log_incomplete"] == "") == (ready, not ready)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/server_info", {"tp_size": 10**400}),
        ("/server_info", {"startup_time": {"load_weight": 10**400}}),
        ("/server_info", {"dp_size": 10**90, "tp_size": 1}),
        ("/generate", {"meta_info": {"completion_tokens": 10**400}}),
        ("/server_info", b'{"startup_time": ' + b"[" * 900 + b"]" * 900 + b"}"),
        ("/server_info", b'{"startup_time": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}"),
        ("/v1/models", b'{"data": [{"id": "' + b"x" * 1_000_000 + b'"}]}'),
        ("/server_info", b'{"version": "' + b"x" * 1_000_000 + b'", "tp_size": 9}'),
        ("/server_info", b'{"startup_time": "' + b"x" * 1_000_000 + b'"}'),
    ],
    ids=["size", "seconds", "ranks", "tokens", "lists", "dicts", "a long id", "a long version", "a long text"],
)
def test_answers_out_of_all_bounds_give_a_verdict(path: str, answer: t.Any) -> None:
    host = ScriptedHost()
    host.serve()
    if path == "/server_info" and isinstance(answer, dict):
        answer = {**host.answers[path], **answer}
    host.answers[path] = (200, answer) if isinstance(answer, bytes) else answer
    result = wait(host, timeout="10", settings={} if isinstance(answer, bytes) else {"tp_size": 1})
    assert result["state"] in ("loading", "ready")
    assert len(json.dumps(result)) < 30_000


@pytest.mark.parametrize(
    ("errno", "cause", "words"),
    [
        pytest.param(98, "port_conflict", "pid 111", id="in use"),
        pytest.param(13, "port_not_permitted", "its user may not", id="not permitted"),
        pytest.param(99, "address_not_available", "does not have the address", id="no such address"),
    ],
)
@pytest.mark.parametrize("ended", [False, True], ids=["still warming up", "ended"])
def test_why_a_port_could_not_be_bound(errno: int, cause: str, words: str, ended: bool) -> None:
    host = ScriptedHost()
    host.load()
    host.port_view = FOREIGN
    line = f"ERROR:    [Errno {errno}] error while attempting to bind on address ('127.0.0.1', 30001): x"
    host.at(5.0, lambda: host.log(line))
    if ended:
        host.at(5.0, host.set(alive=False, unit=failed()))
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == ("crashed", cause)
    assert words in result["msg"]


@pytest.mark.parametrize(
    ("answer", "cause", "after"),
    [
        pytest.param(HttpError("x", "tls_certificate"), "tls_certificate", 0.1, id="certificate"),
        pytest.param(HttpError("x", "tls_expected"), "tls_expected", 0.1, id="TLS is spoken"),
        pytest.param(HttpError("x", "tls_missing"), "tls_missing", 0.1, id="no TLS is spoken"),
        pytest.param((307, b""), "redirected", 1.0, id="redirect"),
        pytest.param((200, b"<html>"), "not_json", 1.0, id="HTML"),
        pytest.param((200, b"[1]"), "not_json", 1.0, id="a list"),
        pytest.param(HttpError("x", "huge_answer"), "huge_answer", 1.0, id="huge"),
        pytest.param(HttpError("x", "not_http"), "not_http", 1.0, id="another protocol"),
    ],
)
def test_answers_that_no_sglang_gives_end_the_wait(answer: t.Any, cause: str, after: float) -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/v1/models"] = answer
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == ("loading", cause)
    assert result["elapsed"] <= after
    assert result["diagnosis"]["remedy"]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        pytest.param(HttpError("x", "reset"), "reset", id="reset"),
        pytest.param(HttpError("x", "cut_answer"), "cut_answer", id="cut"),
        pytest.param((500, b"oops"), "http_status", id="500"),
    ],
)
def test_answers_that_may_get_better_are_waited_for_and_named(answer: t.Any, cause: str) -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/v1/models"] = answer
    result = wait(host, timeout="20")
    assert (result["elapsed"] >= 20.0, result["diagnosis"]["cause"]) == (True, cause)


def test_one_odd_answer_is_no_verdict() -> None:
    host = ScriptedHost()
    host.serve()
    good = host.answers["/v1/models"]
    odd = [(200, b"<html>"), (200, b"<html>"), (500, b""), (200, b"<html>"), (200, b"<html>")]
    answers = iter([*odd, *[good] * 9])
    host.answers["/v1/models"] = lambda: next(answers)
    assert wait(host)["ready"]


def test_certificate_authorities_are_looked_at_first() -> None:
    with pytest.raises(OptionError, match="/no/such/ca"):
        options_from({**PARAMS, "scheme": "https", "ca_path": "/no/such/ca"})
    options_from({**PARAMS, "scheme": "http", "ca_path": "/no/such/ca"})


def test_an_unknown_owner_is_not_ready() -> None:
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


@pytest.mark.parametrize(
    ("unit", "error", "why"),
    [
        pytest.param({"standard_output": "null"}, "", "StandardOutput is 'null'", id="output elsewhere"),
        pytest.param({"standard_error": "append"}, "", "StandardError is 'append'", id="error output elsewhere"),
        pytest.param({}, "no permission to read the journal", "no permission", id="no permission"),
    ],
)
def test_a_crash_that_no_log_explains_says_why(unit: dict[str, t.Any], error: str, why: str) -> None:
    host = ScriptedHost()
    host.unit, host.alive, host.error = failed(**unit), False, error
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == ("crashed", "exited")
    assert why in result["msg"]
    assert why in result["log_incomplete"]


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


def test_a_start_that_systemd_has_forgotten_was_a_crash() -> None:
    host = ScriptedHost()
    host.at(6.0, host.set(alive=False, unit=running(active_state="inactive", main_pid=0, invocation_id="")))
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == ("crashed", "exited")


def test_a_stop_that_the_journal_tells_in_the_moment_of_the_end_is_no_crash() -> None:
    host = ScriptedHost()
    end = host.set(alive=False, unit=running(active_state="inactive", main_pid=0, exec_main_code=1))

    def stop() -> None:
        # Read after the unit's state, and before the verdict.
        host.log_pid1("Stopping sglang-x.service...", STOPPING_MESSAGE_ID)
        end()

    host.at(5.0, stop)
    assert wait(host)["state"] == "stopped"


def test_the_gates_of_a_crash_tell_how_far_it_came() -> None:
    host = ScriptedHost()
    host.load()
    host.at(5.0, host.set(unit=failed(2, 9, "signal"), alive=False))
    result = wait(host)
    told = {gate["name"]: (gate["passed"], gate["detail"]) for gate in result["gates"]}
    assert told["unit"] == (False, "the main process was killed by signal 9")
    assert told["markers"][0] is True
    assert told["markers"][1].startswith("1 of 1 'Load weight end' lines")
    assert told["serving"] == (None, "not checked: the server does not run")


@pytest.mark.parametrize(
    ("unit", "lines"),
    [
        pytest.param(failed(1, 2), ("sglang serve: error: unrecognized arguments: --ep-sze 8",), id="arguments"),
        pytest.param(failed(2, 11, "signal"), (), id="a signal"),
        pytest.param(failed(1, 203), (), id="203/EXEC"),
    ],
)
def test_a_crash_is_told_once(unit: UnitState, lines: tuple[str, ...]) -> None:
    host = ScriptedHost()
    host.at(2.0, lambda: host.log_raw(*lines))
    host.at(5.0, host.set(unit=unit, alive=False))
    summary = wait(host)["diagnosis"]["summary"]
    for words in ("unrecognized arguments", "main process", str(unit.exec_main_status)):
        assert summary.count(words) <= 1, summary


def test_the_tail_of_the_log_outlives_a_slice() -> None:
    host = ScriptedHost()
    host.load()
    kept = json.loads(json.dumps(wait(host, slice=15.0, log_lines=2)["resume"]))
    # A server that hangs logs no more.
    result = wait(host, resume=kept, timeout="40", log_lines=2)
    assert [line.partition("] ")[2][:15] for line in result["log_tail"]] == ["Load weight beg", "Load weight end"]


def test_a_stop_that_the_journal_tells_after_the_end_is_no_crash() -> None:
    host = ScriptedHost()
    host.unit = running(active_state="inactive", main_pid=0, exec_main_code=1)
    host.alive = False
    host.stopping_at_the_end()
    assert wait(host)["state"] == "stopped"


REASON = Reason("start_pre_failed", "ExecStartPre=/bin/x exited with status 7", "Run it by hand.", ("a line",))


@pytest.mark.parametrize(
    ("unit", "state"),
    [
        pytest.param(
            running(active_state="failed", result="exit-code", main_pid=0), "crashed", id="a start that failed"
        ),
        pytest.param(
            running(active_state="inactive", main_pid=0, invocation_id=""), "stopped", id="a start that never was"
        ),
        pytest.param(running(load_state="bad-setting", active_state="inactive"), "not_found", id="a file to correct"),
    ],
)
def test_what_systemd_says_comes_before_what_the_server_said(unit: UnitState, state: str) -> None:
    host = ScriptedHost()
    host.unit, host.alive, host.known_reason = unit, False, REASON
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == (state, "start_pre_failed")
    assert (REASON.summary in result["msg"], REASON.remedy in result["msg"]) == (True, True)
    assert result["diagnosis"]["evidence"] == ["a line"]


def test_a_unit_that_was_stopped_on_request_needs_no_reason() -> None:
    host = ScriptedHost()
    host.known_reason = REASON
    host.at(5.0, lambda: host.log_pid1("Stopping sglang-x.service...", STOPPING_MESSAGE_ID))
    host.at(6.0, host.set(alive=False, unit=running(active_state="inactive", main_pid=0, exec_main_code=1)))
    assert wait(host)["diagnosis"]["cause"] == "stopped"
    assert host.asked_about == []


def test_an_alias_is_resolved_and_told() -> None:
    host = ScriptedHost()
    host.unit = running(id="sglang-real.service")
    host.serve()
    gate = next(gate for gate in wait(host)["gates"] if gate["name"] == "unit")
    assert "sglang-x.service is an alias of sglang-real.service" in gate["detail"]
    host = ScriptedHost()
    host.unit, host.alive = running(id="sglang-real.service", active_state="failed", main_pid=0), False
    assert "sglang-x.service (an alias of sglang-real.service) is not ready" in wait(host)["msg"]


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


KV_LINE = "max_total_num_tokens={}, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48"


@pytest.mark.parametrize(
    ("tokens", "settings", "least", "given_up"),
    [
        pytest.param(4095, {}, 4096, True, id="too small"),
        pytest.param(4096, {}, 4096, False, id="just enough"),
        pytest.param(1, {}, 0, False, id="nothing asked"),
        pytest.param(2047, {"dp_size": 2}, 4096, True, id="two replicas are too small"),
        pytest.param(2048, {"dp_size": 2}, 4096, False, id="two replicas have it together"),
        pytest.param(1024, {"attn_dp_size": 4}, 4096, False, id="four ranks of attention have it together"),
    ],
)
def test_a_start_is_given_up_when_its_kv_cache_is_too_small(
    tokens: int, settings: dict[str, t.Any], least: int, given_up: bool
) -> None:
    """Minutes before it would be ready: the line comes before the port is open."""
    host = ScriptedHost()
    host.load()
    host.answers["/server_info"].update(settings)
    host.at(5, lambda: host.log(KV_LINE.format(tokens)))
    host.at(60, host.serve)
    host.at(60, host.set(port_view=OWN))
    result = wait(host, min_total_tokens=least, settings=settings, expected_markers=1)
    if not given_up:
        assert result["ready"], result["msg"]
        return
    assert (result["state"], result["ready"], result["diagnosis"]["cause"]) == ("loading", False, "kv_cache_too_small")
    assert 5 <= result["elapsed"] < 6
    assert f"room for {tokens} tokens" in result["msg"]
    assert "4096 are needed" in result["msg"]
    assert "mem_fraction_static" in result["diagnosis"]["remedy"]
    assert host.requests == []


def test_speculation_that_does_not_run_ends_the_wait() -> None:
    host = ScriptedHost()
    host.serve()
    host.answers["/server_info"].update(speculative_algorithm="NGRAM", speculative_num_draft_tokens=4)
    host.answers["/generate"] = {"meta_info": {"completion_tokens": 9}}
    result = wait(host, settings={"speculative_algorithm": "NGRAM"})
    assert result["diagnosis"]["cause"] == "speculation_not_exercised"


def test_too_few_tokens_are_not_blamed_on_speculation() -> None:
    """The block size is the running server's, so that it is known only then."""
    host = ScriptedHost()
    host.serve()
    host.answers["/server_info"].update(speculative_algorithm="DFLASH", speculative_num_draft_tokens=8)
    host.answers["/generate"] = {"meta_info": {"completion_tokens": 4, "spec_verify_ct": 1}}
    result = wait(host, generation_tokens=4, expected_markers=1)
    assert (result["diagnosis"]["cause"], result["elapsed"]) == ("generation_too_short", 0)
    assert "4 tokens can fit in one verify step of block size 8" in result["msg"]
    assert "generation_tokens to 10 or more" in result["diagnosis"]["remedy"]


def test_a_healthy_server_that_was_not_watched_for_long_enough_is_told_so() -> None:
    host = ScriptedHost()
    host.at(12.0, host.serve)
    result = wait(host, stable_for=15.0, timeout="20")
    assert (result["state"], result["diagnosis"]["cause"]) == ("loading", "timeout")
    assert "all other gates passed, and held for 8 s of the 15 s that stable_for asks" in result["msg"]
    assert "stable_for" in result["diagnosis"]["remedy"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"tp_sze": 8}, ("'tp_sze'", "tp_size may be meant"), id="a letter too few"),
        pytest.param({"tp": 8}, ("'tp'", "tp_size may be meant"), id="a short form"),
        pytest.param({"something_else": 8}, ("'something_else'", "misspelt"), id="nothing like it"),
    ],
)
def test_a_setting_that_the_server_does_not_know_is_a_warning(
    settings: dict[str, t.Any], words: tuple[str, ...]
) -> None:
    host = ScriptedHost()
    host.serve()
    result = wait(host, settings=settings)
    assert result["ready"]
    told = [notice for notice in result["notices"] if all(word in notice for word in words)]
    assert len(told) == 1
    assert wait(ready_again(), settings={"tp_size": 1})["notices"] == []


def ready_again() -> ScriptedHost:
    host = ScriptedHost()
    host.serve()
    return host


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
    assert "Not ready within 90 s; in phase loading_weights" in result["msg"]
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


SPECULATIVE = {"speculative_algorithm": "DFLASH", "speculative_dflash_block_size": 8}


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
        ({"min_total_tokens": -1}, "min_total_tokens -1 must not be below 0"),
        ({"generation_tokens": 4, "settings": SPECULATIVE}, "one verify step of block size 8, .* ask for 10 or more"),
        ({"generation_tokens": 9, "settings": SPECULATIVE}, "ask for 10 or more"),
        ({"ca_path": "/does/not/exist", "scheme": "https"}, "cannot be used"),
        ({"ca_path": "/does/not/exist", "leader": "https://b300:30001"}, "cannot be used"),
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


def test_a_url_is_no_address() -> None:
    with pytest.raises(OptionError, match=r"host 'http://127\.0\.0\.1' is no address: give what"):
        options_from({**PARAMS, "host": "http://127.0.0.1"})


@pytest.mark.parametrize(
    ("tokens", "settings"),
    [
        pytest.param(10, SPECULATIVE, id="enough for two steps"),
        pytest.param(0, SPECULATIVE, id="none"),
        pytest.param(None, SPECULATIVE, id="the default"),
        pytest.param(4, {**SPECULATIVE, "speculative_algorithm": None}, id="no speculation"),
        pytest.param(4, {"speculative_algorithm": "DFLASH"}, id="a block size that only the server knows"),
    ],
)
def test_numbers_of_tokens_that_can_be_used(tokens: int | None, settings: dict[str, t.Any]) -> None:
    assert options_from({**PARAMS, "generation_tokens": tokens, "settings": settings}).generation_tokens == tokens


def test_a_unit_that_is_no_service_is_refused() -> None:
    with pytest.raises(SystemdError, match="template"):
        options_from({**PARAMS, "unit": "sglang-x@.service"})


# -- hung against loading ----------------------------------------------------------------------------------------------

TWO_RANKS = ("scheduler", "TP0"), ("scheduler", "TP1")


def stand_still(host: ScriptedHost, doing: str = "still", **ranks: str) -> t.Callable[[], None]:
    """From now on every process does this, and the named ranks something else."""
    return lambda: host.doing.update({who: ranks.get(who[1], doing) for who in host.doing})


def loading(**ranks: str) -> ScriptedHost:
    """Two ranks and a detokenizer that load, and stand still after 50 s."""
    host = ScriptedHost()
    host.doing = {("main", ""): "busy", **dict.fromkeys(TWO_RANKS, "busy"), ("detokenizer", ""): "still"}
    host.log("Load weight begin. avail mem=21.60 GB")
    host.at(50.0, stand_still(host, **ranks))
    return host


def test_a_server_in_which_nothing_moves_is_hung() -> None:
    host = loading()
    host.letters = {TWO_RANKS[1]: "T"}
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"], result["finished"]) == ("hung", "stalled", True)
    assert 348.0 <= result["elapsed"] <= 352.0
    assert "TP1 (pid 92) is stopped by a signal" in result["msg"]
    assert "kill -CONT 92" in result["diagnosis"]["remedy"]
    stalled = {item["signal"]: item for item in result["diagnosis"]["stalled"]}
    assert {"log", "cpu", "io", "memory"} <= set(stalled)
    assert stalled["log"]["since_s"] == pytest.approx(result["elapsed"], abs=0.5)
    assert stalled["log"]["last"] == "Load weight begin. avail mem=21.60 GB"
    assert stalled["io"]["since_s"] == pytest.approx(300.0, abs=3.0)
    ranks = {process["rank"]: process for process in result["diagnosis"]["processes"]}
    assert ranks["TP1"]["state"] == "T (stopped by a signal)"
    assert ranks["TP0"]["wchan"] == "do_signal_stop"
    assert ranks["TP0"]["cpu_percent"] <= 1.0


@pytest.mark.parametrize("doing", ["busy", "reading", "growing"])
def test_a_slow_loader_is_loading(doing: str) -> None:
    """Silence with I/O or growing memory: nobody may give up on it before the timeout."""
    host = loading(TP1=doing)
    host.at(700.0, host.serve)
    result = wait(host)
    assert (result["state"], result["elapsed"] >= 700.0) == ("ready", True)


def test_only_cpu_counts_as_life_until_the_spin_timeout() -> None:
    host = loading(TP0="spinning")
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == ("hung", "spinning")
    assert 648.0 <= result["elapsed"] <= 652.0
    assert (
        "TP0 (pid 91) spins while 1 other ranks wait" in result["msg"] or "TP1 (pid 92) stands still" in result["msg"]
    )


def test_a_compiler_at_work_holds_the_spin_timeout_off() -> None:
    host = loading(TP0="spinning")
    host.doing["compiler", ""] = "still"
    host.at(60.0, lambda: host.doing.update({("compiler", ""): "spinning"}))
    host.at(1200.0, host.serve)
    assert wait(host)["ready"]


def test_compilers_that_come_and_go_are_progress() -> None:
    host = loading(TP0="spinning")
    for number in range(60, 1200, 100):
        host.at(number, lambda: host.doing.setdefault(("compiler", ""), "still") and None)
        host.at(number + 50, lambda: host.doing.pop(("compiler", ""), "") and None)
    host.at(1200.0, host.serve)
    assert wait(host)["ready"]


def test_lines_of_the_log_are_progress_and_polls_and_heartbeats_are_none() -> None:
    moving, polled = loading(), loading()
    for second in range(60, 1000, 100):
        moving.at(second, functools.partial(moving.log, f"Capturing batch {second}"))
        polled.at(second, lambda: polled.log("Still waiting for the other ranks"))
        polled.at(second + 1, lambda: polled.log_raw('INFO:     1.2.3.4:1 - "GET /metrics HTTP/1.1" 200 OK'))
        polled.at(second + 2, lambda: polled.log("Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 5"))
    moving.at(1100.0, moving.serve)
    assert wait(moving)["ready"]
    result = wait(polled)
    assert result["state"] == "hung"
    assert 360.0 <= result["elapsed"] <= 362.0


def test_a_gate_is_never_hung() -> None:
    host = ScriptedHost()
    host.doing = dict.fromkeys(TWO_RANKS, "still")
    host.log("Gated launch waiting for activation")
    result = wait(host, timeout="700")
    assert (result["state"], result["phase"], result["elapsed"] >= 700) == ("loading", "waiting_at_gate", True)


def test_the_clocks_go_on_over_slices() -> None:
    host = loading()
    result, slices = wait(host, slice=60.0), 1
    while not result["finished"]:
        host.pause(5.0)
        assert len(json.dumps(result["resume"]["stalls"])) < 4000
        result, slices = wait(host, slice=60.0, resume=json.loads(json.dumps(result["resume"]))), slices + 1
    assert (result["state"], slices >= 5) == ("hung", True)
    assert 348.0 <= result["elapsed"] <= 357.0


def test_what_changed_between_two_slices_is_progress() -> None:
    host = loading()
    result = wait(host, slice=200.0)
    host.doing[TWO_RANKS[0]] = "reading"
    host.pause(100.0)
    host.samples(host.unit)  # what it does is added up here
    host.doing[TWO_RANKS[0]] = "still"
    # It stood still from 50 s on, but for what it did while nobody looked.
    result = wait(host, resume=json.loads(json.dumps(result["resume"])))
    assert (result["state"], 600.0 <= result["elapsed"] <= 602.0) == ("hung", True)


def test_a_new_invocation_has_new_clocks() -> None:
    host = loading()
    host.at(200.0, host.set(unit=running(invocation_id="c" * 32, main_pid=187)))
    result = wait(host)
    assert (result["state"], result["elapsed"] >= 500.0) == ("hung", True)


def deaf(path: str = "/generate") -> ScriptedHost:
    """Serves, its scheduler spins, and one request is never answered."""
    host = ScriptedHost()
    host.doing = {("main", ""): "busy", ("scheduler", ""): "spinning", ("detokenizer", ""): "still"}
    host.serve()
    host.answers[path] = NEVER
    return host


@pytest.mark.parametrize("path", ["/v1/models", "/generate"])
def test_a_server_that_accepts_and_never_answers_is_hung(path: str) -> None:
    host = deaf(path)
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == ("hung", "deaf")
    assert 300.0 <= result["elapsed"] <= 302.0, "a request in flight must not delay the verdict"
    assert f"has not answered {'GET' if path == '/v1/models' else 'POST'} {path} for 300 s" in result["msg"]


def test_a_generation_within_its_deadline_is_loading() -> None:
    host = deaf()

    def late() -> t.Any:
        host.pause(100.0)
        return {"meta_info": {"completion_tokens": 4}}

    host.answers["/generate"] = late
    result = wait(host, stall_timeout=60.0)
    assert result["ready"]


def test_own_probes_are_no_progress() -> None:
    host = deaf()

    def in_vain() -> t.Any:
        host.log(f"Prefill batch, #new-seq: 1, #new-token: 6, #running-req: 0, number {len(host.requests)}")
        return NEVER

    host.answers["/generate"] = in_vain
    result = wait(host)
    assert (result["state"], 300.0 <= result["elapsed"] <= 302.0) == ("hung", True)


def test_requests_of_others_are_progress() -> None:
    host = deaf()
    for second in range(100, 1000, 100):
        host.at(second, functools.partial(host.log, f"Decode batch, #running-req: 9, #token: {second}"))
    assert wait(host)["elapsed"] >= 1200.0


def test_an_idle_server_that_spins_is_ready_and_stays_so() -> None:
    host = deaf()
    host.answers["/generate"] = {"meta_info": {"completion_tokens": 4}}
    result = wait(host, stable_for=100.0, stall_timeout=5.0, spin_timeout=5.0)
    assert (result["ready"], result["elapsed"] >= 100.0) == (True, True)


def test_a_server_that_is_up_elsewhere_is_not_hung() -> None:
    host = deaf()
    host.port_view = PortView()
    result = wait(host, timeout="40", stall_timeout=10.0, spin_timeout=20.0)
    assert (result["state"], result["elapsed"] >= 40.0) == ("loading", True)


def test_the_rank_that_came_less_far_is_named() -> None:
    host = loading()
    host.log_raw(
        "[2026-11-29 14:24:24 TP0] Load weight begin. avail mem=21.60 GB",
        "[2026-11-29 14:24:24 TP1] Load weight begin. avail mem=21.60 GB",
    )
    host.at(
        40.0, lambda: host.log_raw("[2026-11-29 14:25:04 TP0] Load weight end. elapsed=40.01 s, type=Qwen3ForCausalLM")
    )
    result = wait(host, slice=100.0)
    result = wait(host, resume=json.loads(json.dumps(result["resume"])))
    assert "TP1 (pid 92) logged last 'Load weight begin. avail mem=21.60 GB' (34" in result["msg"]
    assert "others 'Load weight end." in result["msg"]


def test_the_clocks_start_when_something_is_awaited_of_it() -> None:
    host = deaf()
    host.doing["main", ""] = "still"
    host.port_view = PortView()
    host.at(100.0, host.set(port_view=OWN))
    result = wait(host, stall_timeout=60.0)
    assert (result["state"], 158.0 <= result["elapsed"] <= 162.0) == ("hung", True)


@pytest.mark.parametrize("timeout", ["stall_timeout", "spin_timeout"])
def test_0_switches_a_verdict_off(timeout: str) -> None:
    host = loading(**({"TP0": "spinning"} if timeout == "spin_timeout" else {}))
    params: dict[str, t.Any] = {timeout: 0}
    expected = ("hung", "spinning", 600.0) if timeout == "stall_timeout" else ("loading", "timeout", 1350.0)
    result = wait(host, **params)
    assert (result["state"], result["diagnosis"]["cause"]) == expected[:2]
    assert result["elapsed"] >= expected[2]


def test_a_timeout_says_what_stood_still() -> None:
    host = loading()
    result = wait(host, timeout="200")
    assert (result["state"], result["diagnosis"]["cause"]) == ("loading", "timeout")
    assert {item["signal"] for item in result["diagnosis"]["stalled"]} >= {"log", "cpu"}
    assert [process["rank"] for process in result["diagnosis"]["processes"]][1:3] == ["TP0", "TP1"]


def test_full_utilisation_at_idle_power_is_a_collective_that_hangs() -> None:
    host = loading(TP0="spinning", TP1="spinning")
    host.gpu = GpuView(
        gpus=(
            GpuState(0, "GPU-a", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 100.0, 91.2, 600.0, 81234.0),
            GpuState(1, "GPU-b", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 0.0, 30.0, 600.0, 81234.0),
        )
    )
    result = wait(host)
    assert (result["state"], result["diagnosis"]["cause"]) == ("hung", "collective_hang")
    assert "GPU 0 at 100 % with 91 of 600 W" in result["msg"]
    assert "NCCL_P2P" in result["diagnosis"]["remedy"]
    assert [gpu["index"] for gpu in result["diagnosis"]["gpus"]] == [0, 1]
    assert len(host.gpu_questions) < 40, "nvidia-smi is expensive"
    assert min(host.gpu_questions) > 1050.0, "and not needed while the rest moves"


def test_gpu_memory_that_grows_is_progress() -> None:
    host = loading(TP0="spinning")
    for second in range(60, 1100, 60):
        host.at(second, host.set(gpu=GpuView(apps={91: 100.0 * second, 4711: 1.0})))
    host.at(1200.0, host.serve)
    assert wait(host)["ready"]


def test_gpu_memory_of_others_is_none() -> None:
    host = loading(TP0="spinning")
    for second in range(60, 1100, 60):
        host.at(second, host.set(gpu=GpuView(apps={4711: 100.0 * second})))
    assert wait(host)["state"] == "hung"


def test_a_driver_that_does_not_answer_is_told() -> None:
    host = loading()
    host.gpu = GpuView(silent_for=120.0)
    result = wait(host)
    assert "nvidia-smi has not answered for 120 s: the GPU driver is stuck" in result["msg"]


def test_a_gpu_fault_explains_a_server_that_hangs() -> None:
    host = loading()
    host.kernel = ["NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."]
    result = wait(host)
    assert (result["state"], result["diagnosis"]["id"]) == ("hung", "XID79")


def test_a_frozen_unit_is_named() -> None:
    host = loading()
    host.is_frozen = True
    result = wait(host)
    assert "systemctl thaw sglang-x.service" in result["msg"]


def test_silence_after_the_ranks_began_to_connect() -> None:
    host = loading()
    host.log("Init torch distributed begin.")
    result = wait(host)
    found = result["diagnosis"]
    assert (result["state"], found["id"], found["cause"]) == ("hung", "F30", "collective_hang")


def test_a_stopped_rank_explains_more_than_the_last_line() -> None:
    host = loading()
    host.letters = {TWO_RANKS[0]: "T"}
    host.log("Init torch distributed begin.")
    result = wait(host)
    assert (result["diagnosis"]["id"], result["diagnosis"]["cause"]) == ("", "stalled")
    assert "TP0 (pid 91) is stopped by a signal" in result["msg"]


def test_a_stopped_process_explains_why_nothing_is_answered() -> None:
    host = deaf()
    host.doing["scheduler", ""] = "still"
    host.letters = {("detokenizer", ""): "T"}
    result = wait(host)
    assert result["diagnosis"]["cause"] == "stalled"
    assert "detokenizer (pid 92) is stopped" in result["msg"]
    assert "has not answered POST /generate" in result["msg"]


def test_samples_are_few() -> None:
    host = loading(TP0="busy")
    host.at(1000.0, host.serve)
    wait(host)
    assert host.sampled <= 510


@pytest.mark.parametrize(
    ("params", "words"),
    [
        pytest.param({"stall_timeout": 61.0, "timeout": "60"}, ("stall_timeout 61", "timeout 60"), id="stall"),
        pytest.param({"spin_timeout": 61.0, "timeout": "60"}, ("spin_timeout 61", "timeout 60"), id="spin"),
        pytest.param({"stall_timeout": -1.0}, ("stall_timeout", "-1"), id="negative"),
        pytest.param({"spin_timeout": float("nan")}, ("spin_timeout", "nan"), id="no number"),
        pytest.param({"stable_for": 60.0, "timeout": "60"}, ("stable_for 60", "timeout 60"), id="stable"),
        pytest.param({"stable_for": float("nan")}, ("stable_for", "nan"), id="stable for no number"),
        pytest.param({"stable_for": float("inf")}, ("stable_for", "inf"), id="stable for ever"),
    ],
)
def test_times_that_cannot_be_used(params: dict[str, t.Any], words: tuple[str, ...]) -> None:
    with pytest.raises(OptionError) as error:
        options_from({**PARAMS, **params})
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("timeout", ["60", "auto"])
def test_the_defaults_of_the_hang_timeouts_fit_every_timeout(timeout: str) -> None:
    options = options_from({**PARAMS, "timeout": timeout})
    assert (options.stall_timeout, options.spin_timeout) == (300.0, 600.0)
