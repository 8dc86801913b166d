# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._readiness import (
    Difference,
    EngineProcess,
    compare_settings,
    cross_check,
    default_generation_tokens,
    gate_generation,
    gate_identity,
    gate_markers,
    gate_port_owner,
    gate_stability,
    gate_unit,
    generation_request,
    judge_unit,
    least_generation_tokens,
    same_value,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "sglang-0.5.23"
OLD, NEW = "a" * 32, "b" * 32


def unit(**changes: t.Any) -> UnitState:
    values = {
        "id": "sglang-x.service",
        "load_state": "loaded",
        "active_state": "active",
        "sub_state": "running",
        "invocation_id": NEW,
        "main_pid": 87,
        **changes,
    }
    return UnitState(**values)


def dead(code: int = 1, status: int = 1, **changes: t.Any) -> UnitState:
    values = {"active_state": "failed", "sub_state": "failed", "result": "exit-code", "main_pid": 0, **changes}
    return unit(exec_main_code=code, exec_main_status=status, **values)


def test_that_systemd_gave_up_is_told() -> None:
    assert judge_unit(dead(n_restarts=3), restarts_before=3).detail == (
        "the main process exited with status 1; systemd tried to restart it 3 times and gave up"
    )
    assert judge_unit(dead()).detail == "the main process exited with status 1"


