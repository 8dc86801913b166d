# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Journal entries in all of journalctl's shapes, commands, errors, and one read by a runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils._journal import (
    ENVIRONMENT,
    MESSAGE_SUPPRESSED,
    Entry,
    ExportParser,
    Follower,
    LineJoiner,
    clean,
    command,
    damage,
    entry_of,
    explain,
    parse_entry,
    read_once,
    read_orphans,
    sync,
    system_journal_readable,
)
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import StartupLog

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDED = (FIXTURES / "systemd-252" / "journal-plain.jsonl").read_text(encoding="utf-8")
INVOCATION = "aba3052d65e14c38bf15c6d11bf2cfe8"


def line(**fields: Any) -> str:
    return json.dumps(
        {
            "__CURSOR": "s=1;i=2",
            "__REALTIME_TIMESTAMP": "1795963646365047",
            "__MONOTONIC_TIMESTAMP": "2539975324",
            "_PID": "40",
            "_SYSTEMD_INVOCATION_ID": INVOCATION,
            **fields,
        }
    )


def message(value: Any) -> str:
    entry = parse_entry(line(MESSAGE=value))
    assert entry is not None
    return entry.message


# --- recorded


def test_recorded_journal() -> None:
    entries = [parse_entry(text, invocation_id=INVOCATION) for text in RECORDED.splitlines()]
    assert len(entries) == 91
    assert all(entry is not None for entry in entries)
    manager = [entry for entry in entries if entry is not None and not entry.own]
    assert [entry.message for entry in manager] == [
        "Starting sglang-k26-dflash.service - SGLang k26-dflash...",
        "Started sglang-k26-dflash.service - SGLang k26-dflash.",
        "Stopping sglang-k26-dflash.service - SGLang k26-dflash...",
        "sglang-k26-dflash.service: Deactivated successfully.",
        "Stopped sglang-k26-dflash.service - SGLang k26-dflash.",
        "sglang-k26-dflash.service: Consumed 30.520s CPU time.",
    ]
    assert {entry.pid for entry in manager} == {1}
    times = [entry.monotonic_us for entry in entries if entry is not None]
    assert times == sorted(times)
    assert times[0] > 0
    # The scheduler and the main process both log: the marker is not MainPID's.
    ends = [entry for entry in entries if entry is not None and "Load weight end. " in entry.message]
    assert [(entry.pid, entry.own) for entry in ends] == [(185, True)]


# --- the shapes of MESSAGE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("plain", "plain", id="text"),
        pytest.param(None, "", id="null: too long without --all"),
        pytest.param([104, 105], "hi", id="bytes"),
        pytest.param(list("grün ✓".encode()), "grün ✓", id="bytes of UTF-8"),
        pytest.param([255, 104], "\ufffdh", id="bytes that are no UTF-8"),
        pytest.param(["one", "two"], "one\ntwo", id="a repeated field"),
        pytest.param([[104, 105], "two"], "hi\ntwo", id="a repeated field with bytes"),
        pytest.param([], "", id="empty list"),
        pytest.param([300, -1], "\n", id="numbers that are no bytes"),
        pytest.param([True, False], "\n", id="booleans are no bytes"),
        pytest.param({"a": 1}, "", id="an object"),
        pytest.param(7, "", id="a number"),
        pytest.param(
            [27, 91, 49, 109, *b"The server is fired up and ready to roll!", 27, 91, 48, 109],
            "The server is fired up and ready to roll!",
            id="the marker in bold",
        ),
        pytest.param(list(b"Loading:   0%\rLoading:  25%\rLoading:  50%"), "Loading:  50%", id="progress line"),
    ],
)
def test_message_shapes(value: Any, text: str) -> None:
    assert message(value) == text


def test_message_missing() -> None:
    entry = parse_entry(line())
    assert entry is not None
    assert entry.message == ""


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("a\tb", "a\tb"),
        ("\x1b[1;31mERROR\x1b[0m: x", "ERROR: x"),
        ("\x1b[38;5;208mx\x1b[m", "x"),
        ("\x1b]8;;http://h/\x07link\x1b]8;;\x07", "link"),
        ("\x1b]0;title\x1b\\x", "x"),
        ("\x1b[2K\x1b[1Gdone", "done"),
        ("\x1b(Bx", "x"),
        ("\x1b", ""),
        ("x\x1b[", "x"),
        ("crlf\r", "crlf"),
        ("a\rb\r", "b"),
        ("a\r   \r", "a"),
        ("\r\r", ""),
        ("one\r\ntwo\rthree", "one\nthree"),
        ("a\x00b\x07c\x7f", "abc"),
        ("", ""),
    ],
)
def test_clean(raw: str, text: str) -> None:
    assert clean(raw) == text


