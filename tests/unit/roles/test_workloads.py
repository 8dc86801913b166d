# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The workloads and prompts that ship with the role."""

from __future__ import annotations

import collections
import itertools
import json
import re
import statistics
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _benchmark, _workload

FOLDER = Path(__file__).resolve().parents[3] / "roles/sglang/files/workloads"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yml"))
CATEGORIES = ("chat", "code", "summarise", "reasoning")
FILES = {"natural-mixed": 600, "warm-up": 64}


class Prompt(t.NamedTuple):
    id: str
    category: str
    text: str
    row: dict[str, t.Any]


def read(name: str) -> list[Prompt]:
    lines = (FOLDER / f"prompts/{name}.jsonl").read_bytes().decode("utf-8").split("\n")
    assert lines.pop() == ""
    rows = [json.loads(line) for line in lines]
    return [
        Prompt(row["id"], row["category"], "\n".join(one["content"] for one in row["messages"]), row) for row in rows
    ]


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    """All of them: those that are measured, then those that warm up."""
    return [prompt for name in FILES for prompt in read(name)]


def ninetieth(numbers: list[int]) -> float:
    return statistics.quantiles(numbers, n=10, method="inclusive")[-1]


# Workloads


def test_all_the_named_ones_are_there() -> None:
    assert NAMES == [
        "fixed-1k-1k",
        "fixed-8k-1k",
        "natural-code",
        "natural-mixed",
        "natural-mixed-thinking",
        "smoke",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_can_be_run_at_its_levels(name: str) -> None:
    workload, folder = _workload.load(name)
    prompts = None if workload.kind == _workload.FIXED else _workload.read_prompts(workload, folder)

    plan = _benchmark.plan(workload, prompts)

    assert workload.name == name
    assert workload.description
    assert [level["concurrency"] for level in plan.job["levels"]] == list(workload.levels)
    assert bool(workload.reduced) == (name == "smoke")
    assert f"| `{name}` | {workload.kind} |" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "tokens_in", "tokens_out"), [("fixed-1k-1k", 1024, 1024), ("fixed-8k-1k", 8192, 1024)]
)
def test_names_tell_lengths(name: str, tokens_in: int, tokens_out: int) -> None:
    workload, _ = _workload.load(name)

    assert (workload.kind, workload.input_length, workload.output_length) == ("fixed", tokens_in, tokens_out)


def test_thinking_is_part_of_a_workload() -> None:
    plain, thinks = (_workload.load(name)[0] for name in ("natural-mixed", "natural-mixed-thinking"))

    assert (plain.thinking, thinks.thinking) == (False, True)
    assert plain.dataset == thinks.dataset
    # Nothing of the prompts' own limits: thoughts count.
    assert plain.output_length is None
    assert thinks.output_length == 8192


def test_sixty_four_users_have_enough_prompts() -> None:
    content = _workload.load("natural-mixed")[0].as_dict()
    workload = _workload.parse({**content, "levels": [48, 64]}, "w")

    plan = _benchmark.plan(workload, _workload.read_prompts(workload, FOLDER))

    assert [level["requests"] for level in plan.job["levels"]] == [384, 512]
    too_many = _workload.parse({**content, "levels": [65]}, "w")
    with pytest.raises(
        _workload.WorkloadError, match=r"65 in flight need 65 prompts to warm up, and warm-up\.jsonl holds 64"
    ):
        _benchmark.plan(too_many, _workload.read_prompts(too_many, FOLDER))


def test_code_is_only_code() -> None:
    workload, folder = _workload.load("natural-code")
    found = _workload.read_prompts(workload, folder)

    asked = {prompt.text for prompt in read("natural-mixed") + read("warm-up") if prompt.category == "code"}
    sent = ["\n".join(one["content"] for one in json.loads(line)["messages"]) for line in found.lines + found.warm_up]
    assert set(sent) == asked
    assert (len(found.lines), len(found.warm_up)) == (150, 16)


# Format