@pytest.mark.parametrize(
    ("seen", "options", "state", "final", "cause"),
    [
        pytest.param(UnitState(id="x.service"), {}, "not_found", True, "not_found", id="unknown unit"),
        pytest.param(unit(load_state="masked", active_state="inactive"), {}, "not_found", True, "masked", id="masked"),
        pytest.param(
            unit(load_state="bad-setting"), {}, "not_found", True, "bad_unit_file", id="a unit file that does not parse"
        ),
        pytest.param(unit(), {}, "loading", False, "", id="runs"),
        pytest.param(unit(active_state="activating", sub_state="start"), {}, "loading", False, "", id="starting"),
        pytest.param(unit(invocation_id=OLD), {"replaces": OLD}, "loading", False, "", id="not restarted yet"),
        pytest.param(dead(), {}, "crashed", True, "exited", id="exit code"),
        pytest.param(dead(2, 9, result="signal"), {}, "crashed", True, "signal", id="killed"),
        pytest.param(
            dead(2, 9, result="signal"),
            {"stop_requested": True, "stop_logged": True},
            "stopped",
            True,
            "stopped",
            id="stopped, as SGLang up to 0.5.17 ends",
        ),
        pytest.param(
            dead(2, 9, result="signal"),
            {"stop_requested": True},
            "crashed",
            True,
            "signal",
            id="nobody knows of a stop",
        ),
        pytest.param(
            dead(2, 11, result="core-dump"),
            {"stop_requested": True, "stop_logged": True},
            "crashed",
            True,
            "signal",
            id="it fell over while it stopped",
        ),
        pytest.param(dead(1, 203), {}, "crashed", True, "exec_failed", id="203/EXEC"),
        pytest.param(dead(result="start-limit-hit"), {}, "crashed", True, "start_limit", id="start limit"),
        pytest.param(dead(job=7), {"replaces": NEW}, "loading", False, "", id="failed, and a restart is queued"),
        pytest.param(
            dead(active_state="activating", sub_state="auto-restart"),
            {},
            "crashed",
            True,
            "exited",
            id="first crash, systemd waits to restart",
        ),
        pytest.param(
            dead(status=7, active_state="activating", sub_state="auto-restart", n_restarts=7),
            {"restarts_before": 7},
            "crash_loop",
            True,
            "crash_loop",
            id="C1: auto-restart is no start",
        ),
        pytest.param(
            dead(active_state="activating", sub_state="auto-restart"),
            {"max_restarts": 1},
            "loading",
            False,
            "",
            id="a tolerated crash",
        ),
        pytest.param(
            dead(active_state="activating", sub_state="auto-restart", n_restarts=1, job=7),
            {"max_restarts": 1},
            "loading",
            False,
            "",
            id="the tolerated restart is queued, and counted already",
        ),
        pytest.param(
            dead(active_state="activating", sub_state="auto-restart-queued", n_restarts=1),
            {},
            "crashed",
            True,
            "exited",
            id="the first crash, its restart counted already",
        ),
        pytest.param(unit(n_restarts=1), {}, "crash_loop", True, "crash_loop", id="restarted during the wait"),
        pytest.param(unit(n_restarts=1), {"restarts_before": 1}, "loading", False, "", id="restarted before the wait"),
        pytest.param(
            unit(n_restarts=0), {"restarts_before": 3}, "loading", False, "", id="counter set back by a restart"
        ),
        pytest.param(
            unit(invocation_id=OLD, active_state="deactivating", sub_state="stop-sigterm", n_restarts=2),
            {"replaces": OLD},
            "stopping",
            False,
            "",
            id="restarts of the start that is to be replaced are history",
        ),
        pytest.param(
            dead(invocation_id=OLD, active_state="activating", sub_state="auto-restart", n_restarts=2, job=7),
            {"replaces": OLD},
            "loading",
            False,
            "",
            id="a crash loop that is about to be replaced",
        ),
        pytest.param(
            dead(2, 9, active_state="deactivating", sub_state="stop-sigterm", result="signal"),
            {},
            "crashed",
            True,
            "signal",
            id="main died, the rest is being killed",
        ),
        pytest.param(
            unit(active_state="deactivating", sub_state="stop-sigterm"), {}, "stopping", False, "", id="drains"
        ),
        pytest.param(
            dead(1, 0, active_state="inactive", sub_state="dead", result="success"),
            {},
            "crashed",
            True,
            "exited",
            id="ended by itself with 0",
        ),
        pytest.param(
            dead(1, 0, active_state="inactive", sub_state="dead", result="success"),
            {"stop_requested": True},
            "stopped",
            True,
            "stopped",
            id="stopped on request",
        ),
        pytest.param(
            dead(1, 0, active_state="active", sub_state="exited", result="success"),
            {},
            "crashed",
            True,
            "exited",
            id="ended by itself, and RemainAfterExit keeps the unit active",
        ),
        pytest.param(
            unit(active_state="inactive", sub_state="dead", main_pid=0, invocation_id=""),
            {"ran": NEW},
            "crashed",
            True,
            "exited",
            id="ended by itself, and systemd has forgotten it",
        ),
        pytest.param(
            unit(active_state="inactive", sub_state="dead", main_pid=0, invocation_id=""),
            {"ran": NEW, "stop_requested": True},
            "stopped",
            True,
            "stopped",
            id="stopped on request, and systemd has forgotten it",
        ),
        pytest.param(
            unit(active_state="inactive", sub_state="dead", main_pid=0, invocation_id=""),
            {"ran": OLD, "replaces": OLD},
            "stopped",
            True,
            "stopped",
            id="what was to be replaced has gone",
        ),
        pytest.param(
            dead(0, 0, active_state="inactive", sub_state="dead", result="exec-condition"),
            {},
            "stopped",
            True,
            "condition",
            id="an ExecCondition said no",
        ),
        pytest.param(
            unit(active_state="inactive", sub_state="dead", main_pid=0, job=9),
            {},
            "loading",
            False,
            "",
            id="a start is queued",
        ),
        pytest.param(
            unit(active_state="inactive", sub_state="dead", main_pid=0, invocation_id=""),
            {},
            "stopped",
            True,
            "stopped",
            id="never started",
        ),
    ],
)
def test_judge_unit(seen: UnitState, options: dict[str, t.Any], state: str, final: bool, cause: str) -> None:
    judged = judge_unit(seen, **options)
    assert (judged.state, judged.final, judged.cause) == (state, final, cause)


@pytest.mark.parametrize(
    ("name", "asked", "held"),
    [
        pytest.param("speculative_algorithm", "DFLASH", True, id="the algorithm"),
        pytest.param("tp_size", 2, True, id="tensor parallelism"),
        pytest.param("cuda_graph_backend_decode", "full", False, id="what older releases call otherwise"),
        pytest.param("chunked_prefill_size", 2048, False, id="what may differ"),
    ],
)
def test_what_every_release_reports_must_be_there(name: str, asked: t.Any, held: bool) -> None:
    differences, unreported = compare_settings({name: asked}, {"model_path": "/m"})
    assert unreported == [name]
    assert [difference.name for difference in differences if difference.held] == ([name] if held else [])


