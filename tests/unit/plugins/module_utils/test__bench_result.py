# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils import _bench_result as result
from ansible_collections.specdec.serving.plugins.module_utils._bench_result import Context


def row(start: float = 0.0, **changes: t.Any) -> dict[str, t.Any]:
    """A request of 11 tokens: the first after 0.5 s, the others 0.1 s apart."""
    return {
        "start": start,
        "ttft": 0.5,
        "latency": 1.5,
        "prompt_tokens": 100,
        "output_tokens": 11,
        "asked_tokens": 11,
        "ok": True,
        "error": "",
        "finish": "length",
        "reported": True,
        "chunks": 3,
        "gaps": [0.4, 0.6],
        "verify": None,
        "correct": None,
        "histogram": None,
        **changes,
    }


def run(rows: list[dict[str, t.Any]], **changes: t.Any) -> dict[str, t.Any]:
    """A run whose server counted what its client did."""
    tokens = sum(item["output_tokens"] for item in rows)
    return {
        "kind": "measured",
        "concurrency": 2,
        "repeat": 1,
        "asked": len(rows),
        "flush": {"status": 200, "seconds": 0.1, "answer": ""},
        "before": {"generation_tokens_total": 5.0, "num_requests_total": 1.0},
        "after": {"generation_tokens_total": 5.0 + tokens, "num_requests_total": 1.0 + len(rows)},
        "began_at": 1.0,
        "ended": "",
        "problem": "",
        "client": {"duration": 3.0, "output_throughput": 14.0},
        "rows": rows,
        **changes,
    }


#: Two at a time, four in all: 0 to 1.5 and 1.5 to 3.
FOUR = [row(0.0), row(0.0), row(1.5), row(1.5)]


def judged(one: dict[str, t.Any], **context: t.Any) -> dict[str, t.Any]:
    return result.level_result(2, [one], 1, Context(steady_s=0, **context))


def rules(one: dict[str, t.Any], **context: t.Any) -> list[str]:
    found = judged(one, **context)
    assert found["valid"] == (not found["reasons"])
    return [reason["rule"] for reason in found["reasons"]]


# --- figures ------------------------------------------------------------------------------------------------------------------


def test_figures_of_a_run() -> None:
    found = result.figures(run(FOUR))

    assert found["completed"] == 4
    assert found["seconds"] == 3.0
    assert found["output_tok_s"] == pytest.approx(44 / 3, abs=1e-3)
    assert found["requests_per_s"] == pytest.approx(4 / 3, abs=1e-3)
    assert found["concurrency"] == 2.0
    assert found["user_tok_s"] == pytest.approx(10.0)
    assert found["ttft_ms"] == {"mean": 500.0, "p50": 500.0, "p90": 500.0, "p99": 500.0}
    assert found["tpot_ms"]["p50"] == 100.0
    assert found["e2e_ms"]["p99"] == 1500.0
    assert found["chunk_gap_p99_ms"] == 600.0
    assert found["outcomes"] == {"length": 4}
    assert found["server"]["generation_tokens"] == 44
    assert found["acceptance"] is None
    assert found["tokens_per_step"] is None


def test_a_run_without_any_success_has_no_figures() -> None:
    found = result.figures(run([row(ok=False, error="ClientConnectorError(...)", output_tokens=0)]))

    assert (found["completed"], found["output_tok_s"], found["ttft_ms"], found["steady"]) == (0, None, None, None)
    assert found["outcomes"] == {"connection refused": 1}


def test_a_single_token_has_no_time_per_token() -> None:
    found = result.figures(run([row(output_tokens=1), row(output_tokens=1)]))

    assert found["tpot_ms"] is None
    assert found["user_tok_s"] is None


def test_the_steady_part_leaves_out_how_it_fills_and_drains() -> None:
    rows = [row(0.0), row(1.0), row(1.5), row(2.5)]

    # From the second's start to the first end after the last start.
    assert result.steady_window(rows, 2) == (1.0, 3.0)
    steady = result.figures(run(rows))["steady"]
    assert steady["seconds"] == 2.0
    assert steady["concurrency"] == pytest.approx((0.5 + 1.5 + 1.5 + 0.5) / 2)
    # Of the first request the last 0.5 s, of the second and third all, of the fourth the first token at its edge.
    assert steady["output_tok_s"] == pytest.approx((5 + 11 + 11 + 1) / 2)


