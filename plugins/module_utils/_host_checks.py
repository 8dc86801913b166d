# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host has what SGLang's servers need: GPUs that are free, limits, folders, compilers. PRIVATE to the collection.

Nothing is changed, and no process is touched. Every function takes what it looks at (a runner, roots, texts).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._gpus import APPS_FIELDS, parse_apps
from ansible_collections.specdec.serving.plugins.module_utils._processes import read_process, unit_of_pid
from ansible_collections.specdec.serving.plugins.module_utils._redact import mask_command
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

__all__ = (
    "CONTAINERS",
    "Findings",
    "ForeignProcess",
    "check_cache_folders",
    "check_driver",
    "check_fabric",
    "check_limits",
    "check_persistence",
    "check_shared_memory",
    "check_toolchain",
    "foreign_processes",
    "inaccessible",
    "virtualization",
)

#: Least driver by major version of CUDA (NVIDIA's release notes of CUDA, "minor version compatibility").
_LEAST_DRIVER: t.Final[t.Mapping[int, tuple[int, ...]]] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
#: What the unit asks for (templates/sglang.service.j2).
_OPEN_FILES: t.Final = 1048576
_CAP_SYS_RESOURCE: t.Final = 24
_MIB: t.Final = 2**20
#: A display server or a monitor holds less.
_FOREIGN_MIB: t.Final = 512
_SHARED_MEMORY_BYTES: t.Final = 2**30
_CACHE_BYTES: t.Final = 5 * 2**30
#: systemd-detect-virt(1): what is no machine of its own.
CONTAINERS: t.Final = frozenset(
    [
        "openvz",
        "lxc",
        "lxc-libvirt",
        "systemd-nspawn",
        "docker",
        "podman",
        "rkt",
        "wsl",
        "proot",
        "pouch",
        "container-other",
    ]
)
_SWITCHED_CARDS = re.compile(
    r"\b(A100-SXM|A800-SXM|H100 80GB HBM3|H100 SXM|H20\b|H200|B100|B200|B300|GB200|GB300)", re.IGNORECASE
)

_ACCESS_SCRIPT = (
    "for item; do mode=${item%%:*}; path=${item#*:}; case $mode in"
    ' w) [ -w "$path" ] && [ -x "$path" ];; r) [ -r "$path" ] && { [ ! -d "$path" ] || [ -x "$path" ]; };;'
    ' esac || printf "%s\\n" "$item"; done'
)


@dataclasses.dataclass
class Findings:
    """``errors`` forbid the deployment, ``warnings`` do not."""

    errors: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class ForeignProcess:
    """A process on a GPU that belongs to none of the units that are deployed. ``mib``: None = the driver does not tell."""

    pid: int
    uuids: tuple[str, ...]
    mib: float | None
    unit: str
    command: str

    @property
    def large(self) -> bool:
        """Whether it holds enough to matter."""
        return self.mib is None or self.mib >= _FOREIGN_MIB

    @property
    def text(self) -> str:
        """`pid 4242 (python train.py) of user@1000.service holds 40960 MiB`."""
        what = f" ({self.command})" if self.command else " (not visible from here)"
        unit = f" of {self.unit}" if self.unit else ""
        amount = f"{self.mib:.0f} MiB" if self.mib is not None else "an unknown amount of memory"
        return f"pid {self.pid}{what}{unit} holds {amount}"


def foreign_processes(
    runner: Runner,
    units: t.Collection[str],
    *,
    proc: str = "/proc",
    unit_of: t.Callable[..., str | None] = unit_of_pid,
) -> list[ForeignProcess]:
    """Processes that hold GPU memory and belong to none of ``units``, by pid."""
    code, stdout, _stderr = runner(
        ["nvidia-smi", f"--query-compute-apps={','.join(APPS_FIELDS)}", "--format=csv,noheader,nounits"]
    )
    if code != 0:
        return []
    memory, uuids = parse_apps(stdout)
    found = []
    for pid, cards in sorted(uuids.items()):
        unit = unit_of(pid, proc=proc) or ""
        if unit in units:
            continue
        process = read_process(pid, proc=proc)
        command = mask_command(process.cmdline)[:120] if process and process.cmdline else ""
        found.append(ForeignProcess(pid, tuple(sorted(cards)), memory.get(pid), unit, command))
    return found


