# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main(): parameters in, JSON out."""

from __future__ import annotations

import os
import pwd
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.modules import sglang_unit

KEY = "sk-planted-key-55e1"
TOKEN = "hf_planted_55e1"
SECRETS = {"a": {"config": {"api_key": KEY}, "environment": {"HF_TOKEN": TOKEN}}}


@pytest.fixture
def options(tmp_path: Path, fake_systemd: t.Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, t.Any]:
    monkeypatch.setattr(sglang_unit, "command_runner", lambda: fake_systemd)
    config = tmp_path / "etc"
    return {
        "units": [
            {
                "name": "a",
                "unit": "sglang-a.service",
                "content": "[Service]\nExecStart=/bin/a\n"
                f"EnvironmentFile={config}/a.@SECRET@.secret.env\nLoadCredential=a.yaml:{config}/credentials/a.@SECRET@.yaml\n",
                "environment_file": f"{config}/a.000000000000.env",
                "environment_text": 'A="1"\n',
                "secret_environment_file": f"{config}/a.@SECRET@.secret.env",
                "credential": f"{config}/credentials/a.@SECRET@.yaml",
            }
        ],
        "secrets": SECRETS,
        "user": pwd.getpwuid(0).pw_name,
        "unit_dir": str(tmp_path / "units"),
        "config_dir": str(config),
        "state_dir": str(tmp_path / "state"),
        "cache_dirs": [str(tmp_path / "cache")],
    }


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of a host belong to root; run the tests as root")


def test_write_then_nothing_to_do(options: dict[str, t.Any], run_module: t.Any, fake_systemd: t.Any) -> None:
    code, first = run_module(sglang_unit, _ansible_diff=True, **options)
    assert (code, first["changed"]) == (0, True)
    assert first["restart_needed"] == ["a"]
    assert first["units"]["a"]["unit"] == "sglang-a.service"
    names = [entry["after_header"].rpartition("/")[2] for entry in first["diff"]]
    assert [re.sub(r"\.[0-9a-f]{16}\.", ".HEX.", name) for name in names] == [
        "a.000000000000.env",
        "a.HEX.secret.env",
        "a.HEX.yaml",
        "sglang-a.service",
    ]
    assert re.fullmatch(r"[0-9a-f]{12}", first["units"]["a"]["generation"])
    assert first["units"]["a"]["known_good"] is False
    started = fake_systemd.start("sglang-a.service")
    code, second = run_module(sglang_unit, **options)
    assert (code, second["changed"], second["restart_needed"], second["folders"]) == (0, False, [], [])
    assert second["units"]["a"]["invocation_id"] == started
    assert second["units"]["a"]["active_state"] == "active"
    assert "diff" not in second


def test_no_secret_comes_out(options: dict[str, t.Any], run_module: t.Any) -> None:
    _code, first = run_module(sglang_unit, _ansible_diff=True, **options)
    options["secrets"] = {"a": {"config": {"api_key": KEY + "x"}, "environment": {"HF_TOKEN": TOKEN + "x"}}}
    _code, second = run_module(sglang_unit, _ansible_diff=True, **options)
    assert second["changed"]
    for result in (first, second):
        assert KEY not in result["_output"]
        assert TOKEN not in result["_output"]


def test_check_mode(options: dict[str, t.Any], run_module: t.Any, tmp_path: Path) -> None:
    code, result = run_module(sglang_unit, _ansible_check_mode=True, _ansible_diff=True, **options)
    assert (code, result["changed"], result["restart_needed"]) == (0, True, ["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["units"]
    assert list((tmp_path / "units").iterdir()) == []


def test_user(options: dict[str, t.Any], run_module: t.Any) -> None:
    options["user"] = "no-such-user"
    code, result = run_module(sglang_unit, **options)
    assert code == 1
    assert result["msg"].startswith("user 'no-such-user' does not exist on this host; the role makes it")
    # In check mode the task that makes it has not made it.
    assert run_module(sglang_unit, _ansible_check_mode=True, **options)[0] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"unit": "sglang-a.socket"}, "is no service", id="no-service"),
        pytest.param({"unit": "sglang a.service"}, "no valid unit name", id="unit-name"),
        pytest.param({"content": ""}, "units: 'a' lacks content", id="no-content"),
    ],
)
def test_refused(options: dict[str, t.Any], run_module: t.Any, changes: dict[str, str], message: str) -> None:
    options["units"][0].update(changes)
    code, result = run_module(sglang_unit, **options)
    assert code == 1
    assert message in result["msg"]


def test_secrets_of_a_wrong_shape(options: dict[str, t.Any], run_module: t.Any) -> None:
    code, result = run_module(sglang_unit, **{**options, "secrets": {"a": KEY}})
    assert code == 1
    assert "one mapping per instance" in result["msg"]
    assert KEY not in result["_output"]


def test_stop_and_remove(options: dict[str, t.Any], run_module: t.Any, fake_systemd: t.Any, tmp_path: Path) -> None:
    run_module(sglang_unit, **options)
    fake_systemd.start("sglang-a.service")
    short = {**options, "units": [{"name": "a", "unit": "sglang-a.service"}]}
    short.pop("secrets")
    assert run_module(sglang_unit, state="stopped", _ansible_check_mode=True, **short)[1]["changed"]
    assert fake_systemd.states["sglang-a.service"] == "active"
    assert run_module(sglang_unit, state="stopped", **short)[1]["units"]["a"]["active_state"] == "inactive"
    assert not run_module(sglang_unit, state="stopped", **short)[1]["changed"]
    assert run_module(sglang_unit, state="absent", **short)[1]["changed"]
    assert not run_module(sglang_unit, state="absent", **short)[1]["changed"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_systemd_says_no(options: dict[str, t.Any], run_module: t.Any, fake_systemd: t.Any, tmp_path: Path) -> None:
    fake_systemd.fail["systemctl daemon-reload"] = (1, "", "Failed to connect to bus")
    code, result = run_module(sglang_unit, **options)
    assert code == 1
    assert "Failed to connect to bus" in result["msg"]
    assert list((tmp_path / "units").iterdir()) == []
