# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at a host before a deployment: what is missing, and what the units need to know. PRIVATE to the collection.

Nothing is changed but what is kept beside the engine of its parser (:mod:`_engine_parser`). Every fault is collected, so that one run
tells them all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pwd
import re
import shutil
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._engine import LOCK_FILE, complete_engines, locked_version
from ansible_collections.specdec.serving.plugins.module_utils._gpu_facts import (
    GPU_FIELDS,
    Gpu,
    find_numa_nodes,
    numa_node_of,
    parse_gpus,
    parse_mig,
)
from ansible_collections.specdec.serving.plugins.module_utils._host_checks import virtualization
from ansible_collections.specdec.serving.plugins.module_utils._own_units import OwnUnit, find_units
from ansible_collections.specdec.serving.plugins.module_utils._preflight_instances import look_at_instances, prune_hint
from ansible_collections.specdec.serving.plugins.module_utils._preflight_request import (
    HostView,
    PreflightRequest,
    PreflightResult,
)
from ansible_collections.specdec.serving.plugins.module_utils._sandbox import try_sandbox
from ansible_collections.specdec.serving.plugins.module_utils._sockets import (
    Listener,
    covers,
    describe_owner,
    find_owners,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError, show

__all__ = ("preflight",)

#: LoadCredential= and $CREDENTIALS_DIRECTORY (systemd 247, NEWS).
_CREDENTIALS_SINCE = 247

#: SYS_UID_MAX is 999 (login.defs(5), systemd's users and groups).
_FIRST_PERSON = 1000
_GPU_SERVICES = ("nvidia-fabricmanager.service", "nvidia-persistenced.service")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;#\\]+)")
_PYTHON_PROGRAM = "import ensurepip, venv, sys; print('.'.join(map(str, sys.version_info[:3])))"


def _look_at_gpus(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    code, stdout, stderr = view.runner(query)
    gpus: list[Gpu] = []
    if code == 0:
        gpus = parse_gpus(stdout)
        # Asked for only where an instance wants one.
        wanted = any(gpu.startswith("MIG-") for item in request.instances for gpu in item.gpus)
        mig = parse_mig(view.runner(["nvidia-smi", "-L"])[1]) if wanted else {}
        gpus = [
            dataclasses.replace(gpu, numa_node=numa_node_of(gpu.pci_bus_id, view.sys_root), mig=mig.get(gpu.uuid, ()))
            for gpu in gpus
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
    nodes = find_numa_nodes(view.sys_root)
    result.facts["numa"] = [dataclasses.asdict(node) for node in nodes]
    result.facts["numa_nodes"] = [node.node for node in nodes if node.cpus]
    services: list[str] = []
    if gpus:
        code, stdout, _stderr = view.runner(
            ["systemctl", "list-unit-files", "--no-legend", "--no-pager", *_GPU_SERVICES]
        )
        services = sorted(line.split()[0] for line in stdout.splitlines() if line.split())
    result.facts["gpu_services"] = services
    which = view.which or shutil.which
    result.facts["nvidia_modprobe"] = (which("nvidia-modprobe") or "") if gpus else ""


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
        elif empty and not check.may_be_empty:
            result.errors.append(f"{check.what} {check.path!r} is an empty folder")


def _reaches(listener: Listener, host: str) -> bool:
    try:
        return covers(listener, host)
    except ValueError:
        # A name: which address it means is for the server to find out; any listener on the port is suspicious.
        return True


def _find_leftovers(view: HostView, request: PreflightRequest, result: PreflightResult) -> list[OwnUnit]:
    """Units of ours that left the list of instances."""
    listed = {instance.unit for instance in request.instances}
    try:
        found = find_units(view.runner, unit_dir=request.unit_dir, state_dir=request.state_dir, without=listed)
    except SystemdError as exc:
        result.errors.append(f"units that left sglang_instances cannot be found: {exc}")
        found = []
    result.facts["leftovers"] = [unit.as_dict() for unit in found]
    return found


def _look_at_ports(
    view: HostView, request: PreflightRequest, result: PreflightResult, leftovers: t.Sequence[OwnUnit]
) -> None:
    leaving = [unit.control_group for unit in leftovers if request.prune and unit.control_group]
    groups: dict[str, str] = {}
    for check in request.ports:
        try:
            found, _reason = view.find_listeners(check.port)
            if check.unit not in groups:
                groups[check.unit] = show(view.runner, check.unit).control_group
        except (OSError, SystemdError) as exc:
            result.errors.append(f"{check.unit}: who holds port {check.port} cannot be found out: {exc}")
            continue
        foreign = [
            listener
            for listener in found
            if _reaches(listener, check.host)
            and not any(view.owned([listener], group) is True for group in (groups[check.unit], *leaving))
        ]
        if foreign:
            found_owners = find_owners(foreign, runner=view.runner)
            owners = "; ".join(describe_owner(owner) for owner in found_owners)
            what = "" if check.what == "port" else f"{check.what}: "
            remedy = check.what if check.what.isidentifier() else "port"
            remedy += prune_hint(leftovers, [owner.unit for owner in found_owners])
            result.errors.append(f"{check.unit}: {what}{owners}; stop it or choose another {remedy}")


def _look_at_user(request: PreflightRequest, result: PreflightResult) -> None:
    """Whether the service user exists, and is a person's: the role makes a system user where there is none."""
    try:
        entry = pwd.getpwnam(request.user)
    except KeyError:
        entry = None
    result.facts["user_exists"] = entry is not None
    result.facts["user_is_system"] = entry is None or 0 < entry.pw_uid < _FIRST_PERSON


def _look_at_sandbox(view: HostView, request: PreflightRequest, result: PreflightResult) -> None:
    """Which settings of the units' sandbox do not work here, such as within a container, and whether credentials do."""
    result.facts["hardening_refused"] = {}
    if os.geteuid() != 0:
        return
    found = try_sandbox(request.hardening, view.runner, credentials=result.facts["credentials"])
    if found.untried:
        result.warnings.append(f"which settings of the units' sandbox work here could not be tried: {found.untried}")
    result.facts["hardening_refused"] = dict(found.refused)
    if found.credentials is False:
        result.facts["credentials"] = False
    if found.credentials is False and any(instance.has_key for instance in request.instances):
        result.warnings.append(
            "systemd's credentials do not reach a unit here (as in a container whose root is mounted privately), so keys lie in files that"
            " the group of the service user can read"
        )


def preflight(request: PreflightRequest, view: HostView) -> PreflightResult:
    """Look at everything that ``request`` names.

    Facts: ``gpus``, ``driver_version``, ``numa``, ``numa_nodes``, ``gpu_services``, ``nvidia_modprobe``, ``systemd_version``, ``credentials``,
    ``python_version``, ``user_exists``, ``user_is_system``, ``engines``, ``virtualization``, ``hardening_refused``,
    with a wheelhouse ``lock_sha256`` and ``lock_version``, and with instances ``parser`` and ``leftovers``.
    """
    result = PreflightResult()
    _look_at_systemd(view, result)
    _look_at_gpus(view, request, result)
    _look_at_wheelhouse(request, result)
    _look_at_python(view, request, result)
    _look_at_paths(request, result)
    leftovers = _find_leftovers(view, request, result) if request.instances else []
    _look_at_ports(view, request, result, leftovers)
    result.facts["engines"] = complete_engines(f"{request.root.rstrip('/')}/engines")
    result.facts["virtualization"] = virtualization(view.runner)
    _look_at_user(request, result)
    _look_at_sandbox(view, request, result)
    if request.instances:
        look_at_instances(view, request, result, leftovers)
    result.errors = list(dict.fromkeys(result.errors))
    result.warnings = list(dict.fromkeys(result.warnings))
    return result
