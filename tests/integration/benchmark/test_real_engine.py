# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real client measures the real engine on a CPU, without speculation and with a draft model."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _record
from ansible_collections.specdec.serving.tests.integration.benchmark.conftest import Controller, Server
from ansible_collections.specdec.serving.tests.support.observer.host import MODELS, PYTHON

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CPUSHIM_AMX_ATTN": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HOME": "/var/cache/engine",
    "XDG_CACHE_HOME": "/var/cache/engine",
    "SGLANG_CACHE_DIR": "/var/cache/engine",
    "PYTHONUNBUFFERED": "1",
}
DRAFT = f"--speculative-algorithm STANDALONE --speculative-draft-model-path {MODELS}/tiny-draft"
QUESTIONS = (
    *(
        "What is speculative decoding?",
        "Say hello.",
        "Why is the sky blue?",
        "Name three prime numbers.",
        "What is a mutex?",
    ),
    *(
        "How do I restart a systemd unit?",
        "Sum 12 and 30.",
        "Write a haiku about GPUs.",
        "What is a socket?",
        "Who are you?",
    ),
)


def start(server: Server, words: str) -> None:
    command = (
        f"{PYTHON} -m sglang.launch_server --model-path {MODELS}/tiny --served-model-name tiny --device cpu --port {server.port}"
        " --attention-backend intel_amx --max-total-tokens 8192 --max-running-requests 8 --enable-metrics "
    )
    server.host.exec(["mkdir", "-p", "/var/cache/engine"])
    server.start(command + words, ENVIRONMENT, within=400)


def workload(folder: Path) -> dict[str, t.Any]:
    rows = [{"messages": [{"role": "user", "content": text}], "max_tokens": 48} for text in QUESTIONS]
    rows += [
        {"messages": [{"role": "user", "content": f"{text} ({n})"}], "max_tokens": 48}
        for n in (1, 2)
        for text in QUESTIONS
    ]
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {
        "name": "natural-tiny",
        "kind": "natural",
        "dataset": str(path),
        "levels": [1, 2, 4],
        "repeats": 2,
        "requests": {"per_user": 3, "minimum": 10, "steady_state_s": 0},
    }


@pytest.mark.long("two starts of the real engine")
def test_three_levels_with_a_draft_against_none(server: Server, controller: Controller, tmp_path: Path) -> None:
    work = workload(tmp_path)
    start(server, "")
    _output, plain = controller.measure(server, workload=work)
    server.host.exec(["systemctl", "stop", server.unit])
    start(server, DRAFT)
    _output, draft = controller.measure(server, workload=work, baseline=plain["record"])

    print(plain["table"], draft["table"], sep="\n")
    for answer in (plain, draft):
        assert answer["valid"], [level["reasons"] for level in answer["levels"]]
        assert [level["concurrency"] for level in answer["levels"]] == [1, 2, 4]
        for level in answer["levels"]:
            for repeat in level["repeats"]:
                assert abs(repeat["output_tokens"] - repeat["server"]["generation_tokens"]) <= (
                    0.005 * repeat["server"]["generation_tokens"]
                )
    assert not any(repeat["acceptance"] for level in plain["levels"] for repeat in level["repeats"])
    for level in draft["levels"]:
        assert set(level["speedup"]) == {"output", "user"}
        assert not {flag["flag"] for flag in level["flags"]} & {"speculation_inactive", "acceptance_unknown"}
        for repeat in level["repeats"]:
            accepted = repeat["acceptance"]
            assert accepted["length"] == pytest.approx(accepted["length_from_histogram"], abs=1e-4)
            assert 1 < accepted["length"] <= 4
            assert accepted["verify_steps"] == repeat["server"]["verify_steps"]
    record = _record.read(draft["record"])
    assert record["arguments"]["speculative_algorithm"] == "STANDALONE"
    assert record["engine"]["version"] == "0.5.23"
    assert record["models"][1]["bytes"] > 0
