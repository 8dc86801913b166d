# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main(): parameters in, JSON out."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.modules import sglang_preflight


def answer(argv: t.Sequence[str]) -> tuple[int, str, str]:
    if argv[0] == "systemctl":
        return 0, "systemd 252 (252.38)\nLoadState=not-found\n", ""
    return (127, "", "No such file") if argv[0] == "nvidia-smi" else (0, "3.11.2\n", "")


@pytest.fixture(autouse=True)
def a_plain_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_preflight, "command_runner", lambda **_options: answer)


@pytest.mark.parametrize("check_mode", [False, True])
def test_fit(run_module: t.Any, check_mode: bool) -> None:
    code, result = run_module(
        sglang_preflight,
        version="0.5.23",
        paths=[{"path": "/", "what": "model"}],
        ports=[{"port": 9, "unit": "sglang-a.service"}],
        _ansible_check_mode=check_mode,
    )
    assert (code, result["changed"], result["errors"], result["instances"]) == (0, False, [], [])
    assert result["facts"]["systemd_version"] == 252


def test_unfit_tells_all(run_module: t.Any) -> None:
    code, result = run_module(
        sglang_preflight,
        version="0.5.23",
        wheelhouse="/no/wheelhouse",
        paths=[{"path": "/no/model", "what": "a: model_path"}],
        needs_gpu=True,
    )
    assert code == 1
    assert len(result["errors"]) == 3
    assert result["msg"].splitlines()[0] == "this host is not fit for the deployment; nothing was changed:"
    assert result["msg"].splitlines()[1:] == [f"- {error}" for error in result["errors"]]
    assert result["facts"]["gpus"] == []


def test_an_instance_is_judged(run_module: t.Any) -> None:
    """No engine is there to be asked; what needs none is told with where it comes from."""
    words = ["/e/bin/python", "-m", "sglang.launch_server", "--tp-size", "4", "--nnodes", "3"]
    code, result = run_module(
        sglang_preflight,
        version="0.5.23",
        root="/no/root",
        instances=[
            {
                "name": "a",
                "unit": "sglang-a.service",
                "argv": [*words, "--dist-init-addr", "h:1", "--ssl-keyfile-password", "planted-91ab77"],
                "origins": {"nnodes": "sglang_instances[0] (a): args"},
            }
        ],
    )
    assert code == 1
    (error,) = result["errors"]
    assert error.startswith(
        "sglang_instances[0] (a): args: tp_size 4 x pp_size 1 cannot be split over nnodes 3; choose nnodes"
    )
    assert error.endswith("[nodes-divide]")
    assert result["instances"][0]["errors"] == [error]
    assert result["facts"]["parser"]["source"] == ""
    assert "deprecations" not in result
    result.pop("invocation", None)
    assert "planted" not in str(result)
