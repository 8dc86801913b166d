# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the start-up log tells: recorded starts of SGLang 0.5.23, starts of other shapes and releases, and nonsense."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils._journal import (
    MESSAGE_SUPPRESSED,
    Entry,
    clean,
    parse_entry,
)
from ansible_collections.specdec.serving.plugins.module_utils._readiness import PHASES
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import (
    SERVING,
    BindFailure,
    Draining,
    ExitFacts,
    ModelWeights,
    StartupLog,
    is_noise,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
SGLANG = FIXTURES / "sglang-0.5.23"
JOURNAL = FIXTURES / "systemd-252" / "journal-plain.jsonl"

MS = 1000
S = 1000 * MS


def own(message: str, at_us: int = 0, pid: int = 40) -> Entry:
    return Entry("", 0, at_us, pid, clean(message), "", "", None, "", 0, "", True)


def manager(message: str, at_us: int = 0, **fields: Any) -> Entry:
    values = {"message_id": "", "exit_code": "", "exit_status": None, "unit_result": "", **fields}
    return Entry("", 0, at_us, 1, message, n_dropped=0, line_break="", own=False, **values)


def log_of(lines: Iterable[str], **options: Any) -> StartupLog:
    """A log fed with lines a millisecond apart; line n at n ms."""
    log = StartupLog(**options)
    for number, text in enumerate(lines):
        log.feed(own(text, number * MS))
    return log


def recorded(name: str) -> StartupLog:
    return log_of((SGLANG / name).read_text(encoding="utf-8").split("\n"))


def spans(log: StartupLog) -> list[tuple[str, int, int | None]]:
    """Phases with start and duration in milliseconds."""
    return [
        (span.phase, span.start_us // MS, None if span.duration_us is None else span.duration_us // MS)
        for span in log.timeline
    ]


# --- recorded starts


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("startup-cpu-plain.log", [("Qwen3ForCausalLM", "target", 0.01, 21.54)]),
        ("startup-cpu-ngram.log", [("Qwen3ForCausalLM", "target", 0.05, 21.15)]),
        (
            "startup-cpu-eagle3.log",
            [("Qwen3ForCausalLM", "target", 0.02, 21.62), ("LlamaForCausalLMEagle3", "draft", 0.01, 21.62)],
        ),
        (
            "startup-cpu-standalone-draft.log",  # target and draft of one class
            [("Qwen3ForCausalLM", "target", 0.01, 21.6), ("Qwen3ForCausalLM", "draft", 0.01, 21.6)],
        ),
        ("fail-port-held-by-other-sglang.log", [("Qwen3ForCausalLM", "target", 0.05, 20.19)]),
        ("fail-port-held-by-foreign-server-hangs.log", [("Qwen3ForCausalLM", "target", 0.03, 21.57)]),
        ("stop-sigterm-to-group.log", [("Qwen3ForCausalLM", "target", 0.05, 20.7)]),
        ("fail-dflash-on-cpu-rc1.log", []),
        ("fail-model-path-missing-rc1.log", []),
        ("fail-unknown-flag-rc2.log", []),
    ],
)
def test_recorded_weights(name: str, weights: list[tuple[str, str, float, float]]) -> None:
    assert recorded(name).weights == [
        ModelWeights(type_, role, ("pid 40",), elapsed, elapsed, "", 0.0, avail)
        for type_, role, elapsed, avail in weights
    ]


@pytest.mark.parametrize(
    ("name", "phases", "last"),
    [
        (
            "startup-cpu-plain.log",
            ["starting", "loading_weights", "allocating_kv_cache", "binding", "warming_up"],
            SERVING,
        ),
        (
            "startup-cpu-ngram.log",
            ["starting", "loading_weights", "allocating_kv_cache", "binding", "warming_up"],
            SERVING,
        ),
        (
            "startup-cpu-eagle3.log",
            ["starting", "loading_weights", "loading_draft", "allocating_kv_cache", "binding", "warming_up"],
            SERVING,
        ),
        (
            "startup-cpu-standalone-draft.log",
            ["starting", "loading_weights", "loading_draft", "allocating_kv_cache", "binding", "warming_up"],
            SERVING,
        ),
        (
            "stop-sigterm-to-group.log",
            ["starting", "loading_weights", "allocating_kv_cache", "binding", "warming_up"],
            SERVING,
        ),
        (
            "fail-port-held-by-other-sglang.log",
            ["starting", "loading_weights", "allocating_kv_cache", "binding"],
            "binding",
        ),
        (
            "fail-port-held-by-foreign-server-hangs.log",
            ["starting", "loading_weights", "allocating_kv_cache", "binding"],
            "binding",
        ),
        ("fail-dflash-on-cpu-rc1.log", ["starting"], "starting"),
        ("fail-model-path-missing-rc1.log", ["starting"], "starting"),
        ("fail-unknown-flag-rc2.log", ["starting"], "starting"),
    ],
)
def test_recorded_phases(name: str, phases: list[str], last: str) -> None:
    log = recorded(name)
    assert [span.phase for span in log.timeline] == phases
    assert log.phase == last
    for before, after in zip(log.timeline, log.timeline[1:]):
        assert before.duration_us is not None
        assert before.start_us + before.duration_us == after.start_us