@pytest.mark.parametrize(
    ("state", "remedy"),
    [("masked", "`systemctl unmask x.service`"), ("masked-runtime", "`systemctl unmask --runtime x.service`")],
)
def test_how_to_unmask(state: str, remedy: str) -> None:
    judged = judge_unit(UnitState(id="x.service", load_state="masked", unit_file_state=state))
    assert remedy in judged.remedy


@pytest.mark.parametrize(
    ("seen", "replaces", "alive", "passed", "cause"),
    [
        pytest.param(unit(), OLD, True, True, "", id="a new invocation that lives"),
        pytest.param(unit(invocation_id=OLD), OLD, True, False, "not_restarted", id="the old invocation"),
        pytest.param(unit(), "", False, False, "main_process_gone", id="zombie or gone"),
        pytest.param(unit(), "", None, False, "main_process_gone", id="unknown is not alive"),
        pytest.param(unit(main_pid=0), "", None, None, "", id="no main process named yet"),
        pytest.param(unit(job=7), "", True, None, "", id="a restart is queued"),
        pytest.param(unit(active_state="activating"), "", True, False, "", id="not active yet"),
    ],
)
def test_gate_unit(seen: UnitState, replaces: str, alive: bool | None, passed: bool | None, cause: str) -> None:
    gate = gate_unit(seen, judge_unit(seen, replaces=replaces), replaces=replaces, alive=alive)
    assert (gate.passed, gate.cause) == (passed, cause)


@pytest.mark.parametrize(
    ("listening", "owned", "passed", "cause"),
    [
        (False, None, None, ""),
        (True, True, True, ""),
        (True, False, False, "port_owned_by_other"),
        pytest.param(True, None, None, "", id="unknown is not ready"),
    ],
)
def test_gate_port_owner(listening: bool, owned: bool | None, passed: bool | None, cause: str) -> None:
    owners = ["port 30001 is held by pid 111 (python) of user@0.service"]
    gate = gate_port_owner(port=30001, listening=listening, owned=owned, owners=owners, source="sock_diag")
    assert (gate.passed, gate.cause) == (passed, cause)
    assert ("pid 111" in gate.detail) is listening


@pytest.mark.parametrize(
    ("mode", "seen", "expected", "incomplete", "passed"),
    [
        ("auto", 16, 16, "", True),
        pytest.param("auto", 8, 16, "", None, id="the target's lines are not the draft's"),
        pytest.param("auto", 0, 16, "suppressed", True, id="an incomplete journal is no failure"),
        pytest.param("require", 0, 16, "suppressed", None, id="unless it is required"),
        ("ignore", 0, 16, "", True),
        ("auto", 0, 0, "", True),
    ],
)
def test_gate_markers(mode: str, seen: int, expected: int, incomplete: str, passed: bool | None) -> None:
    assert gate_markers(mode=mode, seen=seen, expected=expected, incomplete=incomplete, by_model={}).passed is passed


