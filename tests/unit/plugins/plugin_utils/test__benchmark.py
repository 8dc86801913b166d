# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import dataclasses
import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _benchmark, _workload
from ansible_collections.specdec.serving.plugins.plugin_utils._workload import WorkloadError

NATURAL: dict[str, t.Any] = {
    "name": "own",
    "kind": "natural",
    "dataset": "own.jsonl",
    "levels": [1, 4],
    "thinking": False,
    "repeats": 2,
    "requests": {"per_user": 2, "minimum": 4, "steady_state_s": 1},
    "thinking_argument": "thinking",
}
FIXED: dict[str, t.Any] = {"name": "f", "kind": "fixed", "input_length": 100, "output_length": 50, "levels": [2]}


def prompts(count: int) -> _workload.Prompts:
    lines = tuple(json.dumps({"messages": [str(n)], "max_tokens": 30 + n}) for n in range(count))
    return _workload.Prompts(lines=lines, sha256="0" * 64)


def test_a_plan_keeps_prompts_for_the_warm_up() -> None:
    found = _benchmark.plan(_workload.parse(NATURAL, "w"), prompts(13))

    assert found.job["levels"] == [
        {"concurrency": 1, "requests": 4, "warm_up": 1, "most": 9},
        {"concurrency": 4, "requests": 8, "warm_up": 4, "most": 9},
    ]
    assert found.job["template_arguments"] == {"thinking": False}
    measured, warm_up = (found.files[name].splitlines() for name in ("prompts.jsonl", "warm_up.jsonl"))
    assert (len(measured), len(warm_up)) == (9, 4)
    assert not set(measured) & set(warm_up)
    assert found.reduced
    assert found.job["longest"] == 1 + 30 + 12


def test_a_plan_measures_a_whole_file_when_others_warm_up() -> None:
    workload = _workload.parse({**NATURAL, "warm_up": {"dataset": "others.jsonl"}}, "w")
    own = dataclasses.replace(prompts(13), warm_up=prompts(20).lines[13:])

    found = _benchmark.plan(workload, own)

    assert {level["most"] for level in found.job["levels"]} == {13}
    assert found.files == {
        "prompts.jsonl": "\n".join(own.lines) + "\n",
        "warm_up.jsonl": "\n".join(own.warm_up[:4]) + "\n",
    }


def test_a_plan_asks_for_no_more_than_there_is() -> None:
    with pytest.raises(WorkloadError, match="4 in flight need 8 prompts"):
        _benchmark.plan(_workload.parse(NATURAL, "w"), prompts(11))


def test_random_tokens_are_never_used_up() -> None:
    found = _benchmark.plan(_workload.parse(FIXED, "w"), None)

    assert found.files == {}
    assert found.job["levels"] == [{"concurrency": 2, "requests": 64, "warm_up": 2, "most": None}]
    assert found.job["template_arguments"] == {}
    assert found.job["longest"] == 150


def test_the_longest_request_of_a_workload_with_one_limit() -> None:
    assert _benchmark.plan(_workload.parse({**NATURAL, "output_length": 16}, "w"), prompts(13)).job["longest"] == 17


def test_progress() -> None:
    progress = {
        "phase": "measured",
        "level": 8,
        "repeat": 2,
        "asked": 64,
        "finished": 17,
        "failed": 1,
        "tokens_per_s": 812.4,
        "acceptance": 3.21,
        "in_flight": 8,
        "still_for": 0.2,
        "runs_done": 5,
        "runs": 12,
    }
    answer = {"unit": "sglang-a.service", "elapsed": 41.2, "progress": progress}

    assert _benchmark.progress_line("ct200", answer, 6) == (
        "ct200  | sglang-a.service | C=8 repeat 2 | run 6 of 12 | measured | 17/64 finished | 1 failed | 812 tok/s | acceptance 3.21 | 41 s"
    )
    progress.update(acceptance=None, failed=0, still_for=42.0, phase="warm_up", repeat=0, runs_done=12)
    assert _benchmark.progress_line("ct200", answer) == (
        "ct200 | sglang-a.service | C=8 | run 12 of 12 | warm up | 17/64 finished | 812 tok/s | nothing has moved for 42 s | 41 s"
    )
    assert _benchmark.progress_line("h", {"unit": "u", "elapsed": 0}) == "h | u | starting | 0 s"


def level(concurrency: int, speed: float, *, valid: bool = True) -> dict[str, t.Any]:
    def figure(value: float) -> dict[str, t.Any]:
        return {"median": value, "mad": 0.0, "cv": 0.01}

    names = ("concurrency", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "steady_output_tok_s")
    summary: dict[str, t.Any] = {
        **{name: figure(float(concurrency)) for name in names},
        "output_tok_s": figure(speed),
        "user_tok_s": figure(speed / concurrency),
        "acceptance_length": None,
    }
    reasons = [] if valid else [{"rule": "foreign_requests", "detail": "others ran", "repeat": 2}]
    return {
        "concurrency": concurrency,
        "valid": valid,
        "reasons": reasons,
        "flags": [],
        "summary": summary,
        "repeats": [{}, {}],
    }


def record(workload: dict[str, t.Any], *levels: dict[str, t.Any], **arguments: t.Any) -> dict[str, t.Any]:
    return {
        "host": {"name": "ct200", "gpus": [], "cpu": {"model": "EPYC"}},
        "engine": {"version": "0.5.23"},
        "arguments": {"model_path": "/models/k", "speculative_algorithm": None, **arguments},
        "invocation": {"unit": "sglang-a.service"},
        "workload": _workload.parse(workload, "w").as_dict(),
        "results": {"levels": list(levels), "speculative": False},
    }


