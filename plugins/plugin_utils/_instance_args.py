# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""SGLang's arguments of an instance: its own over the GPU profile's over the defaults. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.specdec.serving.plugins.module_utils._server_args import (
    ServerArgs,
    ServerArgsError,
    build_server_args,
    canonical_dest,
    merge_server_args,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import InstanceHost
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_ports import nccl_port_of, takes_nccl_port
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import integer, mapping_of

__all__ = [
    "args_of",
    "block_size_of",
]

#: With one of these set, the prefill graph is off already or the instance decides for itself.
_PREFILL_GRAPH_DESTS = frozenset(
    {
        "cuda_graph_backend_prefill",
        "cuda_graph_config",
        "disable_cuda_graph",
        "disable_piecewise_cuda_graph",
        "disable_prefill_cuda_graph",
        "enforce_piecewise_cuda_graph",
    }
)


def _origins(layers: Sequence[tuple[str, Mapping[str, t.Any]]]) -> dict[str, str]:
    """Where each argument comes from, by dest: a later layer over an earlier one, as they are merged."""
    return {canonical_dest(str(name)): origin for origin, layer in layers for name in layer}


def args_of(
    raw: Mapping[str, t.Any], host: InstanceHost, *, port: int, origin: str, errors: list[str]
) -> tuple[ServerArgs, dict[str, str]]:
    """The arguments, and where each comes from."""
    own = mapping_of(raw.get("args"), origin=f"{origin}: args", errors=errors)
    try:
        # The instance alone first, so that an error names it and not the merged result.
        build_server_args(own, origin=f"{origin}: args")
        profile_args = dict(host.profile.get("args") or {})
        layers: list[tuple[str, Mapping[str, t.Any]]] = [
            ("the role's defaults", host.release.access_log_exclude),
            ("sglang_default_args", host.default_args),
            (f"GPU profile {host.profile_name!r}", profile_args),
            (f"{origin}: args", own),
        ]
        merged = merge_server_args(*(layer for _origin, layer in layers))
        dests = {
            canonical_dest(str(name)) for name, value in merged.items() if value is not None and value is not False
        }
        if host.profile.get("disable_prefill_graph") and not dests & _PREFILL_GRAPH_DESTS:
            merged = merge_server_args(host.release.prefill_graph_off, merged)
            layers.insert(0, (f"GPU profile {host.profile_name!r}", host.release.prefill_graph_off))
        label = f"{origin}: args with the defaults of sglang_default_args and the GPU profile"
        built = build_server_args(merged, origin=label)
        if port and takes_nccl_port(built.settings, host):
            meeting = {"nccl_port": nccl_port_of(port)}
            # Below the others: null of the instance leaves it to SGLang.
            built = build_server_args(merge_server_args(meeting, merged), origin=label)
            layers.insert(0, ("the role's defaults", meeting))
        return built, _origins(layers)
    except ServerArgsError as exc:
        errors.extend(exc.errors)
        return ServerArgs(words=(), settings={}), {}


def block_size_of(settings: Mapping[str, t.Any]) -> int:
    """Tokens that one verify step may give at most; 0 without speculation."""
    if not settings.get("speculative_algorithm"):
        return 0
    for dest in ("speculative_dflash_block_size", "speculative_num_draft_tokens"):
        number = integer(settings.get(dest))
        if number:
            return number
    return 0
