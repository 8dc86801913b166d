# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU, memory and PCIe faults in the kernel's log. PRIVATE to specdec.serving.

Xid numbers and what to do: NVIDIA's "Xid Errors" catalogue (docs.nvidia.com/deploy/xid-errors). Lines: the NVIDIA driver
(`NVRM: Xid (PCI:0000:41:00): 79, ...`), `mm/oom_kill.c`, `drivers/pci/pcie/aer.c` of Linux.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.module_utils._journal import parse_entry

__all__ = [
    "APPLICATION",
    "HARDWARE",
    "NOTICE",
    "XIDS",
    "KernelFault",
    "KernelLine",
    "Xid",
    "kernel_command",
    "kernel_faults",
    "parse_gpu",
    "parse_kernel_log",
]

#: What kind of fault it is: the machine's, the program's own doing, or one that explains no failure by itself.
HARDWARE = "hardware"
APPLICATION = "application"
NOTICE = "notice"


@dataclass(frozen=True)
class KernelLine:
    """One line of the kernel's log; `at_us` on the monotonic clock."""

    at_us: int
    text: str


@dataclass(frozen=True)
class Xid:
    """What one Xid number means, and what to do about it."""

    kind: str
    meaning: str
    action: str


_RESET = "Stop what uses the GPU and reset it (nvidia-smi --gpu-reset) or reboot the host"
_OWN = (
    "Mostly the program's fault: see its own error. If it moves with the GPU and not with the program, run dcgmi diag"
)

#: By number.
XIDS: t.Final[t.Mapping[int, Xid]] = {
    8: Xid(
        HARDWARE,
        "the GPU stopped processing (watchdog)",
        "Start the server again; if it returns, reset the GPU (nvidia-smi --gpu-reset) and update the driver.",
    ),
    13: Xid(APPLICATION, "graphics engine exception: a kernel did something illegal", f"{_OWN}."),
    31: Xid(APPLICATION, "GPU memory page fault: a kernel used an address that is not mapped", f"{_OWN}."),
    32: Xid(HARDWARE, "corrupted push buffer: bad data reached the GPU", f"{_RESET}; check the PCIe link"),
    38: Xid(HARDWARE, "driver firmware error", f"{_RESET}; if it returns, update the driver"),
    43: Xid(APPLICATION, "the GPU stopped processing for one program", f"{_OWN}."),
    45: Xid(
        NOTICE, "channels were cleaned up after an earlier error or the program's end", "Look for what came before."
    ),
    48: Xid(
        HARDWARE, "double bit ECC error: GPU memory returned wrong data", f"{_RESET}; if it returns, replace the GPU"
    ),
    61: Xid(HARDWARE, "internal micro-controller breakpoint", f"{_RESET}; if it returns, report it to the vendor"),
    62: Xid(HARDWARE, "internal micro-controller halt", f"{_RESET}; if it returns, replace the GPU"),
    63: Xid(
        NOTICE,
        "a bad row of GPU memory was noted to be remapped",
        "Reset the GPU at the next chance, so that it takes effect.",
    ),
    64: Xid(
        HARDWARE,
        "a bad row of GPU memory could not be noted to be remapped",
        f"{_RESET}; if it returns, replace the GPU",
    ),
    69: Xid(APPLICATION, "graphics engine class error: the GPU refused a command", f"{_OWN}."),
    74: Xid(HARDWARE, "NVLink error", f"{_RESET}; check nvidia-smi nvlink --status and the links' seats"),
    79: Xid(
        HARDWARE,
        "the GPU has fallen off the bus",
        "Power the host off and on; check the GPU's power, temperature and PCIe seat or riser. If it returns, replace it.",
    ),
    92: Xid(NOTICE, "many corrected single bit ECC errors", "Run dcgmi diag when the GPU is free."),
    94: Xid(
        HARDWARE,
        "contained ECC error: only this program's memory was hit",
        "Start the server again; reset the GPU at the next chance, and replace it if it returns.",
    ),
    95: Xid(
        HARDWARE,
        "uncontained ECC error: any program on the GPU may be hit",
        f"{_RESET}; if it returns, replace the GPU",
    ),
    109: Xid(HARDWARE, "context switch timeout", f"{_RESET}; if it returns, update the driver"),
    119: Xid(
        HARDWARE,
        "the GPU's system processor (GSP) does not answer",
        f"{_RESET}; if it returns, update driver and firmware",
    ),
    120: Xid(
        HARDWARE, "the GPU's system processor (GSP) failed", f"{_RESET}; if it returns, update driver and firmware"
    ),
    121: Xid(
        NOTICE,
        "a corrected error on the chip-to-chip link",
        "Reset the GPU at the next chance; report it if it returns.",
    ),
    140: Xid(HARDWARE, "unrecovered ECC error", f"{_RESET}; if it returns, replace the GPU"),
    143: Xid(
        HARDWARE, "the GPU could not be initialised", "Power the host off and on; if it returns, replace the GPU."
    ),
    **{
        number: Xid(HARDWARE, "NVLink error", f"{_RESET}; check nvidia-smi nvlink --status and the fabric manager")
        for number in range(144, 151)
    },
    154: Xid(
        NOTICE, "the driver asks for an action on the GPU", "Do what the line says: reset the GPU or reboot the host."
    ),
}


