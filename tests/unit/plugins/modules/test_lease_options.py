# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A run that lost the lease of the host changes nothing: every module that changes one says so first."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _lease
from ansible_collections.specdec.serving.plugins.module_utils._lease import LOST, LeaseFile, Owner
from ansible_collections.specdec.serving.plugins.modules import (
    sglang_drain,
    sglang_engine,
    sglang_known_good,
    sglang_trial_unit,
    sglang_unit,
)

ALICE = Owner(id="a" * 16, host="one", user="alice", pid=11)
BOB = Owner(id="b" * 16, host="two", user="bob", pid=22)

UNIT = {"name": "a", "unit": "sglang-a.service"}
CALLS: list[tuple[t.Any, dict[str, t.Any]]] = [
    (sglang_drain, {"units": ["sglang-a.service"]}),
    (sglang_engine, {"path": "/nonexistent/engine", "version": "0.5.23", "requirements": ["sglang"]}),
    (sglang_known_good, {"state": "put_back", "names": ["a"]}),
    (sglang_trial_unit, {"unit": "sglang-a.service", "exec_start": "/bin/true", "label": "trial 1"}),
    (sglang_trial_unit, {"unit": "sglang-a.service", "state": "absent"}),
    (sglang_unit, {"units": [UNIT], "state": "stopped"}),
    (sglang_unit, {"units": [UNIT], "state": "absent"}),
]


@pytest.mark.parametrize(
    ("module", "options"),
    CALLS,
    ids=[f"{call[0].__name__.rpartition('.')[2]}-{call[1].get('state', '')}" for call in CALLS],
)
def test_what_was_lost_is_noticed_before_anything_is_done(
    module: t.Any, options: dict[str, t.Any], tmp_path: Path, run_module: t.Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_arguments: t.Any, **_options: t.Any) -> t.Any:
        raise AssertionError("it was about to be done")

    file = LeaseFile(str(tmp_path / "lease.json"))
    token = file.take(ALICE, "deploy").lease.token
    file.take(BOB, "deploy", force=True)
    for name in ("renew", "guard"):
        if hasattr(module, name):
            there = getattr(_lease, name)
            monkeypatch.setattr(module, name, lambda given, there=there: there(given, file.path))
    for name in ("_apply", "_present", "ensure_engine", "keep_proven", "put_back_kept", "remove", "stop"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, nothing)
    code, result = run_module(module, lease=token, **options)
    assert (code, result["msg"].startswith(LOST)) == (1, True), result
    assert "bob@two" in result["msg"]
