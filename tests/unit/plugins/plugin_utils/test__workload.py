# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _workload
from ansible_collections.specdec.serving.plugins.plugin_utils._workload import WorkloadError

FIXED: dict[str, t.Any] = {"name": "fixed-1k-1k", "kind": "fixed", "input_length": 1024, "output_length": 1024}
NATURAL: dict[str, t.Any] = {"name": "own", "kind": "natural", "dataset": "own.jsonl"}


def held(count: int, warm_up: int = 0) -> _workload.Prompts:
    return _workload.Prompts(("{}",) * count, "0" * 64, ("{}",) * warm_up)


def prompts(folder: Path, rows: list[t.Any]) -> _workload.Prompts:
    (folder / "prompts").mkdir()
    (folder / "prompts/own.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return _workload.read_prompts(_workload.parse(NATURAL, "w"), folder)


def test_the_rule_is_the_default() -> None:
    found = _workload.parse(FIXED, "w")

    assert (found.requests.least(1), found.requests.least(32), found.warm_up(32)) == (64, 256, 32)
    assert found.requests.steady_state_s == 60
    assert found.reduced == ()
    assert found.levels == (1, 8, 32)
    assert found.repeats == 3


def test_less_than_the_rule_is_labelled() -> None:
    found = _workload.parse({**FIXED, "requests": {"per_user": 2, "minimum": 8, "steady_state_s": 0}}, "w")

    assert found.requests.least(1) == 8
    assert found.reduced == (
        "max(2 x C, 8) requests instead of max(8 x C, 64)",
        "0 s of steady state instead of 60 s",
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "the workload is []"),
        ({**FIXED, "lengths": 3}, "has no 'lengths'"),
        ({**FIXED, "name": "Ab"}, "name is 'Ab'"),
        ({**FIXED, "kind": "random"}, "kind is 'random'"),
        ({**FIXED, "input_length": 0}, "input_length is 0"),
        ({**FIXED, "input_length": True}, "input_length is True"),
        ({**FIXED, "input_length": None}, "needs input_length"),
        ({**FIXED, "dataset": "x.jsonl"}, "dataset is no part"),
        ({**FIXED, "thinking": True}, "thinking is no part"),
        ({**FIXED, "temperature": float("nan")}, "temperature is nan"),
        ({**FIXED, "levels": [0]}, "levels is [0]"),
        ({**FIXED, "levels": []}, "levels is []"),
        ({**FIXED, "levels": ["many"]}, "levels is ['many']"),
        ({**FIXED, "requests": {"users": 1}}, "requests has no 'users'"),
        ({**FIXED, "requests": {"per_user": 0}}, "requests.per_user is 0"),
        ({**FIXED, "warm_up": {"per_user": 0}}, "warm_up.per_user is 0"),
        ({**FIXED, "repeats": 0}, "repeats is 0"),
        ({"name": "n", "kind": "natural"}, "needs dataset"),
        ({**NATURAL, "input_length": 5}, "input_length is no part"),
        ({**NATURAL, "format": "custom"}, "format is 'custom'"),
        ({**NATURAL, "thinking": "on"}, "thinking is 'on'"),
        ({**NATURAL, "category": ["code"]}, "category is ['code']"),
        ({**NATURAL, "warm_up": {"dataset": 3}}, "warm_up.dataset is 3"),
        ({**FIXED, "category": "code"}, "category is no part"),
        ({**FIXED, "warm_up": {"dataset": "x.jsonl"}}, "warm_up.dataset is no part"),
    ],
)
def test_what_is_no_workload(content: t.Any, says: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        _workload.parse(content, "here")

    assert str(caught.value).startswith("here: ")
    assert says in str(caught.value)


def test_levels_are_ascending_and_each_once() -> None:
    assert _workload.parse_levels(["8", 1, 8], "w") == (1, 8)
    assert _workload.parse_levels(4, "w") == (4,)


@pytest.mark.parametrize("warm_up", [{"per_user": 1}, {"per_user": 2, "dataset": "others.jsonl"}])
@pytest.mark.parametrize("content", [FIXED, {**NATURAL, "category": "code", "thinking": True}])
def test_a_record_shows_all_of_it(content: dict[str, t.Any], warm_up: dict[str, t.Any]) -> None:
    if content is FIXED:
        warm_up = {"per_user": warm_up["per_user"]}
    shown = _workload.parse({**content, "warm_up": warm_up}, "w").as_dict()

    assert shown["warm_up"] == warm_up
    assert content.items() <= shown.items()
    assert _workload.parse(shown, "w").as_dict() == shown


def test_named_workloads_and_files(tmp_path: Path) -> None:
    (tmp_path / "fixed-1k-1k.yml").write_text(json.dumps(FIXED), encoding="utf-8")

    assert _workload.load("fixed-1k-1k", named=tmp_path) == (_workload.parse(FIXED, "w"), tmp_path)
    assert _workload.load("./fixed-1k-1k.yml", base=tmp_path)[0].name == "fixed-1k-1k"
    assert _workload.load(FIXED, base=tmp_path) == (_workload.parse(FIXED, "w"), tmp_path)
    with pytest.raises(WorkloadError, match="no workload 'other'; named ones: fixed-1k-1k"):
        _workload.load("other", named=tmp_path)
    with pytest.raises(WorkloadError, match=r"nowhere\.yml cannot be read"):
        _workload.load("nowhere.yml", base=tmp_path)


def test_only_what_belongs_to_a_request_is_sent(tmp_path: Path) -> None:
    ask = {"role": "user", "content": "Hello"}
    found = prompts(
        tmp_path, [{"id": "a-1", "messages": [ask]}, {"messages": [ask], "max_tokens": 7, "temperature": 1}]
    )

    assert [json.loads(line) for line in found.lines] == [
        {"messages": [ask], "max_tokens": 256},
        {"messages": [ask], "max_tokens": 7},
    ]
    assert len(found.sha256) == 64


def test_a_prompt_that_comes_twice_counts_once(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "Hello"}]}

    assert len(prompts(tmp_path, [row, row]).lines) == 1


