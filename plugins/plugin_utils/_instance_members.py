# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Entries of ``sglang_instances``, and the instances that one of them stands for. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.plugin_utils._instance_gpus import gpu_list
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import InstanceHost
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_ports import asked_number
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import integer, nearest, plain_text

__all__ = [
    "DEFAULT_PORT",
    "Member",
    "check_one_gpu",
    "members_of",
]

#: The role's and SGLang's.
DEFAULT_PORT: t.Final = 30000

_INSTANCE_KEYS = frozenset(
    {
        "admin_api_key",
        "api_key",
        "args",
        "client_url",
        "description",
        "env",
        "gpus",
        "host",
        "leader",
        "model_path",
        "name",
        "one_per_gpu",
        "port",
        "served_model_name",
    }
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True)
class Member:
    """One instance to resolve: an entry of the list or, of one with ``one_per_gpu``, what is left of it for one GPU.

    ``source`` is the name of the entry, ``origin`` how errors call it, ``number`` what stands behind ``@`` (None: nothing).
    """

    raw: Mapping[str, t.Any]
    name: str
    source: str
    origin: str
    number: int | None = None


def _gpu_numbers(gpus: Sequence[int | str], *, origin: str, errors: list[str]) -> list[int]:
    """What each GPU of an entry with ``one_per_gpu`` is known by, [] where that is not certain.

    It must not depend on what the host says: a play that stops units does not ask it.
    """
    numbers = [gpu for gpu in gpus if isinstance(gpu, int)]
    if not gpus:
        errors.append(f"{origin}: one_per_gpu needs 'gpus': the GPUs that get an instance each")
    elif numbers and len(numbers) < len(gpus):
        errors.append(
            f"{origin}: gpus: {list(gpus)!r} are numbers and UUIDs; one_per_gpu names units by one or the other"
        )
    elif len(set(gpus)) < len(gpus):
        twice = next(gpu for gpu in gpus if gpus.count(gpu) > 1)
        errors.append(f"{origin}: gpus: {twice!r} is listed twice")
    else:
        return numbers or list(range(len(gpus)))
    return []


def _client_url(raw: Mapping[str, t.Any], port: int | None, number: int) -> t.Any:
    """The entry's URL for one of its instances: with its port where it has the entry's, else as it is (a router's)."""
    url = raw.get("client_url")
    return re.sub(rf":{port}(?=/|\Z)", f":{(port or 0) + number}", url, count=1) if isinstance(url, str) else url


def members_of(
    raw: Mapping[str, t.Any], host: InstanceHost | None, *, position: int, errors: list[str]
) -> list[Member]:
    """The instances of an entry of the list."""
    name, origin = _name(raw, position=position, errors=errors)
    whole = [Member(raw, name, name, origin)]
    wanted = raw.get("one_per_gpu")
    if wanted in (None, False):
        return whole
    if wanted is not True:
        errors.append(f"{origin}: one_per_gpu: {wanted!r} is neither true nor false")
        return whole
    gpus = gpu_list(raw.get("gpus"), host=host, origin=f"{origin}: gpus", errors=errors)
    numbers = _gpu_numbers(gpus, origin=origin, errors=errors)
    if raw.get("leader") is not None:
        errors.append(
            f"{origin}: leader: one_per_gpu gives each instance one GPU, so there are no ranks on other nodes"
        )
    port = integer(raw.get("port", DEFAULT_PORT))
    if not numbers:
        return whole
    if port is not None and 1 <= port <= 65535 < port + max(numbers):
        errors.append(f"{origin}: port {port} + {max(numbers)} (the GPU's number) is above 65535")
        return whole
    description = raw.get("description")
    return [
        Member(
            {
                **raw,
                "client_url": _client_url(raw, port, number),
                "description": f"{description} (GPU {number})"
                if isinstance(description, str) and description
                else description,
                "gpus": [gpu],
                "port": raw.get("port") if port is None else port + number,
                "served_model_name": raw.get("served_model_name") or name,
            },
            f"{name}@{number}",
            name,
            origin,
            number,
        )
        for gpu, number in zip(gpus, numbers, strict=True)
    ]


#: How many processes or nodes an instance is spread over.
_SPREAD = ("tp_size", "pp_size", "dp_size", "ep_size", "attn_dp_size", "attn_cp_size", "moe_dp_size", "nnodes")


def check_one_gpu(settings: Mapping[str, t.Any], origins: Mapping[str, str], *, origin: str, errors: list[str]) -> None:
    """An instance of ``one_per_gpu`` has one GPU, and so one rank."""
    for dest, least in (*((dest, 1) for dest in _SPREAD), ("base_gpu_id", 0)):
        if asked_number(settings, dest, least) != least:
            errors.append(
                f"{origins.get(dest, origin)}: {dest} {settings[dest]!r}: one_per_gpu gives each instance of {origin} one GPU;"
                f" leave {dest} out, or leave one_per_gpu out and have one instance on all of its GPUs"
            )


def _name(raw: Mapping[str, t.Any], *, position: int, errors: list[str]) -> tuple[str, str]:
    """Return the name and how to call the instance in errors; look for unknown keys on the way."""
    name = raw.get("name")
    label = f"sglang_instances[{position}]"
    if not isinstance(name, str) or not _NAME.match(name) or len(name) > 200:
        errors.append(
            f"{label}: name {name!r} cannot name a unit:"
            " letters, digits, '_', '.' and '-' only, the first a letter or digit, 200 at most"
        )
        name = f"instance{position}"
    origin = f"{label} ({name})"
    for key in raw:
        if key not in _INSTANCE_KEYS:
            hint = nearest(str(key), _INSTANCE_KEYS) or "; SGLang's own arguments belong under 'args'"
            errors.append(f"{origin}: unknown key {key!r}{hint}")
    return plain_text(name), origin
