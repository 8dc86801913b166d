# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quoting against small models of systemd's parsers; the real ones are in tests/integration/quoting."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import (
    CredentialFile,
    QuotingError,
    environment_file,
    environment_line,
    exec_line,
    exec_word,
    list_word,
    setting_value,
)

ESCAPES = {"n": b"\n", "t": b"\t", "s": b" ", "r": b"\r", "a": b"\a", "\\": b"\\", '"': b'"', "'": b"'"}


def read_words(line: str) -> list[bytes]:
    """systemd.syntax(7): words of a line with quotes and C escapes; continuation lines joined with a space."""
    joined = line.replace("\\\n", " ")
    assert "\n" not in joined
    assert "\r" not in joined
    words: list[bytes] = []
    word = bytearray()
    quote = ""
    started = False
    position = 0
    while position < len(joined):
        char = joined[position]
        position += 1
        if not quote and char in " \t":
            if started:
                words.append(bytes(word))
            word, started = bytearray(), False
        elif not quote and not started and char in "\"'":
            quote, started = char, True
        elif quote and char == quote:
            quote = ""
        elif char == "\\":
            started = True
            code = joined[position]
            position += 1
            if code == "x":
                word += bytes([int(joined[position : position + 2], 16)])
                position += 2
            else:
                word += ESCAPES[code]
        else:
            started = True
            word += char.encode()
    assert not quote
    if started:
        words.append(bytes(word))
    return words


def expand(words: list[bytes], *, variables: bool = True) -> list[bytes]:
    """systemd.unit(5) specifiers, then systemd.service(5) variables; anything but the doubled sign is a fault here."""
    result = []
    for word in words:
        for sign in (b"%", b"$") if variables else (b"%",):
            assert word.replace(sign * 2, b"").count(sign) == 0, word
            word = word.replace(sign * 2, sign)
        result.append(word)
    return result


def read_environment(text: str) -> dict[str, str]:
    """systemd.exec(5), "EnvironmentFile=": double-quoted values as in a POSIX shell."""
    result = {}
    position = 0
    while position < len(text):
        name, _, _rest = text[position:].partition('="')
        position += len(name) + 2
        value = ""
        while text[position] != '"':
            if text[position] == "\\" and text[position + 1] in '"\\`$':
                position += 1
            value += text[position]
            position += 1
        assert text[position + 1] == "\n"
        position += 2
        result[name] = value
    return result


VALUES = [
    pytest.param("pa$5w", id="dollar"),
    pytest.param("${HOME}", id="braced-variable"),
    pytest.param("$HOME", id="variable"),
    pytest.param("$$", id="two-dollars"),
    pytest.param("it's", id="single-quote"),
    pytest.param('a"b', id="double-quote"),
    pytest.param("back\\slash", id="backslash"),
    pytest.param("\\", id="only-backslash"),
    pytest.param("\\x41", id="looks-like-an-escape"),
    pytest.param(";", id="semicolon"),
    pytest.param("#", id="hash"),
    pytest.param("", id="empty"),
    pytest.param(" ", id="space"),
    pytest.param("  two  spaces  ", id="spaces"),
    pytest.param("a\tb", id="tab"),
    pytest.param("a\rb", id="carriage-return"),
    pytest.param("\x1b[1m\x7f", id="control"),
    pytest.param("100%", id="percent"),
    pytest.param("%n %i %% %d", id="specifiers"),
    pytest.param('{"method": "x", "n": 16, "s": "a b%c$d"}', id="json"),
    pytest.param('{"a":{"b":1}}', id="compact-json"),
    pytest.param("größe 模型 🚀", id="non-ascii"),
    pytest.param("\u2028\u00a0\u0085", id="unicode-space"),
    pytest.param("-@:+!/x", id="prefix-signs"),
    pytest.param("`date`", id="back-ticks"),
    pytest.param("${CREDENTIALS_DIRECTORY}/x.yaml", id="looks-like-our-credential"),
    pytest.param("\ufffe", id="noncharacter"),
    pytest.param("\ufeffx", id="byte-order-mark"),
]

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=60)
tricky = st.text(st.sampled_from(list("\"'\\%$;#{}()[]<>|&*?~`!@:+-= \taé\r🚀,")), max_size=30)


@pytest.mark.parametrize("value", VALUES)
def test_exec_word_comes_back(value: str) -> None:
    word = exec_word(value, origin="test")
    assert expand(read_words("/bin/x " + word)) == [b"/bin/x", value.encode()]
    # A bare ';' is a separator of commands, a line that starts with one of these is a comment.
    assert not word.startswith((";", "#"))


