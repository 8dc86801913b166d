# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at a host before a deployment: what is missing, and what the units need to know. PRIVATE to the collection.

Nothing is changed. Every fault is collected, so that one run tells them all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pwd
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._engine import LOCK_FILE, complete_engines, locked_version
from ansible_collections.specdec.serving.plugins.module_utils._sockets import (
    Listener,
    covers,
    describe_owner,
    find_owners,
    listeners,
    owned_by_cgroup,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, SystemdError, show

__all__ = (
    "Gpu",
    "HostView",
    "PathCheck",
    "PortCheck",
    "PreflightRequest",
    "PreflightResult",
    "parse_gpus",
    "preflight",
)

#: LoadCredential= and $CREDENTIALS_DIRECTORY (systemd 247, NEWS).
_CREDENTIALS_SINCE = 247
_GPU_FIELDS = ("index", "uuid", "name", "memory.total", "pci.bus_id", "driver_version", "compute_cap")
_GPU_SERVICES = ("nvidia-fabricmanager.service", "nvidia-persistenced.service")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;#\\]+)")
_PYTHON_PROGRAM = "import ensurepip, venv, sys; print('.'.join(map(str, sys.version_info[:3])))"


@dataclasses.dataclass(frozen=True)
class PathCheck:
    """A path that must exist; ``what`` names it in the error."""

    path: str
    what: str


@dataclasses.dataclass(frozen=True)
class PortCheck:
    """A port that must be free, or held by ``unit`` itself."""

    host: str
    port: int
    unit: str


@dataclasses.dataclass(frozen=True)
class PreflightRequest:
    """What the deployment is going to need."""

    version: str
    python: str
    wheelhouse: str = ""
    paths: tuple[PathCheck, ...] = ()
    ports: tuple[PortCheck, ...] = ()
    needs_gpu: bool = False
    user: str = "sglang"
    root: str = "/opt/specdec"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One row of nvidia-smi; ``numa_node`` is -1 where the kernel does not know it."""

    index: int
    uuid: str
    name: str
    memory_total_mib: int
    pci_bus_id: str
    driver_version: str
    compute_capability: str
    numa_node: int = -1


@dataclasses.dataclass
class PreflightResult:
    """``errors`` forbid the deployment. ``facts`` go to the filter sglang_instances."""

    errors: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    facts: dict[str, t.Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class HostView:
    """How the host is looked at; tests give other roots and functions."""

    runner: Runner
    sys_root: str = "/sys"
    find_listeners: t.Callable[[int], tuple[list[Listener], str]] = listeners
    owned: t.Callable[..., bool | None] = owned_by_cgroup


def _integer(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def parse_gpus(text: str) -> list[Gpu]:
    """Parse ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits`` for the fields that we ask."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_GPU_FIELDS):
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


def _sysfs_number(path: str, default: int) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read().strip())
    except (OSError, ValueError):
        return default


def _numa_node(pci_bus_id: str, sys_root: str) -> int:
    # nvidia-smi writes the domain with eight digits, the kernel with four, in lower case.
    domain, _colon, rest = pci_bus_id.lower().partition(":")
    return _sysfs_number(f"{sys_root}/bus/pci/devices/{domain[-4:]}:{rest}/numa_node", -1)


def _numa_nodes(sys_root: str) -> list[int]:
    """The nodes that have processors, by number."""
    nodes = []
    try:
        names = os.listdir(f"{sys_root}/devices/system/node")
    except OSError:
        return []
    for name in names:
        found = re.fullmatch(r"node(\d+)", name)
        if found:
            nodes.append(int(found.group(1)))
    return sorted(nodes)


