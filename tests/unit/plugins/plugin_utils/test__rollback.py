# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept after a wait, and how an outcome is told."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._rollback import (
    generations_table,
    outcome,
    proven,
    put_back_outcome,
    unready,
)

READY: dict[str, t.Any] = {
    "item": "a",
    "unit": "sglang-a.service",
    "state": "ready",
    "ready": True,
    "invocation_id": "1" * 32,
    "detected_at": 1000.5,
    "elapsed": 2.4,
    "timeline": [
        {"phase": "starting", "start": 0.0, "duration": 1.5},
        {"phase": "binding", "start": 1.5, "duration": 0.5},
    ],
}
CRASHED: dict[str, t.Any] = {
    **READY,
    "state": "crashed",
    "ready": False,
    "diagnosis": {"cause": "gpu_out_of_memory", "summary": "the planted summary"},
    "evidence": "/var/lib/x.tar.gz",
    "msg": "sglang-a.service is not ready: crashed",
}
BACK = {"a": {"put_back": "0a1b2c3d4e5f", "proven_at": 1000.0, "reason": "", "model_changes": []}}
RESOLVED = {
    "name": "a",
    "host": "127.0.0.1",
    "port": 30100,
    "served_model_name": "m",
    "model_path": "/models/a",
    "draft_model_path": "",
    "settings": {"tp_size": 2},
    "leader": "",
    "scheme": "https",
    "client_url": "http://router",
    "has_api_key": True,
}
WAIT = {"timeout": "60", "generation_tokens": -1, "stall_timeout": "-1", "stable_for": 0, "keep_evidence": 5}


def test_unready() -> None:
    follower = {**READY, "item": "b", "ready": False, "state": "follower"}
    lost = {"item": "c", "msg": "no systemd"}
    results = [READY, follower, lost, {**CRASHED, "item": "d"}]
    assert unready(results) == ["c", "d"]
    assert unready(results, check_mode=True) == ["c"]


class TestProven:
    def test_options(self) -> None:
        (entry,) = proven([READY], units={"a": {"generation": "0" * 12}}, resolved=[RESOLVED], wait=WAIT)
        assert entry == {
            "name": "a",
            "generation": "0" * 12,
            "invocation_id": "1" * 32,
            "at": 1000.5,
            "elapsed": 2.0,
            "models": ["/models/a"],
            "check": {
                "timeout": "60",
                "stable_for": 0,
                "host": "127.0.0.1",
                "port": 30100,
                "model": "m",
                "model_path": "/models/a",
                "settings": {"tp_size": 2},
                "leader": "",
                "scheme": "https",
            },
        }

    @pytest.mark.parametrize(
        ("result", "unit"),
        [
            pytest.param(CRASHED, {"generation": "0" * 12}, id="crashed"),
            pytest.param(READY, {"generation": ""}, id="no-generation"),
            pytest.param(READY, {"generation": "0" * 12, "known_good": True}, id="known"),
            pytest.param(READY, None, id="no-unit"),
        ],
    )
    def test_not_kept(self, result: dict[str, t.Any], unit: dict[str, t.Any] | None) -> None:
        assert proven([result], units={"a": unit} if unit else {}, resolved=[RESOLVED], wait=WAIT) == []

    def test_put_back(self) -> None:
        (entry,) = proven([READY], units=BACK)
        assert entry["generation"] == "0a1b2c3d4e5f"
        assert "check" not in entry

    def test_the_options_fit_the_module(self) -> None:
        from ansible_collections.specdec.serving.plugins.module_utils._ready_options import ARGUMENT_SPEC
        from ansible_collections.specdec.serving.plugins.modules import sglang_known_good

        (entry,) = proven([READY], units={"a": {"generation": "0" * 12}}, resolved=[RESOLVED], wait=WAIT)
        assert set(entry) <= set(sglang_known_good.ARGUMENT_SPEC["instances"]["options"])
        assert set(entry["check"]) <= set(ARGUMENT_SPEC)