def test_recorded_journal_with_its_own_times() -> None:
    log = StartupLog()
    for text in JOURNAL.read_text(encoding="utf-8").splitlines():
        entry = parse_entry(text)
        assert entry is not None
        log.feed(entry)
    assert [(span.phase, span.duration_us) for span in log.timeline] == [
        ("starting", 16780169),
        ("loading_weights", 14989),
        ("allocating_kv_cache", 372169),
        ("binding", 78425),
        ("warming_up", 1148335),
    ]
    assert log.weights == [ModelWeights("Qwen3ForCausalLM", "target", ("pid 185",), 0.02, 0.02, "", 0.0, 21.6)]
    assert log.fired_up_us == 2538936554
    assert log.uvicorn_running == "http://127.0.0.1:30001"
    assert log.max_total_num_tokens == 4096
    assert log.draining == Draining(since_us=2539975048, remaining=0)
    assert log.startup_timings == {
        "load_weight": 0.02,
        "kv_cache_allocation": 0.35,
        "scheduler_e2e": 1.68,
        "cuda_graph": {
            "prefill": 0.0,
            "decode": 0.0,
            "target_verify": 0.0,
            "draft_prefill": 0.0,
            "draft_decode": 0.0,
            "draft_extend": 0.0,
        },
        "tokenizer_e2e": 9.48,
    }
    assert log.tail(1) == ["sglang-k26-dflash.service: Consumed 30.520s CPU time."]
    assert log.bind_failed is None
    assert log.first_exception is None


def test_recorded_port_conflict_is_no_start_though_the_marker_is_there() -> None:
    log = recorded("fail-port-held-by-other-sglang.log")
    assert log.fired_up
    assert log.phase == "binding"
    assert log.uvicorn_running is None
    assert log.bind_failed is not None
    assert (log.bind_failed.errno, log.bind_failed.address, log.bind_failed.port) == (98, "127.0.0.1", 30001)


@pytest.mark.parametrize(
    ("name", "first", "final"),
    [
        (
            "fail-dflash-on-cpu-rc1.log",
            "ValueError: DFLASH speculative decoding is not supported by CpuSRTPlatform on device 'cpu'.",
            "ValueError: DFLASH speculative decoding is not supported by CpuSRTPlatform on device 'cpu'.",
        ),
        (
            "fail-model-path-missing-rc1.log",
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form",
            "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/nope'.",
        ),
    ],
)
def test_recorded_exceptions(name: str, first: str, final: str) -> None:
    log = recorded(name)
    assert log.first_exception == log.last_exception
    assert log.last_exception is not None
    assert log.last_exception.first_line.startswith(first)
    assert log.last_exception.final_line.startswith(final)
    assert log.exceptions_by_rank == {"": log.last_exception}


def test_recorded_argument_error() -> None:
    assert recorded("fail-unknown-flag-rc2.log").argument_error == "unrecognized arguments: --no-such-flag"


def test_recorded_stop_has_begun_to_drain() -> None:
    log = recorded("stop-sigterm-to-group.log")
    assert log.draining is not None
    assert log.draining.remaining is None
    assert "kill_process_tree called" in log.tail(1)[0]


# --- the story's host: eight ranks, target and draft


def ranked(rank: int, text: str) -> str:
    return f"[2026-11-29 14:24:24 TP{rank} EP{rank}] {text}"


def parent(text: str) -> str:
    return f"[2026-11-29 14:24:24] {text}"


def end(
    rank: int, type_: str, *, elapsed: float = 61.47, mem: float = 72.24, avail: float = 21.76, quant: str = ""
) -> str:
    quantised = f"quant={quant}, " if quant else ""
    return ranked(
        rank,
        f"Load weight end. elapsed={elapsed:.2f} s, type={type_}, {quantised}avail mem={avail:.2f} GB, mem usage={mem:.2f} GB.",
    )


TARGET, DRAFT = "KimiK25ForConditionalGeneration", "DFlashDraftModel"


