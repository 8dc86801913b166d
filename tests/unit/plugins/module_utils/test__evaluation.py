# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import json
import os
import stat
import threading
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _evaluation
from ansible_collections.specdec.serving.plugins.module_utils._evaluation import (
    Evaluation,
    EvaluationError,
    Plan,
    Spool,
    failure,
    judge_answer,
)
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_client import Answer, Asked, AskError, Server
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp
from ansible_collections.specdec.serving.plugins.module_utils._parity import Generation
from ansible_collections.specdec.serving.plugins.module_utils._problems import Problem
from ansible_collections.specdec.serving.plugins.module_utils._program_sandbox import Judgement, SandboxError
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

UNIT = "sglang-x.service"
PROBLEMS = [
    Problem(f"t/{number}", f"def f{number}(x):\n", f"f{number}", "def check(candidate):\n    pass\n", difficulty="easy")
    for number in range(6)
]


def good(problem: Problem) -> str:
    return f"```python\ndef {problem.entry_point}(x):\n    return 'right'\n```"


def execute(program: str) -> Judgement:
    return Judgement("passed" if "'right'" in program else "wrong_answer", "", 0.1)


@pytest.mark.parametrize(
    ("text", "reason", "verdict", "detail"),
    [
        (good(PROBLEMS[0]), "stop", "passed", ""),
        (good(PROBLEMS[0]).replace("right", "wrong"), "stop", "wrong_answer", ""),
        ("No.", "stop", "no_code", ""),
        ("", "stop", "no_code", ""),
        ("I begin with", "length", "truncated", ""),
        # The code was complete before the limit.
        (good(PROBLEMS[0]) + "\nIt works since", "length", "passed", ""),
        (good(PROBLEMS[0]).replace("right", "wrong"), "length", "truncated", "wrong_answer"),
    ],
)
def test_the_verdict_on_an_answer(text: str, reason: str, verdict: str, detail: str) -> None:
    outcome, _code = judge_answer(PROBLEMS[0], Answer(text, reason), mode="chat", execute=execute)
    assert (outcome.verdict, outcome.detail) == (verdict, detail)


def test_an_answer_of_thinking_alone_says_so() -> None:
    answer = Answer("", "length", reasoning_characters=900, reasoning_tail=good(PROBLEMS[0]))
    outcome, code = judge_answer(PROBLEMS[0], answer, mode="chat", execute=execute)
    assert (outcome.verdict, code) == ("truncated", "")
    assert outcome.detail == "nothing but thinking; raise max_tokens"


@pytest.mark.parametrize(
    "answer", [Answer("ok. " + "again " * 300, "length"), Answer("", "length", reasoning_tail="hm. " * 300)]
)
def test_a_loop_is_noticed(answer: Answer) -> None:
    assert judge_answer(PROBLEMS[0], answer, mode="chat", execute=execute)[0].loop


