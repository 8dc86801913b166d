# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Greedy parity of the real engine on a CPU: a draft model against none, the baseline against itself."""

from __future__ import annotations

import time
import typing as t

import pytest

from ansible_collections.specdec.serving.tests.integration.evaluate.conftest import STATE_DIR, Server, Task
from ansible_collections.specdec.serving.tests.support.cpu_engine import build, installed
from ansible_collections.specdec.serving.tests.support.lab.client import Host, LabError, up
from ansible_collections.specdec.serving.tests.support.observer import units

pytestmark = pytest.mark.long("two starts of the real engine")

PYTHON = "/usr/local/bin/engine-python"
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
DRAFT = "--speculative-algorithm STANDALONE --speculative-draft-model-path /srv/models/tiny-draft"


@pytest.fixture(scope="module")
def real_host() -> Host:
    try:
        engine, models = installed.engine(), installed.models()
        host = up(["evaluate-real"], volumes=(*units.VOLUMES, f"{engine}:/srv/engine:ro", f"{models}:/srv/models:ro"))[
            "evaluate-real"
        ]
    except (build.BuildError, LabError) as error:
        pytest.skip(str(error))
    script = '#!/bin/sh\nPYTHONPATH=/srv/engine/lib/python3.11/site-packages exec /usr/bin/python3.11 -B "$@"\n'
    host.write_file(PYTHON, script)
    host.exec(["sh", "-c", f"chmod 0755 {PYTHON}; mkdir -p /var/cache/engine"])
    return host


def start(server: Server, words: str) -> None:
    command = (
        f"{PYTHON} -m sglang.launch_server --model-path /srv/models/tiny --served-model-name tiny --device cpu"
        f" --port {server.port} --attention-backend intel_amx --max-total-tokens 8192 --max-running-requests 8 {words}"
    )
    server.host.write_file(f"/etc/systemd/system/{server.unit}", units.unit_file(command, environment=ENVIRONMENT))
    server.host.exec(["sh", "-c", f"systemctl daemon-reload; systemctl restart {server.unit}"])
    deadline = time.monotonic() + 400
    url = f"http://127.0.0.1:{server.port}/ready"
    while server.host.exec(["curl", "-sf", "-o", "/dev/null", url], check=False).returncode != 0:
        assert time.monotonic() < deadline, server.host.journal(server.unit)[-3000:]
        time.sleep(1)


def test_a_draft_model_changes_no_token_but_ties(
    real_host: Host, tmp_path_factory: pytest.TempPathFactory, record_property: t.Callable[[str, object], None]
) -> None:
    server = Server(real_host, "e-real", 31290)
    task = Task(server, tmp_path_factory.mktemp("e"))
    parity = {"parity": "auto", "parity_baseline": f"{STATE_DIR}/e-real.json", "parity_tokens": 64}
    try:
        start(server, "")
        output, plain = task.run(**parity, coding=False)
        assert plain["failed"] is False, output
        assert plain["parity"]["mode"] == "record"
        start(server, DRAFT)
        # The tiny model knows no Python: its share is about 0, and every verdict is one of ours.
        output, draft = task.run(**parity, max_tokens=200, limit=36)
        print(plain["table"], draft["table"], sep="\n")
        for name in ("equal", "ties", "mismatches"):
            record_property(f"parity_{name}", draft["parity"][name])
            record_property(f"floor_{name}", draft["parity"]["floor"][name])
        assert draft["failed"] is False, output
        assert (draft["parity"]["mode"], draft["parity"]["passed"]) == ("compare", True)
        assert draft["parity"]["prompts"] == 24
        assert draft["parity"]["mismatches"] <= draft["parity"]["floor"]["mismatches"]
        assert draft["parity"]["incomparable"] == []
        assert draft["server"]["speculative_algorithm"] == "STANDALONE"
        assert draft["coding"]["problems"] == 36
        assert draft["coding"]["pass_at_1"] <= 0.1
        assert sum(draft["coding"]["verdicts"].values()) == 36
    finally:
        server.remove()
