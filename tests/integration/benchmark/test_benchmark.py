# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real client measures stand-ins whose timings and faults are known."""

from __future__ import annotations

import json
import re
import signal
import statistics
import time
import typing as t
from pathlib import Path

import jsonschema
import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _record
from ansible_collections.specdec.serving.tests.integration.benchmark.conftest import Controller, Server
from ansible_collections.specdec.serving.tests.support.observer.task import answer_of, interrupt

FIXED: dict[str, t.Any] = {
    "name": "fixed-short",
    "kind": "fixed",
    "input_length": 32,
    "output_length": 40,
    "levels": [4],
    "repeats": 1,
    "requests": {"per_user": 5, "minimum": 8, "steady_state_s": 0},
}
#: Share by which a figure may differ from what the server knows.
NEAR = 0.05


def workload(folder: Path, count: int = 24) -> dict[str, t.Any]:
    """Natural prompts in a file of their own."""
    path = folder / "own.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"Tell me about number {n}."}], "max_tokens": 60}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {
        "name": "natural-short",
        "kind": "natural",
        "dataset": str(path),
        "levels": [1, 4],
        "repeats": 1,
        "requests": {"per_user": 4, "minimum": 6, "steady_state_s": 0},
    }


def rules(level: t.Mapping[str, t.Any]) -> set[str]:
    return {reason["rule"] for reason in level["reasons"]}


def test_known_timings_are_measured(server: Server, controller: Controller) -> None:
    server.stand_in(prefill=0.05, decode_step=0.02)
    _output, answer = controller.measure(server, workload=FIXED)

    (level,) = answer["levels"]
    assert answer["valid"], level["reasons"]
    served = server.served()[-20:]
    assert {event["tokens"] for event in served} == {40}
    tpot = statistics.median((event["end"] - event["first"]) / (event["tokens"] - 1) for event in served)
    ttft = statistics.median(event["first"] - event["begin"] for event in served)
    span = max(event["end"] for event in served) - min(event["begin"] for event in served)
    figures = level["summary"]
    print(f"TPOT {figures['tpot_p50_ms']['median']:.2f} ms, truth {1000 * tpot:.2f} ms, asked for 20 ms")
    assert figures["tpot_p50_ms"]["median"] == pytest.approx(1000 * tpot, rel=NEAR)
    assert figures["user_tok_s"]["median"] == pytest.approx(1 / tpot, rel=NEAR)
    assert figures["output_tok_s"]["median"] == pytest.approx(800 / span, rel=NEAR)
    # A few milliseconds of HTTP lie between.
    assert figures["ttft_p50_ms"]["median"] == pytest.approx(1000 * ttft, rel=NEAR, abs=15)
    assert figures["concurrency"]["median"] == pytest.approx(4, rel=0.1)
    assert figures["steady_concurrency"]["median"] == pytest.approx(4, rel=NEAR)
    assert figures["acceptance_length"] is None
    assert level["repeats"][0]["server"]["generation_tokens"] == 800
    assert [flag["flag"] for flag in level["flags"]] == ["reduced"]
    # The client's own figure, from which ours differs by its last question alone.
    assert level["repeats"][0]["client"]["output_tok_s"] == pytest.approx(figures["output_tok_s"]["median"], rel=NEAR)
    assert "holds for: 32 random tokens in, 40 out" in answer["table"]


def test_acceptance_is_the_servers_truth(server: Server, controller: Controller, tmp_path: Path) -> None:
    server.stand_in(speculate=True, prefill=0.02, decode_step=0.01)
    _output, answer = controller.measure(server, workload=workload(tmp_path))

    assert answer["valid"], [level["reasons"] for level in answer["levels"]]
    assert answer["api"] == "chat"
    served = server.served()
    # Each level: as many as are in flight to warm up, then those that count.
    for level, events in zip(answer["levels"], (served[-26:-20], served[-16:]), strict=True):
        (repeat,) = level["repeats"]
        assert repeat["completed"] == len(events)
        verify = sum(event["verify"] for event in events)
        truth = 1 + sum(event["correct"] for event in events) / verify
        assert repeat["acceptance"]["length"] == pytest.approx(truth, abs=1e-4)
        assert repeat["acceptance"]["length_from_histogram"] == pytest.approx(truth, abs=1e-4)
        assert len(repeat["acceptance"]["per_position"]) <= 7
        assert repeat["tokens_per_step"] == pytest.approx(sum(event["tokens"] for event in events) / verify, abs=1e-4)
        assert {flag["flag"] for flag in level["flags"]} <= {"reduced"}
    record = _record.read(answer["record"])
    jsonschema.validate(record, json.loads(_record.SCHEMA_FILE.read_text(encoding="utf-8")))
    assert record["arguments"]["speculative_algorithm"] == "DFLASH"
    assert [model["role"] for model in record["models"]] == ["target", "draft"]
    assert record["workload"]["dataset_sha256"]
    assert not controller.client_runs(server)


