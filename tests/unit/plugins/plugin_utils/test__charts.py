# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import (
    bar,
    duration,
    startup_chart,
    status_table,
    work_text,
)

READY: dict[str, t.Any] = {
    "unit": "sglang-k26-dflash.service",
    "state": "ready",
    "port": 30001,
    "uptime": 18300.0,
    "server": {"model": "kimi-k2.6"},
    "timeline": [
        {"phase": "starting", "start": 0.0, "duration": 10.0},
        {"phase": "loading_weights", "start": 10.0, "duration": 61.5},
        {"phase": "loading_draft", "start": 71.5, "duration": 5.0},
        {"phase": "warming_up", "start": 76.5, "duration": 0.2},
    ],
    "weights": [
        {
            "type": "KimiK25ForConditionalGeneration",
            "ranks": 8,
            "elapsed_s": 61.47,
            "quant": "compressed-tensors",
            "mem_usage_gb": 72.24,
            "avail_mem_gb": 21.76,
        },
        {
            "type": "DFlashDraftModel",
            "ranks": 8,
            "elapsed_s": 4.2,
            "quant": "",
            "mem_usage_gb": 0.9,
            "avail_mem_gb": 20.86,
        },
    ],
    "gates": [
        {"name": "unit", "passed": True, "detail": "active"},
        {"name": "markers", "passed": None, "detail": "3 of 16"},
    ],
    "diagnosis": {},
}
CRASHED: dict[str, t.Any] = {
    "unit": "sglang-x.service",
    "state": "crashed",
    "port": 30002,
    "uptime": 0.0,
    "timeline": [],
    "gates": [{"name": "port_owner", "passed": False, "detail": "held by pid 111"}],
    "diagnosis": {
        "cause": "port_conflict",
        "summary": "pid 111 holds the port",
        "remedy": "stop it",
        "evidence": ["[Errno 98]"],
        "exit": "exited with status 3",
    },
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (41.26, "41.3 s"), (210, "3 min 30 s"), (18120, "5 h 2 min"), (273600, "3 d 4 h")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("start", "length", "drawn"),
    [
        (0, 10, "██████████"),
        (5, 5, "     █████"),
        (0, 0.001, "▏"),
        pytest.param(10, 0.001, "         ▏", id="at the end, and still visible"),
        pytest.param(0, 99, "██████████", id="never longer than the scale"),
    ],
)
def test_bar(start: float, length: float, drawn: str) -> None:
    assert bar(start, length, 10, 10) == drawn


def test_startup_chart() -> None:
    lines = startup_chart(READY, host="ct200", width=20).splitlines()
    assert lines[0] == "sglang-k26-dflash.service on ct200: READY, start took 76.7 s"
    assert lines[1] == "  starting            0.0 +  10.0 s |██▋"
    assert lines[2].startswith("  loading_weights    10.0 +  61.5 s |  ██")
    assert (
        "weights KimiK25ForConditionalGeneration: 8 ranks, 61.47 s, compressed-tensors, 72.24 GB used a rank, 21.76 GB left"
        in lines[5]
    )
    assert lines[-2:] == ["  ✔ unit: active", "  · markers: 3 of 16"]


@pytest.mark.parametrize(
    ("result", "first"),
    [
        ({"state": "crashed"}, "CRASHED, start lasted 76.7 s"),
        pytest.param({"state": "stopped"}, "STOPPED, start lasted 76.7 s", id="up for hours before, perhaps"),
        ({"state": "hung", "uptime": 76.7}, "HUNG, 76.7 s so far"),
        ({"state": "loading", "uptime": 76.701}, "LOADING, 76.7 s so far"),
        pytest.param({"state": "hung", "uptime": 900.0}, "HUNG, start lasted 76.7 s", id="hung once it was up"),
        pytest.param(
            {"state": "loading", "uptime": 90.0, "client": {"ok": False, "detail": "404"}},
            "NOT AT CLIENT_URL, start took 76.7 s",
            id="all six gates passed",
        ),
    ],
)
def test_the_first_line_of_a_chart(result: dict[str, t.Any], first: str) -> None:
    text = startup_chart({**READY, "uptime": 0, "gates": [], **result})
    assert text.splitlines()[0] == f"sglang-k26-dflash.service: {first}"


def test_startup_chart_of_a_failure_says_why() -> None:
    text = startup_chart(CRASHED)
    assert text.splitlines()[0] == "sglang-x.service: CRASHED"
    for part in (
        "✘ port_owner",
        "cause: port_conflict",
        "exit: exited with status 3",
        "remedy: stop it",
        "> [Errno 98]",
    ):
        assert part in text


