# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import collections
import copy
import gzip
import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _problems
from ansible_collections.specdec.serving.plugins.module_utils._code_extract import Extraction, program
from ansible_collections.specdec.serving.plugins.module_utils._problems import Problem, ProblemsError

SHIPPED = Path(__file__).resolve().parents[4] / "roles/sglang/files/problems/coding.jsonl"
PROBLEMS = _problems.parse(SHIPPED.read_text(encoding="utf-8"), name=SHIPPED.name)


def run(problem: Problem, wrap: t.Callable[[t.Callable[..., t.Any]], t.Callable[..., t.Any]] | None = None) -> None:
    """Run the tests of a problem on its own solution, changed by ``wrap``."""
    names: dict[str, t.Any] = {"__name__": "answer", "wrap": wrap or (lambda function: function)}
    text = program(problem, Extraction(problem.canonical_solution, "completion"))
    text = text.replace(f"\ncheck({problem.entry_point})", f"\ncheck(wrap({problem.entry_point}))")
    exec(compile(text, problem.task_id, "exec"), names)  # our own file


def nothing(_function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    return lambda *_arguments: None


def echo(_function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    return lambda *arguments: arguments[0]


def off_by_one(function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    def shifted(value: t.Any) -> t.Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, (int, float)):
            return value + 1
        if isinstance(value, str):
            return value[:-1] if value else "x"
        if isinstance(value, list):
            return value[:-1] if value else [0]
        if isinstance(value, dict):
            return dict(list(value.items())[:-1]) if value else {"x": []}
        return 0

    return lambda *arguments: shifted(function(*copy.deepcopy(arguments)))


def always_the_same(function: t.Callable[..., t.Any]) -> t.Callable[..., t.Any]:
    first: list[t.Any] = []

    def answer(*arguments: t.Any) -> t.Any:
        if not first:
            first.append(function(*arguments))
        return first[0]

    return answer


WRONG = [nothing, echo, off_by_one, always_the_same]


def test_there_are_enough_of_each_difficulty() -> None:
    found = collections.Counter(problem.difficulty for problem in PROBLEMS)
    assert len(PROBLEMS) >= 30
    assert set(found) == {"easy", "medium", "hard"}
    assert min(found.values()) >= 10
    assert len({problem.entry_point for problem in PROBLEMS}) == len(PROBLEMS)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.entry_point)
def test_the_canonical_solution_passes(problem: Problem) -> None:
    run(problem)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.entry_point)
def test_wrong_solutions_fail(problem: Problem, wrong: t.Any) -> None:
    with pytest.raises(Exception):  # noqa: B017  whatever a wrong answer leads to
        run(problem, wrong)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.entry_point)
def test_the_examples_of_the_prompt_are_true(problem: Problem) -> None:
    import doctest

    names: dict[str, t.Any] = {}
    exec(compile(problem.prompt + problem.canonical_solution, problem.task_id, "exec"), names)  # our own file
    found = doctest.DocTestFinder(recurse=False).find(names[problem.entry_point], problem.entry_point, globs=names)
    assert found[0].examples
    assert doctest.DocTestRunner(verbose=False).run(found[0]).failed == 0


def line(**changes: t.Any) -> str:
    value = {
        "task_id": "t/1",
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "canonical_solution": "    return x\n",
        "test": "def check(candidate):\n    assert candidate(1) == 1\n",
        **changes,
    }
    return json.dumps({name: part for name, part in value.items() if part is not ...})


def test_a_file_of_others_is_read() -> None:
    text = "\n".join([line(), "", line(task_id="t/2", canonical_solution=..., extra=[1])]) + "\n"
    assert [problem.task_id for problem in _problems.parse(text)] == ["t/1", "t/2"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (line(entry_point=...), "x.jsonl line 2: field 'entry_point' is missing"),
        (line(prompt=7), "x.jsonl line 2: field 'prompt' must be text, not 7"),
        (line(test="  "), "x.jsonl line 2: field 'test' is empty"),
        (line(canonical_solution=None), "x.jsonl line 2: field 'canonical_solution' must be text, not null"),
        (line(entry_point="f g"), "x.jsonl line 2: field 'entry_point' 'f g' is no name of a function"),
        (line(task_id="t\n1"), "x.jsonl line 2: field 'task_id' 't\\n1' has signs that cannot be printed"),
        (line(entry_point="g"), "x.jsonl line 2: field 'prompt' does not define 'g', the 'entry_point'"),
        (line(test="assert f(1)"), "x.jsonl line 2: field 'test' does not define 'check(candidate)'"),
        (line(task_id="t/0"), "x.jsonl line 2: field 'task_id' 't/0' is that of line 1 too"),
        ("{", "x.jsonl line 2: no JSON"),
        (line(test="def check(c):\n    \ud800"), "x.jsonl line 2: field 'test' has half a character"),
        ("[1]", "x.jsonl line 2: a JSON object is expected, not list"),
        ("[" * 100000, "x.jsonl line 2: no JSON"),
    ],
)
def test_faults_name_file_line_and_field(bad: str, message: str) -> None:
    with pytest.raises(ProblemsError) as error:
        _problems.parse(line(task_id="t/0") + "\n" + bad, name="x.jsonl")
    assert str(error.value).startswith(message)


def test_all_faults_are_told_at_once_and_not_without_end() -> None:
    with pytest.raises(ProblemsError) as error:
        _problems.parse("{}\n" * 50)
    told = str(error.value).splitlines()
    assert told[0].endswith("line 1: field 'task_id' is missing")
    assert 10 <= len(told) <= 15
    assert told[-1] == "... and maybe more"


def test_an_empty_file_is_a_fault() -> None:
    with pytest.raises(ProblemsError, match="no problem"):
        _problems.parse("\n\n", name="x")


def test_a_packed_file_is_read() -> None:
    assert _problems.decode(gzip.compress(b"caf\xc3\xa9")) == "caf\u00e9"
    assert _problems.decode(b"\xef\xbb\xbfx") == "x"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\n\xff", "x line 2: not UTF-8"),
        (gzip.compress(b"abc")[:-6], "x: it cannot be unpacked"),
        (gzip.compress(b"abc" * 100)[:12] + b"\xff\xfe\xfd" * 9, "x: it cannot be unpacked"),
        (b" " * (_problems.MAX_BYTES + 1), "x: it has more than"),
        (gzip.compress(b" " * (_problems.MAX_BYTES + 1)), "x: it has more than"),
    ],
)
def test_a_file_that_is_none_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProblemsError) as error:
        _problems.decode(data, name="x")
    assert str(error.value).startswith(message)


def test_the_digest_is_of_what_is_asked() -> None:
    first, second = _problems.parse(line()), _problems.parse(line(prompt="def f(y):\n"))
    assert _problems.digest(first) == _problems.digest(_problems.parse(line(extra=1)))
    assert _problems.digest(first) != _problems.digest(second)