def test_a_workload_that_ships(server: Server, controller: Controller) -> None:
    server.stand_in(speculate=True, prefill=0.02, decode_step=0.005)
    _output, answer = controller.measure(server, workload="smoke")

    assert answer["valid"], [level["reasons"] for level in answer["levels"]]
    assert [(level["concurrency"], level["repeats"][0]["completed"]) for level in answer["levels"]] == [(1, 4), (2, 4)]
    # What each prompt allows is 1,024 tokens or more; the workload's limit outranks that.
    assert {event["tokens"] for event in server.served()[-4:]} == {16}
    assert all("reduced" in {flag["flag"] for flag in level["flags"]} for level in answer["levels"])
    record = _record.read(answer["record"])
    assert record["workload"]["dataset"] == "natural-mixed.jsonl"
    assert record["workload"]["warm_up"] == {"per_user": 1, "dataset": "warm-up.jsonl"}


def test_the_playbook(server: Server, controller: Controller, tmp_path: Path) -> None:
    server.stand_in(speculate=True, prefill=0.02, decode_step=0.01)
    path = tmp_path / "own.yml"
    path.write_text(json.dumps({**workload(tmp_path), "dataset": "./own.jsonl", "levels": [2]}), encoding="utf-8")
    status, output = controller.playbook(server, "--check", benchmark_workload=str(path), benchmark_levels=[4])
    assert status == 0, output
    assert "in flight" not in output
    status, output = controller.playbook(server, benchmark_workload=str(path), benchmark_levels=[4])

    assert status == 0, output
    assert f"{server.unit} on bench: natural-short" in output
    assert re.search(r"C +in flight +tok/s +steady +cv +user tok/s +TTFT", output), output
    assert re.search(r"\n +4 .* yes\n", output), output
    (written,) = (controller.folder / "results").iterdir()
    record = _record.read(str(written))
    assert record["readiness"]["ready"]
    assert [gate["name"] for gate in record["readiness"]["gates"]] == [
        *("unit", "port_owner", "markers", "identity", "serving", "stability")
    ]
    assert record["readiness"]["invocation_id"] == record["invocation"]["invocation_id"]
    assert record["host"]["name"] == "bench"
    assert [level["concurrency"] for level in record["results"]["levels"]] == [4]
    server.host.exec(["systemctl", "stop", server.unit])
    status, output = controller.playbook(server, benchmark_workload=str(path))
    assert status != 0
    assert "is stopped, not ready" in output
    status, output = controller.playbook(server, benchmark_instances="other")
    assert status != 0
    assert f"sglang_benchmark_instances names other, and bench has {server.name}" in " ".join(output.split())


def test_keys_are_used_and_told_nowhere(server: Server, controller: Controller) -> None:
    key, admin = "sk-benchmark-key", "sk-benchmark-admin"
    server.stand_in("--api-key", key, "--admin-api-key", admin, speculate=True, decode_step=0.02)
    process = controller.start(server, workload={**FIXED, "levels": [16]}, api_key=key, admin_api_key=admin)
    until(lambda: controller.client_runs(server), 60, "the client does not start")
    unit = f"specdec-benchmark-{server.unit}"
    command_line = f"tr '\\0' ' ' </proc/$(systemctl show --value --property=MainPID {unit})/cmdline"
    seen = server.host.exec(["sh", "-c", f"systemctl show {unit}; systemctl cat {unit}; {command_line}"]).stdout
    output, answer = answer_of(process, timeout=300)

    (level,) = answer["levels"]
    assert answer["valid"], level["reasons"]
    # Twice what the server takes at a time, and random tokens for a draft that knows words.
    assert "above_max_running_requests" in [flag["flag"] for flag in level["flags"]]
    assert "sends random tokens to a server that speculates" in output
    told = [seen, output, json.dumps(answer), Path(answer["record"]).read_text(encoding="utf-8")]
    for text in told:
        assert text
        assert key not in text
        assert admin not in text


def test_errors_are_told_by_kind(server: Server, controller: Controller) -> None:
    fault = {"on": "/generate", "do": "answer", "status": 500, "body": "oops", "every": 10, "skip": 4}
    server.stand_in(faults=[fault], decode_step=0.002)
    _output, answer = controller.measure(server, workload=FIXED)

    (level,) = answer["levels"]
    assert rules(level) == {"completed"}
    assert level["repeats"][0]["outcomes"] == {"internal server error": 2, "length": 18}
    assert "18 of 20 requests completed (2 internal server error)" in answer["table"]


def test_a_stall(server: Server, controller: Controller) -> None:
    server.stand_in(faults=[{"on": "/generate", "do": "delay", "skip": 12}], decode_step=0.002)
    _output, answer = controller.measure(server, workload=FIXED, stall_timeout=5)

    (level,) = answer["levels"]
    assert "stalled" in rules(level)
    assert level["repeats"][0]["outcomes"]["unfinished"] == 4
    assert not answer["valid"]
    assert answer["ended"] == "no request has moved for 5 s"


def test_a_death_in_the_middle(server: Server, controller: Controller) -> None:
    server.stand_in(decode_step=0.05)
    process = controller.start(server, workload={**FIXED, "levels": [4, 8], "output_length": 400})
    _output, answer = during(controller, server, process, ["systemctl", "kill", "--signal=SIGKILL", server.unit])

    first, second = answer["levels"]
    assert rules(first) >= {"died", "completed"}
    assert rules(second) == {"not_measured"}
    assert server.unit in answer["ended"]