@dataclass(frozen=True)
class KernelFault:
    """One fault. `device` is a PCI address (`0000:41:00`) or "", `pid` 0 when the line names no process."""

    id: str
    kind: str
    cause: str
    summary: str
    remedy: str
    device: str
    pid: int
    at_us: int
    text: str


# --- reading ----------------------------------------------------------------------------------------------------------------


def kernel_command(*, lines: int = 5000, program: t.Sequence[str] = ("journalctl",)) -> list[str]:
    """The journalctl command line for the newest `lines` of the kernel's log of this boot.

    There is no limit by time: only the monotonic clock, which `parse_kernel_log` goes by, survives a clock that is set.
    """
    words = ["--quiet", "--no-pager", "--dmesg", "--boot", "--output=json", "--all", "--output-fields=MESSAGE"]
    return [*program, *words, f"--lines={lines}"]


def parse_kernel_log(text: str, *, since_us: int = 0) -> tuple[KernelLine, ...]:
    """The lines of `kernel_command`'s output since a monotonic time in microseconds."""
    found = []
    for raw in text.split("\n"):
        entry = parse_entry(raw) if raw else None
        if entry is not None and entry.monotonic_us >= since_us:
            found.append(KernelLine(entry.monotonic_us, entry.message))
    return tuple(found)


def parse_gpu(text: str) -> str:
    """The name of a GPU by the text of `/proc/driver/nvidia/gpus/ADDRESS/information`; "" when it says nothing."""
    fields = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()
    minor, model = fields.get("Device Minor", ""), fields.get("Model", "")
    return " ".join(part for part in (f"/dev/nvidia{minor}" if minor else "", f"({model})" if model else "") if part)


# --- faults -----------------------------------------------------------------------------------------------------------------

_ADDRESS = r"(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?"
_XID = re.compile(rf"NVRM: Xid \(PCI:{_ADDRESS}\): (?P<number>\d+)(?:, (?P<rest>.*))?")
_XID_PID = re.compile(r"pid=(\d+)")
_SXID = re.compile(rf"nvidia-nvswitch\d+: SXid \(PCI:{_ADDRESS}\): (?P<number>\d+), (?P<rest>.*)")
_FALLEN = re.compile(rf"NVRM: (?:The NVIDIA )?GPU {_ADDRESS}\b[\s\S]*fallen off the bus")
_OOM = re.compile(
    r"(?P<scope>Memory cgroup out of memory|Out of memory): Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)"
)
_OOM_TASK = re.compile(r"oom-kill:.*task_memcg=(?P<cgroup>[^,]*),task=[^,]*,pid=(?P<pid>\d+)")
_AER_FROM = re.compile(rf"(?:received(?: from)?:?|from) {_ADDRESS}")
_AER_AT = re.compile(rf"^(?:\S+ )?{_ADDRESS}: (?:AER|PCIe Bus Error)")
_SEVERITY = re.compile(r"(?i)\b(?P<severity>uncorrect(?:ed|able)|corrected|correctable)\b")
_IOMMU = re.compile(
    r"AMD-Vi: Event logged \[IO_PAGE_FAULT |DMAR: \[DMA (?:Read|Write)[^]]*\].*(?:fault|Present)", re.IGNORECASE
)
_IOMMU_DEVICE = re.compile(
    r"(?:device=|device \[|Request device \[?)(?P<device>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2})", re.IGNORECASE
)
_SEGFAULT = re.compile(
    r"(?:traps: )?(?P<name>\S{1,32})\[(?P<pid>\d+)\]:? (?:segfault at |general protection fault|trap )"
)
_MORE_MEMORY = "Give the host or the unit (MemoryMax) more memory, or load with fewer threads."


def _where(device: str, gpus: t.Mapping[str, str]) -> str:
    name = gpus.get(device, "")
    return f"GPU {device}" + (f" {name}" if name else "")


def _address(text: str) -> str:
    """A PCI address without its function, in the form of the keys of `gpus`: `0000:41:00`."""
    parts = text.lower().split(":")
    domain = parts[-3] if len(parts) > 2 else "0"
    return f"{int(domain, 16):04x}:{parts[-2]}:{parts[-1]}"


def _xid(match: t.Match[str], line: KernelLine, gpus: t.Mapping[str, str]) -> KernelFault:
    number, device, rest = int(match.group("number")), _address(match.group("device")), match.group("rest") or ""
    known = XIDS.get(number) or Xid(
        HARDWARE, "a fault that is not in our table", "See NVIDIA's Xid catalogue for this number."
    )
    pid = _XID_PID.search(rest)
    return KernelFault(
        id=f"XID{number}",
        kind=known.kind,
        cause="gpu_fault",
        summary=f"{_where(device, gpus)}: Xid {number}, {known.meaning}",
        remedy=known.action,
        device=device,
        pid=int(pid.group(1)) if pid else 0,
        at_us=line.at_us,
        text=line.text,
    )


