# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which GPUs an instance gets, and what keeps it near them. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import InstanceHost
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import PLAIN_PATH, integer, plain_text

__all__ = [
    "card_of",
    "check_gpus",
    "device_nodes",
    "gpu_identity",
    "gpu_list",
    "numa_node_of",
    "placement_of",
]

_GPU_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]+\Z")


def gpu_list(value: t.Any, *, host: InstanceHost | None, origin: str, errors: list[str]) -> list[int | str]:
    """The GPUs that were asked for, by number or UUID."""
    if value is None:
        return []
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        errors.append(f"{origin}: {value!r} is no list of GPU numbers or UUIDs")
        return []
    gpus: list[int | str] = []
    for item in value:
        number = integer(item)
        if number is not None and number >= 0:
            gpus.append(number)
        elif isinstance(item, str) and _GPU_UUID.match(item):
            gpus.append(plain_text(item))
        else:
            errors.append(f"{origin}: {item!r} is neither a GPU number nor a UUID such as 'GPU-5f8c...'")
    if gpus and host is not None and host.profile_name == "cpu":
        errors.append(f"{origin}: {gpus!r} asked for, but the GPU profile is 'cpu'; leave 'gpus' out")
    return gpus


def card_of(gpu: int | str, host: InstanceHost) -> Mapping[str, t.Any] | None:
    """What is known of a GPU, or of the GPU that a MIG device is a part of."""
    for known in host.gpus:
        if gpu in (known.get("index"), known.get("uuid")) or gpu in (known.get("mig") or ()):
            return known
    return None


def gpu_identity(gpu: int | str, host: InstanceHost) -> str:
    """One text per GPU whichever way it was named: the UUID where the host's GPUs are known."""
    known = card_of(gpu, host)
    return str(gpu) if known is None or str(gpu).startswith("MIG-") else str(known["uuid"])


def numa_node_of(gpus: Sequence[int | str], host: InstanceHost) -> int | None:
    """The one NUMA node all GPUs of an instance sit on, or None when unknown, several, or the host has only one."""
    cards = [card_of(gpu, host) for gpu in gpus]
    nodes = {card.get("numa_node") if card else None for card in cards}
    if len(nodes) != 1 or len(host.facts.get("numa_nodes") or ()) < 2:
        return None
    node = nodes.pop()
    return int(node) if isinstance(node, int) and node >= 0 else None


def placement_of(node: int | None, host: InstanceHost) -> list[str]:
    """The unit's settings that keep an instance near its GPUs (systemd.exec(5)).

    For GPUs of several nodes there are none, and no interleaving either: from 0.5.18 on SGLang binds each rank to the node of its
    own GPU (utils/numa_utils.py, where numactl is installed), and a mask around all of them could only be in the way of that.
    Memory is preferred there, not bound: a node that is full must not end a server.
    """
    if node is None:
        return []
    known = {int(item["node"]): item for item in host.facts.get("numa") or ()}.get(
        node, {"cpus": "numa", "memory": True}
    )
    # Nodes without processors are memory of cards or of expanders. The kernel refuses a policy for a node without memory,
    # and an affinity to no processor: the unit would not start.
    if not known.get("cpus"):
        return []
    if not known.get("memory"):
        return [f"CPUAffinity={plain_text(known['cpus'])}"]
    return ["NUMAPolicy=preferred", f"NUMAMask={node}", "CPUAffinity=numa"]


def check_gpus(resolved: Sequence[Mapping[str, t.Any]], host: InstanceHost, *, errors: list[str]) -> None:
    """Each GPU exists and has one instance."""
    present = {str(known["uuid"]): str(known["index"]) for known in host.gpus}
    owners: dict[str, list[str]] = {}
    for item in resolved:
        for gpu in item["gpus"]:
            identity = gpu_identity(gpu, host)
            owners.setdefault(identity, []).append(item["name"])
            if present and card_of(gpu, host) is None:
                errors.append(
                    f"{item['name']}: GPU {gpu!r} does not exist on this host (nvidia-smi shows {', '.join(present.values())})"
                )
    for gpu, names in owners.items():
        if len(names) > len(set(names)):
            errors.append(f"{names[0]}: GPU {gpu} is listed twice")
        elif len(names) > 1:
            errors.append(f"sglang_instances: GPU {gpu} is used by {' and '.join(names)}")


def device_nodes(host: InstanceHost) -> str:
    """The command that makes the GPUs' device nodes before the server starts, or ''.

    After a boot there may be none of /dev/nvidia-uvm: CUDA's library makes it by nvidia-modprobe, which is set-uid root and has no
    power under NoNewPrivileges= (NVIDIA/enroot#106, FoldingAtHome/fah-client-bastet#315). '+' runs it outside of the sandbox, '-' lets the server
    start and tell when it fails.
    """
    program = str(host.facts.get("nvidia_modprobe") or "")
    if not host.gpus or not PLAIN_PATH.match(program):
        return ""
    # Minor numbers count the GPUs of the host, as nvidia-smi's index does.
    return " ".join([f"-+{program}", "-u", *(f"-c={number}" for number in range(len(host.gpus)))])
