# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _code_extract as code
from ansible_collections.specdec.serving.plugins.module_utils._problems import Problem

PROMPT = (
    'import math\n\n\ndef half(n: int) -> int:\n    """Half of n, rounded down.\n\n    >>> half(5)\n    2\n    """\n'
)
PROBLEM = Problem(
    task_id="t/1",
    prompt=PROMPT,
    entry_point="half",
    test="def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(-3) == -2\n",
)
FUNCTION = "def half(n: int) -> int:\n    return n // 2"
FENCED = f"```python\n{FUNCTION}\n```"

# Text of an answer, and where the code is found. Each of them is a right answer.
RIGHT: dict[str, tuple[str, str]] = {
    "plain fence": (FENCED, "fence"),
    "fence with words around": (f"Here it is:\n\n{FENCED}\n\nIt divides by two.", "fence"),
    "no language": (FENCED.replace("python", ""), "fence"),
    "language in capitals": (FENCED.replace("python", "Python"), "fence"),
    "language with attributes": (FENCED.replace("python", 'python title="half.py"'), "fence"),
    "language in braces": (FENCED.replace("python", "{.python .numberLines}"), "fence"),
    "language after a space": (FENCED.replace("```python", "``` python"), "fence"),
    "py": (FENCED.replace("python", "py"), "fence"),
    "tildes": (FENCED.replace("```", "~~~"), "fence"),
    "four back ticks": (FENCED.replace("```", "````"), "fence"),
    "carriage returns": (FENCED.replace("\n", "\r\n"), "fence"),
    "byte order mark": ("\ufeff" + FENCED, "fence"),
    "never closed": (f"Sure.\n```python\n{FUNCTION}\n", "fence"),
    "in a list": ("1. Do this:\n\n   " + FENCED.replace("\n", "\n   "), "fence"),
    "quoted": ("> " + FENCED.replace("\n", "\n> "), "fence"),
    "all of it indented inside": (FENCED.replace("def", "    def").replace("    return", "        return"), "fence"),
    "indented by tabs": (FENCED.replace("    return", "\treturn"), "fence"),
    "shell first": (f"```bash\npip install nothing\n```\n{FENCED}", "fence"),
    "output after": (f"{FENCED}\n\nOutput:\n```text\n2\n```", "fence"),
    "use after": (f"{FENCED}\n\n```python\nprint(half(4))\nraise SystemExit\n```", "fence"),
    "corrected later": (
        f"First try:\n{FENCED.replace('n // 2', 'n')}\nWait, that is wrong. Corrected:\n{FENCED}",
        "fence",
    ),
    "another language last": (f"{FENCED}\nIn JavaScript:\n```js\nhalf = n => n >> 1\n```", "fence"),
    "other language that looks alike": (
        f"{FENCED}\nIn Mojo:\n```mojo\ndef half(n: Int) -> Int:\n    return n\n```",
        "fence",
    ),
    "helper in a block before": (
        "```python\ndef two():\n    return 2\n```\nand\n```python\ndef half(n):\n    return n // two()\n```",
        "fence",
    ),
    "import in a block before": (
        "```python\nimport operator\n```\n```python\ndef half(n):\n    return operator.floordiv(n, 2)\n```",
        "fence",
    ),
    "example before": (f"```python\nhalf(1)\nassert False\n```\n{FENCED}", "fence"),
    "interpreter session": ("```pycon\n>>> def half(n):\n...     return n // 2\n...\n>>> half(5)\n2\n```", "fence"),
    "prompt's import is needed": ("```python\ndef half(n):\n    return math.floor(n / 2)\n```", "fence"),
    "future import": (f"```python\nfrom __future__ import annotations\n\n{FUNCTION}\n```", "fence"),
    "decorated": ("```python\nimport functools\n\n@functools.lru_cache\ndef half(n):\n    return n // 2\n```", "fence"),
    "a lambda": ("```python\nhalf = lambda n: n // 2\n```", "fence"),
    "main guard": (f"```python\n{FUNCTION}\n\nif __name__ == '__main__':\n    print(half(int(input())))\n```", "fence"),
    "back ticks inside": (
        '```python\ndef half(n):\n    """Like ``n // 2``: `half(5)`.\n\n    ``` not a fence```\n    """\n    return n // 2\n```',
        "fence",
    ),
    "thinking in the text": (f"<think>\n{FENCED.replace('n // 2', '0')}\n</think>\n{FENCED}", "fence"),
    "thinking without its begin": (f"maybe n / 2?\n</think>{FENCED}", "fence"),
    "thinking as Kimi marks it": (f"◁think▷{FENCED.replace('n // 2', '0')}◁/think▷{FENCED}", "fence"),
    "no fence": (FUNCTION, "prose"),
    "no fence, words around": (f"The function:\n\n{FUNCTION}\n\nThis rounds down as asked.", "prose"),
    "no fence, import": (
        "Use this.\nimport operator\n\ndef half(n):\n    return operator.floordiv(n, 2)\nDone!",
        "prose",
    ),
    "no fence, indented": ("Here:\n\n    def half(n):\n        return n // 2\n\nThat is all.", "prose"),
    "no fence, helper after": (
        "def half(n):\n    return n // two()\n\n\ndef two():\n    return 2\n\nTwo helps.",
        "prose",
    ),
    "no fence, formula after": (f"{FUNCTION}\n\nTime complexity = O(1)", "prose"),
    "body only": ("```python\n    return n // 2\n```", "body"),
    "body at the margin": ("```python\nresult = n // 2\nreturn result\n```", "body"),
    "body with a branch": ("```python\n    if n == 5:\n        return 2\n    return n // 2\n```", "body"),
}