def check_shared_memory(findings: Findings, *, path: str = "/dev/shm", size: int | None = None) -> None:
    """NCCL and the schedulers exchange through it; containers have 64 MiB by default (sgl-project/sglang#3460)."""
    if size is None:
        try:
            state = os.statvfs(path)
        except OSError as exc:
            findings.warnings.append(f"{path} cannot be looked at: {exc.strerror}")
            return
        size = state.f_blocks * state.f_frsize
    if size < _SHARED_MEMORY_BYTES:
        findings.warnings.append(
            f"{path} has {size // _MIB} MiB: NCCL fails with less than it needs ('unhandled system error'); make it 1 GiB per GPU"
            " (containers: --shm-size or --ipc=host)"
        )


def check_limits(findings: Findings, *, proc: str = "/proc") -> None:
    """Whether systemd can give the unit the limits that it asks for: its own, or the right to raise them."""
    try:
        with open(f"{proc}/1/limits", encoding="ascii") as file:
            limits = file.read()
        with open(f"{proc}/1/status", encoding="ascii", errors="replace") as file:
            capabilities = re.search(r"^CapEff:\s*([0-9a-fA-F]+)$", file.read(), re.MULTILINE)
    except OSError:
        return
    if capabilities and int(capabilities.group(1), 16) >> _CAP_SYS_RESOURCE & 1:
        hard_memory: str | None = "unlimited"
    else:
        found = re.search(r"^Max locked memory\s+\S+\s+(\S+)", limits, re.MULTILINE)
        hard_memory = found.group(1) if found else None
    if hard_memory not in (None, "unlimited"):
        findings.warnings.append(
            f"systemd may lock {hard_memory} bytes of memory at most and cannot raise that, so LimitMEMLOCK=infinity has no effect and NCCL may"
            " fail; in a container allow it from outside (--ulimit memlock=-1)"
        )
    with contextlib.suppress(OSError, ValueError), open(f"{proc}/sys/fs/nr_open", encoding="ascii") as file:
        most = int(file.read())
        if most < _OPEN_FILES:
            findings.warnings.append(
                f"fs.nr_open is {most}, so the unit gets that many open files instead of {_OPEN_FILES}"
            )


def inaccessible(
    runner: Runner, ids: tuple[int, int], items: t.Sequence[tuple[str, str]]
) -> list[tuple[str, str]] | None:
    """Which of (``w`` or ``r``, path) the service user with these user and group ids cannot write or read; None = could not be tried.

    The shell's own tests run as that user, so that groups, ACLs and parents count as they do for the server.
    """
    if not items:
        return []
    words = [f"{mode}:{path}" for mode, path in items]
    become = ["setpriv", f"--reuid={ids[0]}", f"--regid={ids[1]}", "--init-groups", "--"]
    code, stdout, _stderr = runner([*become, "/bin/sh", "-c", _ACCESS_SCRIPT, "sh", *words])
    if code not in (0, 1):
        return None
    failed = set(stdout.splitlines())
    return [item for item, word in zip(items, words) if word in failed]


def check_cache_folders(
    findings: Findings, paths: t.Sequence[str], *, statvfs: t.Callable[[str], t.Any] = os.statvfs
) -> None:
    """Whether the folders can be made and filled: a file system that can be written, with room for compiled kernels."""
    told: set[str] = set()
    for path in paths:
        parent = path
        while not os.path.exists(parent) and parent != "/":
            parent = os.path.dirname(parent)
        if not os.path.isdir(parent):
            findings.errors.append(f"the cache folder {path!r} cannot be made: {parent!r} is no folder")
            continue
        with contextlib.suppress(OSError):
            state = statvfs(parent)
            if state.f_flag & os.ST_RDONLY:
                findings.errors.append(f"the cache folder {path!r} lies on a read-only file system ({parent!r})")
            elif state.f_bavail * state.f_frsize < _CACHE_BYTES and parent not in told:
                told.add(parent)
                free = state.f_bavail * state.f_frsize // _MIB
                findings.warnings.append(f"{parent!r} has {free} MiB left: caches of compiled kernels take up to 5 GiB")


