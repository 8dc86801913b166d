# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import _run_facts
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState

SMI = "0, NVIDIA H200, GPU-aa, 143771, 570.133.20, 700.00, 700.00\n1, NVIDIA H200, GPU-bb, 143771, 570.133.20, [N/A], 700.00\n"


def answers(code: int, stdout: str, stderr: str = "") -> t.Callable[[t.Sequence[str]], tuple[int, str, str]]:
    return lambda _argv: (code, stdout, stderr)


def test_gpus_and_their_power_limit(tmp_path: Path) -> None:
    facts = _run_facts.host_facts(answers(0, SMI), root=str(tmp_path), nvidia_smi="/usr/bin/nvidia-smi")

    assert [(gpu["name"], gpu["power_limit_w"]) for gpu in facts["gpus"]] == [
        ("NVIDIA H200", 700.0),
        ("NVIDIA H200", None),
    ]
    assert facts["gpus"][0]["memory_mib"] == 143771
    assert facts["gpu_problem"] == ""


def test_a_driver_that_does_not_answer_is_told(tmp_path: Path) -> None:
    facts = _run_facts.host_facts(answers(124, "", "no end after 20 s"), root=str(tmp_path), nvidia_smi="x")

    assert facts["gpus"] == []
    assert facts["gpu_problem"] == "nvidia-smi ended with 124: no end after 20 s"


def test_cpu_and_memory(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: EPYC 9655\n", encoding="utf-8")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1024 kB\n", encoding="utf-8")
    facts = _run_facts.host_facts(answers(1, ""), root=str(tmp_path), nvidia_smi="x")

    assert facts["cpu"]["model"] == "EPYC 9655"
    assert facts["cpu"]["count"] >= 1
    assert facts["memory_bytes"] == 1024 * 1024


def test_a_model_is_known_by_its_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    (tmp_path / "tokenizer.json").write_bytes(b"1234567")
    facts = _run_facts.model_facts(str(tmp_path), "draft")

    assert (facts["role"], facts["bytes"], facts["files"]) == ("draft", 5, 1)
    assert facts["index_sha256"] == hashlib.sha256(b"{}").hexdigest()
    assert facts["config_sha256"] == ""


def test_models_that_are_no_folder() -> None:
    assert _run_facts.model_facts("moonshotai/Kimi-K2.6", "target")["bytes"] == 0
    assert _run_facts.model_facts("/no/where", "target")["files"] == 0


def test_arguments_are_without_keys_and_without_states() -> None:
    info = {
        "tp_size": 8,
        "api_key": "sk-something",
        "launch_command": "--api-key x",
        "internal_states": [1],
        "note": "a sk-other",
    }

    assert _run_facts.server_arguments(info, ["sk-other"]) == {
        "tp_size": 8,
        "api_key": "********",
        "note": "a ********",
    }


def test_an_engine_that_is_not_the_roles(tmp_path: Path) -> None:
    facts = _run_facts.engine_facts(f"{tmp_path}/bin/python", "0.5.23")

    assert facts == {"path": str(tmp_path), "version": "0.5.23", "packages_sha256": "", "packages": 0}
    assert _run_facts.engine_facts("", "")["path"] == ""


def test_the_invocation() -> None:
    unit = UnitState(id="sglang-a.service", invocation_id="b" * 32, main_pid=5)

    assert _run_facts.invocation_facts(unit) == {"unit": "sglang-a.service", "invocation_id": "b" * 32, "main_pid": 5}