@pytest.mark.parametrize(
    ("asked", "running", "same"),
    [
        ("2k", 2000, True),
        ("2K", 2048, True),
        ("8", 8, True),
        (8, "8", True),
        (0.5, "0.50", True),
        ("/models/x/", "/models/x", True),
        (True, "true", True),
        (True, 1, False),
        ([1, 2], ["1", "2"], True),
        (1, [1], True),
        ({"a": 1}, {"a": "1"}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ("triton", "flashinfer", False),
        (8, 4, False),
        (None, False, False),
    ],
)
def test_same_value(asked: t.Any, running: t.Any, same: bool) -> None:
    assert same_value(asked, running) is same


@pytest.fixture(name="server_info")
def server_info_fixture() -> dict[str, t.Any]:
    # A real 0.5.23 with STANDALONE speculation on a CPU.
    return t.cast(
        "dict[str, t.Any]", json.loads((FIXTURES / "standalone-GET_server_info.txt").read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(
            {"tp_size": 1, "speculative_algorithm": "STANDALONE", "max_total_tokens": "4096"}, [], id="agrees"
        ),
        pytest.param({"speculative_algorithm": "standalone"}, [], id="the algorithm in small letters"),
        pytest.param({"tp_size": 8}, [("tp_size", True)], id="another tp size is held"),
        pytest.param(
            {"speculative_algorithm": "DFLASH"}, [("speculative_algorithm", True)], id="another algorithm is held"
        ),
        pytest.param(
            {"chunked_prefill_size": 8192}, [("chunked_prefill_size", False)], id="the engine may change the rest"
        ),
        pytest.param(
            {"mem_fraction_static": None, "served_model_name": "x"}, [], id="left out, and compared elsewhere"
        ),
        pytest.param({"max_running_requests": 8}, [], id="given value"),
        pytest.param({"quantization": "auto"}, [], id="auto is resolved by the engine"),
    ],
)
def test_compare_settings(
    server_info: dict[str, t.Any], asked: dict[str, t.Any], expected: list[tuple[str, bool]]
) -> None:
    differences, unreported = compare_settings(asked, server_info)
    assert [(d.name, d.held) for d in differences] == expected
    assert unreported == []


@pytest.mark.parametrize(
    ("asked", "reported", "held"),
    [
        pytest.param({"cuda_graph_max_bs_decode": 16}, {"cuda_graph_max_bs": 8}, False, id="up to 0.5.13"),
        pytest.param(
            {"speculative_draft_window_size": 64}, {"speculative_dflash_draft_window_size": 32}, False, id="0.5.11"
        ),
        pytest.param({"disable_cuda_graph": True}, {"disable_cuda_graph": False}, True, id="a plain flag"),
    ],
)
def test_compare_settings_by_the_names_of_older_releases(
    asked: dict[str, t.Any], reported: dict[str, t.Any], held: bool
) -> None:
    differences, unreported = compare_settings(asked, reported)
    assert [(difference.name, difference.held) for difference in differences] == [(next(iter(asked)), held)]
    assert unreported == []
    assert compare_settings(asked, dict.fromkeys(reported, next(iter(asked.values())))) == ([], [])


def test_compare_settings_names_what_the_server_does_not_report(server_info: dict[str, t.Any]) -> None:
    assert compare_settings({"no_such_argument": 1}, server_info)[1] == ["no_such_argument"]


@pytest.mark.parametrize(
    ("name", "asked", "info", "differs"),
    [
        ("speculative_dflash_block_size", 8, {"speculative_num_draft_tokens": 8}, False),
        ("speculative_dflash_block_size", 8, {"speculative_num_draft_tokens": 16}, True),
        ("cuda_graph_backend_decode", "disabled", {"cuda_graph_config": {"decode": {"backend": "disabled"}}}, False),
        ("cuda_graph_backend_decode", "full", {"cuda_graph_config": {"decode": {"backend": "disabled"}}}, True),
        ("disable_cuda_graph", True, {"cuda_graph_config": {"decode": {"backend": "full"}}}, True),
        ("speculative_algorithm", "NEXTN", {"speculative_algorithm": "EAGLE"}, False),
        (
            "max_running_requests",
            48,
            {"max_running_requests": None, "internal_states": [{"effective_max_running_requests_per_dp": 48}]},
            False,
        ),
    ],
)
def test_values_that_the_server_reports_under_another_name(
    name: str, asked: t.Any, info: dict[str, t.Any], differs: bool
) -> None:
    differences, unreported = compare_settings({name: asked}, info)
    assert bool(differences) is differs
    assert unreported == []


HELD = Difference("tp_size", 8, 4, True)
CHANGED = Difference("attention_backend", "triton", "flashinfer", False)


@pytest.mark.parametrize(
    ("model", "path", "differences", "passed", "cause", "words"),
    [
        pytest.param("m", "/m", [], True, "", ["'m'"], id="as asked"),
        pytest.param("org/model-b", "/m", [], False, "wrong_model", ["org/model-b", "'m'"], id="A1: another model"),
        pytest.param("m", "/other", [], False, "wrong_model_path", ["/other", "/m"], id="another path"),
        pytest.param(
            "m", "/m", [HELD], False, "settings_mismatch", ["tp_size asked 8, running 4"], id="a held setting differs"
        ),
        pytest.param("m", "/m", [CHANGED], True, "", ["engine changed: attention_backend"], id="changed by the engine"),
    ],
)
def test_gate_identity(
    model: str, path: str, differences: list[Difference], passed: bool, cause: str, words: list[str]
) -> None:
    gate = gate_identity(
        model=model, model_path=path, models=["m"], running_path="/m", differences=differences, unreported=[]
    )
    assert (gate.passed, gate.cause) == (passed, cause)
    assert all(word in gate.detail for word in words)


def test_an_empty_model_list_is_no_identity() -> None:
    gate = gate_identity(model="", model_path="", models=[], running_path="", differences=[], unreported=[])
    assert gate.passed is False


@pytest.mark.parametrize(
    ("tokens", "block_size", "cause"),
    [
        pytest.param(9, 8, "generation_too_short", id="one of the prefill, a block of one step"),
        pytest.param(10, 8, "speculation_not_exercised", id="needs a second step"),
        pytest.param(2, 0, "generation_too_short", id="unknown block size: too few for any"),
        pytest.param(3, 0, "speculation_not_exercised", id="unknown block size"),
    ],
)
def test_a_short_generation_says_nothing_of_speculation(tokens: int, block_size: int, cause: str) -> None:
    answer = {"meta_info": {"completion_tokens": tokens, "spec_verify_ct": 1}}
    gate = gate_generation(answer, tokens=tokens, speculation=True, block_size=block_size)
    assert (gate.passed, gate.cause) == (False, cause)
    assert default_generation_tokens(block_size) >= least_generation_tokens(block_size)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        pytest.param(dead(2, 9, result="signal"), "the main process was killed by signal 9", id="killed"),
        pytest.param(
            dead(3, 11, result="core-dump"),
            "the main process was killed by signal 11 and left a core dump",
            id="dumped",
        ),
        pytest.param(dead(1, 2), "the main process exited with status 2", id="exited"),
        pytest.param(
            dead(2, 15),
            "systemd result exit-code: the main process was killed by signal 15",
            id="another command failed",
        ),
        pytest.param(
            dead(2, 9, result="oom-kill"), "systemd result oom-kill: the main process was killed by signal 9", id="oom"
        ),
        pytest.param(
            dead(2, 9, result="signal", active_state="activating", sub_state="auto-restart"),
            "the main process was killed by signal 9, and systemd was about to restart it",
            id="waits for its restart",
        ),
        pytest.param(
            dead(2, 9, result="signal", active_state="activating", sub_state="auto-restart", n_restarts=2),
            "the main process was killed by signal 9 again after 2 automatic restarts",
            id="a loop",
        ),
    ],
)
def test_an_end_is_told_in_a_sentence(state: UnitState, words: str) -> None:
    assert judge_unit(state).detail == words