@pytest.mark.parametrize(("name", "count"), FILES.items())
def test_format(name: str, count: int) -> None:
    found = read(name)

    assert len(found) == count
    for prompt in found:
        assert list(prompt.row) == ["id", "category", "messages", "max_tokens"]
        assert re.fullmatch(rf"{prompt.category}-\d{{3}}", prompt.id)
        assert prompt.row["max_tokens"] == (1024 if prompt.category == "summarise" else 2048)
        # Some chat templates refuse a system message, others roles that do not take turns.
        roles = [one["role"] for one in prompt.row["messages"]]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
        assert roles[-1] == "user"
        assert all(list(one) == ["role", "content"] for one in prompt.row["messages"])
        assert all(one["content"] == one["content"].strip() != "" for one in prompt.row["messages"])


def as_the_client_reads(path: Path, num_prompts: int) -> list[tuple[list[dict[str, str]], int, dict[str, t.Any]]]:
    """Messages, output length and what else is sent.

    The rules of the dataset ``openai`` in sglang/benchmark/datasets/openai_dataset.py, in 0.5.10 and 0.5.23 the same: lines are read
    in the locale's encoding until there are enough, blank and broken ones are skipped in silence, as are those without messages,
    max_tokens is the output length, and all other keys but three are sent along.
    """
    rows: list[dict[str, t.Any]] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if len(rows) >= num_prompts > 0:
                break
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
    apart = {"messages", "max_tokens", "max_completion_tokens", "model"}
    return [
        (row["messages"], row.get("max_tokens", 256), {key: value for key, value in row.items() if key not in apart})
        for row in rows
        if row.get("messages")
    ]


@pytest.mark.parametrize(("name", "count"), FILES.items())
def test_the_client_reads_it(name: str, count: int) -> None:
    found = as_the_client_reads(FOLDER / f"prompts/{name}.jsonl", 0)

    assert len(found) == count
    assert len(as_the_client_reads(FOLDER / f"prompts/{name}.jsonl", 64)) == 64
    # Sent along by a client that is used alone. Neither release's ChatCompletionRequest has such a field, and it ignores others.
    assert {tuple(others) for _messages, _length, others in found} == {("id", "category")}


def test_the_client_reads_what_the_benchmark_gives_it(tmp_path: Path) -> None:
    workload, folder = _workload.load("natural-mixed")
    files = _benchmark.plan(workload, _workload.read_prompts(workload, folder)).files
    for name, text in files.items():
        # It opens files in the encoding of its locale.
        (tmp_path / name).write_text(text, encoding="ascii")

    measured, warm_up = (as_the_client_reads(tmp_path / name, 0) for name in ("prompts.jsonl", "warm_up.jsonl"))

    assert [messages for messages, _length, _others in measured] == [
        one.row["messages"] for one in read("natural-mixed")
    ]
    assert [messages for messages, _length, _others in warm_up] == [one.row["messages"] for one in read("warm-up")[:32]]
    assert all(others == {} for _messages, _length, others in measured + warm_up)


# What they are like


def test_categories_are_even_in_every_beginning() -> None:
    for name, count in FILES.items():
        categories = [prompt.category for prompt in read(name)]
        for four in range(0, count, 4):
            assert sorted(categories[four : four + 4]) == sorted(CATEGORIES)


def test_ids_are_unique(prompts: list[Prompt]) -> None:
    assert len({prompt.id for prompt in prompts}) == len(prompts)


def test_no_two_begin_alike(prompts: list[Prompt]) -> None:
    texts = [" ".join(prompt.text.lower().split()) for prompt in prompts]

    # The prefix cache keeps pages of tokens. What two requests share here is less than the chat template puts before them.
    assert [begin for begin, count in collections.Counter(text[:32] for text in texts).items() if count > 1] == []
    begin = collections.Counter(tuple(text.split()[:3]) for text in texts)
    assert begin.most_common(1)[0][1] <= 8, begin.most_common(3)