def start_of_k26(order: list[int]) -> list[str]:
    """The lines of SGLang 0.5.14 to 0.5.23 on eight ranks that report in this order."""
    lines = [parent("server_args={'model_path': '/models/Kimi-K2.6'}")]
    lines += [ranked(rank, "Init parallel begin.") for rank in order]
    lines += [ranked(rank, "Load weight begin. avail mem=94.00 GB") for rank in order]
    lines += [
        end(rank, TARGET, elapsed=60 + rank, avail=21 + rank / 100, quant="compressed-tensors")
        for rank in reversed(order)
    ]
    lines += [ranked(rank, "Load weight begin. avail mem=21.76 GB") for rank in order]
    lines += [end(rank, DRAFT, elapsed=1.5, mem=0.81, avail=20.95) for rank in order]
    lines += [ranked(0, "DFLASH draft runner ready. mask_token=<|mask|>, mask_token_id=5")]
    for _pool in ("target", "draft"):
        lines += [
            ranked(rank, "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9, K size: 1.00 GB, V size: 1.00 GB")
            for rank in order
        ]
        lines += [ranked(rank, "Memory pool end. avail mem=10.00 GB") for rank in order]
    for graph in ("target prefill", "target verify", "draft verify"):
        lines += [ranked(rank, f"Capture {graph} CUDA graph begin. backend=full, avail mem=9.00 GB") for rank in order]
        lines += [ranked(rank, f"Capture {graph} CUDA graph end. elapsed=9.00 s, mem usage=1.00 GB") for rank in order]
    lines += [
        ranked(
            0, "max_total_num_tokens=200000, chunked_prefill_size=8192, context_len=131072, available_gpu_mem=9.00 GB"
        )
    ]
    lines += [
        parent("INFO:     Started server process [40]"),
        parent("INFO:     Application startup complete."),
        parent("INFO:     Uvicorn running on http://0.0.0.0:30001 (Press CTRL+C to quit)"),
        ranked(0, "Prefill batch, #new-seq: 1, #new-token: 9, #cached-token: 0, token usage: 0.00"),
        parent("The server is fired up and ready to roll!"),
    ]
    return lines


def test_eight_ranks_and_a_draft_are_sixteen_markers() -> None:
    log = log_of(start_of_k26(list(range(8))), expected=16)
    assert log.markers == 16
    assert log.marker_counts == {TARGET: 8, DRAFT: 8}
    names = tuple(f"TP{rank} EP{rank}" for rank in range(8))
    assert log.weights == [
        ModelWeights(TARGET, "target", names, 67.0, 60.0, "compressed-tensors", 72.24, 21.0),
        ModelWeights(DRAFT, "draft", names, 1.5, 1.5, "", 0.81, 20.95),
    ]
    assert log.max_total_num_tokens == 200000
    assert spans(log) == [
        ("starting", 0, 9),
        ("loading_weights", 9, 16),
        ("loading_draft", 25, 15),
        ("allocating_kv_cache", 40, 34),
        ("capturing_graphs", 74, 48),
        ("binding", 122, 3),
        ("warming_up", 125, 2),
    ]
    assert log.phase == SERVING


@pytest.mark.parametrize("seed", range(20))
def test_ranks_out_of_order_tell_the_same(seed: int) -> None:
    order = list(range(8))
    random.Random(seed).shuffle(order)
    straight, shuffled = log_of(start_of_k26(list(range(8)))), log_of(start_of_k26(order))
    assert shuffled.weights == straight.weights
    assert [span.phase for span in shuffled.timeline] == [span.phase for span in straight.timeline]


def test_stragglers_do_not_turn_the_phase_back() -> None:
    lines = [ranked(rank, "Load weight begin. avail mem=94.00 GB") for rank in range(2)]
    lines += [end(0, TARGET), ranked(0, "Load weight begin. avail mem=21.76 GB")]
    lines += [end(1, TARGET), ranked(1, "Load weight begin. avail mem=21.76 GB"), end(0, DRAFT)]
    lines += [ranked(0, "KV Cache is allocated. dtype: x, #tokens: 9"), end(1, DRAFT)]
    lines += [
        ranked(0, "Capture target verify CUDA graph begin."),
        ranked(1, "KV Cache is allocated. dtype: x, #tokens: 9"),
    ]
    lines += [ranked(1, "Memory pool end. avail mem=1 GB"), ranked(1, "Capture target verify CUDA graph begin.")]
    log = log_of(lines)
    assert [span.phase for span in log.timeline] == [
        "starting",
        "loading_weights",
        "loading_draft",
        "allocating_kv_cache",
        "capturing_graphs",
    ]
    assert log.marker_counts == {TARGET: 2, DRAFT: 2}
    assert log.timeline[-1].duration_us is None


def test_a_rank_that_still_works_for_the_target_does_not_end_the_drafts_loading() -> None:
    lines = [ranked(rank, "Load weight begin. avail mem=94.00 GB") for rank in range(2)]
    lines += [end(0, TARGET), end(1, TARGET), ranked(0, "Load weight begin. avail mem=6 GB")]
    late = ["Memory pool end. avail mem=1 GB", "Capture cuda graph begin. This can take up to several minutes."]
    log = log_of([*lines, *[ranked(1, text) for text in late]])
    assert log.phase == "loading_draft"
    log.feed(own(ranked(0, late[0]), S))
    assert log.phase == "allocating_kv_cache"