def test_too_few_requests_are_never_steady() -> None:
    assert result.steady_window([row()], 2) is None
    assert result.steady_window([row(0.0), row(5.0)], 2) is None
    assert result.steady_window([row(0.0), row(1.0)], 2) == (1.0, 1.5)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 50), st.integers(1, 50)), min_size=1, max_size=20),
    st.integers(1, 5),
)
def test_no_window_holds_more_tokens_than_there_are(requests: list[tuple[float, float, int]], concurrency: int) -> None:
    rows = [row(start, latency=latency, ttft=latency / 3, output_tokens=tokens) for start, latency, tokens in requests]
    steady = result.figures({**run(rows), "concurrency": concurrency})["steady"]
    if steady:
        tokens = sum(tokens for _start, _latency, tokens in requests)
        # Seconds are rounded to a millisecond.
        assert steady["output_tok_s"] * steady["seconds"] <= tokens * 1.2 + 1


@pytest.mark.parametrize(
    ("values", "percent", "expected"), [([], 50, None), ([3.0], 99, 3.0), ([1, 2, 3, 4], 50, 2.5), ([0, 10], 90, 9.0)]
)
def test_percentiles_are_numpys(values: list[float], percent: float, expected: float | None) -> None:
    assert result.percentile(values, percent) == expected


# --- acceptance ---------------------------------------------------------------------------------------------------------------


def test_acceptance_is_counted_as_papers_do() -> None:
    rows = [
        row(verify=4, correct=6, histogram=[1, 0, 3]),
        row(verify=6, correct=0, histogram=[6]),
        row(output_tokens=1),
    ]
    found = result.acceptance(rows)

    assert found is not None
    assert found["length"] == found["length_from_histogram"] == 1.6
    assert found["per_position"] == [0.3, 0.3]
    assert (found["verify_steps"], found["requests"], found["of_requests"]) == (10, 2, 2)


def test_an_old_release_without_a_histogram() -> None:
    found = result.acceptance([row(verify=4, correct=6)])

    assert found is not None
    assert (found["length"], found["per_position"], found["length_from_histogram"]) == (2.5, None, None)


def test_no_drafts_no_acceptance() -> None:
    assert result.acceptance(FOUR) is None


@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(any), min_size=1, max_size=10))
def test_the_histogram_gives_the_same_length(histograms: list[list[int]]) -> None:
    rows = [
        row(verify=sum(one), correct=sum(k * count for k, count in enumerate(one)), histogram=one) for one in histograms
    ]
    found = result.acceptance(rows)

    assert found is not None
    assert found["length"] == pytest.approx(found["length_from_histogram"], abs=1e-4)
    assert found["per_position"] == sorted(found["per_position"], reverse=True)
    assert found["length"] == pytest.approx(1 + sum(found["per_position"]), abs=1e-3)


def test_tokens_per_step_is_another_figure() -> None:
    counted = run(FOUR)
    counted["after"]["spec_verify_calls_total"] = 22.0

    assert result.figures(counted)["tokens_per_step"] == 2.0
    assert result.figures(counted)["acceptance"] is None


# --- rules --------------------------------------------------------------------------------------------------------------------


def test_a_clean_level_is_valid() -> None:
    found = judged(run(FOUR), fixed_length=11)

    assert (found["valid"], found["reasons"], found["flags"]) == (True, [], [])
    assert found["summary"]["output_tok_s"] == {"median": 14.667, "mad": 0.0, "cv": None}
    assert found["summary"]["acceptance_length"] is None


def test_not_all_completed() -> None:
    rows = [*FOUR[:3], row(ok=False, error="Internal Server Error: x", output_tokens=0)]
    found = judged(run(rows))

    assert found["reasons"] == [
        {"rule": "completed", "detail": "3 of 4 requests completed (1 internal server error)", "repeat": 1}
    ]
    assert found["summary"]["output_tok_s"] is not None