@pytest.mark.parametrize(("block_size", "tokens"), [(0, 4), (1, 4), (8, 17), (16, 33)])
def test_default_generation_tokens(block_size: int, tokens: int) -> None:
    assert default_generation_tokens(block_size) == tokens


def test_generation_is_greedy_exact_and_not_counted() -> None:
    body = generation_request(17)
    assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 17, "ignore_eos": True}
    assert body["log_metrics"] is False
    assert "input_ids" in generation_request(4, skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("meta", "speculation", "passed", "cause"),
    [
        pytest.param({"completion_tokens": 17}, False, True, "", id="plain"),
        pytest.param({"completion_tokens": 16}, False, False, "generation_failed", id="too few"),
        pytest.param({"completion_tokens": 17, "spec_verify_ct": 3}, True, True, "", id="speculation ran"),
        pytest.param(
            {"completion_tokens": 17, "spec_verify_ct": 1},
            True,
            False,
            "speculation_not_exercised",
            id="one step is no proof",
        ),
        pytest.param({"completion_tokens": 17}, True, False, "speculation_not_exercised", id="no step at all"),
        pytest.param(None, False, False, "generation_failed", id="no meta_info"),
    ],
)
def test_gate_generation(meta: t.Any, speculation: bool, passed: bool, cause: str) -> None:
    gate = gate_generation({"meta_info": meta}, tokens=17, speculation=speculation)
    assert (gate.passed, gate.cause) == (passed, cause)


