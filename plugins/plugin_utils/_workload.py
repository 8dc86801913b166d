# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a benchmark sends: workloads as data. PRIVATE to the collection.

A workload is a YAML file, ``roles/sglang/files/workloads/NAME.yml`` for the named ones, or a mapping; the README beside those describes its keys.

A level needs its requests and its warm-up as distinct prompts. A file that holds fewer is an error; one that is only too small for
the steady state is used as far as it goes, and the result says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import typing as t
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from ansible_collections.specdec.serving.plugins.plugin_utils import _given_files

FIXED, NATURAL = "fixed", "natural"
#: Where the named workloads lie.
NAMED = Path(__file__).resolve().parents[2] / "roles/sglang/files/workloads"
_DEFAULT_MAX_TOKENS = 256
_OF_NATURAL = ("dataset", "format", "category", "thinking", "thinking_argument")
_THINKING_ARGUMENTS = ("enable_thinking", "thinking")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_MOST_IN_FLIGHT = 4096
#: A workload is a few lines.
_WORKLOAD_BYTES = 1 << 20
_SHOWN = 120
_MESSAGE = 1000
#: More than any context.
_MOST_TOKENS = 100_000_000


class WorkloadError(ValueError):
    """A workload that cannot be used; the message says where and what to do."""


@dataclasses.dataclass(frozen=True)
class Requests:
    """How many requests a level sends; the defaults are the rule, other values are labelled."""

    per_user: int = 8
    minimum: int = 64
    steady_state_s: float = 60.0

    def least(self, concurrency: int) -> int:
        return max(self.per_user * concurrency, self.minimum)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A checked workload; see the module for what the fields mean."""

    name: str
    kind: str
    description: str = ""
    input_length: int | None = None
    output_length: int | None = None
    dataset: str | None = None
    format: str = "openai"
    category: str | None = None
    thinking: bool | None = None
    thinking_argument: str | None = None
    temperature: float = 0.0
    levels: tuple[int, ...] = (1, 8, 32)
    requests: Requests = Requests()
    warm_up_per_user: int = 1
    warm_up_dataset: str | None = None
    repeats: int = 3
    seed: int = 1

    @property
    def reduced(self) -> tuple[str, ...]:
        """In which ways it asks for less than the rule, for the label."""
        rule = Requests()
        said = []
        if self.requests.per_user < rule.per_user or self.requests.minimum < rule.minimum:
            said.append(
                f"max({self.requests.per_user} x C, {self.requests.minimum}) requests instead of max(8 x C, 64)"
            )
        if self.requests.steady_state_s < rule.steady_state_s:
            said.append(f"{self.requests.steady_state_s:g} s of steady state instead of 60 s")
        return tuple(said)

    @property
    def template_arguments(self) -> dict[str, bool]:
        """What the chat template is given."""
        if self.thinking is None:
            return {}
        names = (self.thinking_argument,) if self.thinking_argument else _THINKING_ARGUMENTS
        return dict.fromkeys(names, self.thinking)

    def warm_up(self, concurrency: int) -> int:
        """Requests that are thrown away before a level."""
        return self.warm_up_per_user * concurrency

    def as_dict(self) -> dict[str, t.Any]:
        """The workload as a record shows it."""
        found = dataclasses.asdict(self)
        found["levels"] = list(self.levels)
        found["warm_up"] = {"per_user": found.pop("warm_up_per_user")}
        dataset = found.pop("warm_up_dataset")
        if dataset is not None:
            found["warm_up"]["dataset"] = dataset
        for key in _OF_NATURAL if self.kind == FIXED else ("input_length",):
            del found[key]
        return found


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The prompts of a workload, ready to be sent: lines of the client's ``openai`` format; ``sha256`` of the file as it is.

    ``warm_up``: those of a file of their own, or none.
    """

    lines: tuple[str, ...]
    sha256: str
    warm_up: tuple[str, ...] = ()


