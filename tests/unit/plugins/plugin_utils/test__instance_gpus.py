# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs of instances, and what keeps these near them."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.tests.unit.plugins.plugin_utils.resolving import (
    EIGHT_CARDS,
    FACTS,
    faults,
    instance,
    resolve,
)


def test_the_same_gpu_by_number_and_by_uuid() -> None:
    text = faults(instance(gpus=[3]), instance(name="b", port=2000, gpus=["GPU-333"]), facts=FACTS)
    assert "GPU GPU-333 is used by a and b" in text


def test_a_gpu_that_the_host_does_not_have() -> None:
    assert "a: GPU 8 does not exist on this host (nvidia-smi shows 0, 1, 2, 3, 4, 5, 6, 7)" in faults(
        instance(gpus=[8]), facts=FACTS
    )


@pytest.mark.parametrize(("gpus", "node"), [([0, 3], 0), ([4], 1), ([3, 4], None), ([], None)], ids=str)
def test_numa_node(gpus: list[int], node: int | None) -> None:
    (item,) = resolve(instance(gpus=gpus), facts=FACTS)
    assert item["numa_node"] == node


def test_numa_node_is_left_alone_on_a_host_with_one() -> None:
    (item,) = resolve(instance(gpus=[0]), facts={**FACTS, "numa_nodes": [0]})
    assert item["numa_node"] is None
    assert item["placement"] == []


def test_numa_node_is_left_to_sglang_where_it_is_asked_to() -> None:
    (item,) = resolve(instance(gpus=[0], args={"numa_node": [1]}), facts=FACTS)
    assert item["placement"] == []


@pytest.mark.parametrize(
    ("cpus", "memory", "placement"),
    [
        ("0-15,32-47", True, ["NUMAPolicy=preferred", "NUMAMask=0", "CPUAffinity=numa"]),
        # The kernel refuses both a policy for a node without memory and an affinity to no processor.
        ("0-15,32-47", False, ["CPUAffinity=0-15,32-47"]),
        ("", True, []),
    ],
    ids=["whole", "without-memory", "without-processors"],
)
def test_placement(cpus: str, memory: bool, placement: list[str]) -> None:
    facts = {
        **FACTS,
        "numa": [{"node": 0, "cpus": cpus, "memory": memory}, {"node": 1, "cpus": "16-31", "memory": True}],
    }
    (item,) = resolve(instance(gpus=[0, 3]), facts=facts)
    assert item["placement"] == placement
    (item,) = resolve(instance(gpus=[3, 4]), facts=facts)
    assert item["placement"] == []


def test_a_gpu_that_the_kernel_places_nowhere() -> None:
    gpus = [{**EIGHT_CARDS[0], "numa_node": -1}]
    (item,) = resolve(instance(gpus=[0]), facts={**FACTS, "gpus": gpus})
    assert item["placement"] == []


class TestDeviceNodes:
    def test_they_are_made_before_the_start(self) -> None:
        (item,) = resolve(instance(), facts={**FACTS, "nvidia_modprobe": "/usr/bin/nvidia-modprobe"})
        assert item["exec_start_pre"] == "-+/usr/bin/nvidia-modprobe -u -c=0 -c=1 -c=2 -c=3 -c=4 -c=5 -c=6 -c=7"

    @pytest.mark.parametrize(
        "facts",
        [
            {},
            FACTS,
            {"nvidia_modprobe": "/usr/bin/nvidia-modprobe"},
            {**FACTS, "nvidia_modprobe": "/opt/a b/nvidia-modprobe"},
        ],
        ids=["unknown", "no-program", "no-gpu", "odd-path"],
    )
    def test_nothing_runs_where_nothing_is_to_be_made(self, facts: dict[str, t.Any]) -> None:
        (item,) = resolve(instance(), facts=facts)
        assert item["exec_start_pre"] == ""