def test_json_can_be_loaded_again() -> None:
    value = '{"method": "x", "n": 16, "s": "a b%c$d"}'
    (word,) = expand(read_words(exec_word(value, origin="test")))
    assert json.loads(word) == {"method": "x", "n": 16, "s": "a b%c$d"}


@given(st.lists(text | tricky, max_size=8))
def test_exec_line_comes_back(words: list[str]) -> None:
    line = exec_line(["/bin/x", *words], origin="test")
    assert expand(read_words(line)) == [b"/bin/x", *(word.encode() for word in words)]
    # Inside a continued line systemd drops lines that look like comments.
    assert not any(part.strip(" \t").startswith((";", "#")) for part in line.split("\\\n"))


@given(text | tricky)
def test_list_word_comes_back(value: str) -> None:
    assert expand(read_words(list_word(value, origin="test")), variables=False) == [value.encode()]


@pytest.mark.parametrize("value", [value for value in VALUES if value.id not in ("noncharacter", "byte-order-mark")])
def test_environment_value_comes_back(value: str) -> None:
    assert read_environment(environment_file({"X": value}, origin="test")) == {"X": value}


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True), tricky, max_size=5))
def test_environment_file_comes_back(values: dict[str, str]) -> None:
    content = environment_file(values, origin="test")
    assert read_environment(content) == values
    assert content == environment_file(dict(reversed(values.items())), origin="test")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("100% of $HOME \"x\" 'y' \\z", "100%% of $HOME \"x\" 'y' \\z", id="only-percent"),
        pytest.param("", "", id="empty"),
        pytest.param("größe", "größe", id="non-ascii"),
    ],
)
def test_setting_value(value: str, expected: str) -> None:
    assert setting_value(value, origin="test") == expected


@pytest.mark.parametrize("value", [" x", "x ", "x\t", "x\\", "a\rb", "a\x00b", "a\nb"], ids=repr)
def test_setting_value_refuses(value: str) -> None:
    with pytest.raises(QuotingError) as caught:
        setting_value(value, origin="instance a: description")
    assert "instance a: description: " in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("function", [exec_word, list_word, setting_value])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param("two\nlines", "newline", id="newline"),
        pytest.param("nul\0", "NUL", id="nul"),
        pytest.param("\udc80", "lone surrogate", id="surrogate"),
    ],
)
def test_refused_everywhere(function: object, value: str, reason: str) -> None:
    with pytest.raises(QuotingError) as caught:
        function(value, origin="instance k26: args: x")  # type: ignore[operator]  # of two kinds
    assert str(caught.value).startswith("instance k26: args: x: ")
    assert repr(value) in str(caught.value)
    assert reason in str(caught.value)
    with pytest.raises(QuotingError):
        environment_line("X", value, origin="env")


def test_too_long_for_linux() -> None:
    exec_word("x" * 131071, origin="test")
    with pytest.raises(QuotingError, match="131071"):
        exec_word("x" * 131072, origin="test")
    with pytest.raises(QuotingError, match="1 MiB"):
        exec_line(["/bin/x", *["y" * 131071] * 8], origin="test")


@pytest.mark.parametrize("name", ["", "1X", "A-B", "A B", "A=B", "É"], ids=repr)
def test_variable_names(name: str) -> None:
    with pytest.raises(QuotingError, match="no name for an environment variable"):
        environment_line(name, "x", origin="env")


@pytest.mark.parametrize("value", ["\ufffe", "\ufdd0", "\ufeff"], ids=ascii)
def test_environment_refuses_what_systemd_drops(value: str) -> None:
    with pytest.raises(QuotingError, match="ignores the assignment"):
        environment_line("X", value, origin="env")


@pytest.mark.parametrize("program", ["", "python3", "$HOME/x", "/opt/$x/python", "-/bin/x"], ids=repr)
def test_program(program: str) -> None:
    with pytest.raises(QuotingError, match="absolute path"):
        exec_line([program], origin="test")


def test_only_the_credential_type_is_expanded() -> None:
    line = exec_line(["/bin/x", "--config", CredentialFile("a.yaml"), "${CREDENTIALS_DIRECTORY}/a.yaml"], origin="test")
    assert line == '/bin/x \\\n  --config ${CREDENTIALS_DIRECTORY}/a.yaml "$${CREDENTIALS_DIRECTORY}/a.yaml"'


@pytest.mark.parametrize("name", ["", "a b", "a/b", "$x", ".hidden", "a\n"], ids=repr)
def test_credential_names(name: str) -> None:
    with pytest.raises(QuotingError):
        CredentialFile(name)
