# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import gzip
import json
import os
import typing as t
from pathlib import Path

import jsonschema
import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _evaluation_options, _parity, _problems, _scores
from ansible_collections.specdec.serving.plugins.module_utils._evaluation import EvaluationError
from ansible_collections.specdec.serving.plugins.module_utils._scores import Outcome
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError
from ansible_collections.specdec.serving.plugins.plugin_utils import _evaluations, _record

OUTCOMES = [
    Outcome("t/1", "passed", difficulty="easy", completion_tokens=50, sandbox_s=0.1),
    Outcome("t/2", "wrong_answer", "AssertionError at: assert f(1) == 2", difficulty="hard", sandbox_s=0.1),
    Outcome("t/3", "truncated", difficulty="hard", loop=True),
]
FLOOR = {"prompts": 24, "equal": 23, "ties": 1, "mismatches": 0, "differences": []}
PARITY = {
    "mode": "compare",
    "passed": False,
    "equal": 22,
    "prompts": 24,
    "ties": 1,
    "mismatches": 1,
    "floor": FLOOR,
    "incomparable": [],
    "differing": ["page_size: 1 when the baseline was recorded, 64 now"],
    "differences": [
        {"prompt": 3, "at": 7, "kind": "tie", "gap": 0.0123, "baseline": 1, "other": 2},
        {"prompt": 9, "at": 70, "kind": "mismatch", "gap": None, "baseline": 1, "other": 3},
    ],
    "max_new_tokens": 128,
    "baseline": "/b.json",
}
ANSWER: dict[str, t.Any] = {
    "elapsed": 12.0,
    "finished": True,
    "coding": _scores.summary(OUTCOMES),
    "outcomes": [vars(outcome) for outcome in OUTCOMES],
    "workload": {
        "problems": 3,
        "digest": "abcd",
        "mode": "chat",
        "thinking": "auto",
        "max_tokens": 4096,
        "temperature": 0,
        "concurrency": 8,
    },
    "parity": {**PARITY, "text": _parity.verdict_text(PARITY)},
    "server": {
        "model": "kimi",
        "version": "0.5.23",
        "speculative_algorithm": "DFLASH",
        "speculative_draft_model_path": "/d",
    },
    "parts": {
        "host": {"kernel": "6.1", "cpu": {"model": "c", "count": 2}, "memory_bytes": 1, "gpus": []},
        "engine": {"path": "/e", "version": "0.5.23", "packages_sha256": ""},
        "models": [],
        "arguments": {"tp_size": 8},
        "invocation": {"unit": "sglang-x.service", "invocation_id": "a" * 32},
        "workload": {"name": "coding-chat"},
        "results": {
            "elapsed": 12.0,
            "coding": _scores.summary(OUTCOMES),
            "outcomes": [vars(outcome) for outcome in OUTCOMES],
            "parity": {**PARITY, "text": "x"},
        },
    },
}


def test_the_problems_of_the_collection_are_handed_over() -> None:
    problems = _problems.parse(_evaluations.content_of({}))
    assert problems == _problems.parse(_evaluations.SHIPPED.read_text(encoding="utf-8"))


def test_a_few_problems_are_of_every_difficulty() -> None:
    problems = _problems.parse(_evaluations.content_of({"limit": "6"}))
    assert [problem.difficulty for problem in problems] == ["easy"] * 2 + ["medium"] * 2 + ["hard"] * 2