def test_status_table_has_a_row_for_each_instance() -> None:
    loading = {
        "unit": "sglang-y.service",
        "state": "loading",
        "phase": "loading_weights",
        "port": 30003,
        "host": "b300",
    }
    failed = {"failed": True, "msg": "no such host"}
    lines = status_table([READY, CRASHED, loading, failed], host="ct200").splitlines()
    assert lines[0].split() == [
        "HOST",
        "INSTANCE",
        "STATE",
        "MODEL",
        "PORT",
        "UPTIME",
        "PHASE",
        "OR",
        "VERDICT",
        "WEIGHTS",
        "MEMORY",
        "A",
        "RANK",
    ]
    assert lines[1].split()[:5] == ["ct200", "k26-dflash", "ready", "kimi-k2.6", "30001"]
    assert "5 h 5 min" in lines[1]
    assert "73.1 GB used, 20.9 left" in lines[1]
    assert "port_conflict: pid 111 holds the port" in lines[2]
    assert lines[3].split()[:3] == ["b300", "y", "loading"]
    assert "loading_weights" in lines[3]
    assert "no such host" in lines[4]
    assert len({line.find("30001") for line in lines if "30001" in line}) == 1
    tiny = {**READY, "weights": [{**model, "mem_usage_gb": -0.01} for model in READY["weights"]]}
    assert " 0.0 GB used" in status_table([tiny], host="ct200")


def test_memory_is_of_what_runs() -> None:
    row = status_table([{**READY, "state": "stopped", "uptime": 0.0}], host="ct200").splitlines()[1]
    assert "KimiK25ForConditionalGeneration x8" in row
    assert "GB" not in row


def test_the_model_of_a_server_that_does_not_tell_it_yet() -> None:
    loading = {"unit": "sglang-y.service", "state": "loading", "item": "y", "expected_models": {"x": "a", "y": "qwen3"}}
    assert status_table([loading], host="ct200").splitlines()[1].split() == ["ct200", "y", "loading", "qwen3"]
    told = {**loading, "server": {"model": "other"}}
    assert "other" in status_table([told], host="ct200")
    assert "qwen3" not in status_table([told], host="ct200")


INVOCATION = "272f739531054238bddee199427e4ea6"
EVIDENCE = "/var/lib/specdec/sglang/evidence/sglang-y.service"


@pytest.mark.parametrize(
    ("archives", "note"),
    [
        (
            [f"{EVIDENCE}/20260701T101500Z-hung-{INVOCATION}.tar.gz"],
            "loading_weights; was hung at 2026-07-01 10:15 UTC",
        ),
        (
            [
                f"{EVIDENCE}/20260701T111500Z-timeout-{INVOCATION}.tar.gz",
                f"{EVIDENCE}/20260701T101500Z-hung-{INVOCATION}.tar.gz",
            ],
            "loading_weights; timeout at 2026-07-01 11:15 UTC",
        ),
        pytest.param([f"{EVIDENCE}/20260701T101500Z-hung-{'0' * 32}.tar.gz"], "loading_weights", id="another start"),
        pytest.param([f"{EVIDENCE}/backup.tar.gz"], "loading_weights", id="none of ours"),
    ],
)
def test_what_an_earlier_wait_found_of_this_start(archives: list[str], note: str) -> None:
    loading = {"unit": "sglang-y.service", "state": "loading", "phase": "loading_weights"}
    row = status_table([{**loading, "invocation_id": INVOCATION, "archives": archives}], host="ct200").splitlines()[1]
    assert row.split("loading", 1)[1].strip() == note


def test_a_server_that_is_another_one_than_asked_for_does_not_look_as_if_it_loaded() -> None:
    result = {
        "unit": "sglang-x.service",
        "state": "loading",
        "phase": "warming_up",
        "port": 30001,
        "gates": [{"name": "identity", "passed": False, "detail": "wrong model"}],
        "diagnosis": {"cause": "wrong_model", "summary": "wrong model: expected 'a'"},
    }
    row = status_table([result], host="ct200").splitlines()[1]
    assert "not as asked" in row
    assert "wrong model: expected 'a'" in row
    assert startup_chart(result).startswith("sglang-x.service: NOT AS ASKED")


HOLDER = "alice@control (ansible-playbook with pid 4242), for sweep, since 2026-11-29 22:10:03 UTC (312 s ago), ..."


def test_work_text_tells_who_holds_the_lease_and_what_is_tried_for_how_long_yet() -> None:
    trials = [
        {"item": "a", "active": True, "label": "trial 7 of nightly", "restore_in": 812.0},
        {"item": "b", "active": False, "label": "", "restore_in": 0.0},
        {"item": "c", "active": True, "label": "", "restore_in": 0.0},
    ]
    text = work_text([{"host": "ct200", "lease": {"holder": HOLDER, "ended": False}, "trials": trials}])
    assert text.splitlines() == [
        f"ct200: held by {HOLDER}",
        "ct200: a runs a trial, trial 7 of nightly; its own configuration comes back in 13 min 32 s unless the trial is renewed",
        "ct200: c runs a trial, without a name; no timer ends it: stop or deploy it once nobody works here, or restart the host",
    ]


@pytest.mark.parametrize(
    ("lease", "line"),
    [
        pytest.param({"holder": "", "lease": {}}, "nobody holds the lease of the host", id="nobody"),
        pytest.param(
            {"holder": HOLDER, "ended": True},
            f"held by {HOLDER}; its ansible-playbook has ended, so the next run takes it",
            id="killed",
        ),
        pytest.param(
            {"failed": True, "msg": "cannot be understood"},
            "who works here cannot be told: cannot be understood",
            id="damaged",
        ),
    ],
)
def test_work_text_is_true_where_nobody_works_any_more(lease: dict[str, t.Any], line: str) -> None:
    text = work_text([{"host": "b300", "lease": lease, "trials": []}])
    assert text.splitlines() == [f"b300: {line}", "b300: no trial is in force"]