@given(st.text())
def test_clean_leaves_no_control_characters(raw: str) -> None:
    assert not [char for char in clean(raw) if (ord(char) < 32 and char not in "\t\n") or ord(char) == 127]
    assert clean(clean(raw)) == clean(raw)


# --- fields


def test_exit_fields_of_pid_1() -> None:
    entry = parse_entry(
        json.dumps(
            {
                "MESSAGE": "x.service: Main process exited, code=killed, status=9/KILL",
                "MESSAGE_ID": "98e322203f7a4ed290d09fe03c09fe15",
                "INVOCATION_ID": INVOCATION,
                "_PID": "1",
                "EXIT_CODE": "killed",
                "EXIT_STATUS": "9",
                "UNIT_RESULT": "signal",
            }
        ),
        invocation_id=INVOCATION,
    )
    assert entry is not None
    assert (entry.own, entry.exit_code, entry.exit_status, entry.unit_result) == (False, "killed", 9, "signal")


def test_suppressed_notice_is_journalds_and_marks_the_loss() -> None:
    text = json.dumps(
        {
            "MESSAGE": "Suppressed 22 messages from sglang@0.service",
            "MESSAGE_ID": MESSAGE_SUPPRESSED,
            "N_DROPPED": "22",
            "_SYSTEMD_INVOCATION_ID": "0" * 32,  # journald's own
            "OBJECT_SYSTEMD_INVOCATION_ID": INVOCATION,
        }
    )
    for asked in (None, INVOCATION):
        entry = parse_entry(text, invocation_id=asked)
        assert entry is not None
        assert (entry.suppressed, entry.n_dropped, entry.own) == (True, 22, False)


def test_only_the_asked_invocation_is_own() -> None:
    entry = parse_entry(line(MESSAGE="x"), invocation_id="f" * 32)
    assert entry is not None
    assert entry.own is False


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "7", '"x"', "\x1b[1m{}", '{"a":', "{'a': 1}", '{"MESSAGE": "\\ud800"', "[" * 100_000],
)
def test_what_is_no_entry_is_none(text: str) -> None:
    assert parse_entry(text) is None


def test_bytes_that_are_no_utf8_are_none() -> None:
    assert parse_entry(b'{"MESSAGE": "\xff"}') is None


@pytest.mark.parametrize("value", ["", "x", "1.5", None, [1], {}, "[not set]"])
def test_numbers_that_are_none_become_zero(value: Any) -> None:
    entry = parse_entry(line(_PID=value, __MONOTONIC_TIMESTAMP=value, EXIT_STATUS=value, N_DROPPED=value))
    assert entry is not None
    assert (entry.pid, entry.monotonic_us, entry.n_dropped) == (0, 0, 0)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["MESSAGE", "_PID", "__CURSOR", "EXIT_STATUS", "N_DROPPED", "MESSAGE_ID"]), _JSON)
)
def test_any_value_of_any_field_is_taken(fields: dict[str, Any]) -> None:
    entry = parse_entry(json.dumps(fields))
    assert isinstance(entry, Entry)
    assert isinstance(entry.message, str)


@given(st.text())
def test_any_text_gives_an_entry_or_none(text: str) -> None:
    assert isinstance(parse_entry(text), (Entry, type(None)))


# --- lines that journald cut


def entry(text: str, *, line_break: str = "", pid: int = 40, stream: str = "a", cursor: str = "") -> Entry:
    return Entry(cursor, 0, 0, pid, text, "", "", None, "", 0, line_break, True, stream)


def test_joiner_puts_the_parts_of_a_line_together() -> None:
    joiner = LineJoiner()
    assert joiner.feed(entry("server_args={", line_break="line-max", cursor="1")) is None
    assert joiner.feed(entry("...", line_break="line-max", cursor="2")) is None
    other = entry("between", stream="b", cursor="3")
    assert joiner.feed(other) is other
    assert joiner.pending
    assert joiner.feed(entry("}", cursor="4")) == entry("server_args={...}", cursor="4")
    assert joiner.feed(entry("next")) == entry("next")
    assert not joiner.pending


def test_joiner_ends_a_line_at_the_streams_end() -> None:
    joiner = LineJoiner()
    assert joiner.feed(entry("a", line_break="line-max")) is None
    assert joiner.feed(entry("b", line_break="eof")) == entry("ab", line_break="eof")