def _shown(value: t.Any) -> str:
    """A value in a message; what somebody pasted there by accident may be long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _number(
    where: str, key: str, value: t.Any, *, least: float, most: float = float("inf"), whole: bool = True
) -> t.Any:
    usable = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not usable or not least <= value <= most or value == float("inf"):
        limits = f"of at least {least:g}" if most == float("inf") else f"from {least:g} to {most:.0f}"
        raise WorkloadError(f"{where}: {key} is {_shown(value)}; give a {'whole ' * whole}number {limits}")
    return value


def _text(where: str, key: str, value: t.Any) -> str:
    if not isinstance(value, str):
        raise WorkloadError(f"{where}: {key} is {_shown(value)}; give a text")
    return str(value)


def _part(where: str, key: str, value: t.Any, keys: Sequence[str]) -> Mapping[str, t.Any]:
    if not isinstance(value, Mapping):
        raise WorkloadError(f"{where}: {key} is {_shown(value)}; give a mapping of {', '.join(keys)}")
    unknown = sorted(set(map(str, value)) - set(keys))
    if unknown:
        raise WorkloadError(f"{where}: {key} has no {_shown(unknown[0])}; it has {', '.join(keys)}")
    return value


KEYS = (
    *(field.name for field in dataclasses.fields(Workload) if not field.name.startswith("warm_up_")),
    "warm_up",
)
_OF_RULE: Mapping[str, dict[str, t.Any]] = {
    "per_user": {"least": 1, "most": 10_000},
    "minimum": {"least": 1, "most": 10_000_000},
    "steady_state_s": {"least": 0, "most": 86400, "whole": False},
}


def parse(content: t.Any, where: str) -> Workload:
    """A workload from the content of its file.

    :param where: what the messages call it.
    :raises WorkloadError: for anything that is no workload.
    """
    content = _part(where, "the workload", content, KEYS)
    name, kind = content.get("name"), content.get("kind")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WorkloadError(f"{where}: name is {_shown(name)}; give one of 1 to 64 of a-z, 0-9 and -")
    if kind not in (FIXED, NATURAL):
        raise WorkloadError(f"{where}: kind is {_shown(kind)}; give fixed or natural")
    for key in _OF_NATURAL if kind == FIXED else ("input_length",):
        if content.get(key) is not None:
            raise WorkloadError(f"{where}: {key} is no part of a workload of kind {kind}; remove it")
    needed = ("input_length", "output_length") if kind == FIXED else ("dataset",)
    for key in needed:
        if content.get(key) in (None, ""):
            raise WorkloadError(f"{where}: a workload of kind {kind} needs {key}")
    found: dict[str, t.Any] = {"name": name, "kind": kind, **_numbers(content, where), **_texts(content, where)}
    if content.get("levels") is not None:
        found["levels"] = parse_levels(content["levels"], where)
    rule = _part(where, "requests", _given(content, "requests"), [f.name for f in dataclasses.fields(Requests)])
    found["requests"] = Requests(
        **{key: _number(where, f"requests.{key}", value, **_OF_RULE[key]) for key, value in rule.items()}
    )
    warm_up = _part(where, "warm_up", _given(content, "warm_up"), ["per_user", "dataset"])
    if "per_user" in warm_up:
        found["warm_up_per_user"] = _number(where, "warm_up.per_user", warm_up["per_user"], least=1, most=10_000)
    if warm_up.get("dataset") is not None:
        if kind == FIXED:
            raise WorkloadError(f"{where}: warm_up.dataset is no part of a workload of kind {kind}; remove it")
        found["warm_up_dataset"] = _text(where, "warm_up.dataset", warm_up["dataset"])
    return Workload(**found)


def _given(content: Mapping[str, t.Any], key: str) -> t.Any:
    value = content.get(key)
    return {} if value is None else value


def _numbers(content: Mapping[str, t.Any], where: str) -> dict[str, t.Any]:
    found = {
        key: _number(where, key, content[key], least=least, most=most)
        for key, least, most in (
            ("input_length", 1, _MOST_TOKENS),
            ("output_length", 1, _MOST_TOKENS),
            ("repeats", 1, 1000),
            # numpy takes no more, and the level adds its number.
            ("seed", 0, 2**32 - 10_000),
        )
        if content.get(key) is not None
    }
    if content.get("temperature") is not None:
        found["temperature"] = float(
            _number(where, "temperature", content["temperature"], least=0, most=100, whole=False)
        )
    return found


def _texts(content: Mapping[str, t.Any], where: str) -> dict[str, t.Any]:
    found: dict[str, t.Any] = {}
    for key in ("description", "dataset", "category", "thinking_argument", "format"):
        if content.get(key) not in (None, ""):
            found[key] = _text(where, key, content[key])
    if found.get("format", "openai") not in ("openai", "speed-bench"):
        raise WorkloadError(f"{where}: format is {_shown(found['format'])}; give openai or speed-bench")
    if content.get("thinking") is not None:
        if not isinstance(content["thinking"], bool):
            raise WorkloadError(f"{where}: thinking is {_shown(content['thinking'])}; give true or false")
        found["thinking"] = content["thinking"]
    return found


def parse_levels(value: t.Any, where: str) -> tuple[int, ...]:
    """Numbers of requests in flight, ascending and each once. Raises WorkloadError."""
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    try:
        # int() alone would take 1_0 for ten.
        levels = [int(str(item)) if re.fullmatch(r"\s*\d+\s*", str(item), re.ASCII) else 0 for item in items]
    except ValueError:
        levels = []
    if not levels or not all(1 <= level <= _MOST_IN_FLIGHT for level in levels):
        raise WorkloadError(
            f"{where}: levels is {_shown(value)}; give numbers of requests in flight, 1 to {_MOST_IN_FLIGHT}"
        )
    return tuple(sorted(set(levels)))


class _Loader(yaml.SafeLoader):
    """Of a key that stands twice, PyYAML takes the second without a word."""

    def construct_mapping(self, node: t.Any, deep: bool = False) -> dict[t.Hashable, t.Any]:
        seen: set[str] = set()
        for key, _value in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} stands here a second time; keep one of them", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def load(name: t.Any, *, named: Path = NAMED, base: Path | None = None) -> tuple[Workload, Path]:
    """A workload by its name, by the path of its file, or as a mapping; and the folder that its dataset is relative to.

    ``base``: what relative paths of a mapping, or of a workload's file, are relative to; default: the current folder.
    """
    base = base or Path.cwd()
    if isinstance(name, Mapping):
        return parse(name, "workload"), base
    if not isinstance(name, (str, int, float)) or isinstance(name, bool):
        raise WorkloadError(f"workload is {_shown(name)}; give the name of one, the path of a file, or a mapping")
    text = str(name)
    if _NAME.fullmatch(text):
        path = named / f"{text}.yml"
        if not path.is_file():
            there = ", ".join(sorted(file.stem for file in named.glob("*.yml"))) or "none"
            raise WorkloadError(
                f"there is no workload {text!r}; named ones: {there}. Or give the path of a file of your own"
            )
    else:
        path = Path(text)
    try:
        path = _given_files.expanded(str(path), base)
        content = yaml.load(_given_files.read(path, _WORKLOAD_BYTES).decode("utf-8-sig"), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise WorkloadError(f"the workload {path} cannot be read: {error}"[:_MESSAGE]) from error
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        # What PyYAML lets through, of explicit tags whose values are none and of nothing but nesting.
        raise WorkloadError(f"the workload {path} cannot be read: no YAML ({type(error).__name__}: {error})") from error
    return parse(content, str(path)), path.parent


def read_prompts(workload: Workload, folder: Path) -> Prompts:
    """The prompts of a natural workload. Raises WorkloadError naming the line that is wrong."""
    lines, sha256 = _read_lines(workload, folder, workload.dataset or "")
    warm_up: tuple[str, ...] = ()
    if workload.warm_up_dataset:
        warm_up = _read_lines(workload, folder, workload.warm_up_dataset)[0]
        both = set(warm_up) & set(lines)
        if both:
            raise WorkloadError(
                f"workload {workload.name}: {len(both)} prompts of {workload.warm_up_dataset} are in {workload.dataset}, too;"
                " warm up with others, since what was seen before is answered faster"
            )
    return Prompts(lines=lines, sha256=sha256, warm_up=warm_up)


def _read_lines(workload: Workload, folder: Path, dataset: str) -> tuple[tuple[str, ...], str]:
    path = Path("prompts/" * ("/" not in dataset) + dataset)
    try:
        path = _given_files.expanded(str(path), folder)
        content = _given_files.read(path)
        # Not splitlines(): the separators of Unicode may stand in a text of JSON.
        lines = content.decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise WorkloadError(
            f"workload {workload.name}: the prompts {path} cannot be read: {error}"[:_MESSAGE]
        ) from error
    read = _openai_line if workload.format == "openai" else _speed_bench_line
    found: list[str] = []
    categories: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"{path}:{number}: no JSON: {error}; it begins with {line[:60]!r}") from error
        request = read(row, f"{path}:{number}")
        if _SURROGATE.search(json.dumps(request, ensure_ascii=False)):
            raise WorkloadError(f"{path}:{number}: half a character (a lone surrogate), which no request can hold")
        categories.add(str(row.get("category")))
        if workload.category in (None, row.get("category")):
            # ASCII: the client opens the file in the encoding of its locale.
            found.append(json.dumps(request))
    # The prefix cache would answer a prompt that comes twice, so each is asked once.
    distinct = tuple(dict.fromkeys(found))
    if not distinct:
        wanted = f" of category {workload.category!r}; it has {', '.join(sorted(categories))}" if categories else ""
        raise WorkloadError(f"{path} holds no prompts{wanted}")
    return distinct, hashlib.sha256(content).hexdigest()


def _is_message(value: t.Any) -> bool:
    return isinstance(value, Mapping) and bool(value.get("role")) and isinstance(value.get("content"), str)


def _openai_line(row: t.Any, where: str) -> dict[str, t.Any]:
    messages = row.get("messages") if isinstance(row, Mapping) else None
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise WorkloadError(f"{where}: messages must be a list of mappings with role and content")
    return {
        "messages": [{"role": str(one["role"]), "content": one["content"]} for one in messages],
        "max_tokens": _number(
            where, "max_tokens", row.get("max_tokens", _DEFAULT_MAX_TOKENS), least=1, most=_MOST_TOKENS
        ),
    }


def _speed_bench_line(row: t.Any, where: str) -> dict[str, t.Any]:
    turns = row.get("turns") if isinstance(row, Mapping) else None
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise WorkloadError(f"{where}: turns must be a list that begins with a text (format speed-bench)")
    return {"messages": [{"role": "user", "content": turns[0]}], "max_tokens": 512}


def check_prompts(workload: Workload, levels: Sequence[int], prompts: Prompts) -> None:
    """Raise WorkloadError when a level asks for more prompts than there are."""
    remedy = "lower levels, or lower requests.per_user and requests.minimum (the result is labelled then)"
    only = f" of category {workload.category}" if workload.category else ""
    held = len(prompts.lines)
    for level in levels:
        least, warm_up = workload.requests.least(level), workload.warm_up(level)
        if prompts.warm_up and warm_up > len(prompts.warm_up):
            raise WorkloadError(
                f"workload {workload.name}: {level} in flight need {warm_up} prompts to warm up, and"
                f" {workload.warm_up_dataset} holds {len(prompts.warm_up)} distinct ones{only}; give a larger file or lower levels"
            )
        others = "" if prompts.warm_up else f" and {warm_up} others to warm up"
        if least + (0 if prompts.warm_up else warm_up) > held:
            raise WorkloadError(
                f"workload {workload.name}: {level} in flight need {least} prompts{others}, and"
                f" {workload.dataset} holds {held} distinct ones{only}; give a larger file, {remedy}"
            )


def warnings(workload: Workload, *, speculative: bool) -> list[str]:
    """What to tell before a workload is run on a server."""
    if workload.kind == FIXED and speculative:
        text = (
            f"workload {workload.name} sends random tokens to a server that speculates: its acceptance says nothing about"
            " real prompts, and so its throughput says little; use a workload of kind natural for both"
        )
        return [text]
    return []


__all__ = (
    "FIXED",
    "KEYS",
    "NAMED",
    "NATURAL",
    "Prompts",
    "Requests",
    "Workload",
    "WorkloadError",
    "check_prompts",
    "load",
    "parse",
    "parse_levels",
    "read_prompts",
    "warnings",
)
