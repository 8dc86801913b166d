# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main(): parameters in, JSON out."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.modules import sglang_unit_info


@pytest.fixture
def folders(tmp_path: Path, fake_systemd: t.Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(sglang_unit_info, "command_runner", lambda: fake_systemd)
    for name in ("a", "old"):
        line = f"# sglang-{name}.service: written by the role specdec.serving.sglang. X\n"
        (tmp_path / "units" / f"sglang-{name}.service").write_text(line)
    fake_systemd.start("sglang-old.service")
    return {"unit_dir": str(tmp_path / "units"), "state_dir": str(tmp_path / "state")}


def test_units(run_module: t.Any, folders: dict[str, str]) -> None:
    code, result = run_module(sglang_unit_info, without=["sglang-a.service"], **folders)
    assert (code, result["changed"]) == (0, False)
    (unit,) = result["units"]
    assert (unit["name"], unit["unit"], unit["active_state"]) == ("old", "sglang-old.service", "active")
    assert unit["text"].startswith("sglang-old.service: active")
    assert [unit["name"] for unit in run_module(sglang_unit_info, **folders)[1]["units"]] == ["a", "old"]


def test_a_host_without_systemd(run_module: t.Any, folders: dict[str, str], fake_systemd: t.Any) -> None:
    fake_systemd.fail["systemctl show"] = (1, "", "System has not been booted with systemd")
    code, result = run_module(sglang_unit_info, **folders)
    assert code == 1
    assert "not been booted with systemd" in result["msg"]
