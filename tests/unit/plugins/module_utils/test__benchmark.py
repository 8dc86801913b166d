# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import json
import os
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _bench_job
from ansible_collections.specdec.serving.plugins.module_utils import _benchmark as benchmark
from ansible_collections.specdec.serving.plugins.module_utils._bench_job import Folder, JobError
from ansible_collections.specdec.serving.plugins.module_utils._benchmark import (
    ARGUMENT_SPEC,
    Benchmark,
    BenchmarkError,
    options_from,
    throttled,
)
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp
from ansible_collections.specdec.serving.plugins.module_utils._http import HttpError, Response
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, UnitState

KEY = "sk-0123456789"
PLAN: dict[str, t.Any] = {
    "job": {
        "kind": "fixed",
        "output_length": 11,
        "longest": 20,
        "repeats": 1,
        "steady_state_s": 0,
        "levels": [{"concurrency": 1}, {"concurrency": 2}],
    },
    "files": {},
    "reduced": [],
    "id": "1",
}
PARAMS: dict[str, t.Any] = {
    **{name: option.get("default") for name, option in ARGUMENT_SPEC.items()},
    "unit": "sglang-a.service",
    "port": 30001,
    "workload": "fixed",
    "api_key": KEY,
    "plan": PLAN,
}
RUNNING = UnitState(
    id="sglang-a.service",
    load_state="loaded",
    active_state="active",
    sub_state="running",
    invocation_id="a" * 32,
    main_pid=7,
)
INFO = {
    "model_path": "/models/t",
    "tokenizer_path": "/models/t",
    "api_key": KEY,
    "speculative_algorithm": None,
    "internal_states": [{"effective_max_running_requests_per_dp": 48}, {}],
    "version": "0.5.23",
}


def measured(concurrency: int, **changes: t.Any) -> dict[str, t.Any]:
    request = {
        "start": 0.0,
        "ttft": 0.5,
        "latency": 1.5,
        "prompt_tokens": 9,
        "output_tokens": 11,
        "asked_tokens": 11,
        "ok": True,
        "error": "",
        "finish": "length",
        "reported": True,
        "chunks": 2,
        "gaps": [1.0],
        "verify": None,
        "correct": None,
        "histogram": None,
    }
    return {
        "kind": "measured",
        "concurrency": concurrency,
        "repeat": 1,
        "asked": concurrency,
        "api": "generate",
        "argv": ["--backend", "sglang"],
        "flush": {"status": 200},
        "before": {"generation_tokens_total": 0.0},
        "after": {"generation_tokens_total": 11.0 * concurrency, "num_requests_total": float(concurrency)},
        "ended": "",
        "problem": "",
        "client": {},
        "rows": [request] * concurrency,
        **changes,
    }


