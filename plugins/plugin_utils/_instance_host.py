# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all instances of a host share: engine, GPU profile, folders. PRIVATE to the collection."""

from __future__ import annotations

import hashlib
import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.module_utils._releases import Release
from ansible_collections.specdec.serving.plugins.module_utils._server_args import ServerArgsError, parse_release
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import (
    PLAIN_PATH,
    InstancesError,
    mapping_of,
    nearest,
    plain_text,
)

__all__ = [
    "GPU_PROFILES",
    "InstanceHost",
    "cache_dirs_of",
    "card_warnings",
    "profile_environment",
    "profile_of",
    "resolve_engine",
    "role_environment",
]

#: GPU profiles that ship. ``args`` and ``env`` are defaults below the instance's own; ``disable_prefill_graph`` is
#: spelled for the release; ``card`` is a part of the name that nvidia-smi gives.
GPU_PROFILES: t.Final[Mapping[str, Mapping[str, t.Any]]] = {
    # SM120, PCIe. Prefill graph: DFLASH crashes in its replay (sgl-project/sglang#35437). JIT DeepGEMM has no
    # SM120 kernels (environ.py, rtx6kpro recipes).
    "rtx_pro_6000": {
        "args": {},
        "card": "RTX PRO 6000",
        "disable_prefill_graph": True,
        "env": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"},
    },
    # SM103, NVLink: the release's own choices (trtllm_mla, flashinfer_trtllm) are right.
    "b300": {"args": {}, "card": "B300", "env": {}},
    # SM90, NVLink.
    "h200": {"args": {}, "card": "H200", "env": {}},
    # No GPU: SGLang asks for the variable before it imports its CPU engine. An idle scheduler spins unless told to sleep.
    "cpu": {"args": {"device": "cpu", "sleep_on_idle": True}, "card": "", "env": {"SGLANG_USE_CPU_ENGINE": "1"}},
}

_PROFILE_KEYS = frozenset({"args", "card", "disable_prefill_graph", "env"})


def resolve_engine(
    version: str, *, root: str, lock_sha256: str = "", requirements: Sequence[str] = (), index_url: str = ""
) -> dict[str, str]:
    """Return ``name``, ``path`` and ``python`` of the immutable engine of a version.

    The name ends in the first 12 hex digits of the SHA-256 of the lock text of the wheelhouse or, without a
    wheelhouse, of the requirements and the index.

    :raises InstancesError: for a version or folder that cannot be used.
    """
    errors: list[str] = []
    try:
        parse_release(version)
    except ServerArgsError as exc:
        errors.append(f"sglang_version: {exc}")
    if not PLAIN_PATH.match(root) or root == "/":
        errors.append(f"sglang_root: {root!r} is no absolute folder of letters, digits and '_./+@=,-'")
    if lock_sha256 and not re.fullmatch(r"[0-9a-f]{64}", lock_sha256):
        errors.append(f"lock_sha256: {lock_sha256!r} is no SHA-256")
    if errors:
        raise InstancesError(errors)
    if not lock_sha256:
        # A new password for an index makes no new engine.
        index_url = re.sub(r"(?<=://)[^/@]*@", "", index_url)
        lock = "".join(f"{line}\n" for line in (*(requirements or ()), f"--index-url {index_url}" if index_url else ""))
        lock_sha256 = hashlib.sha256(lock.encode("utf-8")).hexdigest()
    name = f"{plain_text(version)}-{lock_sha256[:12]}"
    path = f"{plain_text(root).rstrip('/')}/engines/{name}"
    return {"name": name, "path": path, "python": f"{path}/bin/python"}


