# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit files of stand-in servers on a lab host that shows this checkout's plugins and tests/support, and what to ask of them.

Such a host is made with :data:`VOLUMES`. Nothing is installed on it: units and observers run from the sources.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
ROOT = "/srv/specdec"
COLLECTION = f"{ROOT}/ansible_collections/specdec/serving"
STAND_IN = f"{COLLECTION}/tests/support/stand_in/src"
OBSERVER = f"{COLLECTION}/tests/support/observer/observe.py"
TRUTH = "/run/truth"
VOLUMES = (
    f"{CHECKOUT / 'plugins'}:{COLLECTION}/plugins:ro",
    f"{CHECKOUT / 'tests/support'}:{COLLECTION}/tests/support:ro",
)

MODEL = "kimi-k2.6"
MODEL_PATH = "/models/stand-in-target"
#: What such a server runs with, as a task gives it.
SETTINGS: t.Mapping[str, t.Any] = {
    "tp_size": 2,
    "ep_size": 2,
    "disable_cuda_graph": True,
    "speculative_algorithm": "DFLASH",
    "speculative_dflash_block_size": 8,
}


def server_command(*, port: int | str, tp_size: int = 2, model_path: str = MODEL_PATH) -> str:
    """The command line of a stand-in with a DFLASH draft."""
    return (
        f"/usr/bin/python3 -m sglang.launch_server --model-path {model_path} --served-model-name {MODEL} "
        f"--port {port} --tp-size {tp_size} --ep-size {tp_size} --disable-cuda-graph --speculative-algorithm DFLASH "
        "--speculative-draft-model-path /models/stand-in-draft --speculative-dflash-block-size 8"
    )


def server_environment(truth: str) -> dict[str, str]:
    """A start in a fraction of a second; what really happened is written to ``truth``."""
    return {
        "PYTHONPATH": STAND_IN,
        "PYTHONUNBUFFERED": "1",
        "STAND_IN_SCALE": "0.002",
        "STAND_IN_TRUTH": truth,
    }


def unit_file(
    command: str, *, environment: t.Mapping[str, str], service: t.Sequence[str] = (), unit: t.Sequence[str] = ()
) -> str:
    """The text of a unit; ``service`` and ``unit`` are further lines of these sections."""
    lines = ["[Unit]", "StartLimitIntervalSec=0", *unit]
    lines += ["[Service]", "Type=exec", "KillMode=mixed", "LogRateLimitBurst=1000000"]
    lines += [f"Environment='{name}={value}'" for name, value in environment.items()]
    return "\n".join([*lines, *service, f"ExecStart={command}", ""])


def ready_options(*, unit: str, port: int | str, **changes: t.Any) -> dict[str, t.Any]:
    """Options of the wait that such a server satisfies."""
    return {
        "unit": unit,
        "port": port,
        "model": MODEL,
        "model_path": MODEL_PATH,
        "settings": dict(SETTINGS),
        "timeout": "60",
        **changes,
    }