@dataclasses.dataclass
class Machine(benchmark.Machine):
    """A host whose client runs for some looks, and then has written ``runs``."""

    path: str
    looks: int = 3
    units: list[UnitState] = dataclasses.field(default_factory=lambda: [RUNNING])
    runs: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    end: dict[str, t.Any] = dataclasses.field(default_factory=lambda: {"reason": "done"})
    answers: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    busy: bool = False
    slowed: str = ""
    hang_up_at: float = float("inf")
    now: float = 50.0
    log: str = ""
    started: dict[str, t.Any] | None = None
    stopped: int = 0

    def monotonic(self) -> float:
        return self.now

    def show(self) -> UnitState:
        return self.units.pop(0) if len(self.units) > 1 else self.units[0]

    def client_active(self) -> bool:
        return self.busy or (self.started is not None and self.looks > 0)

    def request(self, path: str) -> Response:
        answer = self.answers.get(path, {"/server_info": INFO, "/v1/models": {"data": [{"id": "tiny"}]}}.get(path))
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return Response(answer, b"", 0.0)
        return Response(200, json.dumps(answer).encode(), 0.0)

    def start(self, work: t.Mapping[str, t.Any]) -> None:
        self.started = dict(work)
        self.folder().make(work, {}, {}, "")
        folder = Path(self.path)
        (folder / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in self.runs), encoding="utf-8")
        (folder / "progress.json").write_text(json.dumps({"phase": "measured", "level": 1}), encoding="utf-8")
        (folder / "client.log").write_text(self.log, encoding="utf-8")
        if self.end:
            (folder / "end.json").write_text(json.dumps(self.end), encoding="utf-8")

    def stop(self) -> None:
        self.stopped += 1
        self.looks = 0

    def folder(self) -> Folder:
        return Folder(self.path)

    def throttle(self) -> str:
        return self.slowed

    def facts(self, info: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        return {"host": {}, "engine": {"version": info["version"]}, "models": []}

    def pause(self, seconds: float) -> None:
        self.looks -= 1
        self.now += seconds
        if self.now >= self.hang_up_at:
            raise HangUp


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(str(tmp_path / "folder"), runs=[measured(1), measured(2)])


def call(machine: Machine, **params: t.Any) -> dict[str, t.Any]:
    return Benchmark(options_from({**PARAMS, **params}), machine).run()


def test_a_whole_benchmark(machine: Machine) -> None:
    found = call(machine)

    assert found["finished"]
    assert (found["valid"], found["ended"], found["changed"]) == (True, "", False)
    assert [(level["concurrency"], level["valid"]) for level in found["levels"]] == [(1, True), (2, True)]
    assert found["parts"]["invocation"] == {"unit": "sglang-a.service", "invocation_id": "a" * 32, "main_pid": 7}
    assert found["parts"]["arguments"]["api_key"] == "********"
    assert KEY not in json.dumps(found)
    assert machine.started is not None
    assert machine.started["served_model_name"] == "tiny"
    assert machine.started["base_url"] == "http://127.0.0.1:30001"
    assert not machine.folder().exists()


def test_slices_go_on_where_the_last_one_ended(machine: Machine) -> None:
    first = call(machine, slice=1.0)
    assert not first["finished"]
    assert first["progress"] == {"phase": "measured", "level": 1}
    resume = json.loads(json.dumps(first["resume"]))
    assert len(json.dumps(resume)) < 1000
    started = machine.started

    last = call(machine, slice=60.0, resume=resume)
    assert last["finished"]
    assert last["valid"]
    assert machine.started is started
    assert last["elapsed"] == 3.0


@pytest.mark.parametrize(
    ("unit", "rule"),
    [
        (dataclasses.replace(RUNNING, invocation_id="b" * 32), "invocation_changed"),
        (dataclasses.replace(RUNNING, active_state="failed", main_pid=0, exec_main_code=2, exec_main_status=9), "died"),
        (dataclasses.replace(RUNNING, main_pid=8), "died"),
    ],
)
def test_a_server_that_does_not_last(machine: Machine, unit: UnitState, rule: str) -> None:
    machine.units = [RUNNING, RUNNING, unit]
    machine.runs = [measured(1)]
    machine.end = {}
    found = call(machine)

    assert not found["valid"]
    assert found["levels"][0]["reasons"][0]["rule"] == rule
    assert [reason["rule"] for reason in found["levels"][1]["reasons"]] == ["not_measured"]
    assert found["ended"] == found["levels"][0]["reasons"][0]["detail"]
    assert machine.looks == 0
    assert machine.stopped == 1


def test_a_death_that_only_shows_after_the_client(machine: Machine) -> None:
    machine.looks = 0
    machine.units = [RUNNING, dataclasses.replace(RUNNING, active_state="failed", main_pid=0)]

    assert call(machine)["levels"][0]["reasons"][0]["rule"] == "died"


def test_a_gpu_that_is_throttled(machine: Machine) -> None:
    machine.slowed = "GPU 3: hardware thermal"
    found = call(machine)

    assert found["levels"][0]["reasons"] == [{"rule": "throttled", "detail": "GPU 3: hardware thermal"}]
    assert found["levels"][1]["valid"]
    assert found["ended"] == ""


def test_it_takes_no_longer_than_it_may(machine: Machine) -> None:
    machine.looks = 1000
    machine.end = {}
    found = call(machine, timeout=10.0)

    assert found["ended"] == "timeout 10 s is over"
    assert machine.stopped == 1


def test_nobody_waits_any_more(machine: Machine) -> None:
    machine.hang_up_at = 52.0
    with pytest.raises(HangUp):
        call(machine)

    # The client ends by itself, unless the play comes back sooner.
    assert machine.stopped == 0
    told = os.stat(f"{machine.path}/alive").st_mtime
    assert time.time() - told == pytest.approx(benchmark.LEASE_S - benchmark.GONE_S, abs=5)


def test_an_answer_that_was_lost(machine: Machine) -> None:
    machine.hang_up_at = 52.0
    with pytest.raises(HangUp):
        call(machine)
    machine.hang_up_at = float("inf")
    started, machine.looks = machine.started, 2
    found = call(machine)

    assert found["valid"]
    assert machine.started is started


def test_nothing_was_measured(machine: Machine) -> None:
    machine.runs = [{**measured(1), "kind": "warm_up"}]
    machine.end = {"reason": "failed", "detail": "no request succeeded"}
    with pytest.raises(BenchmarkError, match="nothing was measured: no request succeeded"):
        call(machine)
    assert not machine.folder().exists()


@pytest.mark.parametrize(("reason", "shown"), [("refused", False), ("failed", True)])
def test_the_log_is_shown_where_the_message_does_not_say_it_all(machine: Machine, reason: str, shown: bool) -> None:
    machine.runs = []
    machine.end = {"reason": reason, "detail": "no request succeeded"}
    machine.log = "Traceback: IndexError"
    with pytest.raises(BenchmarkError) as error:
        call(machine)

    assert ("IndexError" in str(error.value)) is shown


def test_a_context_that_is_too_short(machine: Machine) -> None:
    machine.answers = {"/v1/models": {"data": [{"id": "tiny", "max_model_len": 19}]}}
    with pytest.raises(BenchmarkError, match=r"asks for 20 tokens .* the context of sglang-a\.service has 19; "):
        call(machine)
    assert machine.started is None

    machine.answers = {"/v1/models": {"data": [{"id": "tiny", "max_model_len": 20}]}}
    assert call(machine)["finished"]


def test_limits_of_the_server_are_known(machine: Machine) -> None:
    assert benchmark._most_running(INFO) == 96
    assert benchmark._most_running({"internal_states": [{}], "max_running_requests": 8}) == 8
    assert benchmark._most_running({}) == 0
    machine.answers["/server_info"] = {
        **INFO,
        "speculative_algorithm": "NGRAM",
        "max_running_requests": 1,
        "internal_states": [],
    }
    found = call(machine)

    assert found["speculative"]
    assert [flag["flag"] for flag in found["levels"][1]["flags"]] == [
        "speculation_inactive",
        "acceptance_unknown",
        "above_max_running_requests",
    ]


def test_a_server_that_is_not_there(machine: Machine) -> None:
    machine.units = [dataclasses.replace(RUNNING, active_state="inactive", main_pid=0)]
    with pytest.raises(BenchmarkError, match=r"sglang-a\.service is inactive"):
        call(machine)


def test_another_benchmark_of_the_same_server(machine: Machine) -> None:
    machine.busy = True
    with pytest.raises(BenchmarkError, match="another benchmark of sglang-a"):
        call(machine)
    assert machine.started is None
    assert machine.stopped == 0


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (401, "answered 401 .a wrong or missing api_key"),
        (HttpError("refused"), "cannot be measured: refused"),
        ([], "answered 200"),
    ],
)
def test_a_server_that_cannot_be_asked(machine: Machine, answer: t.Any, says: str) -> None:
    machine.answers = {"/server_info": answer, "/get_server_info": answer}
    with pytest.raises(BenchmarkError, match=says):
        call(machine)
    assert machine.started is None


