# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What figures of a server depend on, gathered on its host: the target's half of a record. PRIVATE to specdec.serving.

Each function gives plain JSON without secrets. The controller's half, which adds the rest and writes the file, is
``plugin_utils/_record.py``; the parts are described in ``roles/sglang/files/record.schema.json``.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._engine import read_engine
from ansible_collections.specdec.serving.plugins.module_utils._gpus import find_nvidia_smi
from ansible_collections.specdec.serving.plugins.module_utils._redact import redact
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, UnitState

__all__ = ("engine_facts", "host_facts", "invocation_facts", "model_facts", "parse_gpu_rows", "server_arguments")

_GPU_FIELDS = ("index", "name", "uuid", "memory.total", "driver_version", "power.limit", "power.default_limit")
#: Parts of /server_info that are no arguments.
_NOT_ARGUMENTS = ("internal_states", "launch_command", "startup_time", "version", "frontend")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def parse_gpu_rows(text: str) -> list[dict[str, t.Any]]:
    """The answer of ``nvidia-smi --query-gpu`` for our fields, ``--format=csv,noheader,nounits``; other lines are left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_GPU_FIELDS) and cells[0].isdecimal():
            found.append(
                {
                    "index": int(cells[0]),
                    "name": cells[1],
                    "uuid": cells[2],
                    "memory_mib": _number(cells[3]),
                    "driver": cells[4],
                    "power_limit_w": _number(cells[5]),
                    "power_default_limit_w": _number(cells[6]),
                }
            )
    return found


def host_facts(runner: Runner, *, root: str = "/", nvidia_smi: str | None = None) -> dict[str, t.Any]:
    """Kernel, CPU, memory and, where there is nvidia-smi, the GPUs.

    :param runner: with a limit of time, since a stuck driver holds nvidia-smi.
    :param nvidia_smi: its path; None = look for it.
    """
    cpuinfo = _read(os.path.join(root, "proc/cpuinfo"))
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read(os.path.join(root, "proc/meminfo")), re.MULTILINE)
    found: dict[str, t.Any] = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": {"model": model.group(1).strip() if model else "", "count": os.cpu_count() or 0},
        "memory_bytes": int(memory.group(1)) * 1024 if memory else 0,
        "gpus": [],
        "gpu_problem": "",
    }
    program = nvidia_smi or find_nvidia_smi()
    if program:
        argv = [program, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        code, stdout, stderr = runner(argv)
        found["gpus"] = parse_gpu_rows(stdout)
        if code != 0 or not found["gpus"]:
            found["gpu_problem"] = f"nvidia-smi ended with {code}: {(stderr or stdout).strip()[:200] or 'no output'}"
    return found


def engine_facts(program: str, version: str) -> dict[str, t.Any]:
    """The installed SGLang: ``program`` is that of the unit's ExecStart, ``version`` what the server says."""
    path = os.path.dirname(os.path.dirname(program)) if program else ""
    content = read_engine(path) if path else {}
    packages = content.get("packages") or []
    return {
        "path": path,
        "version": version,
        "packages_sha256": hashlib.sha256("\n".join(packages).encode("utf-8")).hexdigest() if packages else "",
        "packages": len(packages),
    }


def model_facts(path: str, role: str) -> dict[str, t.Any]:
    """One model's folder; an id of a hub has a path only.

    :param role: ``target`` or ``draft``.
    """
    found: dict[str, t.Any] = {
        "role": role,
        "path": path,
        "bytes": 0,
        "files": 0,
        "index_sha256": "",
        "config_sha256": "",
    }
    if not path.startswith("/"):
        return found
    for key, name in (("index_sha256", "model.safetensors.index.json"), ("config_sha256", "config.json")):
        text = _read(os.path.join(path, name))
        found[key] = hashlib.sha256(text.encode("utf-8")).hexdigest() if text else ""
    try:
        names = os.listdir(path)
    except OSError:
        return found
    sizes = []
    for name in names:
        if name.endswith((".safetensors", ".gguf", ".bin", ".pt", ".pth")):
            try:
                sizes.append(os.stat(os.path.join(path, name)).st_size)
            except OSError:
                continue
    return {**found, "bytes": sum(sizes), "files": len(sizes)}


def server_arguments(info: t.Mapping[str, t.Any], secrets: t.Iterable[str] = ()) -> dict[str, t.Any]:
    """The arguments in force, from ``/server_info``, without keys."""
    arguments = {key: value for key, value in info.items() if key not in _NOT_ARGUMENTS}
    found = redact(arguments, secrets)
    return t.cast("dict[str, t.Any]", found)


def invocation_facts(unit: UnitState) -> dict[str, t.Any]:
    """Which start of which unit was measured."""
    return {"unit": unit.id, "invocation_id": unit.invocation_id, "main_pid": unit.main_pid}