def test_no_two_are_near_duplicates(prompts: list[Prompt]) -> None:
    def grams(text: str) -> set[str]:
        text = " ".join(text.lower().split())
        return {text[at : at + 5] for at in range(len(text) - 4)}

    def words(text: str) -> set[tuple[str, ...]]:
        found = re.findall(r"\w+", text.lower())
        return set(zip(*(found[at:] for at in range(5)), strict=False))

    def jaccard(one: set[t.Any], two: set[t.Any]) -> float:
        common = len(one & two)
        return common / (len(one) + len(two) - common) if common else 0.0

    for kind, limit in ((grams, 0.25), (words, 0.1)):
        sets = [(prompt.id, kind(prompt.text)) for prompt in prompts]
        worst = max((jaccard(a, b), one, two) for (one, a), (two, b) in itertools.combinations(sets, 2))
        assert worst[0] < limit, worst


def test_lengths_are_natural(prompts: list[Prompt], capsys: pytest.CaptureFixture[str]) -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = []
    for category in (*CATEGORIES, "all"):
        lengths = [
            len(prompt.text.split())
            for prompt in prompts[: FILES["natural-mixed"]]
            if category in ("all", prompt.category)
        ]
        table.append(f"| {category} | {statistics.median(lengths):.0f} | {ninetieth(lengths):.0f} | {max(lengths)} |")
    with capsys.disabled():
        print("\nwords of a prompt: median, 90th percentile, longest", *table, sep="\n")

    assert "\n".join(table) in readme
    # Fits a small context together with its answer, even at two characters a token.
    assert max(len(prompt.text) for prompt in prompts) < 4000
    passages = [len(prompt.text) for prompt in prompts if prompt.category == "summarise"]
    assert min(passages) > 400  # those in Chinese and Japanese
    assert sum(length > 900 for length in passages) > 0.97 * len(passages)
    assert sum("```" in prompt.text for prompt in prompts if prompt.category == "code") > 75


def test_several_languages_and_turns(prompts: list[Prompt]) -> None:
    scripts = {
        "Arabic": r"[\u0600-\u06ff]",
        "Chinese": r"[\u4e00-\u9fff]",
        "Cyrillic": r"[\u0400-\u04ff]",
        "Hangul": r"[\uac00-\ud7af]",
        "Kana": r"[\u3040-\u30ff]",
        "Latin with accents": r"[\u00df-\u017f]",
    }
    for script, pattern in scripts.items():
        assert any(len(re.findall(pattern, prompt.text)) > 5 for prompt in prompts), script
    assert sum(len(prompt.row["messages"]) > 1 for prompt in prompts) >= 10


@pytest.mark.parametrize(
    ("what", "pattern", "allowed"),
    [
        ("address of a mailbox", r"[\w.+-]+@(?:[\w-]+\.)+[a-z]{2,}", r".*@example\.(?:com|org|net)|alert@\.service"),
        ("address of a page", r"https?://[^\s/\"'`:]+", r"https?://(?:[\w-]+\.)*example(?:\.com)?|http://127\.0\.0\.1"),
        ("address of a host", r"\b\d{1,3}(?:\.\d{1,3}){3}\b", r"127\.0\.0\.1|0\.0\.0\.0"),
        ("number of a telephone", r"\+\d[\d ()/-]{7,}\d", r"$^"),
        ("number of an account", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,}\b", r"$^"),
        ("key", r"\b(?:sk|ghp|gho|hf|xox[abp]|glpat|AKIA)[-_]?[A-Za-z0-9]{16,}\b", r"$^"),
        ("long random text", r"\b(?=\w*\d)(?=\w*[a-z])[A-Za-z0-9+/]{24,}\b", r"$^"),
        ("private key", r"-----BEGIN", r"$^"),
        ("typographic quote", "[\u2018\u2019\u201c\u201d]", r"$^"),
    ],
)
def test_nothing_that_should_not_be_public(prompts: list[Prompt], what: str, pattern: str, allowed: str) -> None:
    found = [(prompt.id, match) for prompt in prompts for match in re.findall(pattern, prompt.text)]

    assert [hit for hit in found if not re.fullmatch(allowed, hit[1])] == [], what


def test_the_readme_describes_every_key() -> None:
    section = (FOLDER / "README.md").read_text().partition("\n## Keys\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(_workload.KEYS)