@dataclass(frozen=True)
class InstanceHost:
    """What all instances of a host share."""

    release: Release
    version: str
    engine: Mapping[str, str]
    user: str
    config_dir: str
    cache_dir: str
    hardening: Sequence[str]
    writable_paths: Sequence[str]
    profile_name: str
    profile: Mapping[str, t.Any]
    default_args: Mapping[str, t.Any]
    default_env: Mapping[str, t.Any]
    facts: Mapping[str, t.Any]

    @property
    def gpus(self) -> Sequence[Mapping[str, t.Any]]:
        return self.facts.get("gpus") or ()

    @property
    def credentials(self) -> bool:
        """LoadCredential= works there (systemd 247); assumed where the host was not asked yet."""
        return bool(self.facts.get("credentials", True))

    @property
    def cache_key(self) -> str:
        """Compiled kernels fit one engine, driver and GPU architecture."""
        if self.profile_name == "cpu":
            return f"{self.engine['name']}-cpu"
        driver = str(self.facts.get("driver_version") or "unknown")
        archs = sorted({str(gpu.get("compute_capability") or "").replace(".", "") for gpu in self.gpus} - {""})
        key = f"{self.engine['name']}-driver{driver}-sm{'_'.join(archs) or 'unknown'}"
        return re.sub(r"[^A-Za-z0-9_.-]", "_", key)


def card_warnings(host: InstanceHost) -> list[str]:
    """Whether the host's GPUs are those that the profile is meant for."""
    card = str(host.profile.get("card") or "")
    others = sorted({str(gpu.get("name")) for gpu in host.gpus if card and card not in str(gpu.get("name"))})
    if not others:
        return []
    return [f"the GPU profile {host.profile_name!r} is meant for {card!r}, but the host has {', '.join(others)}"]


def role_environment(host: InstanceHost) -> dict[str, str]:
    """Folders that the server writes to, all below the cache folder, and what makes its log readable."""
    compiled = f"{host.cache_dir}/{host.cache_key}"
    engine = host.engine["path"]
    return {
        "HF_HOME": f"{host.cache_dir}/huggingface",
        "HF_MODULES_CACHE": f"{compiled}/hf_modules",
        "HOME": f"{compiled}/home",
        "LANG": "C.UTF-8",
        "PATH": f"{engine}/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONUNBUFFERED": "1",
        # A crashing server would wait 60 s for core dumps that CUDA was not told to write (environ.py, since 0.5.13).
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        "SGLANG_CACHE_DIR": f"{compiled}/sglang",
        "VIRTUAL_ENV": engine,
        "XDG_CACHE_HOME": f"{compiled}/xdg",
    }


def cache_dirs_of(host: InstanceHost) -> list[str]:
    """The folders of :func:`role_environment`, parents first."""
    compiled = f"{host.cache_dir}/{host.cache_key}"
    return [
        host.cache_dir,
        f"{host.cache_dir}/huggingface",
        compiled,
        *(f"{compiled}/{part}" for part in ("hf_modules", "home", "sglang", "xdg")),
    ]


def profile_environment(host: InstanceHost) -> dict[str, t.Any]:
    """The profile's variables, as the release spells them."""
    env = dict(host.profile.get("env") or {})
    if "SGLANG_ENABLE_JIT_DEEPGEMM" in env:
        env[host.release.jit_deepgemm_variable] = env.pop("SGLANG_ENABLE_JIT_DEEPGEMM")
    return env


def profile_of(name: str, own: t.Any, *, errors: list[str]) -> Mapping[str, t.Any]:
    """The GPU profile of that name, and the faults of all of them."""
    profiles: dict[str, t.Any] = {**GPU_PROFILES, **mapping_of(own, origin="sglang_gpu_profiles", errors=errors)}
    for profile_name, profile in profiles.items():
        origin = f"sglang_gpu_profiles[{profile_name!r}]"
        found = mapping_of(profile, origin=origin, errors=errors)
        errors.extend(
            f"{origin}: unknown key {key!r}{nearest(str(key), _PROFILE_KEYS)}"
            for key in found
            if key not in _PROFILE_KEYS
        )
        wanted = found.get("disable_prefill_graph")
        if wanted not in (None, False, True):
            errors.append(f"{origin}: disable_prefill_graph {wanted!r} is neither true nor false")
        # Looked at before they are used: not everything is a mapping that should be.
        profiles[profile_name] = {
            **found,
            **{key: mapping_of(found.get(key), origin=f"{origin}: {key}", errors=errors) for key in ("args", "env")},
        }
    if not name:
        return {}
    if name not in profiles:
        errors.append(
            f"sglang_gpu_profile: {name!r} is no GPU profile{nearest(name, profiles)};"
            f" known: {', '.join(sorted(profiles))}"
        )
        return {}
    return t.cast("Mapping[str, t.Any]", profiles[name])