@pytest.mark.parametrize(
    ("expected", "phase"),
    [(16, "loading_draft"), (8, "allocating_kv_cache"), (9, "loading_draft"), (0, "loading_draft")],
)
def test_all_expected_markers_end_the_loading(expected: int, phase: str) -> None:
    lines = [ranked(rank, "Load weight begin. avail mem=94.00 GB") for rank in range(4)]
    lines += [end(rank, TARGET) for rank in range(4)]
    lines += [ranked(rank, "Load weight begin. avail mem=94.00 GB") for rank in range(4)]
    lines += [end(rank, DRAFT) for rank in range(4)]
    assert log_of(lines, expected=expected).phase == phase


def test_the_pools_begin_when_the_last_weights_were_loaded() -> None:
    log = StartupLog(started_us=S)
    for text, at_us in (
        (ranked(0, "Load weight begin. avail mem=94 GB"), 10 * S),
        (end(0, TARGET), 70 * S),
        (ranked(0, "KV Cache is allocated. #tokens: 5, K size: 1.00 GB, V size: 1.00 GB"), 95 * S),
        (ranked(0, "max_total_num_tokens=5, chunked_prefill_size=1"), 100 * S),
    ):
        log.feed(own(text, at_us))
    assert spans(log) == [
        ("starting", 1000, 9000),
        ("loading_weights", 10000, 60000),
        ("allocating_kv_cache", 70000, 30000),
        ("binding", 100000, None),
    ]


# --- other releases (sglang 0.4.6 to 0.5.13)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.04 GB, mem usage=15.18 GB.",
            ("LlamaForCausalLM", None, "", 15.18, 63.04),
            id="0.4.6 to 0.5.8",
        ),
        pytest.param(
            "Load weight end. elapsed=4.10 s, type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.04 GB, mem usage=15.18 GB.",
            ("LlamaForCausalLM", 4.1, "", 15.18, 63.04),
            id="0.5.9",
        ),
        pytest.param(
            "Load weight end. elapsed=61.47 s, type=KimiK25ForConditionalGeneration, quant=compressed-tensors, "
            "avail mem=21.76 GB, mem usage=72.24 GB.",
            ("KimiK25ForConditionalGeneration", 61.47, "compressed-tensors", 72.24, 21.76),
            id="the story's line, 0.5.10 and later",
        ),
        pytest.param(
            "Load weight end. elapsed=0.03 s, type=Qwen3ForCausalLM, quant=None, avail mem=21.57 GB, mem usage=-0.00 GB.",
            ("Qwen3ForCausalLM", 0.03, "", 0.0, 21.57),
            id="no quantisation, minus nothing",
        ),
    ],
)
def test_weight_lines_of_all_releases(text: str, expected: tuple[str, float | None, str, float, float]) -> None:
    (model,) = log_of([ranked(0, text)]).weights
    assert (model.type, model.elapsed_s, model.quant, model.mem_usage_gb, model.avail_mem_gb) == expected
    assert str(model.mem_usage_gb) != "-0.0"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[2026-11-29 14:24:24 TP3 EP3]", "TP3 EP3"),
        ("[2026-11-29 14:24:24 DP1 PP0 ATTN_CP2 MOE_DP1 TP11 EP3]", "DP1 PP0 ATTN_CP2 MOE_DP1 TP11 EP3"),
        ("[2026-11-29 14:24:24.123 TP3]", "TP3"),
        ("[2026-11-29 14:24:24,123 TP3]", "TP3"),
        ("[2026-11-29 14:24:24]", "pid 40"),
    ],
)
def test_prefixes(prefix: str, rank: str) -> None:
    (model,) = log_of(
        [f"{prefix} Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB."]
    ).weights
    assert model.ranks == (rank,)


def test_processes_without_a_rank_are_told_apart() -> None:
    log = StartupLog()
    for pid in (185, 186):
        log.feed(own(parent("Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB."), pid=pid))
    assert [model.ranks for model in log.weights] == [("pid 185", "pid 186")]