def test_old_releases_have_another_name_for_it(machine: Machine) -> None:
    machine.answers = {"/server_info": 404, "/get_server_info": INFO}

    assert call(machine)["valid"]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"port": 0}, "port 0"),
        ({"plan": None}, "by its action plugin"),
        ({"timeout": 0.0}, "timeout 0"),
        ({"stall_timeout": float("inf")}, "stall_timeout inf"),
        ({"scheme": "https", "validate_certs": False}, "cannot be told to trust"),
        ({"admin_api_key": "short"}, "admin_api_key has 5 characters"),
    ],
)
def test_options(params: dict[str, t.Any], says: str) -> None:
    with pytest.raises(BenchmarkError, match=says):
        options_from({**PARAMS, **params})


def test_a_unit_that_is_none() -> None:
    with pytest.raises(SystemdError):
        options_from({**PARAMS, "unit": "a.socket"})


def test_throttle_reasons() -> None:
    text = "0, 0x0000000000000000\n1, 0x0000000000000004\n2, 0x0000000000000048\n3, [N/A]\n"

    assert throttled(text) == "GPU 2: hardware slowdown, hardware thermal"
    assert throttled("") == ""


@pytest.mark.parametrize("models", [{"data": {"id": "x"}}, {"data": ["x"]}, {"data": []}, {"data": None}, {}])
@pytest.mark.parametrize("states", [{"0": {}}, ["x"], [], "x", 5, None])
def test_a_server_that_tells_little_of_itself_is_measured(machine: Machine, models: t.Any, states: t.Any) -> None:
    machine.answers = {"/v1/models": models, "/server_info": {**INFO, "internal_states": states}}
    assert call(machine)["valid"]
    assert machine.started is not None
    assert machine.started["served_model_name"] == "/models/t"


@pytest.mark.parametrize("path", [None, "", 5, ["/models/t"]])
def test_what_is_no_server_of_sglang_is_told(machine: Machine, path: t.Any) -> None:
    machine.answers = {"/server_info": {**INFO, "model_path": path}}
    with pytest.raises(BenchmarkError, match="tells no model_path"):
        call(machine)
    assert machine.started is None


def test_a_client_without_room_for_what_belongs_to_it_is_ended(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(_self: Folder, _value: t.Any) -> t.NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Folder, "keep", keep)
    with pytest.raises(BenchmarkError, match="No space left on device; make room"):
        call(machine)
    assert machine.stopped == 1
    assert not machine.folder().exists()


def test_a_folder_that_others_changed_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "kept", lambda _self: {})
    with pytest.raises(BenchmarkError, match="was changed by others"):
        call(machine)


def test_no_key_stays_where_a_client_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def cannot(_run: t.Any, _unit: str, folder: Folder, **_rest: t.Any) -> t.NoReturn:
        seen.append((Path(folder.path) / "keys.json").read_text(encoding="utf-8"))
        raise JobError("no such Python")

    monkeypatch.setattr(_bench_job, "start", cannot)
    monkeypatch.setattr(_bench_job, "unit_user", lambda _run, _unit: "")
    monkeypatch.setattr(benchmark.SystemMachine, "_environment", lambda _self: {})
    options = options_from({**PARAMS, "python": "/no/python", "state_dir": str(tmp_path / "state")})
    with benchmark.SystemMachine(options) as machine, pytest.raises(JobError, match="no such Python"):
        machine.start({})
    assert KEY in seen[0]
    assert not machine.folder().exists()
