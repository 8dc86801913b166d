# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main(): parameters in, JSON out."""

from __future__ import annotations

import os
import pwd
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.modules import sglang_drift, sglang_unit

KEY, OTHER_KEY = "sk-planted-key-9f3", "sk-planted-other-9f3"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of a host belong to root; run the tests as root")


@pytest.fixture
def options(tmp_path: Path, fake_systemd: t.Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, t.Any]:
    for module in (sglang_drift, sglang_unit):
        monkeypatch.setattr(module, "command_runner", lambda: fake_systemd)
    config = tmp_path / "etc"
    return {
        "units": [
            {
                "name": "a",
                "unit": "sglang-a.service",
                "content": (
                    f"[Service]\nExecStart=/bin/a --page-size 64\nEnvironmentFile={config}/a.000000000000.env\n"
                    f"LoadCredential=a.yaml:{config}/credentials/a.@SECRET@.yaml\n"
                ),
                "environment_file": f"{config}/a.000000000000.env",
                "environment_text": 'A="1"\n',
                "credential": f"{config}/credentials/a.@SECRET@.yaml",
            }
        ],
        "secrets": {"a": {"config": {"api_key": KEY}}},
        "user": pwd.getpwuid(0).pw_name,
        "unit_dir": str(tmp_path / "units"),
        "config_dir": str(config),
        "state_dir": str(tmp_path / "state"),
        "cache_dirs": [str(tmp_path / "cache")],
        "enabled": False,
    }


def test_before_and_after_a_deployment(options: dict[str, t.Any], run_module: t.Any) -> None:
    code, result = run_module(sglang_drift, **options)
    assert (code, result["changed"]) == (0, False)
    assert [(row["where"], row["name"], row["needs"]) for row in result["instances"][0]["drift"]] == [
        ("unit", "file", "deploy")
    ]
    run_module(sglang_unit, **options)
    code, result = run_module(sglang_drift, **options)
    assert (code, result["instances"]) == (0, [{"name": "a", "drift": []}])


def test_a_difference(options: dict[str, t.Any], run_module: t.Any) -> None:
    run_module(sglang_unit, **options)
    unit = options["units"][0]
    options["units"] = [{**unit, "content": unit["content"].replace("--page-size 64", "--page-size 32")}]
    options["secrets"] = {"a": {"config": {"api_key": OTHER_KEY}}}
    _code, result = run_module(sglang_drift, **options)
    assert result["instances"][0]["drift"] == [
        {"where": "unit", "name": "page_size", "asked": "32", "found": "64", "needs": "deploy", "path": ""},
        {
            "where": "credential",
            "name": "api_key",
            "asked": "(secret)",
            "found": "(another secret)",
            "needs": "deploy",
            "path": "",
        },
    ]
    assert KEY not in result["_output"]
    assert OTHER_KEY not in result["_output"]


def test_a_user_that_is_not_there_yet(options: dict[str, t.Any], run_module: t.Any) -> None:
    code, result = run_module(sglang_drift, **{**options, "user": "nobody-of-that-name"})
    assert (code, len(result["instances"])) == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"content": ""}, "units: 'a' lacks content", id="not rendered"),
        pytest.param({"unit": "a/b.service"}, "'a/b.service' is no valid unit name", id="unit name"),
        pytest.param({"secret_environment_file": "/x/a.@SECRET@.secret.env"}, "no secret was given", id="secret"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, t.Any], run_module: t.Any, change: dict[str, t.Any], message: str
) -> None:
    options["units"] = [{**options["units"][0], **change}]
    code, result = run_module(sglang_drift, **options)
    assert code == 1
    assert message in result["msg"]
