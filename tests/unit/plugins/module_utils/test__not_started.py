# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reasons of systemd's own, from what systemd 252 printed and logged."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry, parse_entry
from ansible_collections.specdec.serving.plugins.module_utils._not_started import (
    failed_command,
    failed_requirements,
    manager_lines,
    not_started_reason,
    unit_file_reason,
)

UNIT = "sglang-x.service"
PATH = f"/etc/systemd/system/{UNIT}"
STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
STOPPED = "9d1aaa27d60140bd96365438aad20286"


def said(*lines: str, message_id: str = "") -> list[Entry]:
    entries = [parse_entry(json.dumps({"MESSAGE": line, "MESSAGE_ID": message_id, "_PID": "1"})) for line in lines]
    return [entry for entry in entries if entry is not None]


def answers(texts: t.Mapping[str, str]) -> t.Callable[[t.Sequence[str]], tuple[int, str, str]]:
    """A runner that answers a command in which a text stands."""

    def run(argv: t.Sequence[str]) -> tuple[int, str, str]:
        line = " ".join(argv)
        return 0, next((out for part, out in texts.items() if part in line), ""), ""

    return run


SKIPPED = f"{UNIT} was skipped because of an unmet condition check (ConditionPathExists=/no/such/file)."
DEPENDENCY = [f"Dependency failed for {UNIT}.", f"{UNIT}: Job {UNIT}/start failed with result 'dependency'."]


@pytest.mark.parametrize(
    ("lines", "cause", "words"),
    [
        pytest.param(said(SKIPPED), "condition", "ConditionPathExists=/no/such/file", id="condition"),
        pytest.param(said(f"Assertion failed for {UNIT}."), "condition", "Assertion failed", id="assertion"),
        pytest.param(said(*DEPENDENCY), "dependency_failed", "needed.service failed", id="dependency"),
        pytest.param(
            said(SKIPPED) + said(f"Starting {UNIT}...", message_id=STARTING), "", "", id="it was started since"
        ),
        pytest.param(said(*DEPENDENCY) + said(f"Stopped {UNIT}.", message_id=STOPPED), "", "", id="stopped since"),
        pytest.param(
            said(f"Stopped {UNIT}.", message_id=STOPPED) + said(SKIPPED), "condition", "skipped", id="skipped since"
        ),
        pytest.param([], "", "", id="nothing was said"),
    ],
)
def test_the_last_word_counts(lines: list[Entry], cause: str, words: str) -> None:
    reason = not_started_reason(lines, requirements=["needed.service failed (result exit-code)"])
    assert (reason.cause if reason else "") == cause
    assert reason is None or words in reason.summary


def test_a_requirement_that_is_not_there_needs_no_word() -> None:
    reason = not_started_reason([], requirements=["nowhere.service is not-found"])
    assert reason is not None
    assert reason.cause == "dependency_failed"
    assert "nowhere.service is not-found" in reason.summary


def test_requirements_that_failed() -> None:
    run = answers(
        {
            "Requires,Requisite,BindsTo": "sysinit.target needed.service\n\nnowhere.service\n",
            "Id,LoadState": (
                "Id=sysinit.target\nLoadState=loaded\nActiveState=active\n\n"
                "Result=exit-code\nId=needed.service\nLoadState=loaded\nActiveState=failed\n\n"
                "Id=nowhere.service\nLoadState=not-found\nActiveState=inactive\n"
            ),
        }
    )
    assert failed_requirements(run, UNIT) == [
        "needed.service failed (result exit-code)",
        "nowhere.service is not-found",
    ]
    assert failed_requirements(answers({}), UNIT) == []


QUOTING = f'{PATH}:3: Unbalanced quoting, ignoring: "/bin/sh -c \'sleep 1000"'
FATAL = f"{UNIT}: Unit configuration has fatal error, unit will not be started."


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param([QUOTING, FATAL, QUOTING, FATAL], "Unbalanced quoting", id="the line of the file"),
        pytest.param(
            [f"{UNIT}: Service has no ExecStart=, ExecStop=, or SuccessAction=. Refusing."],
            "no ExecStart=",
            id="no line",
        ),
        pytest.param([], "has a bad unit file setting", id="no journal"),
    ],
)
def test_a_unit_file_that_cannot_be_loaded(lines: list[str], words: str) -> None:
    reason = unit_file_reason(
        said(*lines), unit=UNIT, path=PATH, load_error=f"Unit {UNIT} has a bad unit file setting."
    )
    assert reason.cause == "bad_unit_file"
    assert reason.summary.count(PATH) == 1
    assert words in reason.summary
    assert len(reason.evidence) == len(set(lines))


def command(setting: str, argv: str, *, ignored: str = "no", code: str = "exited", status: str = "0") -> str:
    return (
        f"{setting}={{ path=/bin/sh ; argv[]={argv} ; ignore_errors={ignored} ; start_time=[n/a] ; stop_time=[n/a] ;"
        f" pid=2462 ; code={code} ; status={status} }}\n"
    )


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        pytest.param(
            command("ExecStartPre", "/bin/sh -c echo ; exit 7", status="7"),
            "start_pre_failed",
            "ExecStartPre=/bin/sh -c echo ; exit 7 exited with status 7",
            id="before",
        ),
        pytest.param(
            command("ExecStartPre", "/bin/true") + command("ExecStartPost", "/bin/curl", code="killed", status="15"),
            "start_post_failed",
            "killed by signal 15, and systemd ended the server",
            id="after",
        ),
        pytest.param(command("ExecStartPre", "/bin/false", ignored="yes", status="1"), "", "", id="may fail"),
        pytest.param(command("ExecStartPre", "/bin/x", code="(null)", status="0/0"), "", "", id="never ran"),
        pytest.param("", "", "", id="none"),
    ],
)
def test_a_command_beside_the_main_one(text: str, cause: str, words: str) -> None:
    reason = failed_command(answers({"ExecStartPre": text}), UNIT)
    assert (reason.cause if reason else "") == cause
    assert reason is None or words in reason.summary


def test_what_pid_1_said_is_read_for_this_boot() -> None:
    asked: list[str] = []

    def run(argv: t.Sequence[str]) -> tuple[int, str, str]:
        asked.append(" ".join(argv))
        return 0, json.dumps({"MESSAGE": SKIPPED, "_PID": "1"}) + "\nno entry\n", ""

    assert [entry.message for entry in manager_lines(run, UNIT, boot_id="01-02")] == [SKIPPED]
    assert asked[0] == "journalctl --sync"
    assert asked[1].endswith(f"_PID=1 UNIT={UNIT} _BOOT_ID=0102")