def test_joiner_without_stream_ids_goes_by_process() -> None:
    joiner = LineJoiner()
    assert joiner.feed(entry("a", line_break="line-max", stream="", pid=1)) is None
    assert joiner.feed(entry("x", stream="", pid=2)) == entry("x", stream="", pid=2)
    assert joiner.feed(entry("b", stream="", pid=1)) == entry("ab", stream="", pid=1)


def test_joiner_is_bounded() -> None:
    joiner = LineJoiner(limit=10)
    for _ in range(100):
        assert joiner.feed(entry("0123456", line_break="line-max")) is None
    joined = joiner.feed(entry("x"))
    assert joined is not None
    assert joined.message == "0123456012"


# --- commands


def test_command_of_the_first_read() -> None:
    words = command(invocation_id=INVOCATION)
    assert words[:5] == ["journalctl", "--quiet", "--no-pager", "--output=json", "--all"]
    assert not [
        word for word in words if word.startswith(("--lines", "--follow", "--cursor", "--after", "--namespace"))
    ]
    assert words[6:] == [
        f"_SYSTEMD_INVOCATION_ID={INVOCATION}",
        "+",
        # Fields that any user may set: only root's lines count.
        f"INVOCATION_ID={INVOCATION}",
        "_UID=0",
        "+",
        f"OBJECT_SYSTEMD_INVOCATION_ID={INVOCATION}",
        "_UID=0",
    ]
    assert words[5].startswith("--output-fields=MESSAGE,")
    assert command(invocation_id=INVOCATION, output="export")[3] == "--output=export"
    assert {"_PID", "EXIT_STATUS", "UNIT_RESULT", "N_DROPPED", "_LINE_BREAK"} <= set(
        words[5].partition("=")[2].split(",")
    )


def test_command_that_follows_from_a_cursor_in_a_namespace() -> None:
    words = command(invocation_id=INVOCATION, cursor="s=1;i=2", namespace="sgl", follow=True)
    assert words[6:10] == ["--follow", "--lines=all", "--namespace=+sgl", "--cursor=s=1;i=2"]
    assert command(invocation_id=INVOCATION, namespace="", follow=False, lines=50)[6] == "--lines=50"


@pytest.mark.parametrize("invocation", ["", "x", INVOCATION.upper(), INVOCATION + "0", f"{INVOCATION}\n", "-b"])
def test_command_refuses_what_is_no_invocation_id(invocation: str) -> None:
    with pytest.raises(ValueError, match="is not 32 hexadecimal digits"):
        command(invocation_id=invocation)


def test_sync_and_environment() -> None:
    assert sync() == ["journalctl", "--quiet", "--sync"]
    assert sync(namespace="sgl") == ["journalctl", "--quiet", "--namespace=sgl", "--sync"]
    assert ENVIRONMENT == {"SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8"}


@pytest.mark.parametrize(
    ("code", "stderr", "expected"),
    [
        (0, "", ""),
        (1, "No journal files were opened due to insufficient permissions.\n", "no permission to read the journal"),
        (0, "Journal file /x is inaccessible: Permission denied", "no permission to read the journal"),
        (1, "Failed to seek to cursor: Invalid argument\n", "does not know the cursor"),
        (1, "", "journalctl ended with 1: no message"),
        (127, "journalctl: No such file or directory", "journalctl ended with 127: journalctl: No such file"),
        (0, "Journal file corrupted, ignoring file.", ""),
    ],
)
def test_explain(code: int, stderr: str, expected: str) -> None:
    assert explain(code, stderr).startswith(expected) if not expected else expected in explain(code, stderr)
    assert bool(explain(code, stderr)) is bool(expected)


def test_system_journal_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [str(tmp_path / "var"), str(tmp_path / "run")]
    assert system_journal_readable(roots=roots) is None
    folder = tmp_path / "run" / "e8a6"
    folder.mkdir(parents=True)
    assert system_journal_readable(roots=roots) is None
    (folder / "system.journal").write_bytes(b"")
    assert system_journal_readable(roots=roots) is True
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    assert system_journal_readable(roots=roots) is False


# --- one read


def test_read_once_gives_entries_cursor_and_faults() -> None:
    asked: list[list[str]] = []

    def runner(words: list[str]) -> tuple[int, str, str]:
        asked.append(words)
        return 0, RECORDED + "not json\n\n", ""

    read = read_once(runner, invocation_id=INVOCATION, namespace="sgl", lines=200)
    assert asked == [command(invocation_id=INVOCATION, namespace="sgl", lines=200)]
    assert (len(read.entries), read.malformed, read.error) == (91, 1, "")
    assert read.cursor == read.entries[-1].cursor