#: Answers what the benchmark asks, as a card that is too hot.
HOT_CARD = """#!/bin/sh
case "$1" in
*clocks_throttle_reasons*) echo '0, 0x0000000000000044' ;;
*power.default_limit*) echo '0, NVIDIA H200, GPU-1234, 143771, 570.133.20, 600.00, 700.00' ;;
*) exit 6 ;;
esac
"""


@pytest.mark.long("one rule more, which unit tests have as well")
def test_a_gpu_that_is_throttled(server: Server, controller: Controller) -> None:
    server.stand_in(decode_step=0.05)
    server.host.write_file("/usr/bin/nvidia-smi", HOT_CARD, mode="0755")
    try:
        _output, answer = controller.measure(server, workload=FIXED)
    finally:
        server.host.exec(["rm", "/usr/bin/nvidia-smi"])

    (level,) = answer["levels"]
    assert level["reasons"] == [{"rule": "throttled", "detail": "GPU 0: hardware thermal"}]
    assert level["summary"]["output_tok_s"]["median"] > 0
    (gpu,) = _record.read(answer["record"])["host"]["gpus"]
    assert (gpu["name"], gpu["power_limit_w"], gpu["driver"]) == ("NVIDIA H200", 600.0, "570.133.20")


def test_wrong_counts(server: Server, controller: Controller) -> None:
    server.stand_in(faults=[{"on": "/generate", "do": "miscount", "by": 1, "skip": 4}], decode_step=0.002)
    _output, answer = controller.measure(server, workload=FIXED)

    (level,) = answer["levels"]
    assert "token_counts" in rules(level)
    assert "foreign_requests" not in rules(level)


def test_foreign_requests(server: Server, controller: Controller) -> None:
    server.stand_in(decode_step=0.01)
    body = json.dumps({"text": "foreign", "sampling_params": {"max_new_tokens": 2}})
    ask = f"curl --silent --output /dev/null --data '{body}' --header 'Content-Type: application/json'"
    script = f"while :; do {ask} http://127.0.0.1:{server.port}/generate; sleep 0.3; done"
    server.host.exec(["systemd-run", "--quiet", "--collect", "--unit=foreign", "sh", "-c", script])
    try:
        _output, answer = controller.measure(server, workload=FIXED)
    finally:
        server.host.exec(["systemctl", "stop", "foreign.service"], check=False)

    assert "foreign_requests" in rules(answer["levels"][0])


@pytest.mark.long("a connection that is cut for half a minute")
def test_a_connection_that_is_lost_and_found(server: Server, controller: Controller) -> None:
    server.stand_in(decode_step=0.02)
    process = controller.start(server, workload={**FIXED, "output_length": 150})
    # The daemons of this host's own connections; none of them is anybody else's.
    cut = ["pkill", "--full", "^sshd: deploy"]
    output, answer = during(controller, server, process, cut)

    assert "connection lost, trying again" in output
    assert answer["valid"], answer["levels"]


@pytest.mark.parametrize(
    "sent",
    [pytest.param(signal.SIGINT, marks=pytest.mark.long("Ctrl-C; kill -9 is the harder of the two")), signal.SIGKILL],
)
def test_nothing_stays_when_the_play_ends(server: Server, controller: Controller, sent: signal.Signals) -> None:
    server.stand_in(decode_step=0.05)
    process = controller.start(server, workload={**FIXED, "output_length": 1000})
    assert process.stdout is not None
    line = next((text for text in process.stdout if re.search(r"[1-9]\d* tok/s", text)), "")
    assert re.search(
        rf"^{server.host.name} \| {server.unit} \| C=4.* \| \d+/\d+ finished \| \d+ tok/s \| \d+ s$", line
    ), line
    assert controller.client_runs(server)
    if sent == signal.SIGINT:
        interrupt(process)
    else:
        process.kill()
    process.communicate(timeout=60)

    until(lambda: not controller.client_runs(server), 45, "the client runs on")


def test_too_many_prompts_are_refused(server: Server, controller: Controller, tmp_path: Path) -> None:
    _output, answer = controller.measure(server, workload=workload(tmp_path, 12))

    assert answer["failed"]
    assert "4 in flight need 16 prompts and 4 others to warm up, and" in answer["msg"]
    assert "holds 12 distinct ones" in answer["msg"]


def during(controller: Controller, server: Server, process: t.Any, command: list[str]) -> tuple[str, dict[str, t.Any]]:
    """Run a command on the host once requests are measured."""
    progress = f"/run/specdec/benchmark/specdec-benchmark-{server.unit.removesuffix('.service')}/progress.json"

    def measures() -> bool:
        text = server.host.exec(["cat", progress], check=False).stdout
        return bool(re.search(r'"phase": "measured".*"finished": \d', text))

    until(measures, 120, "nothing is measured")
    server.host.exec(command)
    return answer_of(process, timeout=300)


def until(condition: t.Callable[[], bool], seconds: float, problem: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.3)
