# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi and the kernel tell of the host's GPUs and NUMA nodes. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import os
import re

__all__ = (
    "GPU_FIELDS",
    "Gpu",
    "NumaNode",
    "find_numa_nodes",
    "numa_node_of",
    "parse_gpus",
    "parse_mig",
)

GPU_FIELDS = ("index", "uuid", "name", "memory.total", "pci.bus_id", "driver_version", "compute_cap")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One row of nvidia-smi; ``numa_node`` is -1 where the kernel does not know it, ``mig`` the UUIDs of its MIG devices."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int
    pci_bus_id: str
    driver_version: str
    compute_capability: str
    numa_node: int = -1
    mig: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class NumaNode:
    """A node with the list of its processors as the kernel writes it ('0-15,32-47'; '' = none), and whether it has memory."""

    node: int
    cpus: str
    memory: bool


def _integer(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def parse_gpus(text: str) -> list[Gpu]:
    """Parse ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits`` for the fields that we ask."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(GPU_FIELDS):
            index, uuid, name, memory, pci, driver, capability = cells
            gpus.append(
                Gpu(
                    index=_integer(index),
                    uuid=uuid,
                    name=name,
                    memory_total_mib=_integer(memory),
                    pci_bus_id=pci,
                    driver_version=driver,
                    compute_capability=capability,
                )
            )
    return gpus


def _sysfs_text(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return None


def numa_node_of(pci_bus_id: str, sys_root: str) -> int:
    # nvidia-smi writes the domain with eight digits, the kernel with four, in lower case.
    domain, _colon, rest = pci_bus_id.lower().partition(":")
    text = _sysfs_text(f"{sys_root}/bus/pci/devices/{domain[-4:]}:{rest}/numa_node") or ""
    return int(text) if re.fullmatch(r"-?\d+", text) else -1


def _in_list(number: int, text: str) -> bool:
    """Whether a number is in a list of the kernel's, such as ``0-1,4``."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return any(int(first) <= number <= int(last or first) for first, _dash, last in ranges)


def find_numa_nodes(sys_root: str) -> list[NumaNode]:
    """The nodes of the machine, by number (Documentation/ABI/stable/sysfs-devices-node)."""
    folder = f"{sys_root}/devices/system/node"
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    with_memory = _sysfs_text(f"{folder}/has_memory")
    numbers = sorted(int(name[4:]) for name in names if re.fullmatch(r"node\d+", name))
    return [
        NumaNode(
            node=number,
            cpus=_sysfs_text(f"{folder}/node{number}/cpulist") or "",
            memory=with_memory is None or _in_list(number, with_memory),
        )
        for number in numbers
    ]


def parse_mig(text: str) -> dict[str, tuple[str, ...]]:
    """UUIDs of MIG devices by the UUID of their GPU, from ``nvidia-smi -L``: there each stands below its GPU."""
    found: dict[str, tuple[str, ...]] = {}
    gpu = ""
    for line in text.splitlines():
        uuid = re.search(r"\(UUID: ((?:GPU|MIG)-[0-9A-Za-z-]+)\)", line)
        if uuid and uuid.group(1).startswith("GPU-"):
            gpu = uuid.group(1)
        elif uuid and gpu:
            found[gpu] = (*found.get(gpu, ()), uuid.group(1))
    return found