def test_before_0_5_14_the_draft_loads_after_the_targets_graphs() -> None:
    lines = [
        ranked(0, "Init torch distributed begin."),
        ranked(0, "Load weight begin. avail mem=94 GB"),
        end(0, TARGET),
    ]
    lines += [ranked(0, "KV Cache is allocated. #tokens: 5, K size: 1.00 GB, V size: 1.00 GB")]
    lines += [ranked(0, "Memory pool end. avail mem=1 GB")]
    lines += [ranked(0, "Capture cuda graph begin. This can take up to several minutes. avail mem=8.00 GB")]
    lines += [ranked(0, "Capture cuda graph end. Time elapsed: 90.00 s. mem usage=2.00 GB. avail mem=6.00 GB.")]
    lines += [ranked(0, "Load weight begin. avail mem=6 GB"), end(0, DRAFT)]
    lines += [ranked(0, "KV Cache is allocated. #tokens: 5, K size: 1.00 GB, V size: 1.00 GB")]
    lines += [ranked(0, "Capture draft cuda graph begin. This can take up to several minutes.")]
    lines += [ranked(0, "max_total_num_tokens=5, chunked_prefill_size=1")]
    assert [(span.phase, span.start_us // MS, span.model) for span in log_of(lines).timeline] == [
        ("starting", 0, ""),
        ("loading_weights", 1, ""),
        ("allocating_kv_cache", 2, "target"),
        ("capturing_graphs", 5, "target"),
        ("loading_draft", 7, ""),
        ("allocating_kv_cache", 8, "draft"),
        ("capturing_graphs", 10, "draft"),
        ("binding", 11, ""),
    ]
    # Before the draft begins there is one round as far as anybody knows.
    assert {span.model for span in log_of(lines[:7]).timeline} == {""}


def test_overlapped_weight_loading_has_no_models() -> None:
    log = log_of([parent("Load weight end. Committed real weights after CUDA graph capture in 3.10 s (12 tensors)")])
    assert log.weights_committed
    assert (log.markers, log.weights) == (0, [])


def test_a_journal_that_lost_the_begin_lines() -> None:
    log = log_of([end(0, TARGET), end(1, TARGET), end(0, DRAFT), end(1, DRAFT)])
    assert [span.phase for span in log.timeline] == ["starting", "loading_weights", "loading_draft"]
    assert [model.role for model in log.weights] == ["target", "draft"]


# --- never fooled


@pytest.mark.parametrize(
    "line",
    [
        parent(
            "server_args={'load_weight': 'Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB.'}"
        ),
        parent(
            "server_args={'x': '[2026-11-29 14:24:24 TP0] Load weight end. elapsed=1.00 s, type=T, avail mem=1 GB'}"
        ),
        parent("server_args={'chat_template': 'The server is fired up and ready to roll!'}"),
        parent(
            "Receive: obj=GenerateReqInput(text='Load weight end. type=T, The server is fired up and ready to roll!')"
        ),
        "Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB.",
        "The server is fired up and ready to roll!",
        "INFO:     The server is fired up and ready to roll!",
        "INFO:     Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB.",
        " [2026-11-29 14:24:24] The server is fired up and ready to roll!",
        "x[2026-11-29 14:24:24 TP0] Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB.",
        "[2026-11-29 14:24:24 tp0] Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB.",
        ranked(0, "The server is fired up and ready to roll!"),
        ranked(0, "Load weight ended"),
        ranked(0, "Load weight end."),
        ranked(0, "Load weight end. nothing known"),
        parent("Uvicorn running on http://127.0.0.1:1 (no level before it)"),
        parent("[Errno 98] error while attempting to bind on address ('127.0.0.1', 30001): address already in use"),
        parent(
            "INFO:     127.0.0.1:1 - \"GET /?q=[Errno 98] error while attempting to bind on address ('x', 1) HTTP/1.1\" 200 OK"
        ),
        parent("Engine startup"),
        "",
        "[",
        "[2026-11-29 14:24:24]",
    ],
)
def test_text_that_only_looks_like_a_marker(line: str) -> None:
    log = log_of([line])
    assert (log.markers, log.weights, log.fired_up, log.bind_failed, log.uvicorn_running) == (0, [], False, None, None)
    assert log.phase == "starting"


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[1m[2026-11-29 14:24:24 TP0] Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB.\x1b[0m",
        "[2026-11-29 14:24:24 TP0] \x1b[32mLoad weight end.\x1b[0m elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB.",
        "Loading:  50%\rLoading: 100%\r[2026-11-29 14:24:24 TP0] Load weight end. type=T, avail mem=1.00 GB, mem usage=1.00 GB.\r",
        "noise\n[2026-11-29 14:24:24 TP0] Load weight end. elapsed=1.00 s, type=T, avail mem=1.00 GB, mem usage=1.00 GB.",
    ],
)
def test_colours_carriage_returns_and_several_lines(line: str) -> None:
    # As the journal gives them: bytes.
    entry = parse_entry(json.dumps({"MESSAGE": list(line.encode()), "_PID": "40", "_SYSTEMD_INVOCATION_ID": "a" * 32}))
    assert entry is not None
    log = StartupLog()
    log.feed(entry)
    assert log.marker_counts == {"T": 1}


def test_only_the_services_own_lines_count() -> None:
    log = StartupLog()
    log.feed(manager(end(0, TARGET)))
    log.feed(manager(parent("The server is fired up and ready to roll!")))
    assert (log.markers, log.fired_up) == (0, False)


# --- binding and serving


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30001): address already in use",
            (98, "127.0.0.1", 30001),
        ),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('::', 30001, 0, 0): [errno 98] address already in use",
            (98, "::", 30001),
        ),
        (
            "ERROR:    [Errno 99] error while attempting to bind on address ('10.1.2.3', 80): cannot assign requested address",
            (99, "10.1.2.3", 80),
        ),
        (
            "ERROR:    [Errno 13] error while attempting to bind on address ('0.0.0.0', 80): permission denied",
            (13, "0.0.0.0", 80),
        ),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[2026-11-29 14:35:20] "], ids=["uvicorn's own form", "sglang's form"])
