# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._systemd import (
    SystemdError,
    UnitState,
    check_unit_name,
    parse_show,
    show,
    show_program,
)

# systemd 252, a unit of Type=exec that runs (order as systemd prints it).
RUNNING = """\
Type=exec
Restart=on-failure
NRestarts=0
MainPID=87
Result=success
ExecMainStartTimestampMonotonic=2520541990
ExecMainExitTimestampMonotonic=0
ExecMainCode=0
ExecMainStatus=0
ControlGroup=/system.slice/sglang-k26-dflash.service
StandardOutput=journal
LogNamespace=
Id=sglang-k26-dflash.service
LoadState=loaded
ActiveState=active
SubState=running
StateChangeTimestampMonotonic=2520542520
NeedDaemonReload=no
Job=85
InvocationID=aba3052d65e14c38bf15c6d11bf2cfe8
"""


def test_parses_a_running_unit() -> None:
    assert parse_show(RUNNING) == UnitState(
        id="sglang-k26-dflash.service",
        load_state="loaded",
        active_state="active",
        sub_state="running",
        result="success",
        invocation_id="aba3052d65e14c38bf15c6d11bf2cfe8",
        main_pid=87,
        exec_main_start_us=2520541990,
        state_change_us=2520542520,
        job=85,
        type="exec",
        control_group="/system.slice/sglang-k26-dflash.service",
    )


@pytest.mark.parametrize(
    ("code", "status", "main_pid", "text", "exited"),
    [
        pytest.param(0, 0, 87, "", False, id="runs"),
        pytest.param(1, 3, 0, "exited with status 3", True, id="exited"),
        pytest.param(2, 9, 0, "killed by signal 9", True, id="killed"),
        pytest.param(3, 6, 0, "dumped by signal 6", True, id="dumped"),
        pytest.param(1, 3, 99, "exited with status 3", False, id="restarted meanwhile"),
    ],
)
def test_exit(code: int, status: int, main_pid: int, text: str, exited: bool) -> None:
    unit = UnitState(exec_main_code=code, exec_main_status=status, main_pid=main_pid)
    assert unit.exit_text() == text
    assert unit.main_exited is exited


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("", ""),
        (
            'org.freedesktop.systemd1.BadUnitSetting "Unit x.service has a bad unit file setting."',
            "Unit x.service has a bad unit file setting.",
        ),
    ],
)
def test_a_units_error_without_its_dbus_name(error: str, text: str) -> None:
    assert parse_show(f"LoadState=bad-setting\nLoadError={error}\n").load_error == text


@pytest.mark.parametrize("value", ["[not set]", "infinity", ""])
def test_unset_numbers(value: str) -> None:
    assert parse_show(f"MainPID={value}\n").main_pid == 0


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ("", ()),
        ("/etc/a.conf /run/b.conf", ("/etc/a.conf", "/run/b.conf")),
        pytest.param(r'"/etc/a b.conf" /c', ("/etc/a b.conf", "/c"), id="quoted"),
        pytest.param("'/open", ("'/open",), id="a-quote-that-is-not-closed"),
    ],
)
def test_drop_ins(value: str, paths: tuple[str, ...]) -> None:
    assert parse_show(f"DropInPaths={value}").drop_in_paths == paths


def test_values_may_hold_equals_signs() -> None:
    assert parse_show("LoadError=x a=b\n").load_error == "x a=b"


@pytest.mark.parametrize(
    ("output", "error", "journal", "told"),
    [
        ("journal", "inherit", True, "StandardOutput is 'journal'"),
        ("journal+console", "inherit", True, "StandardOutput is 'journal+console'"),
        ("kmsg", "inherit", True, "StandardOutput is 'kmsg'"),
        ("append", "inherit", False, "StandardOutput is 'append'"),
        ("null", "inherit", False, "StandardOutput is 'null'"),
        ("tty", "inherit", False, "StandardOutput is 'tty'"),
        # SGLang logs to the standard error output.
        ("journal", "append", False, "StandardError is 'append'"),
        ("append", "journal", True, "StandardError is 'journal'"),
    ],
)
def test_where_the_log_goes(output: str, error: str, journal: bool, told: str) -> None:
    unit = parse_show(f"StandardOutput={output}\nStandardError={error}\n")
    assert (unit.logs_to_journal, unit.log_output) == (journal, told)


@pytest.mark.parametrize(
    ("unit", "part"),
    [
        ("sglang@.service", "template"),
        ("sglang.socket", "no service"),
        ("sglang", "no service"),
        ("a b.service", "no valid unit name"),
        ("../x.service", "no valid unit name"),
        ("", "no valid unit name"),
    ],
)
def test_refuses_names_that_are_no_service(unit: str, part: str) -> None:
    with pytest.raises(SystemdError, match=part):
        check_unit_name(unit)


def test_an_instance_of_a_template_is_a_service() -> None:
    assert check_unit_name("sglang-k26@0.service") == "sglang-k26@0.service"


def test_show_asks_for_one_unit_and_says_why_it_failed() -> None:
    asked: list[t.Sequence[str]] = []

    def runner(argv: t.Sequence[str]) -> tuple[int, str, str]:
        asked.append(argv)
        return (0, RUNNING, "") if len(asked) == 1 else (1, "", "Failed to connect to bus: No such file or directory")

    assert show(runner, "sglang-k26-dflash.service").main_pid == 87
    assert asked[0][:2] == ["systemctl", "show"]
    assert asked[0][-2:] == ["--", "sglang-k26-dflash.service"]
    with pytest.raises(SystemdError, match="Failed to connect to bus"):
        show(runner, "sglang-k26-dflash.service")


@pytest.mark.parametrize(
    ("stdout", "program"),
    [
        (
            "ExecStart={ path=/opt/e/bin/python ; argv[]=/opt/e/bin/python -m x ; ignore_errors=no ; pid=0 ; status=0/0 }\n",
            "/opt/e/bin/python",
        ),
        ("", ""),
    ],
)
def test_the_program_of_a_unit(stdout: str, program: str) -> None:
    asked: list[t.Sequence[str]] = []

    def runner(argv: t.Sequence[str]) -> tuple[int, str, str]:
        asked.append(argv)
        return 0, stdout, ""

    assert show_program(runner, "sglang-x.service") == program
    assert asked[0][-2:] == ["--", "sglang-x.service"]