def test_read_once_goes_on_after_the_cursor() -> None:
    lines = [line(MESSAGE=str(number), __CURSOR=f"i={number}") for number in range(3)]

    def runner(words: list[str]) -> tuple[int, str, str]:
        assert "--cursor=i=0" in words
        return 0, "\n".join(lines) + "\n", ""

    read = read_once(runner, invocation_id=INVOCATION, cursor="i=0")
    assert [one.message for one in read.entries] == ["1", "2"]
    assert read.cursor == "i=2"


def test_read_once_keeps_a_lost_cursors_successors() -> None:
    # After a vacuum journalctl goes on with what is left: its first entry is not the one that the cursor names.
    read = read_once(
        lambda _words: (0, line(MESSAGE="left", __CURSOR="i=9"), ""), invocation_id=INVOCATION, cursor="i=0"
    )
    assert [one.message for one in read.entries] == ["left"]


def test_read_once_without_news_keeps_the_cursor() -> None:
    read = read_once(lambda _words: (0, line(__CURSOR="i=0"), ""), invocation_id=INVOCATION, cursor="i=0")
    assert (read.entries, read.cursor, read.error) == ((), "i=0", "")


def test_read_once_tells_no_permission_from_no_lines() -> None:
    refused = read_once(
        lambda _words: (1, "", "No journal files were opened due to insufficient permissions."),
        invocation_id=INVOCATION,
    )
    assert "systemd-journal" in refused.error
    assert read_once(lambda _words: (0, "", ""), invocation_id=INVOCATION).error == ""


def test_read_once_joins_long_lines() -> None:
    text = "\n".join([line(MESSAGE="a", _LINE_BREAK="line-max", _STREAM_ID="s"), line(MESSAGE="b", _STREAM_ID="s")])
    read = read_once(lambda _words: (0, text, ""), invocation_id=INVOCATION)
    assert [one.message for one in read.entries] == ["ab"]


def test_command_about_an_invocation_reads_only_what_pid_1_says() -> None:
    words = command(invocation_id=INVOCATION, about=True, namespace="sgl")
    assert words[-3:] == ["--namespace=+sgl", f"INVOCATION_ID={INVOCATION}", "_UID=0"]


def test_read_orphans_takes_lines_without_an_invocation_since_the_start() -> None:
    # The clock was set back after the first line and forth after the second: it plays no part.
    def orphan(text: str, at_us: int, realtime: int, **fields: Any) -> str:
        times = {"__REALTIME_TIMESTAMP": str(realtime), "__MONOTONIC_TIMESTAMP": str(at_us)}
        return json.dumps({"MESSAGE": text, "_PID": "40", **times, **fields})

    lines = [
        orphan("of an earlier start", 4_999_999, 9_000_000_000),
        orphan("ModuleNotFoundError: ", 5_000_001, 1, _LINE_BREAK="line-max"),
        orphan("No module named 'sglang'", 5_000_002, 8_000_000_000, _LINE_BREAK="eof"),
        orphan("of a known invocation", 5_000_003, 8_000_000_001, _SYSTEMD_INVOCATION_ID="f" * 32),
        "not json",
    ]
    asked: list[list[str]] = []

    def runner(words: list[str]) -> tuple[int, str, str]:
        asked.append(words)
        return 0, "\n".join(lines), ""

    (found,) = read_orphans(
        runner, unit="sglang-x.service", boot_id="d7e211da-6fd3", since_us=5_000_000, namespace="sgl", lines=9
    )
    assert (found.message, found.own, found.invocation) == ("ModuleNotFoundError: No module named 'sglang'", True, "")
    assert asked[0][-4:] == ["--lines=9", "--namespace=+sgl", "_SYSTEMD_UNIT=sglang-x.service", "_BOOT_ID=d7e211da6fd3"]
    assert not [word for word in asked[0] if word.startswith("--since")]


@pytest.mark.parametrize(
    ("stderr", "told"),
    [
        ("", ""),
        (
            "Journal file /j/a.journal corrupted, ignoring file.\n",
            "Journal file /j/a.journal corrupted, ignoring file.",
        ),
        (
            "Journal file /j/a.journal is truncated, ignoring file.\n" * 2,
            "Journal file /j/a.journal is truncated, ignoring file.",
        ),
        ("Hint: You are currently not seeing messages from other users\n", ""),
    ],
)
def test_damaged_files_are_told(stderr: str, told: str) -> None:
    assert damage(stderr) == told


# --- the export format


