# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit and environment files, as we write them and as people edit them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import (
    CredentialFile,
    environment_file,
    exec_line,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd_reading import (
    environment_values,
    exec_words,
    expanded,
    merged,
    parse_unit,
    split_words,
)

UNIT = "sglang-a.service"
EXEC = ("Service", "ExecStart")
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=60)
tricky = st.text(st.sampled_from(list("\"'\\%$;#{}()[]<>|&*?~`!@:+-= \taé\r🚀,")), max_size=30)


@given(st.lists(plain | tricky, max_size=8))
def test_a_command_line_comes_back(words: list[str]) -> None:
    text = f"[Service]\nExecStart={exec_line(['/bin/x', *words], origin='test')}\nUser=x\n"
    settings = merged(parse_unit(text))
    assert expanded(exec_words(settings[EXEC][-1]), unit=UNIT, environment={}) == ["/bin/x", *words]
    assert settings["Service", "User"] == ["x"]


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True), tricky, max_size=5))
def test_an_environment_file_comes_back(values: dict[str, str]) -> None:
    assert environment_values(environment_file(values, origin="test")) == values


@given(st.text(max_size=80))
def test_any_text_can_be_read(text: str) -> None:
    for values in merged(parse_unit(text)).values():
        for value in values:
            expanded(exec_words(value), unit=UNIT, environment={})
    environment_values(text)


def test_the_credential_is_filled_in() -> None:
    line = exec_line(["/bin/x", "--config", CredentialFile("a.yaml"), "${CREDENTIALS_DIRECTORY}/b"], origin="test")
    (value,) = merged(parse_unit(f"[Service]\nExecStart={line}"))[EXEC]
    words = expanded(exec_words(value), unit=UNIT, environment={"CREDENTIALS_DIRECTORY": "/run/credentials/x"})
    assert words == ["/bin/x", "--config", "/run/credentials/x/a.yaml", "${CREDENTIALS_DIRECTORY}/b"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param("/bin/x a  b\tc", ["/bin/x", "a", "b", "c"], id="plain"),
        pytest.param("-+!/bin/x a", ["/bin/x", "a"], id="prefixes"),
        pytest.param("/bin/x 'a \"b\"' \"c 'd'\"", ["/bin/x", 'a "b"', "c 'd'"], id="quotes"),
        pytest.param(
            r'/bin/x --a="b c" d\x20e \u00e9 \101', ["/bin/x", "--a=b c", "d e", "é", "A"], id="inside-a-word"
        ),
        pytest.param(r"/bin/x a\qb", ["/bin/x", r"a\qb"], id="unknown-escape"),
        pytest.param(r"/bin/x \; b", ["/bin/x", ";", "b"], id="semicolon"),
        pytest.param("/bin/x ''", ["/bin/x", ""], id="empty-word"),
        pytest.param("/bin/x 'open", ["/bin/x", "open"], id="open-quote"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_words_that_people_write(value: str, words: list[str]) -> None:
    assert exec_words(value) == words


@pytest.mark.parametrize(
    ("word", "unit", "expected"),
    [
        ("%n %N %p %%", UNIT, ["sglang-a.service sglang-a sglang-a %"]),
        ("%i:%p", "sglang-a@3.service", ["3:sglang-a"]),
        ("%t/x", UNIT, ["/run/x"]),
        pytest.param("%m", UNIT, [None], id="not-known-here"),
        pytest.param("%i", "a@x-y.service", [None], id="an escaped instance"),
        ("${A}-$$A-$A", UNIT, ["1 2-$A-$A"]),
        pytest.param("$A", UNIT, ["1", "2"], id="a-word-of-its-own"),
        pytest.param("$A-x", UNIT, [], id="no-variable-is-called-so"),
        ("${NONE}", UNIT, [""]),
    ],
)
def test_specifiers_and_variables(word: str, unit: str, expected: list[str | None]) -> None:
    assert expanded(["/bin/x", word], unit=unit, environment={"A": "1 2"}) == ["/bin/x", *expected]


def test_without_an_environment_variables_stay() -> None:
    assert expanded(["/bin/x", "${A}", "$B", "%%"], unit=UNIT) == ["/bin/x", "${A}", "$B", "%"]


def test_continued_lines_and_comments() -> None:
    text = """\
# a comment \\
[Service]
ExecStart = /bin/x \\
  # within
  --a 1 \\
; within, too
  --b 2
User=y ; no comment
  Group=z
Description=ends in two\\\\
"""
    assert merged(parse_unit(text)) == {
        ("Service", "Description"): ["ends in two\\\\"],
        EXEC: ["/bin/x  --a 1  --b 2"],
        ("Service", "User"): ["y ; no comment"],
        ("Service", "Group"): ["z"],
    }


def test_what_stands_before_a_section_or_has_no_value_is_nothing() -> None:
    assert parse_unit("User=x\n[Service]\nnonsense\nUser=y") == {("Service", "User"): ["y"]}


def test_drop_ins_add_reset_and_outdo() -> None:
    unit = parse_unit("[Service]\nExecStart=/bin/x\nEnvironment=A=1\nUser=x\nTasksMax=5\n")
    first = parse_unit("[Service]\nEnvironment=B=2\nUser=y\nTasksMax=\n")
    second = parse_unit("[Service]\nExecStart=\nExecStart=/bin/z\n[Unit]\nAfter=b.service\n")
    assert merged(unit, first, second) == {
        EXEC: ["/bin/z"],
        ("Service", "Environment"): ["A=1", "B=2"],
        ("Service", "User"): ["y"],
        ("Unit", "After"): ["b.service"],
    }


@pytest.mark.parametrize(
    ("text", "values"),
    [
        pytest.param("A=1\nB = two words  \n", {"A": "1", "B": "two words"}, id="bare"),
        pytest.param("# A=1\n; B=2\nC=3 # no comment\n", {"C": "3 # no comment"}, id="comments"),
        pytest.param('A="b c"\nB=\'$x "y" \\z\'\n', {"A": "b c", "B": '$x "y" \\z'}, id="quotes"),
        pytest.param('A="x\\"y\\\\z\\n"\n', {"A": 'x"y\\z\\n'}, id="escapes in double quotes"),
        pytest.param("A=x\\\ny\\ \n", {"A": "xy "}, id="escapes without quotes"),
        pytest.param('A="two\nlines"\nB=1', {"A": "two\nlines", "B": "1"}, id="a newline in quotes"),
        pytest.param("A=1\nA=2\n", {"A": "2"}, id="the last one counts"),
        pytest.param("nonsense\n1A=1\nexport B=2\nC=\n", {"C": ""}, id="no variables"),
        pytest.param("A='x' \"y\"\n", {"A": "xy"}, id="parts"),
        pytest.param('A="open', {"A": "open"}, id="open-quote"),
    ],
)
def test_environment_files_that_people_write(text: str, values: dict[str, str]) -> None:
    assert environment_values(text) == values


def test_words_of_an_environment_setting() -> None:
    assert split_words("A=1 \"B=two words\" 'C=3'") == ["A=1", "B=two words", "C=3"]