NONE: dict[str, str] = {
    "nothing": "",
    "white space": " \n\t\n",
    "words": "I cannot help with that.",
    "thinking that never ended": f"<think>I would write\n{FENCED}\n",
    "another function": "```python\ndef third(n):\n    return n // 3\n```",
    "only output": "```text\n2\n```",
    "only a call": "```python\nprint(half(5))\n```",
    "empty block": "```python\n```",
    "named in words": "You could write def half(n) and return n // 2.",
}


def outcome(text: str) -> t.Any:
    program = code.program(PROBLEM, code.extract(text, "half"))
    exec(compile(program, "answer", "exec"), {"__name__": "answer"})  # our own texts


@pytest.mark.parametrize(("text", "source"), RIGHT.values(), ids=RIGHT)
def test_a_right_answer_passes_in_every_shape(text: str, source: str) -> None:
    assert code.extract(text, "half").source == source
    outcome(text)


@pytest.mark.parametrize("name", [name for name, (_text, source) in RIGHT.items() if source != "body"])
def test_a_wrong_answer_fails_in_every_shape(name: str) -> None:
    text = RIGHT[name][0]
    wrong = text.replace("n // 2", "n").replace("math.floor(n / 2)", "n").replace("operator.floordiv(n, 2)", "n")
    wrong = wrong.replace("n // two()", "n")
    assert wrong != text
    with pytest.raises(AssertionError):
        outcome(wrong)


@pytest.mark.parametrize("text", NONE.values(), ids=NONE)
def test_where_there_is_no_code_none_is_found(text: str) -> None:
    assert code.extract(text, "half") == code.Extraction()


def test_the_reasoning_is_never_searched() -> None:
    assert code.without_thinking(f"<think>{FENCED}</think>No idea.") == "No idea."


@pytest.mark.parametrize(
    "more",
    [
        "",
        "\n\ndef other():\n    pass\n",
        "\n\nprint(half(4))\n",
        "\n\nclass X:\n    pass",
        "\n```\nThat is it.",
        "\n# Test\nhalf(1)",
    ],
)
def test_a_completion_ends_where_something_else_begins(more: str) -> None:
    found = code.complete("    return n // 2" + more)
    assert found == code.Extraction("    return n // 2", "completion")
    exec(compile(code.program(PROBLEM, found), "answer", "exec"), {})  # our own texts


def test_an_empty_completion_is_no_code() -> None:
    assert code.complete("\n\n") == code.Extraction()


def test_a_helper_of_the_prompt_is_kept() -> None:
    problem = Problem("t/2", "def two():\n    return 2\n\n\n" + PROMPT, "half", PROBLEM.test)
    program = code.program(problem, code.extract("```python\ndef half(n):\n    return n // two()\n```", "half"))
    exec(compile(program, "answer", "exec"), {})  # our own texts


@pytest.mark.parametrize("unit", ["the same again. ", "x = 1\n", "abc" * 100 + "\n", "ja"])
def test_repetition_is_a_loop(unit: str) -> None:
    assert code.loops("A good beginning.\n" + unit * 200)
    # Cut off by a limit of tokens in the middle of a piece.
    assert code.loops("A good beginning.\n" + unit * 200 + unit[: len(unit) // 2])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        FENCED,
        "-" * 120,
        "| a | b |\n|---|---|\n" + "\n".join(f"| {n} | {n * n} |" for n in range(60)),
        PROMPT * 2,
    ],
)
def test_ordinary_text_is_no_loop(text: str) -> None:
    assert not code.loops(text)


def test_the_question_holds_the_prompt_and_ends_after_it() -> None:
    (message,) = code.chat_messages(PROBLEM)
    assert message["role"] == "user"
    assert PROMPT.strip() in message["content"]


@pytest.mark.parametrize(
    "line", ["x:" + " " * 60_000, "~" * 60_000 + "`", "```" + " " * 60_000 + "`", "x" + " " * 60_000]
)
def test_a_line_without_end_takes_no_time_without_end(line: str) -> None:
    # Each of them took minutes; a model that repeats itself writes them.
    started = time.process_time()
    found = code.extract(f"{line}\n{FUNCTION}\n{line}", "half")
    assert time.process_time() - started < 5
    assert FUNCTION in found.code


@pytest.mark.parametrize(
    "line",
    [
        "limit: int = 3",
        "limit = 3",
        "a, b = 1, 2",
        "names['x'] += 1",
        "table: dict[str, int] = {}",
        "a.b //= 2",
        "x: 'A' = 1",
    ],
)
def test_an_assignment_before_a_function_belongs_to_it(line: str) -> None:
    assert code.extract(f"Here:\n{line}\n{FUNCTION}\n", "half").code == f"{line}\n{FUNCTION}"
