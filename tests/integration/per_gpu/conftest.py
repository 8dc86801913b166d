# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One lab host with three GPUs, as far as nvidia-smi and sysfs tell, and stand-ins that take them for real."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.integration.lab_hosts import lab_host, remove_units
from ansible_collections.specdec.serving.tests.integration.role.conftest import VARIABLES, Deployment
from ansible_collections.specdec.serving.tests.support.lab.client import Host

#: On node 0, on node 1, and on none that the kernel knows.
ADDRESSES = ("0000:e1:00.0", "0000:e2:00.0", "0000:e3:00.0")
UUIDS = tuple(f"GPU-{number}2345678-0000-0000-0000-00000000000{number}" for number in range(3))
_FAKE = "/run/fake-machine"
# The stand-in has the weights of the whole model.
_ROWS = "\n".join(
    f"{number}, {uuid}, NVIDIA H200, 1048576, 0000{address.upper()}, 580.95.05, 9.0"
    for number, (uuid, address) in enumerate(zip(UUIDS, ADDRESSES, strict=True))
)
#: Answers what the preflight asks; of the rest it knows nothing.
NVIDIA_SMI = f"""#!/bin/sh
case "$1" in
--query-gpu=index,uuid,name,memory.total*) cat <<'EOF'
{_ROWS}
EOF
;;
--query-gpu=index,persistence_mode) printf '%s, Enabled\\n' 0 1 2 ;;
--query-*) ;;
*) exit 9 ;;
esac
"""
#: Laid over /sys: two nodes, the second of them without memory, so that this machine's kernel goes along with it.
_SYSFS = f"""set -e
mkdir -p {_FAKE}/node {_FAKE}/pci
mountpoint -q {_FAKE}/node || mount -t tmpfs tmpfs {_FAKE}/node
mountpoint -q {_FAKE}/pci || mount -t tmpfs tmpfs {_FAKE}/pci
for node in 0 1; do mkdir -p {_FAKE}/node/node$node; echo $node > {_FAKE}/node/node$node/cpulist; done
for name in has_memory online possible; do echo 0 > {_FAKE}/node/$name; done
node=0
for address in {" ".join(ADDRESSES)}; do
  mkdir -p {_FAKE}/pci/$address; echo $node > {_FAKE}/pci/$address/numa_node
  case $node in 0) node=1;; *) node=-1;; esac
done
mount --bind {_FAKE}/node /sys/devices/system/node
mount --bind {_FAKE}/pci /sys/bus/pci/devices
"""


@pytest.fixture(scope="session")
def gpu_host() -> Host:
    host = lab_host("gpus")
    host.write_file("/usr/local/bin/nvidia-smi", NVIDIA_SMI)
    host.exec(["chmod", "755", "/usr/local/bin/nvidia-smi"])
    if host.exec(["cat", f"/sys/bus/pci/devices/{ADDRESSES[0]}/numa_node"], check=False).stdout != "0\n":
        host.exec(["sh", "-c", _SYSFS])
    return host


@pytest.fixture
def deployment(gpu_host: Host, tmp_path: Path) -> Deployment:
    remove_units(gpu_host)
    made = Deployment(gpu_host, tmp_path, variables=dict(VARIABLES))
    made.hosts = {"gpus": {}}
    return made


def entry(name: str = "a", gpus: t.Sequence[int] = (0, 1, 2), **changes: t.Any) -> dict[str, t.Any]:
    """An entry with one instance per GPU, which start in a moment."""
    values = {
        "name": name,
        "model_path": "/models/stand-in-target",
        "port": 30400,
        "gpus": list(gpus),
        "one_per_gpu": True,
        "args": {"disable_cuda_graph": True, "max_running_requests": 8},
        "env": {"STAND_IN_SCALE": "0.002"},
    }
    return {**values, **changes}