def test_a_file_of_users_may_be_packed(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl.gz"
    file.write_bytes(gzip.compress(_evaluations.SHIPPED.read_bytes()))
    assert len(_problems.parse(_evaluations.content_of({"problems": str(file)}))) == 36


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "problems '.*' cannot be read on the controller: No such file"),
        ("{}", "problems: .*mine.jsonl line 1: field 'task_id' is missing"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(content: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        _evaluations.content_of({"problems": str(file)})
    with pytest.raises(ValueError, match="limit 'all' is no whole number"):
        _evaluations.content_of({"limit": "all"})


def test_progress_is_a_line() -> None:
    answer = {"phase": "coding", "done": 7, "total": 36, "passed": 5, "elapsed": 61.2}
    assert _evaluations.progress_line("ct200", {"unit": "x.service"}, answer, 7) == (
        "ct200   | x.service | coding |  7/36 | 5 passed |   61 s"
    )
    answer = {"phase": "parity", "done": 3, "total": 24, "elapsed": 9.0}
    assert _evaluations.progress_line("a", {"unit": "x.service"}, answer).endswith("| parity |  3/24 |    9 s")


def test_the_table_has_intervals_reasons_and_what_they_depend_on() -> None:
    text = _evaluations.table({**ANSWER, "host": "ct200"})
    for part in (
        "sglang-x.service on ct200: 12.0 s",
        "easy     1 of 1    pass@1 1.000  95 % interval 0.20",
        "all      1 of 3    pass@1 0.333",
        "verdicts: passed 1, wrong_answer 1, truncated 1, of these 1 end in a repetition",
        "t/2: wrong_answer: AssertionError",
        "detects breakage, not quality",
        "NO parity: 22 of 24 equal, 1 ties, 1 mismatches; floor: 0 mismatches and 1 ties",
        "prompt 3, token 7: tie, gap 0.0123 nat",
        "prompt 9, token 70: mismatch\n",
        "differing: page_size",
        "coding depends on: problems abcd (3), chat, thinking as its template has it, max_tokens 4096, temperature 0, C 8",
        "parity depends on: 24 prompts, 128 tokens each",
        "both: engine 0.5.23, model kimi, speculation DFLASH with /d",
    ):
        assert part in text, text


def test_a_record_is_written_that_fits_its_schema(tmp_path: Path) -> None:
    arguments = {
        "results_dir": str(tmp_path),
        "api_key": "sk-planted-key-9",
        "readiness": {"state": "ready", "ready": True, "gates": []},
    }
    answer = {**ANSWER, "parts": {**ANSWER["parts"], "arguments": {"seen": "sk-planted-key-9"}}}
    found = _evaluations.completed(answer, arguments, host="ct200", now=1795947300.0)
    record = _record.read(found["record"])
    jsonschema.validate(record, json.loads(_record.SCHEMA_FILE.read_text(encoding="utf-8")))
    assert (record["kind"], record["host"]["name"]) == ("evaluation", "ct200")
    assert "sk-planted-key-9" not in Path(found["record"]).read_text(encoding="utf-8")
    assert found["record"] in found["table"]


@pytest.mark.parametrize(
    "results",
    [
        {},
        {"elapsed": 1.0},
        {"elapsed": 1.0, "coding": {"passed": 1}, "outcomes": []},
        {
            "elapsed": 1.0,
            "parity": {
                "mode": "compare",
                "passed": True,
                "text": "",
                "floor": FLOOR,
                "baseline": "",
                "max_new_tokens": 1,
            },
        },
    ],
)
def test_results_that_lack_something_do_not_fit_the_schema(results: dict[str, t.Any]) -> None:
    schema = json.loads(_record.SCHEMA_FILE.read_text(encoding="utf-8"))
    record = _record.make("evaluation", host="a", parts={**ANSWER["parts"], "results": results}, readiness=None, now=0)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(record, schema)


def test_without_a_folder_there_is_no_record() -> None:
    assert "record" not in _evaluations.completed(ANSWER, {}, host="ct200", now=0)


def options(**changes: t.Any) -> dict[str, t.Any]:
    given = {name: option.get("default") for name, option in _evaluation_options.ARGUMENT_SPEC.items()}
    return {**given, "unit": "sglang-x.service", "port": 30001, **changes}


def test_the_defaults_can_be_used() -> None:
    _evaluation_options.check(options())
    plan = _evaluation_options.plan_from(options())
    assert (plan.timeout, plan.parity, plan.asked.mode) == (3600.0, "off", "chat")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": "x"}, "is no service"),
        ({"port": 0}, "port 0 is out of range: 1 to 65535"),
        ({"concurrency": 0}, "concurrency 0 is out of range"),
        ({"minimum": 75.0}, r"minimum 75\.0 is out of range: 0 to 1"),
        ({"max_tokens": 10}, "max_tokens 10: a function does not fit"),
        ({"mode": "completion", "thinking": "on"}, "has no chat template"),
        ({"parity": "record"}, "needs parity_baseline"),
        ({"parity": "record", "parity_baseline": "b.json"}, "parity_baseline .b.json. is relative"),
        ({"parity_baseline": "/x"}, "without parity does nothing"),
        ({"coding": False}, "nothing to evaluate"),
        ({"timeout": "soon"}, "timeout 'soon'"),
        ({"timeout": "auto"}, "timeout 'auto' is known of starts only"),
    ],
)
def test_options_that_cannot_be_used_are_told(changes: dict[str, t.Any], message: str) -> None:
    with pytest.raises((EvaluationError, SystemdError), match=message):
        _evaluation_options.check(options(**changes))


@pytest.mark.parametrize(
    ("count", "limit", "found"), [(5, 0, [0, 1, 2, 3, 4]), (5, 9, [0, 1, 2, 3, 4]), (6, 3, [0, 2, 4]), (3, 1, [0])]
)
def test_a_part_is_spread_over_the_whole(count: int, limit: int, found: list[int]) -> None:
    assert _evaluation_options.chosen(list(range(count)), limit) == found


@pytest.mark.parametrize("limit", [-1, "many", 1.5, [], True, float("nan")])
def test_a_limit_that_is_no_number_of_problems(limit: t.Any) -> None:
    with pytest.raises(ValueError, match=r"limit .* is no whole number from 0"):
        _evaluations.content_of({"limit": limit})


def test_problems_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (f"{tmp_path}/pipe", str(tmp_path), "~nobody-of-that-name/p.jsonl"):
        with pytest.raises(ValueError, match="cannot be read on the controller"):
            _evaluations.content_of({"problems": path})