class World:
    """A server, a sandbox, a unit and clocks that tests steer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.info: dict[str, t.Any] = {"version": "0.5.23", "attention_backend": "triton"}
        self.state = UnitState(id=UNIT, active_state="active", sub_state="running", invocation_id="a" * 32, main_pid=7)
        self.answers: dict[str, t.Any] = {problem.task_id: good(problem) for problem in PROBLEMS}
        self.asked: list[str] = []
        self.generated: list[tuple[str, bool]] = []
        self.tokens: dict[str, list[int]] = {}
        self.flushes = 0
        self.others = 0
        self.proved = 0
        self.way_out = ""
        self.gone = False
        self.stop = threading.Event()
        self.on_ask: t.Callable[[], None] = lambda: None

    # The client
    def server(self, model: str) -> Server:
        return Server(model or "kimi", 0, self.info)

    def answer(self, problem: Problem, _server: Server, _asked: Asked, _limit: int) -> Answer:
        self.asked.append(problem.task_id)
        self.on_ask()
        found = self.answers[problem.task_id]
        if isinstance(found, Exception):
            raise found
        return Answer(found, "stop", 5, 10, 0, 0.5)

    def flush(self) -> bool:
        self.flushes += 1
        return True

    def running(self) -> int:
        return self.others

    def generate(self, prompt: str, count: int, *, top: bool) -> Generation:
        self.generated.append((prompt, top))
        self.on_ask()
        ids = self.tokens.get(prompt) or list(range(count))
        return Generation(tuple(ids), tuple(((token, -0.1), (token + 50, -3.0)) for token in ids) if top else ())

    # The sandbox
    def prove(self) -> None:
        self.proved += 1
        if self.way_out:
            raise SandboxError(self.way_out)

    def run(self, program: str) -> Judgement:
        return execute(program)

    def advance(self, run: str = "r1", **changes: t.Any) -> dict[str, t.Any]:
        plan = Plan(UNIT, **{"concurrency": 2, "parity_tokens": 4, "parity_prompts": 3, **changes})
        self.stop.clear()
        with Spool(_evaluation.run_folder(str(self.folder), UNIT, run), keep=2) as spool:
            evaluation = Evaluation(
                plan,
                PROBLEMS,
                client=t.cast(t.Any, self),
                sandbox=t.cast(t.Any, self),
                spool=spool,
                state=lambda: self.state,
                stop=self.stop,
                monotonic=lambda: self.now,
                realtime=lambda: self.now,
                listener_gone=lambda: self.gone,
            )
            return evaluation.advance()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_problem_is_asked_and_judged(world: World) -> None:
    world.answers["t/1"] = good(PROBLEMS[1]).replace("right", "wrong")
    world.answers["t/2"] = "Sorry."
    result = world.advance()
    assert result["finished"] is True
    assert sorted(world.asked) == [problem.task_id for problem in PROBLEMS]
    assert (result["coding"]["passed"], result["coding"]["problems"]) == (4, 6)
    assert [one["task_id"] for one in result["outcomes"]] == [problem.task_id for problem in PROBLEMS]
    assert result["coding"]["verdicts"]["no_code"] == 1
    assert result["invocation_id"] == "a" * 32
    assert world.proved == 1
    assert "parity" not in result


def test_answers_are_kept_for_root_alone(world: World) -> None:
    folder = Path(world.advance()["folder"])
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["task_id"] for line in lines} == {problem.task_id for problem in PROBLEMS}
    assert "return 'right'" in lines[0]["code"]
    assert "```python" in lines[0]["answer"]
    assert stat.S_IMODE((folder / "answers.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_slice_begins_nothing_new_once_it_is_over_and_the_next_goes_on(world: World) -> None:
    def pass_time() -> None:
        world.now += 10

    world.on_ask = pass_time
    first = world.advance(slice_s=15, concurrency=1)
    assert first["finished"] is False
    assert (first["phase"], first["done"], first["total"], first["passed"]) == ("coding", 2, 6, 2)
    second = world.advance(slice_s=15, concurrency=1)
    assert (second["done"], second["elapsed"]) == (4, 40.0)
    third = world.advance(slice_s=15, concurrency=1)
    assert third["finished"] is True
    # None was asked twice, and the sandbox proved itself once.
    assert len(world.asked) == len(set(world.asked)) == 6
    assert world.proved == 1


def test_an_answer_of_a_slice_whose_connection_broke_counts(world: World) -> None:
    world.advance(slice_s=0, concurrency=1)
    folder = Path(_evaluation.run_folder(str(world.folder), UNIT, "r1"))
    line = {"task_id": "t/0", "verdict": "passed", "difficulty": "easy"}
    # The second line was being written when the module was ended.
    (folder / "answers.jsonl").write_text(json.dumps(line) + "\n" + '{"task_id": "t/1", "verd', encoding="utf-8")
    result = world.advance()
    assert result["finished"] is True
    assert "t/0" not in world.asked
    assert "t/1" in world.asked


def test_a_server_that_was_restarted_is_another_one(world: World) -> None:
    world.advance(slice_s=0)
    world.state = dataclasses.replace(world.state, invocation_id="b" * 32)
    with pytest.raises(EvaluationError, match=r"is not the start any more .* nothing of it counts"):
        world.advance()


def test_a_server_that_dies_in_the_middle_explains_the_lost_connection(world: World) -> None:
    def die() -> None:
        world.state = UnitState(
            id=UNIT, active_state="failed", invocation_id="a" * 32, exec_main_code=2, exec_main_status=9
        )

    world.on_ask = die
    world.answers = dict.fromkeys(world.answers, AskError("connection refused"))
    with pytest.raises(EvaluationError, match="killed by signal 9"):
        world.advance()


def test_a_request_that_fails_ends_the_run(world: World) -> None:
    world.answers["t/0"] = AskError("answered with 400")
    with pytest.raises(AskError, match="answered with 400"):
        world.advance(concurrency=1)
    assert world.asked == ["t/0"]


def test_a_defect_in_a_thread_is_not_swallowed(world: World) -> None:
    world.answers["t/3"] = ZeroDivisionError("ours")
    with pytest.raises(ZeroDivisionError):
        world.advance()


def test_a_sandbox_that_does_not_hold_ends_it_before_anything_is_asked(world: World) -> None:
    world.way_out = "it can read /etc/shadow"
    with pytest.raises(SandboxError):
        world.advance()
    assert world.asked == []


def test_a_unit_that_does_not_run_is_refused(world: World) -> None:
    world.state = UnitState(id=UNIT, active_state="inactive", sub_state="dead")
    with pytest.raises(EvaluationError, match=r"sglang-x\.service is inactive \(dead\)"):
        world.advance()


def test_it_ends_when_nobody_listens(world: World) -> None:
    released = threading.Event()

    def hang() -> None:
        world.gone = True
        assert world.stop.wait(30), "the requests in flight were not ended"
        released.set()

    world.on_ask = hang
    with pytest.raises(HangUp):
        world.advance(concurrency=1)
    assert released.is_set()
    assert len(world.asked) == 1


def test_the_timeout_counts_over_slices(world: World) -> None:
    def pass_time() -> None:
        world.now += 40

    world.on_ask = pass_time
    world.advance(slice_s=30, concurrency=1, timeout=100.0)
    with pytest.raises(EvaluationError, match=r"not finished within timeout 100: coding has 3 of 6"):
        world.advance(slice_s=600, concurrency=1, timeout=100.0)


def baseline_path(world: World) -> str:
    return str(world.folder / "parity" / "b.json")


def record(world: World, **changes: t.Any) -> dict[str, t.Any]:
    return world.advance("r0", coding=False, parity="auto", baseline=baseline_path(world), **changes)


def compare(world: World, **changes: t.Any) -> dict[str, t.Any]:
    world.info["speculative_algorithm"] = "DFLASH"
    return world.advance("r2", coding=False, parity="auto", baseline=baseline_path(world), **changes)


def test_a_server_without_speculation_records_twice(world: World) -> None:
    result = record(world)
    assert result["finished"] is True
    assert result["parity"]["mode"] == "record"
    assert result["parity"]["floor"]["equal"] == 3
    # Log-probabilities in the first pass only; the cache is flushed before each.
    assert [top for _prompt, top in world.generated] == [True] * 3 + [False] * 3
    assert world.flushes == 2
    assert stat.S_IMODE(os.stat(baseline_path(world)).st_mode) == 0o600
    assert world.asked == []
    assert "coding" not in result


def test_a_speculating_server_is_compared(world: World) -> None:
    record(world)
    result = compare(world)
    assert result["parity"]["mode"] == "compare"
    assert (result["parity"]["passed"], result["parity"]["equal"]) == (True, 3)
    assert failure(Plan(UNIT), result) == ""


def test_a_divergence_fails_the_task(world: World) -> None:
    record(world)
    world.tokens[PROBLEMS[1].prompt] = [0, 1, 77, 3]
    result = compare(world)
    (found,) = result["parity"]["differences"]
    assert (found["prompt"], found["at"], found["kind"]) == (1, 2, "mismatch")
    assert failure(Plan(UNIT), result).startswith("NO parity: 2 of 3 equal")


def test_parity_goes_on_in_the_next_slice(world: World) -> None:
    def pass_time() -> None:
        world.now += 10

    world.on_ask = pass_time
    results = [record(world, slice_s=15.0) for _number in range(3)]
    assert [result["finished"] for result in results] == [False, False, True]
    assert [(result["phase"], result["done"]) for result in results[:2]] == [
        ("baseline, first pass", 2),
        ("baseline, second pass", 1),
    ]
    assert len(world.generated) == 6


def test_a_baseline_of_a_speculating_server_is_refused(world: World) -> None:
    world.info["speculative_algorithm"] = "DFLASH"
    with pytest.raises(EvaluationError, match="recorded without speculation, and this server runs DFLASH"):
        world.advance(coding=False, parity="record", baseline=baseline_path(world))


@pytest.mark.parametrize("changes", [{"parity_tokens": 5}, {"parity_prompts": 2}])
def test_a_baseline_of_something_else_is_refused(world: World, changes: dict[str, t.Any]) -> None:
    record(world)
    with pytest.raises(EvaluationError, match="record it again"):
        compare(world, **changes)
    assert len(world.generated) == 6


def test_a_missing_baseline_is_told_before_anything_is_generated(world: World) -> None:
    with pytest.raises(EvaluationError, match="record it first"):
        compare(world)
    assert world.generated == []


def test_traffic_of_others_is_told(world: World) -> None:
    world.others = 3
    notices = record(world)["notices"]
    assert any("3 requests of others" in notice for notice in notices)


def test_old_runs_are_removed(world: World) -> None:
    for number in range(4):
        world.advance(f"20260101T00000{number}Z-aaaaaa")
    assert sorted(os.listdir(world.folder / "evaluations" / UNIT)) == [
        "20260101T000002Z-aaaaaa",
        "20260101T000003Z-aaaaaa",
    ]


@pytest.mark.parametrize("run", ["", "../x", "a/b", "x" * 65])
def test_a_run_needs_a_name_that_is_one(run: str) -> None:
    with pytest.raises(EvaluationError, match="is no name of a run"):
        _evaluation.run_folder("/var/lib", UNIT, run)


def test_a_share_below_the_minimum_fails_the_task(world: World) -> None:
    world.answers["t/1"] = "Sorry."
    result = world.advance()
    assert failure(Plan(UNIT, minimum=0.8), result) == ""
    assert failure(Plan(UNIT, minimum=0.9), result) == "pass@1 0.833 is below minimum 0.9"


def test_the_parts_of_the_record(world: World, tmp_path: Path) -> None:
    world.info.update(
        model_path="/m", speculative_draft_model_path="/d", api_key="sk-secret-1", speculative_algorithm=None
    )
    result = world.advance(coding=True, parity="record", baseline=baseline_path(world))
    parts = _evaluation.record_parts(
        result,
        world.info,
        world.state,
        program="/e/bin/python",
        runner=lambda _argv: (1, "", ""),
        secrets=["sk-secret-1"],
    )
    assert parts["workload"]["name"] == "coding-chat-parity-record"
    assert [model["role"] for model in parts["models"]] == ["target", "draft"]
    assert parts["results"]["coding"]["passed"] == 6
    assert parts["results"]["parity"]["mode"] == "record"
    assert "sk-secret-1" not in json.dumps(parts)


def test_an_answer_after_a_line_that_was_cut_is_not_lost(tmp_path: Path) -> None:
    with Spool(str(tmp_path / "r1")) as spool:
        (tmp_path / "r1/answers.jsonl").write_bytes(b'{"a": 1}\n\xff\x00\n{"a":')
        spool.append("answers.jsonl", {"a": 2})
        spool.append("answers.jsonl", {"a": 3})
        assert spool.lines("answers.jsonl") == [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize("kind", ["cut", "pipe", "folder", "binary", "fewer"])
def test_a_damaged_baseline_is_told_before_anything_is_generated(world: World, kind: str) -> None:
    record(world)
    path = Path(baseline_path(world))
    text = path.read_text(encoding="utf-8")
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "fewer":
        value = json.loads(text)
        path.write_text(json.dumps({**value, "generations": value["generations"][:1]}), encoding="utf-8")
    else:
        path.write_bytes(b"\xff\xfe" * 20 if kind == "binary" else text[:-20].encode())
    world.generated.clear()
    with pytest.raises(EvaluationError, match=r"parity_baseline .*record it"):
        compare(world)
    assert world.generated == []


def test_a_place_without_room_for_a_baseline_is_told_before_it_is_made(world: World) -> None:
    Path(baseline_path(world)).mkdir(parents=True)
    with pytest.raises(
        EvaluationError, match=r"parity_baseline cannot be written: .*it is a folder.*nothing was begun"
    ):
        record(world)
    assert world.generated == []