def test_bind_failures(text: str, expected: tuple[int, str, int], prefix: str) -> None:
    log = log_of(["", prefix + text])
    assert log.bind_failed == BindFailure(*expected, text=text[10:], at_us=MS)


def test_uvicorns_own_form() -> None:
    log = log_of(
        [
            "INFO:     Started server process [40]",
            "INFO:     Uvicorn running on http://[::1]:30001 (Press CTRL+C to quit)",
        ]
    )
    assert log.uvicorn_running == "http://[::1]:30001"
    assert log.phase == "warming_up"


def test_gate() -> None:
    lines = [
        ranked(0, "Init parallel ends. elapsed=0.01 s"),
        ranked(0, "Gated launch waiting for activation on port 7000"),
    ]
    log = log_of(lines)
    assert (log.phase, log.gated_waiting) == ("waiting_at_gate", True)
    log.feed(own(ranked(0, "Load weight begin. avail mem=94 GB"), 10 * MS))
    assert (log.phase, log.gated_waiting) == ("loading_weights", False)
    assert spans(log) == [("starting", 0, 1), ("waiting_at_gate", 1, 9), ("loading_weights", 10, None)]


def test_the_smallest_pool_of_all_replicas_counts() -> None:
    log = log_of(
        [
            f"[2026-11-29 14:24:24 DP{dp}] max_total_num_tokens={tokens}, x=1"
            for dp, tokens in ((0, 90), (1, 80), (2, 99))
        ]
    )
    assert log.max_total_num_tokens == 80


@pytest.mark.parametrize("word", ["Remaining", "remaining"])
def test_drain(word: str) -> None:
    log = StartupLog()
    log.feed(own(parent("SIGTERM received. signum=None frame=None. Draining requests and shutting down..."), 5 * S))
    assert log.draining == Draining(5 * S, None)
    log.feed(
        own(
            parent(f"Gracefully exiting... {word} number of requests 3. Remaining requests remaining_rids=['a']."),
            10 * S,
        )
    )
    assert log.draining == Draining(5 * S, 3)
    assert log.last_progress_us == 10 * S
    log.feed(
        own(
            parent(f"Gracefully exiting... {word} number of requests 3. Remaining requests remaining_rids=['a']."),
            15 * S,
        )
    )
    assert log.last_progress_us == 10 * S, "the same number again is no progress"
    log.feed(
        own(parent(f"Gracefully exiting... {word} number of requests 2. Remaining requests remaining_rids=[]."), 20 * S)
    )
    assert log.draining == Draining(5 * S, 2)
    assert log.last_progress_us == 20 * S


def test_exit_facts() -> None:
    log = log_of([parent("Received sigquit from a child process. It usually means the child failed.")])
    log.feed(
        manager("x.service: Main process exited, code=killed, status=9/KILL", 7 * S, exit_code="killed", exit_status=9)
    )
    log.feed(manager("x.service: Failed with result 'signal'.", 8 * S, unit_result="signal"))
    assert log.exit == ExitFacts("killed", 9, "signal", 7 * S)
    assert log.timeline[-1].duration_us == 7 * S
    assert log.tail(3)[1:] == [
        "x.service: Main process exited, code=killed, status=9/KILL",
        "x.service: Failed with result 'signal'.",
    ]


def test_suppressed_lines_make_the_log_incomplete() -> None:
    log = StartupLog()
    assert not log.log_incomplete
    log.feed(manager("Suppressed 22 messages from sglang@0.service", message_id=MESSAGE_SUPPRESSED))
    assert log.log_incomplete


# --- progress


@pytest.mark.parametrize(
    "text",
    [
        parent('INFO:     127.0.0.1:51302 - "GET /health HTTP/1.1" 200 OK'),
        parent('INFO:     10.0.0.7:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK'),
        'INFO:     127.0.0.1:51302 - "GET /metrics HTTP/1.1" 404 Not Found',
        parent("Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, #running-req: 0"),
        ranked(0, "Prefill batch [7], #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00"),
        ranked(0, "Prefill batch. #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00"),
        parent("Health check request received during shutdown. Returning 503."),
        parent("Health check failed. Server couldn't get a response from detokenizer for last 20 seconds."),
        parent("Endpoint '/get_server_info' is deprecated and will be removed in a future version."),
    ],
)
def test_being_polled_is_no_progress(text: str) -> None:
    assert is_noise(text)
    log = StartupLog()
    log.feed(own(ranked(0, "Init parallel begin."), S))
    log.feed(own(text, 9 * S))
    log.feed(own("", 10 * S))
    log.feed(manager("systemd says something", 11 * S))
    assert log.last_progress_us == S
    assert log.last_us == 11 * S
    assert text not in log.tail(10)


