# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.plugin_utils._hardening import HARDENING, LEFT_OUT, hardening_settings

README = Path(__file__).resolve().parents[4] / "roles" / "sglang" / "README.md"


def settings(**changes: t.Any) -> tuple[tuple[str, ...], list[str], list[str]]:
    errors: list[str] = []
    options: dict[str, t.Any] = {"writable_paths": (), "omitted": (), "refused": {}, "system_user": True, **changes}
    lines, warnings = hardening_settings(cache_dir="/var/cache/x", errors=errors, **options)
    return lines, warnings, errors


def names(lines: t.Iterable[str]) -> set[str]:
    return {line.partition("=")[0] for line in lines}


def test_the_default_is_the_whole_table() -> None:
    lines, warnings, errors = settings()
    assert (warnings, errors) == ([], [])
    assert lines == (*(line for one in HARDENING for line in one.settings), "ReadWritePaths=/var/cache/x")
    assert len({one.name for one in HARDENING}) == len(HARDENING)
    assert not {one.name for one in HARDENING} & set(LEFT_OUT)


def test_what_the_host_refuses_is_left_out_and_told() -> None:
    lines, warnings, _errors = settings(refused={"SystemCallFilter": "the kernel has none", "Unknown": "x"})
    assert "SystemCallFilter" not in names(lines)
    assert warnings == ["the units run without SystemCallFilter=: the kernel has none"]


def test_what_the_user_leaves_out_needs_no_warning() -> None:
    lines, warnings, errors = settings(omitted=["ProtectProc"], refused={"ProtectProc": "x"})
    assert (names(lines) & {"ProtectProc"}, warnings, errors) == (set(), [], [])


def test_names_that_cannot_be_left_out() -> None:
    assert settings(omitted=["ProtectPrc"])[2] == [
        "sglang_hardening_omit: 'ProtectPrc' is no directive of the sandbox; did you mean 'ProtectProc'?"
    ]
    assert "known: NoNewPrivileges, " in settings(omitted=["x"])[2][0]
    assert "is no list of names" in settings(omitted="ProtectProc")[2][0]


def test_shared_memory_of_a_person_is_not_removed() -> None:
    assert "RemoveIPC=yes" in settings()[0]
    assert "RemoveIPC" not in names(settings(system_user=False)[0])


def test_writable_paths_are_quoted_and_absolute() -> None:
    lines, _warnings, errors = settings(writable_paths=["/srv/with space", "relative"])
    assert lines[-1].startswith("ReadWritePaths=/var/cache/x ")
    assert '"/srv/with space"' in lines[-1] or "with\\x20space" in lines[-1]
    assert errors == ["sglang_writable_paths: 'relative' is no absolute path"]


def test_the_readme_lists_both_tables() -> None:
    rows = dict(re.findall(r"^\| `(\w+=[^`]*)` \| (.*) \|$", README.read_text(), re.MULTILINE))
    wanted = {f"{one.name}={'; '.join(one.values)}": one.reason for one in HARDENING}
    wanted |= {f"{name}=": reason for name, reason in LEFT_OUT.items()}
    assert {row: rows.get(row) for row in wanted} == wanted