def export(**fields: str | bytes) -> bytes:
    """One entry as `journalctl --output=export` writes it."""
    out = b""
    for name, value in fields.items():
        data = value.encode() if isinstance(value, str) else value
        try:
            plain = data.decode().isprintable()
        except UnicodeDecodeError:
            plain = False
        size = b"" if plain else b"\n" + len(data).to_bytes(8, "little")
        out += name.encode() + (b"=" if plain else size) + data + b"\n"
    return out + b"\n"


_FIELD_VALUES = st.one_of(
    st.text(max_size=40),
    st.binary(max_size=40),
    st.sampled_from(["", "=", "a=b", b"\n", b"\n\n", b"\n\n__CURSOR=x\n\n", b"\x1b[1mx", b"MESSAGE\n", b"\0" * 9]),
)
_EXPORTED = st.lists(
    st.dictionaries(st.sampled_from(["__CURSOR", "MESSAGE", "_PID", "X0"]), _FIELD_VALUES, min_size=1), max_size=6
)


@given(_EXPORTED, st.lists(st.integers(0, 400), max_size=8))
def test_export_is_read_in_pieces_of_any_size(entries: list[dict[str, str | bytes]], cuts: list[int]) -> None:
    data = b"".join(export(**fields) for fields in entries)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parser = ExportParser()
    found = []
    for begin, end in zip(places, places[1:]):
        found += parser.feed(data[begin:end])
    wanted = [
        {name: value if isinstance(value, str) else value.decode("utf-8", "replace") for name, value in fields.items()}
        for fields in entries
    ]
    assert (found, parser.malformed) == (wanted, 0)


@given(st.binary(max_size=300))
def test_export_that_is_none_does_no_harm(data: bytes) -> None:
    parser = ExportParser(longest=64)
    parser.feed(data)
    assert len(parser._rest) <= 128


def test_export_of_a_repeated_field() -> None:
    assert ExportParser().feed(b"MESSAGE=a\nMESSAGE=b\n\n") == [{"MESSAGE": "a\nb"}]
    assert ExportParser().feed(b"MESSAGE=a\nMESSAGE\n\1\0\0\0\0\0\0\0\n\n\n") == [{"MESSAGE": "a\n\n"}]


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_export_passes_over_what_is_too_long_and_reads_on(size: int) -> None:
    # What the long value holds must not pass for an entry.
    forged = export(MESSAGE="The server is fired up and ready to roll!")
    long = export(__CURSOR="2", MESSAGE=b"\n\n" + forged * 60, X=b"\n")
    data = export(__CURSOR="1") + long + export(__CURSOR="3") + b"not a field\nX=1\n\n" + export(__CURSOR="4")
    parser = ExportParser(longest=1000)
    found = []
    for begin in range(0, len(data), size):
        found += parser.feed(data[begin : begin + size])
    assert [fields["__CURSOR"] for fields in found] == ["1", "3", "4"]
    assert parser.malformed == 2


def test_export_that_ends_without_an_empty_line() -> None:
    parser = ExportParser()
    assert parser.feed(b"MESSAGE=a") == []
    assert parser.close() == [{"MESSAGE": "a"}]
    assert parser.feed(b"MESSAGE=b\n") == []
    assert parser.close() == [{"MESSAGE": "b"}]
    assert parser.close() == []


def test_a_clock_that_is_set_changes_no_phase() -> None:
    data = (FIXTURES / "systemd-252" / "journal-clock-set.export").read_bytes()
    entries = [entry_of(fields, invocation_id=INVOCATION) for fields in ExportParser().feed(data)]
    log = StartupLog(started_us=5_000_000)
    log.feed_all(entries)
    assert [(span.phase, span.start_us, span.duration_us) for span in log.timeline] == [
        ("starting", 5_000_000, 2_000_000),
        ("loading_weights", 7_000_000, 5_000_000),
    ]
    assert (log.markers, log.began, log.fired_up_us) == (1, True, 12_000_000)


def test_both_forms_give_the_same_entries() -> None:
    for text in RECORDED.splitlines():
        fields = {
            name: value if isinstance(value, str) else bytes(value) for name, value in json.loads(text).items() if value
        }
        (exported,) = ExportParser().feed(export(**fields))
        assert entry_of(exported, invocation_id=INVOCATION) == parse_entry(text, invocation_id=INVOCATION)


def test_follower_refuses_a_bad_invocation_before_it_starts_anything() -> None:
    with pytest.raises(ValueError, match="is not 32 hexadecimal digits"):
        Follower(invocation_id="nonsense", program=["/nonexistent"])