def test_only_prompts_of_a_category(tmp_path: Path) -> None:
    rows = [{"category": name, "messages": [{"role": "user", "content": name}]} for name in ("code", "chat", "code!")]
    prompts(tmp_path, rows)

    def contents(category: str) -> list[str]:
        found = _workload.read_prompts(_workload.parse({**NATURAL, "category": category}, "w"), tmp_path)
        return [json.loads(line)["messages"][0]["content"] for line in found.lines]

    assert contents("code") == ["code"]
    with pytest.raises(
        WorkloadError, match=r"own\.jsonl holds no prompts of category 'maths'; it has chat, code, code!"
    ):
        contents("maths")


def test_a_file_to_warm_up_holds_others(tmp_path: Path) -> None:
    first, second = ({"messages": [{"role": "user", "content": name}], "max_tokens": 9} for name in ("first", "second"))
    prompts(tmp_path, [first])
    workload = _workload.parse({**NATURAL, "warm_up": {"dataset": "others.jsonl"}}, "w")

    (tmp_path / "prompts/others.jsonl").write_text(json.dumps(second), encoding="utf-8")
    found = _workload.read_prompts(workload, tmp_path)
    assert [[json.loads(line) for line in lines] for lines in (found.lines, found.warm_up)] == [[first], [second]]

    (tmp_path / "prompts/others.jsonl").write_text(json.dumps(second) + "\n" + json.dumps(first), encoding="utf-8")
    with pytest.raises(WorkloadError, match=r"1 prompts of others\.jsonl are in own\.jsonl, too"):
        _workload.read_prompts(workload, tmp_path)


def test_any_locale_can_read_what_is_sent(tmp_path: Path) -> None:
    text = "Gr\u00fc\u00dfe \u2028 \U0001f44d"
    (tmp_path / "prompts").mkdir()
    row = json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False)
    # As some editors save it.
    (tmp_path / "prompts/own.jsonl").write_text(row + "\r\n", encoding="utf-8-sig", newline="")
    found = _workload.read_prompts(_workload.parse(NATURAL, "w"), tmp_path)

    assert len(found.lines) == 1
    assert found.lines[0].isascii()
    assert json.loads(found.lines[0])["messages"][0]["content"] == text