def test_lengths_are_not_what_was_asked() -> None:
    assert rules(run([row(output_tokens=10), row()]), fixed_length=11) == ["completed"]
    assert rules(run([row(output_tokens=10), row()])) == []


def test_an_aborted_request_is_no_completed_one() -> None:
    assert rules(run([row(finish="abort"), row()])) == ["aborted"]


def test_stalled_and_cut_short() -> None:
    rows = [row(), row(ok=False, error="unfinished", output_tokens=3)]
    assert "stalled" in rules(run(rows, ended="stalled", after={}))
    assert rules(run(rows, ended="abandoned", after={})) == ["completed", "cut_short"]


def test_foreign_requests() -> None:
    finished = run(FOUR)
    finished["after"]["num_requests_total"] += 1
    running = run(FOUR)
    running["idle"] = {"status": 400, "answer": "Timed out waiting for idle state."}

    assert rules(finished) == ["foreign_requests"]
    assert rules(running) == ["foreign_requests"]
    assert judged(finished)["reasons"][0]["detail"] == "the server finished 5 requests, and 4 were ours"


@pytest.mark.parametrize(("off", "expected"), [(0, []), (1, []), (-6, ["token_counts"]), (6, ["token_counts"])])
def test_tokens_agree_within_half_a_percent(off: int, expected: list[str]) -> None:
    rows = [row(i * 1.5, output_tokens=100) for i in range(10)]
    counted = run(rows)
    counted["after"]["generation_tokens_total"] += off

    assert rules(counted) == expected


def test_a_server_without_metrics_proves_nothing() -> None:
    assert rules(
        run(FOUR, before={"problem": "/metrics answered 404"}, after={"problem": "/metrics answered 404"})
    ) == ["unverified"]


def test_counters_that_appear_with_their_first_increment() -> None:
    counted = run(
        FOUR, before={"prompt_tokens_total": 0.0}, after={"generation_tokens_total": 44.0, "num_requests_total": 4.0}
    )

    assert rules(counted) == []


def test_answers_without_counts() -> None:
    assert rules(run([row(reported=False), row()])) == ["token_counts_unreported"]


def test_a_cache_that_was_not_flushed() -> None:
    assert rules(run(FOUR, flush={"status": 401, "answer": "Unauthorized"})) == ["cache_not_flushed"]


@pytest.mark.parametrize("rule", result.OBSERVED)
def test_what_was_seen_of_the_host(rule: str) -> None:
    assert rules(run(FOUR), observed={rule: "seen"}) == [rule]


def test_missing_repeats() -> None:
    found = result.level_result(2, [], 2, Context())

    assert [reason["rule"] for reason in found["reasons"]] == ["not_measured"]
    assert found["flags"] == []
    assert found["summary"]["output_tok_s"] is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("aiohttp.client_exceptions.ClientConnectorError: Cannot connect", "connection refused"),
        ("aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected", "connection lost"),
        ("aiohttp.client_exceptions.ClientPayloadError: Response payload is not completed", "answer cut off"),
        ("Internal Server Error: oops", "internal server error"),
        ("Unauthorized: {}", "unauthorized"),
        ("Bad Request: The input is longer than the model's context length", "too long"),
        ("something else", "other"),
    ],
)
def test_kinds_of_errors(text: str, kind: str) -> None:
    assert result.kind_of_error(text) == kind


# --- flags and repeats ----------------------------------------------------------------------------------------------------------


def flags(runs: list[dict[str, t.Any]], **context: t.Any) -> list[str]:
    found = result.level_result(2, runs, len(runs), Context(**{"steady_s": 0, **context}))
    assert found["valid"]
    return [flag["flag"] for flag in found["flags"]]


def speculative(correct: int) -> dict[str, t.Any]:
    return run([row(verify=10, correct=correct), row(verify=10, correct=correct)])


