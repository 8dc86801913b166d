# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files beside a unit file, in folders below tmp_path."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _drop_ins
from ansible_collections.specdec.serving.plugins.module_utils._drop_ins import (
    DropIn,
    drop_in_paths,
    drop_ins_of,
    show_with_drop_ins,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState


def test_the_warning_of_a_deployment() -> None:
    path = "/etc/systemd/system/sglang-a.service.d/override.conf"
    warning = DropIn(path, "[Service]\nTasksMax=5\nNice=1\nTasksMax=6\n").warning("sglang-a.service")
    assert f"sglang-a.service: the drop-in {path} sets TasksMax, Nice." in warning
    assert DropIn(path, "# nothing").warning("sglang-a.service") == ""
    assert DropIn("/usr/lib/x.conf", "[Service]\nNice=1", vendor=True).warning("sglang-a.service") == ""


def test_drop_ins_that_systemd_has_not_read_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_drop_ins, "_FOLDERS_ABOVE", (str(tmp_path / "control"),))
    monkeypatch.setattr(_drop_ins, "_FOLDERS_BELOW", (str(tmp_path / "run"),))
    unit_dir = tmp_path / "units"
    for place in (
        "units/sglang-a@1.service.d/20-near.conf",
        "units/sglang-a@.service.d/20-near.conf",
        "units/sglang-.service.d/10-all.conf",
        "run/sglang-a@1.service.d/30-run.conf",
        "units/sglang-b.service.d/40-other.conf",
        "units/sglang-a@1.service.d/30-run.conf",
        "control/sglang-a@1.service.d/30-run.conf",
        "units/sglang-a@1.service.d/notes.txt",
    ):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[Service]\nNice=1\n")
    state = UnitState(need_daemon_reload=True, drop_in_paths=("/usr/lib/gone.conf",))
    found = drop_in_paths(state, "sglang-a@1.service", str(unit_dir))
    assert [path.replace(f"{tmp_path}/", "") for path in found] == [
        "units/sglang-.service.d/10-all.conf",
        "units/sglang-a@1.service.d/20-near.conf",
        "control/sglang-a@1.service.d/30-run.conf",
    ]


def test_drop_ins_of_the_distribution() -> None:
    state = UnitState(drop_in_paths=("/usr/lib/systemd/system/service.d/10-x.conf", "/etc/systemd/system/x.conf"))
    assert [drop_in.vendor for drop_in in drop_ins_of(state, "x.service", "/etc/systemd/system")] == [True, False]


@pytest.mark.parametrize(
    ("place", "text", "shown", "needed"),
    [
        pytest.param("sglang-a.service.d/x.conf", "[Service]", "", True, id="in a folder that systemd does not know"),
        pytest.param("sglang-a.service.d/x.conf", "[Service]", "DropInPaths=/run/x.conf\n", False, id="read"),
        pytest.param("sglang-a.service.d/x.conf", "", "", False, id="empty"),
        pytest.param("sglang-a.service.d/x.txt", "[Service]", "", False, id="another kind of file"),
        pytest.param("sglang-b.service.d/x.conf", "[Service]", "", False, id="of another unit"),
        pytest.param("sglang-a.service.d/x.conf", "[Service]", "LoadState=not-found\n", False, id="no unit"),
        pytest.param("sglang-b.service.d/x.conf", "x", "NeedDaemonReload=yes\n", True, id="as systemd says"),
    ],
)
def test_a_reload_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, text: str, shown: str, needed: bool
) -> None:
    monkeypatch.setattr(_drop_ins, "_FOLDERS_ABOVE", ())
    monkeypatch.setattr(_drop_ins, "_FOLDERS_BELOW", ())
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text(text)

    def runner(argv: t.Sequence[str]) -> tuple[int, str, str]:
        return 0, "LoadState=loaded\n" + shown, ""

    state = show_with_drop_ins(runner, "sglang-a.service", str(tmp_path))
    assert state.need_daemon_reload is needed