@pytest.mark.parametrize(
    "text",
    [
        parent("Prefill batch, #new-seq: 1, #new-token: 9, #cached-token: 0, token usage: 0.00"),
        parent("Decode batch, #running-req: 1, #token: 21, token usage: 0.01"),
        "Multi-thread loading shards:  50% Completed | 1/2 [00:00<00:00, 81.77it/s]",
        "a library's line",
        '127.0.0.1 - "GET /health HTTP/1.1" 200 without a writer we know',
    ],
)
def test_anything_else_is_progress(text: str) -> None:
    assert not is_noise(text)
    log = StartupLog(started_us=S)
    log.feed(own(text, 9 * S))
    assert log.last_progress_us == 9 * S


@pytest.mark.parametrize(
    ("line", "markers"),
    [
        ("Multi-thread loading shards:  50% Completed | 1/2 [00:00<00:00, 81.77it/s]" + end(1, TARGET), 1),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/163 [00:00<?, ?it/s]" + end(1, TARGET), 1),
        pytest.param("a prompt: 50% | 1 [x, y] " + end(1, TARGET), 0, id="no bar: a space before the prefix"),
        pytest.param("server_args={'x': '50% | [a]" + end(1, TARGET) + "'}", 0, id="no bar: inside of arguments"),
    ],
)
def test_a_marker_behind_an_unfinished_progress_bar(line: str, markers: int) -> None:
    assert log_of([line]).markers == markers


def test_tail_is_bounded_in_lines_and_width() -> None:
    log = log_of([parent(f"line {number} " + "x" * 5000) for number in range(1000)])
    assert log.tail(2) == [parent(f"line {number} " + "x" * 5000)[:2000] for number in (998, 999)]
    assert len(log.tail(10_000)) == 400
    assert log.tail(0) == []


# --- exceptions


def traceback(*chain: str, source: str = "") -> list[str]:
    lines: list[str] = []
    for index, exception in enumerate(chain):
        if index:
            lines += ["", "During handling of the above exception, another exception occurred:", ""]
        lines += [(source if index == 0 else "") + "Traceback (most recent call last):"]
        lines += ['  File "/x.py", line 1, in f', "    raise", *exception.split("\n")]
    return lines


def test_the_first_scheduler_exception_is_the_cause() -> None:
    log = StartupLog()
    ranks = {
        3: traceback(
            "TypeError: 'NoneType' object is not subscriptable", source=ranked(3, "Scheduler hit an exception: ")
        ),
        0: traceback("RuntimeError: NCCL error", source=ranked(0, "Scheduler hit an exception: ")),
    }
    # Line by line in turns, as two processes write.
    for number, (first, second) in enumerate(zip(ranks[3], ranks[0])):
        log.feed(own(first, number * MS, pid=103))
        log.feed(own(second, number * MS, pid=100))
    log.feed(own(parent("Received sigquit from a child process. It usually means the child failed."), S))
    assert log.first_exception is not None
    assert log.first_exception.rank == "TP3 EP3"
    assert log.first_exception.source == "Scheduler hit an exception"
    assert log.first_exception.final_line == "TypeError: 'NoneType' object is not subscriptable"
    assert log.last_exception is not None
    assert log.last_exception.final_line == "RuntimeError: NCCL error"
    assert {rank: info.final_line for rank, info in log.exceptions_by_rank.items()} == {
        "TP3 EP3": "TypeError: 'NoneType' object is not subscriptable",
        "TP0 EP0": "RuntimeError: NCCL error",
    }


def test_a_scheduler_outranks_a_traceback_of_unknown_origin() -> None:
    log = StartupLog()
    for number, text in enumerate(
        [
            *traceback("ImportError: optional thing"),
            *traceback("MemoryError: x", source=ranked(0, "Scheduler hit an exception: ")),
        ]
    ):
        log.feed(own(text, number * MS, pid=100))
    assert log.first_exception is not None
    assert log.first_exception.final_line == "MemoryError: x"


def test_chains_and_messages_of_several_lines() -> None:
    capture = "Exception: Capture cuda graph failed: CUDA out of memory\nPossible solutions:\n1. lower it"
    log = log_of(
        [*traceback("torch.OutOfMemoryError: CUDA out of memory.", capture), parent("kill_process_tree called")]
    )
    assert log.first_exception is not None
    assert log.first_exception.first_line == "torch.OutOfMemoryError: CUDA out of memory."
    assert log.first_exception.final_line == "Exception: Capture cuda graph failed: CUDA out of memory"
    assert log.first_exception.lines[-2:] == ("Possible solutions:", "1. lower it")


def test_a_traceback_is_bounded() -> None:
    log = log_of([*traceback("ValueError: x"), *["more"] * 5000])
    assert log.first_exception is not None
    assert len(log.first_exception.lines) == 120
    assert log.first_exception.final_line == "ValueError: x"


