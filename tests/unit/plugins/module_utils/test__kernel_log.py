# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults in the kernel's log: which GPU, whose process, what it means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils._kernel_log import (
    APPLICATION,
    HARDWARE,
    NOTICE,
    XIDS,
    KernelFault,
    KernelLine,
    kernel_command,
    kernel_faults,
    parse_gpu,
    parse_kernel_log,
)

GPUS = {"0000:41:00": "/dev/nvidia3 (NVIDIA RTX PRO 6000 Blackwell Server Edition)", "0000:c1:00": ""}
CGROUP = "/system.slice/sglang-x.service"


def faults(*texts: str, **options: Any) -> list[KernelFault]:
    options = {"gpus": GPUS, "cgroup": CGROUP, "pids": frozenset((4711,)), **options}
    return kernel_faults([KernelLine(number, text) for number, text in enumerate(texts)], **options)


@pytest.mark.parametrize(
    "number", [8, 13, 31, 43, 45, 48, 61, 62, 63, 64, 69, 74, 79, 92, 94, 95, 119, 120, 121, 140, 143]
)
def test_an_xid_names_gpu_meaning_and_action(number: int) -> None:
    (fault,) = faults(f"NVRM: Xid (PCI:0000:41:00): {number}, pid=4711, name=sglang::schedul, Ch 00000008")
    assert (fault.id, fault.kind, fault.device, fault.pid) == (f"XID{number}", XIDS[number].kind, "0000:41:00", 4711)
    assert fault.summary == f"GPU 0000:41:00 {GPUS['0000:41:00']}: Xid {number}, {XIDS[number].meaning}"
    assert fault.remedy == XIDS[number].action


@pytest.mark.parametrize(
    ("text", "id_", "kind", "part"),
    [
        pytest.param(
            "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "XID79",
            HARDWARE,
            "GPU 0000:c1:00: Xid 79",
            id="no pid",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:09:00): 79, pid=0, GPU has fallen off the bus.",
            "XID79",
            HARDWARE,
            "0000:09:00",
            id="pid 0",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.",
            "XID79",
            HARDWARE,
            "0000:02:00",
            id="old driver",
        ),
        pytest.param(
            "NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.", "XID79", HARDWARE, "0000:09:00", id="no xid"
        ),
        pytest.param(
            "NVRM: The NVIDIA GPU 0000:b3:00.0\n NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
            " NVRM: fallen off the bus and is not responding to commands.",
            "XID79",
            HARDWARE,
            "0000:b3:00",
            id="three lines",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 119, pid=99, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
            "XID119",
            HARDWARE,
            "GSP",
            id="a GPU's fault met by another program",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 998, pid=99", "XID998", HARDWARE, "not in our table", id="unknown number"
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:41:00): 31, pid=99, name=python3, MMU Fault",
            "XID31",
            NOTICE,
            "not of this unit",
            id="foreign page fault",
        ),
        pytest.param(
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "SXID",
            HARDWARE,
            "SXid 20034",
            id="fatal SXid",
        ),
        pytest.param(
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress",
            "SXID",
            NOTICE,
            "SXid 12028",
            id="SXid",
        ),
        pytest.param(
            "pcieport 0000:40:01.1: AER: Uncorrectable (Fatal) error message received from 0000:41:00.0",
            "AER",
            HARDWARE,
            "uncorrected PCIe error at GPU 0000:41:00",
            id="AER of a GPU",
        ),
        pytest.param(
            "nvidia 0000:07:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
            "AER",
            HARDWARE,
            "GPU 0000:07:00",
            id="AER told by the driver",
        ),
        pytest.param(
            "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0",
            "AER",
            NOTICE,
            "device 0000:00:03",
            id="AER of a port",
        ),
        pytest.param(
            "pcieport 0000:00:02.0: AER: Corrected error received: id=0010",
            "AER",
            NOTICE,
            "corrected PCIe",
            id="corrected, old kernel",
        ),
        pytest.param(
            "nvidia 0000:41:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer",
            "AER",
            NOTICE,
            "corrected PCIe error at GPU",
            id="corrected",
        ),
        pytest.param(
            "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x0030 address=0xf0 flags=0x0020]",
            "IOMMU",
            HARDWARE,
            "0000:41:00",
            id="IOMMU",
        ),
        pytest.param(
            "Out of memory: Killed process 4711 (sglang::schedul) total-vm:9kB, anon-rss:9kB",
            "OOM",
            HARDWARE,
            "of the host",
            id="OOM",
        ),
        pytest.param(
            "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB",
            "OOM",
            HARDWARE,
            "control group",
            id="cgroup OOM",
        ),
        pytest.param(
            "Out of memory: Killed process 5 (chrome) total-vm:9kB", "OOM", NOTICE, "not of this unit", id="foreign OOM"
        ),
        pytest.param(
            "python[4711]: segfault at 0 ip 00007f error 4 in libcuda.so.580[7f0+1000]",
            "SEGFAULT",
            APPLICATION,
            "libcuda.so.580",
            id="segfault",
        ),
        pytest.param(
            "chrome[9]: segfault at 0 ip 0 error 4 in x.so[1+1]",
            "SEGFAULT",
            NOTICE,
            "not of this unit",
            id="foreign segfault",
        ),
    ],
)
def test_kernel_lines(text: str, id_: str, kind: str, part: str) -> None:
    (fault,) = faults(text)
    assert (fault.id, fault.kind, fault.text) == (id_, kind, text)
    assert part in fault.summary
    assert fault.remedy


