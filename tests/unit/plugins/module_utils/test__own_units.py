# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which units are ours, on a real file system below tmp_path."""

from __future__ import annotations

import json
import re
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _unit_files
from ansible_collections.specdec.serving.plugins.module_utils._own_units import OwnUnit, find_units

LINE = "# {}: written by the role specdec.serving.sglang. Changes made here are put back by its next run.\n[Unit]\n"


class Host:
    """Folders with units and records; systemd says the same of every unit."""

    def __init__(self, root: Path) -> None:
        self.units = root / "units"
        self.state = root / "state"
        self.units.mkdir()
        self.state.mkdir()
        self.shown: dict[str, str] = {}

    def unit(self, unit: str, line: str | None = None) -> None:
        (self.units / unit).write_text(LINE.format(line or unit))

    def record(self, name: str, **content: t.Any) -> None:
        text = json.dumps({"format": _unit_files._RECORD_FORMAT, "unit": f"sglang-{name}.service", **content})
        (self.state / f"{name}.json").write_text(text)

    def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        return 0, "LoadState=loaded\n" + self.shown.get(argv[-1], "ActiveState=inactive\nSubState=dead\n"), ""

    def found(self, *without: str) -> list[OwnUnit]:
        return find_units(self, unit_dir=str(self.units), state_dir=str(self.state), without=without)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_left_the_list(host: Host) -> None:
    for name in ("a", "b@0", "b@7", "c.1-x_y"):
        host.unit(f"sglang-{name}.service")
        host.record(name)
    assert [unit.name for unit in host.found()] == ["a", "b@0", "b@7", "c.1-x_y"]
    assert [unit.unit for unit in host.found("sglang-a.service", "sglang-b@0.service", "sglang-c.1-x_y.service")] == [
        "sglang-b@7.service"
    ]


@pytest.mark.parametrize(
    ("unit", "line"),
    [
        pytest.param("sglang-mine.service", "sglang-a.service", id="copy-of-ours"),
        pytest.param("sglang-mine.service", "something else", id="another-line"),
        pytest.param("vllm.service", None, id="another-name"),
        pytest.param("sglang-a@.service", None, id="template"),
        pytest.param("sglang-a.timer", None, id="no-service"),
        pytest.param("sglang-a.service.bak", None, id="backup"),
    ],
)
def test_units_of_others(host: Host, unit: str, line: str | None) -> None:
    host.unit(unit, line)
    assert host.found() == []


def test_links_and_folders_are_of_others(host: Host, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text(LINE.format("sglang-a.service"))
    (host.units / "sglang-a.service").symlink_to(tmp_path / "theirs")
    (host.units / "sglang-b.service").symlink_to("/dev/null")
    (host.units / "sglang-c.service").mkdir()
    for name in ("a", "b", "c"):
        host.record(name)
    assert host.found() == []


def test_a_line_of_the_router_role_is_not_ours(host: Host) -> None:
    text = LINE.format("sglang-r.service").replace("serving.sglang.", "serving.sglang_router.")
    (host.units / "sglang-r.service").write_text(text)
    assert host.found() == []


def test_what_an_interrupted_removal_left(host: Host) -> None:
    """The unit file goes first, the record last: a file with a key may lie between."""
    host.record("a")
    (unit,) = host.found()
    assert (unit.name, unit.has_unit_file) == ("a", False)
    assert unit.text == "sglang-a.service: inactive (dead), only other files of it are left"
    # Where somebody put a unit of theirs there since, it is theirs.
    (host.units / "sglang-a.service").write_text("[Service]\nExecStart=/bin/true\n")
    assert host.found() == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"unit": "sglang-b.service"}', '{"format": 99}'])
def test_files_that_are_no_records(host: Host, text: str) -> None:
    (host.state / "b.json").write_text(text)
    (host.state / "starts.jsonl").write_text(text)
    (host.state / "folder.json").mkdir()
    assert host.found() == []


def test_a_record_tells_of_one_unit_only(host: Host) -> None:
    host.record("a", unit="sglang-other.service")
    assert host.found() == []


def test_no_folders(host: Host) -> None:
    assert find_units(host, unit_dir="/no/units", state_dir="/no/state") == []


def test_state_and_since_when(host: Host) -> None:
    host.unit("sglang-a.service")
    age = time.monotonic() / 2
    host.shown["sglang-a.service"] = (
        "ActiveState=active\nSubState=running\nUnitFileState=enabled\nControlGroup=/system.slice/sglang-a.service\n"
        f"StateChangeTimestampMonotonic={int(age * 1e6)}\n"
    )
    (unit,) = host.found()
    assert unit.control_group == "/system.slice/sglang-a.service"
    shown = re.fullmatch(r"sglang-a\.service: active \(running\) since (.*) UTC, starts at boot", unit.text)
    assert shown
    assert abs(time.time() - age - _seconds(shown.group(1))) < 3
    told = unit.as_dict()
    assert told["text"] == unit.text
    assert "control_group" not in told


def _seconds(text: str) -> float:
    import calendar

    return calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
