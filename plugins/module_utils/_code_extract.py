# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The code in a model's answer, and the program that judges it. PRIVATE to the collection.

Nothing is parsed as Python here: the text is foreign, and this runs as root. What is no Python shows in the sandbox.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._problems import Problem

#: Where a completion without a chat template ends: at what begins after the function.
STOP_SEQUENCES = ("\ndef ", "\nclass ", "\nif __name__", "\nprint(", "\nassert ", "\n```", "\n#")

#: A text that repeats itself so often, over so many characters, at its end is a loop.
LOOP_REPEATS = 6
LOOP_CHARACTERS = 200
_LOOP_UNIT = 400

# Thinking that the server did not take out: it was started without --reasoning-parser.
_THINKING = (("<think>", "</think>"), ("◁think▷", "◁/think▷"), ("<|channel|>analysis", "<|channel|>final<|message|>"))
# Of no pattern here may two parts take the same signs in turn: a model that repeats itself writes lines of 60,000.
_FENCE = re.compile(r"^(?P<indent>[ \t]*(?:>[ \t]?)?)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_PYTHON = {"", "py", "python", "python2", "python3", "python-repl", "pycon", "ipython", "code"}
_PROMPT_SIGN = re.compile(r"^(>>>|\.\.\.)( |$)")
# What may stand at the left margin of code.
_CODE_LINE = re.compile(
    r"""(
        (async\s+)?def\s+\w+\s*[(\[] | class\s+\w+\s*[:(\[] | import\s+[\w.]+(\s+as\s+\w+)?\s*(,.*|\#.*)?$
        | from\s+[\w.]+\s+import\b | @\w | \#(?!\#) | (if|elif|while)\b.*:\s*(\#.*)?$
        | (async\s+)?(for|with)\s.*:\s*(\#.*)?$ | (else|try|finally)\s*: | except\b.*:\s*$ | (pass|break|continue)\s*$
        | \w[\w.]*(\[[^\]]*\])?(\s*,\s*\w[\w.]*)*\s*(:[\w\[\], .|"']+|[-+*/%&|^@<>]{0,2})=(?!=)\s*\S
        | [\])}] | ['"]{3}
    )""",
    re.VERBOSE,
)
# What a helper's block may have at its left margin, so that nothing runs that only shows how to use the function.
_DEFINITION_LINE = re.compile(r"^((async\s+)?def\s|class\s|import\s|from\s|@|#|[\])}]|\w+\s*(:[^=]+)?=(?!=))")


@dataclasses.dataclass(frozen=True)
class Extraction:
    """``code`` as the model wrote it, '' when there is none.

    ``source``: ``fence`` (the whole function in a fenced block), ``prose`` (without a fence), ``body`` (its body only),
    ``completion``, '' (none).
    """

    code: str = ""
    source: str = ""


def without_thinking(text: str) -> str:
    """The part of an answer that is meant for the user; '' when the thinking never ended."""
    for begin, end in _THINKING:
        if end in text:
            text = text.rpartition(end)[2]
        elif text.lstrip().startswith(begin):
            return ""
    return text


def loops(text: str) -> bool:
    """Whether the text ends in a repetition: one piece of at most 400 characters, six times or more, over at least 200."""
    tail = text[-4 * _LOOP_UNIT * LOOP_REPEATS :].rstrip()
    for size in range(1, _LOOP_UNIT + 1):
        times = max(LOOP_REPEATS, -(-LOOP_CHARACTERS // size))
        if size * times > len(tail):
            # Larger pieces need less repetition, so that one may fit again.
            if size * LOOP_REPEATS > len(tail):
                return False
            continue
        unit = tail[-size:]
        # A rule of dashes or a long table line is one piece of one sign: only what goes on for many lines is a loop.
        if len(set(unit.strip())) <= 1 and size * times < 2 * LOOP_CHARACTERS:
            times = -(-2 * LOOP_CHARACTERS // size)
        if tail.endswith(unit * times):
            return True
    return False


@dataclasses.dataclass(frozen=True)
class _Block:
    language: str
    text: str


def _blocks(text: str) -> tuple[list[_Block], str]:
    """Fenced blocks in order, and what stands outside of them. A block that is never closed goes to the end."""
    blocks: list[_Block] = []
    outside: list[str] = []
    inside: list[str] | None = None
    fence, indent, language = "", "", ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found and "`" in found["info"]:
            # Back ticks on both sides are code within a line.
            found = None
        if inside is None:
            if found:
                fence, indent, inside = found["fence"], found["indent"], []
                words = re.split(r"[\s{,:]+", found["info"].strip().lstrip("{."))
                language = words[0].lower()
            else:
                outside.append(line)
        elif found and not found["info"].strip() and found["fence"].startswith(fence):
            blocks.append(_Block(language, "\n".join(inside)))
            inside = None
        else:
            # The block of a list's item, or of a quotation, is indented as its fence is.
            if indent.strip():
                line = re.sub(r"^[ \t]*>[ \t]?", "", line)
            inside.append(line[len(indent) :] if indent and line.startswith(indent) else line)
    if inside is not None and any(line.strip() for line in inside):
        blocks.append(_Block(language, "\n".join(inside)))
    return [_Block(block.language, _without_prompt_signs(block.text)) for block in blocks], "\n".join(outside)


def _without_prompt_signs(text: str) -> str:
    """The input of an interpreter's session; other text as it is."""
    lines = text.split("\n")
    if not any(line.startswith(">>> ") for line in lines):
        return text
    return "\n".join(_PROMPT_SIGN.sub("", line) for line in lines if _PROMPT_SIGN.match(line))


def _defines(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"^((async[ \t]+)?def[ \t]+{re.escape(name)}[ \t]*\(|{re.escape(name)}[ \t]*(:[^=\n]+)?=[ \t]*\w)",
        re.MULTILINE,
    )


def _dedented(text: str) -> str:
    return textwrap.dedent(text.replace("\t", "    ") if re.search(r"^ *\t", text, re.MULTILINE) else text)


def _only_defines(text: str) -> bool:
    margin = [line for line in text.split("\n") if line.strip() and not line[0].isspace()]
    return any(line.startswith(("def ", "class ", "import ", "from ", "async def ")) for line in margin) and all(
        _DEFINITION_LINE.match(line) for line in margin
    )


def _body_in(text: str) -> str:
    """The body of a function, indented by four; '' when the text is not one."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return ""
    margin = [line for line in lines if not line[0].isspace()]
    if margin and not any(re.match(r"return\b|yield\b", line.strip()) for line in lines):
        return ""
    if any(re.match(r"(async\s+)?def\s|class\s", line) for line in margin) and not any(
        line.startswith("return") for line in margin
    ):
        # A function of another name.
        return ""
    return textwrap.indent(_dedented(text), "    ")


def _from_prose(text: str, name: str) -> str:
    """Code that stands in a text without fences: from its first import or helper to the next line that is none."""
    defines = _defines(name)
    for candidate in (text, _dedented_around(text, name)):
        lines = candidate.split("\n")
        starts = [number for number, line in enumerate(lines) if defines.match(line)]
        if not starts:
            continue
        first = last = starts[-1]
        while first > 0 and _is_code(lines[first - 1]):
            first -= 1
        while last + 1 < len(lines) and _is_code(lines[last + 1]):
            last += 1
        return "\n".join(lines[first : last + 1]).strip("\n")
    return ""


def _dedented_around(text: str, name: str) -> str:
    """The text moved left by as much as the definition is indented."""
    found = re.search(rf"^([ \t]+)(async[ \t]+)?def[ \t]+{re.escape(name)}[ \t]*\(", text, re.MULTILINE)
    if not found:
        return ""
    return "\n".join(line[len(found[1]) :] if line.startswith(found[1]) else line.lstrip() for line in text.split("\n"))


def _is_code(line: str) -> bool:
    return not line.strip() or line[0].isspace() or _CODE_LINE.match(line) is not None


def extract(text: str, entry_point: str) -> Extraction:
    """The code that answers a chat request for the function ``entry_point``.

    Of several blocks the last that defines it counts, since models correct themselves; earlier blocks that only define
    (imports, helpers) are put before it. A block with nothing but a body is taken as the body. Without fences the
    definition is looked for in the text.
    """
    answer = without_thinking(text.replace("\r\n", "\n").lstrip("\ufeff"))
    blocks, outside = _blocks(answer)
    defines = _defines(entry_point)
    complete = [(number, _dedented(block.text)) for number, block in enumerate(blocks)]
    defining = [(number, code) for number, code in complete if defines.search(code)]
    if defining:
        python = [(number, code) for number, code in defining if blocks[number].language in _PYTHON]
        number, code = (python or defining)[-1]
        helpers = [
            earlier
            for place, earlier in complete[:number]
            if blocks[place].language in _PYTHON and not defines.search(earlier) and _only_defines(earlier)
        ]
        return Extraction("\n\n".join([*helpers, code]).strip("\n"), "fence")
    code = _from_prose(outside, entry_point)
    if code:
        return Extraction(code, "prose")
    for block in reversed(blocks):
        body = _body_in(block.text) if block.language in _PYTHON else ""
        if body:
            return Extraction(body, "body")
    return Extraction()


def complete(text: str) -> Extraction:
    """The code of a completion: all of it, up to what begins after the function."""
    text = text.replace("\r\n", "\n")
    cuts = [place for place in map(text.find, STOP_SEQUENCES) if place >= 0]
    code = text[: min(cuts, default=len(text))].rstrip()
    return Extraction(code, "completion") if code.strip() else Extraction()


def _head(problem: Problem) -> str:
    """What the prompt has before the function: imports and helpers."""
    found = re.search(rf"^(@.*\n)*(async\s+)?def\s+{re.escape(problem.entry_point)}\s*\(", problem.prompt, re.MULTILINE)
    return problem.prompt[: found.start()] if found else ""


def program(problem: Problem, extraction: Extraction) -> str:
    """Prompt, code and tests as one program that ends well when the tests pass."""
    if extraction.source in ("body", "completion"):
        prompt = problem.prompt
        if extraction.source == "body" and not prompt.endswith("\n"):
            prompt += "\n"
        code = prompt + extraction.code
    else:
        code = _head(problem) + "\n" + extraction.code
    futures, rest = _futures_first(code)
    return f"{futures}{rest}\n\n{problem.test}\n\ncheck({problem.entry_point})\n"


def _futures_first(code: str) -> tuple[str, str]:
    """``from __future__`` must stand before everything else, also when the prompt's imports were put before it."""
    pattern = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]+[^\n(]+\n?", re.MULTILINE)
    futures = [line.rstrip("\n") + "\n" for line in (match.group(0) for match in pattern.finditer(code))]
    return "".join(dict.fromkeys(futures)), pattern.sub("", code)


_CHAT = (
    "Complete the following Python function. Answer with the whole function, its imports included, in one Python code block. "
    "Use the standard library only. Do not show how to use it, and write no tests."
)


def chat_messages(problem: Problem) -> list[dict[str, t.Any]]:
    """The question as a chat has it."""
    return [{"role": "user", "content": f"{_CHAT}\n\n```python\n{problem.prompt.rstrip()}\n```\n"}]


__all__ = (
    "LOOP_CHARACTERS",
    "LOOP_REPEATS",
    "STOP_SEQUENCES",
    "Extraction",
    "chat_messages",
    "complete",
    "extract",
    "loops",
    "program",
    "without_thinking",
)