def test_the_oom_killers_other_line_names_the_control_group() -> None:
    task = f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task_memcg={CGROUP},task=python,pid=4800,uid=998"
    (fault,) = faults(task, "Out of memory: Killed process 4800 (python) total-vm:1kB")
    assert fault.kind == HARDWARE
    (fault,) = faults(task.replace("sglang-x", "sglang-xy"), "Out of memory: Killed process 4800 (python) total-vm:1kB")
    assert fault.kind == NOTICE


def test_without_known_processes_a_page_fault_counts() -> None:
    (fault,) = faults("NVRM: Xid (PCI:0000:41:00): 31, pid=99, name=python3", pids=frozenset())
    assert fault.kind == APPLICATION


def test_the_rest_of_the_kernels_log_is_no_fault() -> None:
    assert (
        faults("usb 1-1: new high-speed USB device", "NVRM: loading NVIDIA UNIX Open Kernel Module", "AER: enabled", "")
        == []
    )


def test_the_command_needs_no_wall_clock_and_the_times_are_monotonic() -> None:
    assert kernel_command(lines=7)[:4] == ["journalctl", "--quiet", "--no-pager", "--dmesg"]
    assert not any(word.startswith("--since") for word in kernel_command())
    text = "".join(
        json.dumps({"__MONOTONIC_TIMESTAMP": str(at), "MESSAGE": message}) + "\n"
        for at, message in ((10, "before"), (20, "at"), (30, [111, 107]))
    )
    assert parse_kernel_log(f"{text}nonsense\n\n", since_us=20) == (KernelLine(20, "at"), KernelLine(30, "ok"))


def test_the_name_of_a_gpu() -> None:
    text = "Model: \t\t NVIDIA B300\nIRQ:   \t\t 100\nBus Location: \t 0000:41:00.0\nDevice Minor: \t 3\n"
    assert parse_gpu(text) == "/dev/nvidia3 (NVIDIA B300)"
    assert parse_gpu("") == ""


@given(st.lists(st.text() | st.from_regex(r"NVRM: Xid \(PCI:[0-9a-f:.]{1,14}\): \d{1,4}.{0,9}")))
def test_nothing_raises(texts: list[str]) -> None:
    faults(*texts)
    parse_kernel_log("\n".join(texts))
    parse_gpu("\n".join(texts))
