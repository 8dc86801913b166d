# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real engine on a CPU is swept: a longer and a shorter draft, and DFLASH and NGRAM, which cannot start there.

Ranked by acceptance length, which does not depend on what else the machine does.
"""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.tests.integration.benchmark.test_real_engine import workload
from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host
from ansible_collections.specdec.serving.tests.integration.role.conftest import Deployment
from ansible_collections.specdec.serving.tests.integration.sweep.conftest import Sweeping
from ansible_collections.specdec.serving.tests.support.cpu_engine import build, installed

HOST = "sweep-real"
PORT = 31750
UNIT = "sglang-tiny.service"
INSTANCE: t.Mapping[str, t.Any] = {
    "name": "tiny",
    "model_path": "/models/tiny",
    "served_model_name": "tiny",
    "port": PORT,
    "args": {
        "attention_backend": "intel_amx",
        "max_running_requests": 8,
        "max_total_tokens": 4096,
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": "/models/tiny-draft",
        "speculative_eagle_topk": 1,
        "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 4,
    },
    "env": {
        "CPUSHIM_AMX_ATTN": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",  # a lab host has no C++ compiler
    },
}
VARIABLES: t.Mapping[str, t.Any] = {
    "sglang_version": "0.5.23",
    "sglang_wheelhouse": "/srv/wheelhouse/cpu-engine",
    "sglang_gpu_profile": "cpu",
    "sglang_instances": [INSTANCE],
    "sglang_ready_timeout": "600",
}
SPACE: t.Mapping[str, t.Any] = {
    "speculative_algorithm": ["STANDALONE", "NGRAM", "DFLASH"],
    "speculative_num_steps": [1, 5],
    "speculative_num_draft_tokens": [2, 6],
    "speculative_dflash_block_size": [4],
}
CONDITIONS = [
    {
        "when": {"speculative_algorithm": "STANDALONE"},
        "only": ["speculative_num_steps", "speculative_num_draft_tokens"],
    },
    {"when": {"speculative_algorithm": "DFLASH"}, "only": ["speculative_dflash_block_size"]},
]
EXCLUDE = [
    # With top-k 1 there is one draft token more than steps.
    {"speculative_num_steps": 1, "speculative_num_draft_tokens": 6},
    {"speculative_num_steps": 5, "speculative_num_draft_tokens": 2},
]


@pytest.fixture
def sweeping(tmp_path: Path) -> t.Iterator[Sweeping]:
    try:
        installed.models()
    except build.BuildError as error:
        pytest.skip(str(error))
    deployment = Deployment(lab_host(HOST), tmp_path, variables=dict(VARIABLES))
    deployed = deployment.play(timeout=900)
    assert deployed.returncode == 0, deployed.output[-4000:]
    yield Sweeping(deployment, tmp_path)
    deployment.play("stop.yml")


@pytest.mark.long("six starts of the real engine")
def test_a_sweep_of_the_real_engine(sweeping: Sweeping, tmp_path: Path) -> None:
    before = sweeping.host.exec(["cat", f"/etc/systemd/system/{UNIT}"]).stdout
    (tmp_path / "questions.yml").write_text(yaml.safe_dump(workload(tmp_path)))
    sweeping.write(
        dict(SPACE),
        instance="tiny",
        conditions=CONDITIONS,
        exclude=EXCLUDE,
        workloads=["./questions.yml"],
        levels=[1],
        objective={"metric": "acceptance_length", "level": 1},
    )
    swept = sweeping.sweep(timeout=3000, environment={"ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml"})
    print(swept.output)
    assert swept.returncode == 0, swept.output[-6000:]
    shown = swept.output[swept.output.rindex("sweep ended") :]
    rows = re.findall(r"^ +(★|\d*) +(\d+) +([a-z_]+) +([\d.]+|-) .*$", shown, re.MULTILINE)
    places = {int(number): (place, verdict, figure) for place, number, verdict, figure in rows}
    # 0: as it is, 5: the same again in the middle, 6: at the end.
    longer, shorter = 2, 1
    assert [places[number][1] for number in (0, shorter, longer, 5, 6)] == ["complete"] * 5
    assert [places[number][0] for number in (longer, 0, shorter)] == ["★", "2", "3"]
    lengths = [float(places[number][2]) for number in (shorter, 0, longer)]
    assert 1 < lengths[0] <= 2 < lengths[1] <= 4
    assert lengths[1] < lengths[2] <= 6
    assert [places[number][1] for number in (3, 4)] == ["rejected", "rejected"]
    assert "DFLASH does not run on device cpu" in shown
    assert "apart" not in shown, "greedy acceptance does not drift"

    assert sweeping.is_own(UNIT)
    assert sweeping.host.exec(["cat", f"/etc/systemd/system/{UNIT}"]).stdout == before
    url = f"http://127.0.0.1:{PORT}/ready"
    assert sweeping.host.exec(["curl", "--silent", "--fail", url], check=False).returncode == 0