def check_toolchain(
    findings: Findings,
    *,
    path: str,
    include: str,
    needs_gpu: bool,
    needs_compiler: str = "",
    which: t.Callable[..., str | None] = shutil.which,
) -> None:
    """What compiles kernels at run time (FlashInfer, Triton, DeepGEMM, torch.compile).

    :param path: PATH of the unit. ``include`` is the folder of Python's headers, '' = unknown.
    :param needs_compiler: what cannot start without a C++ compiler and ninja, '' = nothing.
    """
    compiler = which("g++", path=path) or which("c++", path=path) or which("clang++", path=path)
    ninja = which("ninja", path=path)
    if needs_compiler and not (compiler and ninja):
        absent = " and ".join(
            name for name, there in (("a C++ compiler (g++)", compiler), ("ninja", ninja)) if not there
        )
        findings.errors.append(
            f"{needs_compiler} compiles a library at its first start, but {absent} is not on the unit's PATH; install it"
        )
    if not needs_gpu:
        return
    missing = [
        name for name, there in (("g++", compiler), ("ninja", ninja), ("nvcc", which("nvcc", path=path))) if not there
    ]
    if include and not os.path.isfile(f"{include}/Python.h"):
        missing.append(f"{include}/Python.h")
    if missing:
        findings.warnings.append(
            f"{', '.join(missing)} cannot be found: kernels that the wheels do not bring cannot be compiled"
            " (FlashInfer, Triton, DeepGEMM), and a start that needs one fails; install CUDA's toolkit, ninja, a compiler and Python's headers"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def check_driver(findings: Findings, *, driver: str, torch_cuda: str) -> None:
    """Whether the driver is new enough for the CUDA that torch was built for."""
    version = _numbers(torch_cuda)
    least = _LEAST_DRIVER.get(version[0]) if version else None
    if least and driver and _numbers(driver) < least:
        needed = ".".join(map(str, least[:2])) + f".{least[2]:02d}"
        findings.errors.append(
            f"the GPU driver {driver} is too old for this engine, which is built for CUDA {torch_cuda}: {needed} or newer is needed; update the driver,"
            " or use an engine for an older CUDA"
        )


def check_persistence(findings: Findings, runner: Runner) -> None:
    """Without persistence the driver unloads between processes: each start pays seconds for it."""
    code, stdout, _stderr = runner(["nvidia-smi", "--query-gpu=index,persistence_mode", "--format=csv,noheader"])
    if code != 0:
        return
    rows = [[cell.strip() for cell in line.split(",")] for line in stdout.splitlines()]
    off = [row[0] for row in rows if len(row) == 2 and row[1].lower() == "disabled"]
    if off:
        findings.warnings.append(
            f"persistence mode is off for GPU {', '.join(off)}, so each start initialises the driver anew; enable nvidia-persistenced.service"
        )


def check_fabric(findings: Findings, runner: Runner, *, names: t.Collection[str], gpus_needed: int) -> None:
    """GPUs behind NVSwitch need the fabric manager before they can talk to each other; CUDA cannot even be initialised without."""
    if gpus_needed < 2 or not any(_SWITCHED_CARDS.search(name) for name in names):
        return
    code, stdout, _stderr = runner(
        ["nvidia-smi", "--query-gpu=index,fabric.state,fabric.status", "--format=csv,noheader"]
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in stdout.splitlines()] if code == 0 else []
    wrong = [row for row in rows if len(row) == 3 and row[1].lower() in ("not started", "in progress")]
    failed = [
        row
        for row in rows
        if len(row) == 3 and row[1].lower() == "completed" and row[2].lower() not in ("success", "[n/a]", "n/a")
    ]
    for row in (*wrong, *failed):
        findings.errors.append(
            f"the fabric of GPU {row[0]} is not ready (state {row[1]!r}, status {row[2]!r}); look at nvidia-fabricmanager.service, whose version"
            " must equal the driver's"
        )
    if rows:
        return
    code, stdout, _stderr = runner(["systemctl", "is-active", "nvidia-fabricmanager.service"])
    if stdout.strip() != "active":
        findings.warnings.append(
            f"nvidia-fabricmanager.service is {stdout.strip() or 'not there'}; with NVSwitch GPUs cannot work together without it"
        )


def virtualization(runner: Runner) -> str:
    """What systemd-detect-virt says: ``none``, ``kvm``, ``podman``, ...; '' = unknown."""
    code, stdout, _stderr = runner(["systemd-detect-virt"])
    words = stdout.split()
    return words[0] if words and code in (0, 1) else ""