def test_a_traceback_without_its_end() -> None:
    log = log_of(["Traceback (most recent call last):", '  File "/x.py", line 1, in f', parent("killed")])
    assert log.first_exception is None


def test_many_processes_with_open_tracebacks_stay_bounded() -> None:
    log = StartupLog()
    for pid in range(1000):
        log.feed(own("Traceback (most recent call last):", pid=pid))
    assert len(log._open) == 64


# --- kept over slices


@pytest.mark.parametrize("cut", range(0, 130, 7))
def test_a_log_goes_on_after_dump_and_load(cut: int) -> None:
    lines = start_of_k26([5, 2, 7, 0, 1, 6, 3, 4])
    whole = log_of(lines, expected=16)
    first = log_of(lines[:cut], expected=16)
    second = StartupLog.load(json.loads(json.dumps(first.dump())))
    for number, text in enumerate(lines[cut:], start=cut):
        second.feed(own(text, number * MS))
    assert second.dump() == whole.dump()
    assert second.weights == whole.weights
    assert second.timeline == whole.timeline
    assert len(json.dumps(second.dump())) < 4000


def test_dump_keeps_the_end_of_the_tail() -> None:
    log = log_of([parent(f"line {number}") for number in range(10)])
    again = StartupLog.load(json.loads(json.dumps(log.dump(tail=3))))
    again.feed(own(parent("line 10"), 11 * S))
    assert [line.rpartition("line ")[2] for line in again.tail(20)] == ["7", "8", "9", "10"]
    long = log_of([parent("x" * 3000)] * 100)
    kept = long.dump(tail=100)["tail"]
    assert kept == long.tail(len(kept))
    assert 30_000 < sum(map(len, kept)) <= 32_768


def test_dump_keeps_failures() -> None:
    for name in ("fail-port-held-by-other-sglang.log", "fail-model-path-missing-rc1.log", "startup-cpu-plain.log"):
        log = recorded(name)
        log.feed(manager("exited", 7 * S, exit_code="exited", exit_status=3, unit_result="exit-code"))
        again = StartupLog.load(json.loads(json.dumps(log.dump())))
        for attribute in (
            "bind_failed",
            "exit",
            "draining",
            "first_exception",
            "last_exception",
            "startup_timings",
            "phase",
        ):
            assert getattr(again, attribute) == getattr(log, attribute)


# --- anything


_FRAGMENTS = st.sampled_from(
    [
        "[2026-11-29 14:24:24 TP0] ",
        "[2026-11-29 14:24:24] ",
        "Load weight begin. ",
        "Load weight end. ",
        "elapsed=1.0 s, type=T, ",
        "elapsed=",
        "quant=",
        "Traceback (most recent call last):",
        "Scheduler hit an exception: ",
        "max_total_num_tokens=",
        "Engine startup timings (s): cuda_graph={a=1, b=}, c=",
        "INFO:     ",
        "[Errno 98] error while attempting to bind on address ('",
        "Uvicorn running on ",
        "Gracefully exiting... remaining number of requests ",
        "KV Cache is allocated",
        "Capture x graph begin",
        "The server is fired up and ready to roll!",
        "\n",
        "\r",
        "  ",
        "7",
        ": error: ",
    ]
)


@given(
    st.lists(
        st.tuples(st.lists(_FRAGMENTS | st.text(max_size=8), max_size=6), st.integers(0, 3), st.booleans()), max_size=25
    )
)
def test_any_text_is_taken(entries: list[tuple[list[str], int, bool]]) -> None:
    log = StartupLog()
    for number, (parts, pid, is_own) in enumerate(entries):
        log.feed(own("".join(parts), number, pid) if is_own else manager("".join(parts), number))
    assert log.phase in (*PHASES, SERVING)
    assert all(span.duration_us is None or span.duration_us >= 0 for span in log.timeline)
    assert [span.start_us for span in log.timeline] == sorted(span.start_us for span in log.timeline)
    assert sum(log.marker_counts.values()) == log.markers
    assert StartupLog.load(json.loads(json.dumps(log.dump()))).dump() == log.dump()


def test_a_long_line_of_percent_signs_costs_little() -> None:
    log = StartupLog()
    began = time.monotonic()
    log.feed(own("1%" * 200_000))
    assert time.monotonic() - began < 5.0


def test_long_lines_of_a_traceback_are_cut() -> None:
    log = StartupLog()
    log.feed(own("[2026-11-29 14:24:24 TP0] Scheduler hit an exception: Traceback (most recent call last):"))
    log.feed(own('  File "x.py", line 1, in f'))
    log.feed(own("    " + "y" * 500_000))
    log.feed(own("ValueError: " + "x" * 500_000))
    assert log.first_exception is not None
    assert log.first_exception.final_line.startswith("ValueError: xxx")
    assert len(json.dumps(log.dump())) < 20_000