@pytest.mark.parametrize(
    ("content", "given"),
    [
        ({}, {}),
        ({"thinking_argument": "thinking"}, {}),
        ({"thinking": False}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": True, "thinking_argument": "reason"}, {"reason": True}),
    ],
)
def test_what_the_chat_template_is_given(content: dict[str, t.Any], given: dict[str, bool]) -> None:
    assert _workload.parse({**NATURAL, **content}, "w").template_arguments == given


@pytest.mark.parametrize("row", [{}, {"messages": []}, {"messages": ["Hello"]}, {"messages": [{"role": "user"}]}, 3])
def test_a_wrong_line_is_named(tmp_path: Path, row: t.Any) -> None:
    with pytest.raises(WorkloadError, match=r"own\.jsonl:1: messages must be"):
        prompts(tmp_path, [row])


def test_speed_bench(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    path.write_text('{"category": "mixed", "turns": ["first", "second"]}\n\n', encoding="utf-8")
    workload = _workload.parse({**NATURAL, "dataset": str(path), "format": "speed-bench"}, "w")

    assert [json.loads(line) for line in _workload.read_prompts(workload, tmp_path).lines] == [
        {"messages": [{"role": "user", "content": "first"}], "max_tokens": 512}
    ]


def test_more_prompts_than_the_file_holds() -> None:
    workload = _workload.parse(NATURAL, "w")

    _workload.check_prompts(workload, [32], held(256 + 32))
    with pytest.raises(
        WorkloadError, match=r"32 in flight need 256 prompts and 32 others to warm up, and own\.jsonl holds 287"
    ):
        _workload.check_prompts(workload, [1, 32], held(287))


def test_more_prompts_than_the_files_hold() -> None:
    workload = _workload.parse({**NATURAL, "category": "code", "warm_up": {"dataset": "others.jsonl"}}, "w")

    _workload.check_prompts(workload, [32], held(256, 32))
    with pytest.raises(
        WorkloadError, match=r"32 in flight need 256 prompts, and own\.jsonl holds 255 distinct ones of category code"
    ):
        _workload.check_prompts(workload, [32], held(255, 32))
    with pytest.raises(
        WorkloadError,
        match=r"32 in flight need 32 prompts to warm up, and others\.jsonl holds 31 distinct ones of category",
    ):
        _workload.check_prompts(workload, [32], held(256, 31))


def test_random_tokens_with_speculation_warn() -> None:
    assert "random tokens" in _workload.warnings(_workload.parse(FIXED, "w"), speculative=True)[0]
    assert _workload.warnings(_workload.parse(FIXED, "w"), speculative=False) == []
    assert _workload.warnings(_workload.parse(NATURAL, "w"), speculative=True) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"repeats": 10**9}, "repeats is 1000000000; give a whole number from 1 to 1000"),
        ({"input_length": 10**30}, "input_length is 1"),
        ({"seed": 2**32}, "seed is 4294967296"),
        ({"requests": {"minimum": 10**12}}, r"requests.minimum is 1000000000000"),
        ({"requests": {"steady_state_s": 1e12}}, r"requests.steady_state_s is 1000000000000"),
        ({"requests": []}, r"requests is \[\]"),
        ({"requests": 0}, "requests is 0"),
        ({"warm_up": False}, "warm_up is False"),
        ({"warm_up": {"per_user": 10**9}}, "warm_up.per_user is 1000000000"),
        ({"levels": "1_0"}, "levels is '1_0'"),
        ({"name": "x" * 100_000}, r"name is 'xxx.{100,130}\.\.\.; give"),
        ({"kind": "natural", "input_length": None, "dataset": ""}, "needs dataset"),
    ],
)
def test_what_no_workload_may_ask_for_is_told_in_few_words(changes: dict[str, t.Any], says: str) -> None:
    with pytest.raises(WorkloadError, match=says) as caught:
        _workload.parse({**FIXED, **changes}, "w")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[" * 20_000, "no YAML .RecursionError"),
        ("a: !!bool word", "no YAML .KeyError"),
        ("a: !!timestamp word", "no YAML .AttributeError"),
        ("\0", "cannot be read"),
        ("\ufeff", "the workload is None"),
    ],
)
def test_a_file_that_is_no_workload(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "w.yml").write_text(content, encoding="utf-8")
    with pytest.raises(WorkloadError, match=rf"w\.yml.*{says}"):
        _workload.load("./w.yml", base=tmp_path)


def test_a_workload_that_is_neither_name_nor_path_nor_mapping() -> None:
    with pytest.raises(WorkloadError, match=r"workload is \['smoke'\]; give the name"):
        _workload.load(["smoke"])


def test_a_workload_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "w.yml").write_text(json.dumps({**NATURAL, "dataset": "~/own.jsonl"}), encoding="utf-8")
    (tmp_path / "own.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\r\n', encoding="utf-8-sig")

    workload, folder = _workload.load("~/w.yml", base=Path("/"))
    assert len(_workload.read_prompts(workload, folder).lines) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[" * 100_000, "own.jsonl:1: no JSON"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "own.jsonl:1: half a character"),
        ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1e3}', "max_tokens is 1000.0"),
        ('{"messages": [{"role": "user", "content": "x"}], "max_tokens": 9999999999}', "max_tokens is 9999999999"),
    ],
)
def test_a_prompt_that_no_server_takes(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/own.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(WorkloadError, match=says):
        _workload.read_prompts(_workload.parse(NATURAL, "w"), tmp_path)


def test_a_key_that_stands_twice_is_told(tmp_path: Path) -> None:
    (tmp_path / "w.yml").write_text("name: f\nkind: fixed\nlevels: [1]\nlevels: [2]\n", encoding="utf-8")
    with pytest.raises(WorkloadError, match=r"'levels' stands here a second time; keep one of them\s+in .*, line 4"):
        _workload.load("./w.yml", base=tmp_path)