def test_speculation_that_never_accepts() -> None:
    assert flags([speculative(0)], speculative=True) == ["speculation_inactive"]
    assert flags([speculative(3)], speculative=True) == []
    assert flags([speculative(0)], speculative=False) == []


def test_speculation_that_nobody_sees() -> None:
    assert flags([run(FOUR)], speculative=True) == ["speculation_inactive", "acceptance_unknown"]


def test_acceptance_that_no_request_tells() -> None:
    counted = run(FOUR)
    counted["after"]["spec_verify_calls_total"] = 22.0

    assert flags([counted], speculative=True) == ["acceptance_unknown"]


def test_an_acceptance_that_few_tell_or_that_contradicts_itself() -> None:
    told = {"verify": 4, "correct": 6, "histogram": [0, 2, 2]}
    rows = [row(i * 1.5, **told) for i in range(8)]
    assert flags([run(rows)], speculative=True) == []
    assert flags([run([*rows[:4], *FOUR])], speculative=True) == ["acceptance_doubtful"]
    other = [row(i * 1.5, **{**told, "histogram": [0, 0, 4]}) for i in range(8)]
    assert flags([run(other)], speculative=True) == ["acceptance_doubtful"]
    assert flags([run(other)], speculative=False) == []


def test_above_the_servers_limit() -> None:
    assert flags([run(FOUR)], most_running=1) == ["above_max_running_requests"]
    assert flags([run(FOUR)], most_running=2) == []


def test_a_short_steady_state() -> None:
    assert flags([run(FOUR)], steady_s=60) == ["short_steady_state"]
    assert flags([run(FOUR)], steady_s=3.1) == []


def test_less_than_the_rule_is_labelled() -> None:
    assert flags([run(FOUR)], reduced=["8 requests"]) == ["reduced"]


def slower(factor: float, repeat: int) -> dict[str, t.Any]:
    return run([row(item["start"] * factor, latency=1.5 * factor, ttft=0.5 * factor) for item in FOUR], repeat=repeat)


def test_a_first_repeat_that_compiled() -> None:
    assert flags([slower(1.3, 1), slower(1.0, 2), slower(1.01, 3)]) == ["jit_suspected"]
    assert flags([slower(1.05, 1), slower(1.0, 2), slower(1.3, 3)]) == []


def test_a_single_first_repeat_that_compiled() -> None:
    rows = [row(0.0, ttft=4.0, latency=5.0), *(row(i * 1.5) for i in range(4, 12))]

    assert flags([run(rows)], first=True) == ["jit_suspected"]
    assert flags([run(rows)], first=False) == []


def test_repeats_are_summed_up() -> None:
    found = result.level_result(2, [slower(1.0, 1), slower(2.0, 2), slower(1.0, 3)], 3, Context(steady_s=0))

    assert found["summary"]["output_tok_s"]["median"] == pytest.approx(44 / 3, abs=1e-3)
    assert found["summary"]["output_tok_s"]["mad"] == 0.0
    assert found["summary"]["output_tok_s"]["cv"] == pytest.approx(0.3464, abs=1e-3)


def test_an_invalid_repeat_makes_its_level_invalid_and_is_not_summed_up() -> None:
    bad = run([row(0, latency=9.0), row(0, latency=9.0)], repeat=2, flush={"status": 400, "answer": "busy"})
    found = result.level_result(2, [run(FOUR), bad], 2, Context(steady_s=0))

    assert not found["valid"]
    assert found["reasons"][0]["repeat"] == 2
    assert found["summary"]["e2e_p50_ms"]["median"] == 1500.0
    assert [one["valid"] for one in found["repeats"]] == [True, False]


def test_median_mad_cv() -> None:
    assert result.median_mad_cv([]) is None
    assert result.median_mad_cv([5.0]) == {"median": 5.0, "mad": 0.0, "cv": None}
    assert result.median_mad_cv([1.0, 2.0, 6.0]) == {"median": 2.0, "mad": 1.0, "cv": pytest.approx(0.88192, abs=1e-4)}