@pytest.mark.parametrize(
    ("meta", "passed"),
    [
        pytest.param({"completion_tokens": 17}, True, id="0.4.6 tells no steps"),
        pytest.param({"completion_tokens": 16}, False, id="all tokens must be there"),
        pytest.param({"completion_tokens": 17, "spec_verify_ct": 0}, False, id="told and not done"),
    ],
)
def test_gate_generation_of_a_release_that_does_not_count(meta: t.Any, passed: bool) -> None:
    assert gate_generation({"meta_info": meta}, tokens=17, speculation=True, counted=False).passed is passed


def test_gate_generation_takes_the_recorded_answer() -> None:
    answer = json.loads((FIXTURES / "standalone-POST_generate.txt").read_text(encoding="utf-8"))
    assert gate_generation(answer, tokens=64, speculation=True).passed is True


SCHEDULER = EngineProcess("scheduler", 90, 1)
MAIN = EngineProcess("main", 87, 1)


@pytest.mark.parametrize(
    ("after", "engine", "owned", "held_for", "passed", "cause"),
    [
        pytest.param(unit(), {MAIN, SCHEDULER}, True, 0.0, True, "", id="nothing changed"),
        pytest.param(
            unit(invocation_id=OLD), {MAIN, SCHEDULER}, True, 0.0, False, "invocation_changed", id="another invocation"
        ),
        pytest.param(
            unit(main_pid=99), {MAIN, SCHEDULER}, True, 0.0, False, "main_process_gone", id="another main process"
        ),
        pytest.param(
            unit(active_state="deactivating"), {MAIN, SCHEDULER}, True, 0.0, False, "main_process_gone", id="stopping"
        ),
        pytest.param(
            unit(job=7), {MAIN, SCHEDULER}, True, 0.0, False, "main_process_gone", id="a restart was queued meanwhile"
        ),
        pytest.param(unit(), {MAIN}, True, 0.0, False, "child_died", id="a scheduler died"),
        pytest.param(
            unit(), {MAIN, EngineProcess("scheduler", 90, 2)}, True, 0.0, False, "child_died", id="its pid was reused"
        ),
        pytest.param(
            unit(), {MAIN, SCHEDULER, EngineProcess("scheduler", 91, 1)}, True, 0.0, True, "", id="one more is fine"
        ),
        pytest.param(unit(), {MAIN, SCHEDULER}, False, 0.0, False, "port_owned_by_other", id="the port changed hands"),
        pytest.param(unit(), {MAIN, SCHEDULER}, None, 0.0, False, "port_owned_by_other", id="unknown owner"),
    ],
)
def test_gate_stability(
    after: UnitState, engine: set[EngineProcess], owned: bool | None, held_for: float, passed: bool, cause: str
) -> None:
    gate = gate_stability(
        before=unit(),
        after=after,
        engine_before={MAIN, SCHEDULER},
        engine_after=engine,
        owned_after=owned,
        held_for=held_for,
        stable_for=0.0,
    )
    assert (gate.passed, gate.cause) == (passed, cause)


def test_stable_for_is_waited_for() -> None:
    both = {MAIN, SCHEDULER}
    gates = [
        gate_stability(
            before=unit(),
            after=unit(),
            engine_before=both,
            engine_after=both,
            owned_after=True,
            held_for=held,
            stable_for=5.0,
        )
        for held in (4.9, 5.0)
    ]
    assert [gate.passed for gate in gates] == [None, True]


TIMELINE = [
    {"phase": "loading_weights", "duration": 61.5},
    {"phase": "loading_draft", "duration": 9.0},
    {"phase": "capturing_graphs", "duration": 45.0},
]


@pytest.mark.parametrize(
    ("startup_time", "words"),
    [
        ({"load_weight": 70.0, "cuda_graph": {"decode": 20.0, "prefill": 20.0}}, []),
        pytest.param({"load_weight": 90.0}, ["load_weight"], id="longer than the journal shows"),
        pytest.param({"cuda_graph": {"decode": 50.0, "prefill": 20.0}}, ["cuda_graph"], id="parts are summed up"),
        pytest.param(None, [], id="a release that does not report it"),
    ],
)
def test_cross_check(startup_time: t.Any, words: list[str]) -> None:
    notes = cross_check(TIMELINE, startup_time)
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes))