def _look_at_gpus(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    query = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    code, stdout, stderr = view.runner(query)
    gpus: list[Gpu] = []
    if code == 0:
        gpus = [
            dataclasses.replace(gpu, numa_node=_numa_node(gpu.pci_bus_id, view.sys_root)) for gpu in parse_gpus(stdout)
        ]
    elif code != 127:
        result.errors.append(f"nvidia-smi failed with {code}: {(stderr or stdout).strip() or 'no output'}")
    elif request.needs_gpu:
        result.errors.append(
            "nvidia-smi is not there, but GPUs are asked for: install the driver, or use sglang_gpu_profile: cpu"
        )
    if code == 0 and request.needs_gpu and not gpus:
        result.errors.append("nvidia-smi shows no GPU, but GPUs are asked for")
    result.facts["gpus"] = [dataclasses.asdict(gpu) for gpu in gpus]
    result.facts["driver_version"] = gpus[0].driver_version if gpus else ""
    result.facts["numa_nodes"] = _numa_nodes(view.sys_root)
    services: list[str] = []
    if gpus:
        code, stdout, _stderr = view.runner(
            ["systemctl", "list-unit-files", "--no-legend", "--no-pager", *_GPU_SERVICES]
        )
        services = sorted(line.split()[0] for line in stdout.splitlines() if line.split())
    result.facts["gpu_services"] = services


def _look_at_systemd(view: HostView, result: PreflightResult) -> None:
    code, stdout, stderr = view.runner(["systemctl", "--version"])
    found = re.match(r"systemd (\d+)", stdout)
    version = int(found.group(1)) if code == 0 and found else 0
    if not version:
        result.errors.append(f"this host has no systemd: systemctl --version says {(stderr or stdout).strip()!r}")
    result.facts["systemd_version"] = version
    result.facts["credentials"] = version >= _CREDENTIALS_SINCE


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _look_at_wheelhouse(request: PreflightRequest, result: PreflightResult) -> None:
    if not request.wheelhouse:
        return
    origin = f"sglang_wheelhouse {request.wheelhouse!r}"
    if not os.path.isdir(request.wheelhouse):
        result.errors.append(f"{origin} is no folder on this host")
        return
    lock = f"{request.wheelhouse}/{LOCK_FILE}"
    try:
        with open(lock, "rb") as file:
            content = file.read()
    except OSError as exc:
        result.errors.append(
            f"{origin} has no readable {LOCK_FILE} ({exc.strerror}): it must list every package as name==version"
        )
        return
    result.facts["lock_sha256"] = hashlib.sha256(content).hexdigest()
    text = content.decode("utf-8", "replace")
    locked = locked_version(text)
    result.facts["lock_version"] = locked
    if not locked:
        result.errors.append(f"{lock} does not list sglang==VERSION")
    elif locked.partition("+")[0] != request.version.partition("+")[0]:
        result.errors.append(f"{lock} lists sglang=={locked}, but sglang_version is {request.version!r}")
    wheels = {
        (_normalized(parts[0]), parts[1])
        for parts in (name.split("-") for name in os.listdir(request.wheelhouse))
        if len(parts) > 2
    }
    missing = [
        found.group(0)
        for found in (_REQUIREMENT.match(line) for line in text.splitlines())
        if found and (_normalized(found.group("name")), found.group("version")) not in wheels
    ]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        result.errors.append(f"{origin} has no wheel for {', '.join(missing[:5])}{more}")


def _look_at_python(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    code, stdout, stderr = view.runner([request.python, "-c", _PYTHON_PROGRAM])
    result.facts["python_version"] = stdout.strip() if code == 0 else ""
    if code == 127:
        result.errors.append(f"sglang_python {request.python!r} cannot be executed on this host: {stderr.strip()}")
    elif code != 0:
        last = (stderr.strip().splitlines() or ["no output"])[-1]
        result.errors.append(
            f"sglang_python {request.python!r} cannot make virtual environments ({last}); install its venv package"
        )


def _look_at_paths(request: PreflightRequest, result: PreflightResult) -> None:
    for check in request.paths:
        try:
            empty = os.path.isdir(check.path) and not os.listdir(check.path)
            exists = os.path.exists(check.path)
        except OSError as exc:
            result.errors.append(f"{check.what} {check.path!r} cannot be read: {exc.strerror}")
            continue
        if not exists:
            result.errors.append(f"{check.what} {check.path!r} does not exist on this host")
        elif empty:
            result.errors.append(f"{check.what} {check.path!r} is an empty folder")


def _reaches(listener: Listener, host: str) -> bool:
    try:
        return covers(listener, host)
    except ValueError:
        # A name: which address it means is for the server to find out; any listener on the port is suspicious.
        return True


def _look_at_ports(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    for check in request.ports:
        try:
            found, _reason = view.find_listeners(check.port)
            control_group = show(view.runner, check.unit).control_group
        except (OSError, SystemdError) as exc:
            result.errors.append(f"{check.unit}: who holds port {check.port} cannot be found out: {exc}")
            continue
        foreign = [
            listener
            for listener in found
            if _reaches(listener, check.host) and view.owned([listener], control_group) is not True
        ]
        if foreign:
            owners = "; ".join(describe_owner(owner) for owner in find_owners(foreign))
            result.errors.append(f"{check.unit}: {owners}; stop it or choose another port")


def preflight(request: PreflightRequest, view: HostView) -> PreflightResult:
    """Look at everything that ``request`` names.

    Facts: ``gpus``, ``driver_version``, ``numa_nodes``, ``gpu_services``, ``systemd_version``, ``credentials``,
    ``python_version``, ``user_exists``, ``engines``, and with a wheelhouse ``lock_sha256`` and ``lock_version``.
    """
    result = PreflightResult()
    _look_at_systemd(view, result)
    _look_at_gpus(view, request, result)
    _look_at_wheelhouse(request, result)
    _look_at_python(view, request, result)
    _look_at_paths(request, result)
    _look_at_ports(view, request, result)
    result.facts["engines"] = complete_engines(f"{request.root.rstrip('/')}/engines")
    try:
        pwd.getpwnam(request.user)
        result.facts["user_exists"] = True
    except KeyError:
        result.facts["user_exists"] = False
    return result