# --- what the real client of the real engine left (STANDALONE, on a CPU) -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["natural", "fixed"])
def test_recorded_runs(kind: str) -> None:
    path = Path(__file__).resolve().parents[2] / f"fixtures/sglang-0.5.23/benchmark-standalone-{kind}.jsonl"
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for concurrency in (1, 4):
        own = [one for one in runs if one["kind"] == "measured" and one["concurrency"] == concurrency]
        context = Context(speculative=True, fixed_length=32 if kind == "fixed" else None, most_running=8, steady_s=0)
        found = result.level_result(concurrency, own, 2, context)

        assert found["valid"], found["reasons"]
        for repeat, one in zip(found["repeats"], own):
            assert repeat["server"]["generation_tokens"] == repeat["output_tokens"]
            assert repeat["server"]["requests"] == repeat["completed"]
            assert repeat["acceptance"]["length"] == repeat["acceptance"]["length_from_histogram"] > 1
            assert repeat["acceptance"]["verify_steps"] == repeat["server"]["verify_steps"]
            # The client's own sums, over a time that has its last question in it.
            assert one["client"]["completed"] == repeat["completed"]
            assert one["client"]["total_output_tokens"] == repeat["output_tokens"]
            assert one["client"]["median_tpot_ms"] == pytest.approx(repeat["tpot_ms"]["p50"], abs=0.01)
            assert one["client"]["p99_ttft_ms"] == pytest.approx(repeat["ttft_ms"]["p99"], abs=0.01)
            assert one["client"]["median_e2e_latency_ms"] == pytest.approx(repeat["e2e_ms"]["p50"], abs=0.01)
            assert one["client"]["duration"] == pytest.approx(repeat["seconds"], abs=0.2)
            assert repeat["outcomes"] == {
                "length" if kind == "fixed" else "stop": concurrency * 3 if concurrency == 4 else 6
            }


def test_a_recorded_run_of_the_old_client() -> None:
    """0.5.10's client, with prompts that the driver rendered; the server was the stand-in."""
    path = Path(__file__).resolve().parents[2] / "fixtures/sglang-0.5.10/benchmark-stand-in-natural.jsonl"
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = result.level_result(2, runs[1:], 1, Context(speculative=True, steady_s=0))
    (repeat,) = found["repeats"]

    assert (found["valid"], found["flags"], runs[1]["api"]) == (True, [], "generate")
    assert repeat["server"]["generation_tokens"] == repeat["output_tokens"] == runs[1]["client"]["total_output_tokens"]
    assert repeat["acceptance"]["length"] == repeat["acceptance"]["length_from_histogram"] == pytest.approx(3.09333)


def test_a_recorded_run_holds_no_key() -> None:
    folder = Path(__file__).resolve().parents[2] / "fixtures/sglang-0.5.23"
    for path in folder.glob("benchmark-*.jsonl"):
        text = path.read_text(encoding="utf-8")
        assert "api_key" not in text
        assert "server_info" not in text


def test_counters_that_went_back_prove_nothing() -> None:
    found = judged(
        run(
            FOUR,
            before={"generation_tokens_total": 900.0, "spec_verify_calls_total": 90.0},
            after={"generation_tokens_total": 44.0, "spec_verify_calls_total": 10.0},
        )
    )

    assert [reason["rule"] for reason in found["reasons"]] == ["unverified"]
    assert "went back (generation_tokens_total from 900 to 44)" in found["reasons"][0]["detail"]
    assert found["repeats"][0]["server"]["generation_tokens"] is None
    # Two differences below zero make a ratio that looks like one.
    assert found["repeats"][0]["tokens_per_step"] is None


def test_figures_are_numbers_also_where_the_clients_are_none() -> None:
    found = result.figures(run(FOUR, client={"output_throughput": float("nan"), "duration": "long"}))
    assert found["client"] == {"output_tok_s": None, "seconds": None}


def test_a_histogram_of_zeros_tells_nothing() -> None:
    found = result.acceptance([row(verify=4, correct=0, histogram=[0, 0, 0])])
    assert found is not None
    assert (found["length"], found["per_position"], found["length_from_histogram"]) == (1.0, None, None)