class TestOutcome:
    def test_rolled_back(self) -> None:
        text = outcome([CRASHED, {**READY, "item": "b"}], put_back=BACK, back=[READY])
        assert text == (
            "sglang-a.service did not become ready: crashed (gpu_out_of_memory). Evidence is on the host: /var/lib/x.tar.gz;"
            " `ansible-playbook specdec.serving.collect` fetches it. Rolled back: generation 0a1b2c3d4e5f, proven ready"
            " 1970-01-01 00:16 UTC, was put back and is ready again, its start took 2.0 s."
        )

    def test_a_first_deployment(self) -> None:
        entry = {"a": {"put_back": "", "reason": "no other configuration of it was proven ready on this host"}}
        text = outcome([CRASHED], put_back=entry, stopped=["a"])
        assert text.endswith(
            "Not rolled back: no other configuration of it was proven ready on this host. The unit is stopped."
        )
        assert outcome([CRASHED], stopped=["a"]).endswith(text[-80:])

    def test_not_wanted(self) -> None:
        text = outcome([{**CRASHED, "state": "hung"}], rollback=False)
        assert text.endswith("since sglang_rollback is false. The unit was left as it is.")

    def test_the_rollback_fails_too(self) -> None:
        text = outcome([CRASHED], put_back=BACK, back=[{**CRASHED, "msg": "the second diagnosis."}], stopped=["a"])
        assert "ROLLBACK FAILED: generation 0a1b2c3d4e5f" in text
        assert text.endswith("and is not ready either. the second diagnosis. The unit is stopped.")
        assert "its readiness was not proven" in outcome([CRASHED], put_back=BACK)

    def test_a_model_that_changed(self) -> None:
        entry = {"a": {**BACK["a"], "model_changes": ["/m: x is gone"]}}
        assert "Its model is not what it was then: /m: x is gone." in outcome([CRASHED], put_back=entry, back=[READY])

    def test_without_a_verdict(self) -> None:
        assert outcome([{"item": "a", "msg": "no systemd"}], put_back=BACK) == "a: no systemd"


class TestPutBackOutcome:
    def test_ready(self) -> None:
        told = put_back_outcome(BACK, back=[READY])
        assert told == {
            "ok": True,
            "text": "a: generation 0a1b2c3d4e5f, proven ready 1970-01-01 00:16 UTC, is put back and ready.",
        }

    def test_not(self) -> None:
        assert not put_back_outcome({})["ok"]
        told = put_back_outcome({"a": {"put_back": "", "reason": "nothing is kept"}})
        assert told == {"ok": False, "text": "a: not rolled back: nothing is kept."}
        told = put_back_outcome(BACK, back=[CRASHED])
        assert not told["ok"]
        assert told["text"].endswith("\na: sglang-a.service is not ready: crashed")

    def test_check_mode(self) -> None:
        assert put_back_outcome(BACK, check_mode=True)["ok"]


def test_table() -> None:
    assert generations_table([]) == "No configuration has been proven ready yet."
    generation = {
        "generation": "0a1b2c3d4e5f",
        "at": 1000.0,
        "elapsed": 210.5,
        "engine": "/opt/specdec/engines/0.5.23-abc",
        "models": ["/models/target", "/models/draft"],
        "port": 30001,
        "installed": True,
        "problem": "",
    }
    older = {**generation, "generation": "1" * 12, "elapsed": 0, "installed": False, "problem": "'/opt/x' is gone"}
    listing = {"host": "ct200", "instances": {"k26": {"rolled_back_at": 2000, "generations": [generation, older]}}}
    lines = generations_table([listing]).splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["HOST", "INSTANCE", "GENERATION"],
        ["ct200", "k26", "0a1b2c3d4e5f"],
        ["ct200", "k26", "1" * 12],
    ]
    assert lines[1].endswith("installed, rolled back 1970-01-01 00:33 UTC")
    assert "3 min 30 s" in lines[1]
    assert "target, draft" in lines[1]
    assert lines[2].endswith("none             '/opt/x' is gone")


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ({"tp_size": 8, "disable_cuda_graph": True, "x": ["/a", "/b"]}, "none"),
        ({"tp_size": 4, "x": ["/a"]}, "disable_cuda_graph unset, tp_size 4, x /a"),
        ({"a": 1, "b": False, "c": 1, "tp_size": 8}, "a 1, b false, c 1, disable_cuda_graph unset, 1 more"),
    ],
)
def test_the_table_tells_what_going_back_would_change(before: dict[str, t.Any], told: str) -> None:
    now = {
        "generation": "2" * 12,
        "installed": True,
        "settings": {"tp_size": 8, "disable_cuda_graph": True, "x": ["/a", "/b"]},
    }
    older = {"generation": "1" * 12, "installed": False, "settings": before}
    lines = generations_table([{"host": "h", "instances": {"a": {"generations": [now, older]}}}]).splitlines()
    assert lines[1].endswith("installed")
    assert lines[2].endswith(told)

    # What is installed was never proven: there is nothing to compare with.
    lines = generations_table([{"host": "h", "instances": {"a": {"generations": [older]}}}]).splitlines()
    assert told not in lines[1]