def test_speed_ups() -> None:
    baseline = record(NATURAL, level(1, 100.0), level(4, 200.0, valid=False))
    results = {"levels": [level(1, 250.0), level(4, 300.0), level(8, 400.0)]}
    said = _benchmark.add_speedups(results, _workload.parse(NATURAL, "w").as_dict(), baseline)

    assert results["levels"][0]["speedup"] == {"output": 2.5, "user": 2.5}
    assert "speedup" not in results["levels"][1]
    assert [text.partition(":")[0] for text in said] == ["no speed-up for 4 in flight", "no speed-up for 8 in flight"]


def test_levels_and_repeats_of_a_baseline_may_differ_and_its_prompts_may_not() -> None:
    ours = _workload.parse({**NATURAL, "levels": [1], "repeats": 9}, "w").as_dict()
    assert _benchmark.add_speedups({"levels": []}, ours, record(NATURAL, level(1, 1.0))) == []
    with pytest.raises(WorkloadError, match=r"another workload \(temperature differ\)"):
        _benchmark.add_speedups({"levels": []}, {**ours, "temperature": 1.0}, record(NATURAL))
    with pytest.raises(WorkloadError, match="dataset_sha256"):
        _benchmark.add_speedups({"levels": []}, {**ours, "dataset_sha256": "1"}, record(NATURAL))


def test_a_baseline_that_speculates_is_told() -> None:
    baseline = record(NATURAL)
    baseline["results"]["speculative"] = True

    assert _benchmark.add_speedups({"levels": []}, baseline["workload"], baseline) == [
        "the baseline was measured with speculation, too"
    ]


def test_the_table_shows_what_figures_depend_on() -> None:
    text = _benchmark.table(record(NATURAL, level(1, 100.0), level(4, 222.25, valid=False)))

    assert text.splitlines() == [
        "sglang-a.service on ct200: own",
        "C  in flight  tok/s  steady     cv  user tok/s  TTFT p50 / p99 ms  TPOT p50 / p99 ms  AL  valid",
        "1       1.00  100.0     1.0  1.0 %       100.0              1 / 1        1.00 / 1.00   -    yes",
        "4       4.00  222.2     4.0  1.0 %        55.6              4 / 4        4.00 / 4.00   -     NO",
        "✘ C=4 foreign_requests (repeat 2): others ran",
        "holds for: real prompts (own.jsonl), each with its own limit, end-of-text respected;",
        "  temperature 0; thinking off; prefix cache flushed before each run;",
        "  SGLang 0.5.23; /models/k; speculation none; EPYC",
        "  AL = 1 + correct drafts / verify steps; user tok/s = 1 / median TPOT; median of 2 repeats",
    ]


def test_the_table_of_a_speed_up() -> None:
    fast = copy.deepcopy(level(2, 100.0))
    fast["speedup"] = {"output": 1.5}
    fast["summary"]["acceptance_length"] = {"median": 3.4, "mad": 0.0, "cv": None}
    fast["flags"] = [{"flag": "reduced", "detail": "8 requests"}]
    shown = record(
        FIXED,
        fast,
        speculative_algorithm="DFLASH",
        speculative_num_draft_tokens=8,
        speculative_draft_model_path="/models/d",
        disable_radix_cache=True,
    )
    shown["host"]["gpus"] = [{"name": "B300"}] * 8
    text = _benchmark.table(shown)

    assert "1.50x    yes" in text
    assert " 3.400 " in text
    assert "! C=2 reduced: 8 requests" in text
    assert "100 random tokens in, 50 out, end-of-text ignored" in text
    assert "thinking none, no chat template; prefix cache off" in text
    assert "speculation DFLASH, 8 draft tokens, draft /models/d; 8 x B300" in text


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ({"coding": {}}, "the record of a run of kind 'evaluation'"),
        ({"levels": None}, "holds no levels"),
        ({"levels": [{}]}, "the baseline is damaged: level 1 .KeyError"),
        ({"levels": [None]}, "the baseline is damaged: level 1"),
        ({"levels": [{**level(1, 1.0), "summary": {"output_tok_s": 3}}]}, "the baseline is damaged: level 1"),
        (
            {"levels": [level(1, 1.0), level(4, float("nan"))]},
            "the baseline is damaged: level 2 .ValueError: median nan",
        ),
        ({"levels": [level(1, -1.0)]}, "the baseline is damaged: level 1"),
    ],
)
def test_a_damaged_baseline_is_refused_before_anything_is_measured(results: dict[str, t.Any], says: str) -> None:
    baseline = {**record(NATURAL), "kind": "evaluation", "results": results}
    with pytest.raises(WorkloadError, match=says):
        _benchmark.add_speedups({"levels": []}, _workload.parse(NATURAL, "w").as_dict(), baseline)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, []),
        ({"arguments": {"model_path": "/models/other"}}, ["another model ('/models/k', here '/models/other')"]),
        ({"arguments": {"model_path": "/models/k", "tp_size": 4}}, ["another tp_size (8, here 4)"]),
        ({"engine": {"version": "0.5.10"}}, ["another SGLang ('0.5.23', here '0.5.10')"]),
        ({"host": {"name": "b", "gpus": [{"name": "B300"}]}}, ["another hardware ('EPYC', here ['B300'])"]),
        ({"models": [None]}, ["of what the baseline was measured is not known"]),
    ],
)
def test_a_baseline_of_another_server_is_told(changes: dict[str, t.Any], says: list[str]) -> None:
    baseline = record(NATURAL, level(1, 1.0), tp_size=8)
    parts = {**record(NATURAL, tp_size=8), **changes}
    said = _benchmark.add_speedups({"levels": [], "parts": parts}, baseline["workload"], baseline)

    assert len(said) == len(says)
    assert all(one in text for one, text in zip(says, said, strict=True))