def _aer(line: KernelLine, gpus: t.Mapping[str, str]) -> KernelFault | None:
    if "AER:" not in line.text and "PCIe Bus Error" not in line.text:
        return None
    severity = _SEVERITY.search(line.text)
    found = _AER_FROM.search(line.text) or _AER_AT.search(line.text)
    if severity is None or found is None:
        return None
    device = _address(found.group("device"))
    worst = severity.group("severity").lower().startswith("un")
    gpu = device in gpus or line.text.startswith("nvidia ")
    return KernelFault(
        id="AER",
        kind=HARDWARE if worst and gpu else NOTICE,
        cause="pcie_error",
        summary=f"{'un' if worst else ''}corrected PCIe error at {_where(device, gpus) if gpu else 'device ' + device}",
        remedy="Check the seat, riser and cable of the device, and its PCIe speed; power the host off and on.",
        device=device,
        pid=0,
        at_us=line.at_us,
        text=line.text,
    )


def _fault(line: KernelLine, gpus: t.Mapping[str, str]) -> KernelFault | None:
    text = line.text

    def fault(
        id_: str, kind: str, cause: str, summary: str, remedy: str, device: str = "", pid: int = 0
    ) -> KernelFault:
        return KernelFault(id_, kind, cause, summary, remedy, device, pid, line.at_us, text)

    match = _XID.search(text)
    if match:
        return _xid(match, line, gpus)
    match = _FALLEN.search(text)
    if match:
        device = _address(match.group("device"))
        summary = f"{_where(device, gpus)}: {XIDS[79].meaning}"
        return fault("XID79", HARDWARE, "gpu_fault", summary, XIDS[79].action, device)
    match = _SXID.search(text)
    if match:
        fatal = re.match(r"(?i)fatal\b", match.group("rest")) is not None
        device = _address(match.group("device"))
        summary = f"NVSwitch {device}: SXid {match.group('number')}, {match.group('rest')[:200]}"
        remedy = "Reset the GPUs and NVSwitches together or reboot the host; check the fabric manager."
        return fault("SXID", HARDWARE if fatal else NOTICE, "nvswitch_fault", summary, remedy, device)
    match = _OOM.search(text)
    if match:
        scope = "of its control group" if match.group("scope").startswith("Memory") else "of the host"
        summary = f"the memory {scope} ran out, and the kernel killed {match.group('name')} (pid {match.group('pid')})"
        return fault("OOM", HARDWARE, "host_out_of_memory", summary, _MORE_MEMORY, pid=int(match.group("pid")))
    if _IOMMU.search(text):
        found = _IOMMU_DEVICE.search(text)
        device = _address(found.group("device")) if found else ""
        summary = (
            f"the IOMMU refused an access of {_where(device, gpus) if device in gpus else 'device ' + (device or '?')}"
        )
        remedy = "Peer-to-peer traffic between GPUs is blocked: set the IOMMU to passthrough (iommu=pt) or off, or NCCL_P2P_DISABLE=1."
        return fault("IOMMU", HARDWARE if device in gpus else NOTICE, "iommu_fault", summary, remedy, device)
    match = _SEGFAULT.search(text)
    if match:
        summary = f"{match.group('name')} (pid {match.group('pid')}) crashed in native code: {text[:200]}"
        remedy = "See the core dump (coredumpctl) for the library that the line names."
        return fault("SEGFAULT", APPLICATION, "native_crash", summary, remedy, pid=int(match.group("pid")))
    return _aer(line, gpus)


def kernel_faults(
    lines: t.Iterable[KernelLine],
    *,
    pids: t.AbstractSet[int] = frozenset(),
    cgroup: str = "",
    gpus: t.Mapping[str, str] | None = None,
) -> list[KernelFault]:
    """The faults in the kernel's lines, in their order; those of other programs as notices.

    `pids` are processes of the unit as far as known (empty: unknown), `cgroup` its control group, `gpus` the names of the
    GPUs by PCI address without function. What hits one process only (a page fault, the OOM killer) concerns the unit if it
    was a process of the unit; what hits a whole GPU always may.
    """
    faults: list[KernelFault] = []
    killed: set[int] = set()
    for line in lines:
        task = _OOM_TASK.search(line.text)
        if task and cgroup and (task.group("cgroup") + "/").startswith(cgroup + "/"):
            killed.add(int(task.group("pid")))
        found = _fault(line, gpus or {})
        if found is None:
            continue
        # A contained ECC error (94) hits one process too.
        single = found.kind == APPLICATION or found.id in ("OOM", "XID94")
        mine = found.pid in killed or found.pid in pids or (not found.pid and found.id != "OOM")
        unknown = not pids and (found.id.startswith("XID") or (found.id == "OOM" and not cgroup))
        if single and not mine and not unknown:
            found = KernelFault(**{**found.__dict__, "kind": NOTICE, "summary": f"{found.summary} (not of this unit)"})
        faults.append(found)
    return faults
