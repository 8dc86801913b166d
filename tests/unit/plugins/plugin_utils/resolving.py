# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances to resolve, and the cards of a host."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import resolve_engine
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import InstancesError
from ansible_collections.specdec.serving.plugins.plugin_utils._instances import resolve_instances

KEY = "sk-planted-4fd1c0"


EIGHT_CARDS = [
    {
        "index": index,
        "uuid": f"GPU-{index}{index}{index}",
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "compute_capability": "12.0",
        "numa_node": index // 4,
    }
    for index in range(8)
]


FACTS = {"gpus": EIGHT_CARDS, "driver_version": "580.95.05", "numa_nodes": [0, 1], "credentials": True}


def resolve(*instances: t.Any, version: str = "0.5.23", **options: t.Any) -> list[dict[str, t.Any]]:
    engine = resolve_engine(version, root="/opt/specdec", lock_sha256="0123456789ab" + "c" * 52)
    return resolve_instances(list(instances), version=version, engine=engine, **options)


def instance(**changes: t.Any) -> dict[str, t.Any]:
    return {"name": "a", "model_path": "/models/a", "port": 30001, **changes}


def faults(*instances: t.Any, **options: t.Any) -> str:
    with pytest.raises(InstancesError) as caught:
        resolve(*instances, **options)
    return str(caught.value)
