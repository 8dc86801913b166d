# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main(): parameters in, JSON out."""

from __future__ import annotations

import typing as t

import pytest
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._benchmark import (
    Benchmark,
    BenchmarkError,
)
from ansible_collections.specdec.serving.plugins.module_utils._hang_up import HangUp
from ansible_collections.specdec.serving.plugins.modules import sglang_benchmark

OPTIONS: dict[str, t.Any] = {
    "unit": "sglang-a.service",
    "port": 30001,
    "workload": "fixed",
    "plan": {"job": {"levels": []}, "files": {}, "reduced": []},
}


def test_in_check_mode_nothing_is_sent(run_module: t.Any) -> None:
    code, result = run_module(sglang_benchmark, _ansible_check_mode=True, **OPTIONS)

    assert (code, result["changed"], result["finished"]) == (0, False, True)
    # The role takes what has a message for what failed.
    assert "msg" not in result


def test_a_result(run_module: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []

    def run(benchmark: Benchmark) -> dict[str, t.Any]:
        benchmark.notices.append("mind the template")
        return {"finished": True, "changed": False, "levels": []}

    monkeypatch.setattr(Benchmark, "run", run)
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warned.append(text))
    code, result = run_module(sglang_benchmark, **OPTIONS)

    assert (code, result["finished"], result["levels"]) == (0, True, [])
    assert warned == ["mind the template"]


@pytest.mark.parametrize("error", [BenchmarkError("no server"), HangUp()])
def test_a_failure(run_module: t.Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(_benchmark: Benchmark) -> t.NoReturn:
        raise error

    monkeypatch.setattr(Benchmark, "run", run)
    code, result = run_module(sglang_benchmark, **OPTIONS)

    assert (code, result["msg"]) == (1, str(error))


def test_it_needs_its_action_plugin(run_module: t.Any) -> None:
    code, result = run_module(sglang_benchmark, **{**OPTIONS, "plan": None})

    assert code == 1
    assert "by its action plugin" in result["msg"]
