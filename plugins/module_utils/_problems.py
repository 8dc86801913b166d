# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Coding problems in HumanEval's format: one JSON object a line. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import keyword
import re
import typing as t
import zlib

#: A file may have so many bytes, unpacked. HumanEval has 0.2 MB.
MAX_BYTES = 16 * 1024 * 1024
_MAX_FAULTS = 10
_SURROGATE = re.compile("[\ud800-\udfff]")
_REQUIRED = ("task_id", "prompt", "entry_point", "test")


class ProblemsError(Exception):
    """A file of problems cannot be used; each line of the text names file, line and field."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One line of the file.

    ``prompt`` ends inside the function ``entry_point`` (signature and docstring), ``test`` defines ``check(candidate)``.
    ``difficulty`` is a field of ours, '' where there is none.
    """

    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str = ""
    difficulty: str = ""

    def as_line(self) -> str:
        """The problem as a line of the file, without a line end."""
        return json.dumps({name: value for name, value in dataclasses.asdict(self).items() if value})


def _faults_of(value: t.Any) -> t.Iterator[str]:
    if not isinstance(value, dict):
        yield f"a JSON object is expected, not {type(value).__name__}"
        return
    for name in _REQUIRED:
        if name not in value:
            yield f"field {name!r} is missing"
        elif not isinstance(value[name], str):
            yield f"field {name!r} must be text, not {json.dumps(value[name])[:60]}"
        elif not value[name].strip():
            yield f"field {name!r} is empty"
    for name in (*_REQUIRED, "canonical_solution", "difficulty"):
        if isinstance(value.get(name), str) and _SURROGATE.search(value[name]):
            yield f"field {name!r} has half a character (a lone surrogate), which no request can hold"
    for name in ("canonical_solution", "difficulty"):
        if not isinstance(value.get(name, ""), str):
            yield f"field {name!r} must be text, not {json.dumps(value[name])[:60]}"


def _faults_between(problem: Problem) -> t.Iterator[str]:
    if not problem.task_id.isprintable():
        yield f"field 'task_id' {problem.task_id!r} has signs that cannot be printed"
    name = problem.entry_point
    if not name.isidentifier() or keyword.iskeyword(name):
        yield f"field 'entry_point' {name!r} is no name of a function"
        return
    if not re.search(rf"^(async\s+)?def\s+{re.escape(name)}\s*\(", problem.prompt, re.MULTILINE):
        yield f"field 'prompt' does not define {name!r}, the 'entry_point'"
    if not re.search(r"^def\s+check\s*\(", problem.test, re.MULTILINE):
        yield "field 'test' does not define 'check(candidate)'"


def parse(text: str, *, name: str = "problems") -> list[Problem]:
    """All problems of a file, in its order. ``name`` is what messages call it.

    Raises ProblemsError with every fault, ten at most.
    """
    faults: list[str] = []
    problems: list[Problem] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if len(faults) >= _MAX_FAULTS:
            faults.append("... and maybe more")
            break
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.append(f"{name} line {number}: no JSON ({error}); it begins with {line[:60]!r}")
            continue
        found = list(_faults_of(value))
        if not found:
            problem = Problem(**{field.name: value.get(field.name, "") for field in dataclasses.fields(Problem)})
            found = list(_faults_between(problem))
            if problem.task_id in lines:
                found.append(f"field 'task_id' {problem.task_id!r} is that of line {lines[problem.task_id]} too")
            lines.setdefault(problem.task_id, number)
            problems.append(problem)
        faults += [f"{name} line {number}: {fault}" for fault in found]
    if faults:
        raise ProblemsError("\n".join(faults))
    if not problems:
        raise ProblemsError(f"{name}: there is no problem in it")
    return problems


def decode(data: bytes, *, name: str = "problems") -> str:
    """The text of a file, which may be packed by gzip as HumanEval comes. Raises ProblemsError."""
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ProblemsError(f"{name}: it has more than {MAX_BYTES} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProblemsError(f"{name} line {line}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ProblemsError(f"{name}: it cannot be unpacked ({error})") from error


def digest(problems: t.Iterable[Problem]) -> str:
    """Hash of what is asked and how it is judged, so that only like is compared with like."""
    text = "\n".join(problem.as_line() for problem in problems)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


__all__ = ("MAX_BYTES", "Problem", "ProblemsError", "decode", "digest", "parse")
