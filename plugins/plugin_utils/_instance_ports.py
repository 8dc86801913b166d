# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which ports an instance binds, beside its own. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import InstanceHost
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import integer

__all__ = [
    "asked_number",
    "check_ports",
    "nccl_port_of",
    "ports_of",
    "takes_nccl_port",
]

#: SGLang's distance between the port and the first of the ports for attention data parallelism (ZMQ_TCP_PORT_DELTA).
_ATTENTION_DP_DISTANCE = 233

#: How many follow that one (PortArgs.init_new: 6 in 0.5.23, fewer before).
_ATTENTION_DP_PORTS = 6

#: Ours between the port and nccl_port.
_NCCL_DISTANCE = 700

_SEEDS_WEIGHTS = "remote_instance_weight_loader_start_seed_via_transfer_engine"

#: From here on the kernel hands ports out by itself (net.ipv4.ip_local_port_range).
_EPHEMERAL = 32768


def nccl_port_of(port: int) -> int:
    """Where the ranks of an instance meet: a fixed port, so that no other instance can be given it.

    Left alone, SGLang draws a free port (server_args.py, PortArgs.init_new), lets go of it, and its schedulers bind it seconds later,
    once they have imported torch: any connection up to 0.5.18 and, with thousands to draw from, another instance that starts at the
    same time can have it by then. It follows from the instance's own port alone: a new neighbour must not restart this one.
    """
    after = port + _NCCL_DISTANCE
    return port - _NCCL_DISTANCE if after > 65535 or port < _EPHEMERAL <= after else after


def asked_number(settings: Mapping[str, t.Any], dest: str, default: int) -> int:
    """An argument that is a number, or the default."""
    number = integer(settings.get(dest))
    return default if number is None else number


def _attention_dp(settings: Mapping[str, t.Any]) -> bool:
    """Whether attention is data parallel, also by the spelling before 0.5.22."""
    old = bool(settings.get("enable_dp_attention")) and asked_number(settings, "dp_size", 1) > 1
    return old or asked_number(settings, "attn_dp_size", 1) > 1


def takes_nccl_port(settings: Mapping[str, t.Any], host: InstanceHost) -> bool:
    """Whether a port of ours is of use. With replicas each needs its own, which SGLang can only draw itself
    (managers/data_parallel_controller.py); with an address for all nodes the ranks meet there."""
    if not host.release.nccl_port or settings.get("dist_init_addr") or settings.get("nccl_port") is not None:
        return False
    # Up to 0.5.21 attention's data parallelism is spelled with dp_size, and then there are no replicas.
    return bool(settings.get("enable_dp_attention")) or asked_number(settings, "dp_size", 1) == 1


def _attention_dp_ports(settings: Mapping[str, t.Any], *, port: int) -> list[tuple[str, str, int]]:
    """The block of ports that attention data parallelism takes (PortArgs.init_new): what it follows from, address, number."""
    what, where, first = f"attention DP, from port {port}", "127.0.0.1", port + _ATTENTION_DP_DISTANCE
    if first > 65535:
        first = port - _ATTENTION_DP_DISTANCE
    if settings.get("dist_init_addr"):
        host, _colon, text = str(settings["dist_init_addr"]).rpartition(":")
        what, where, first = "attention DP, from dist_init_addr", host.strip("[]"), integer(text) or 0
    # The first is only looked at, the others are bound; where they would go beyond 65535, they lie before the first.
    others = range(first + 1, first + 1 + _ATTENTION_DP_PORTS)
    if others[-1] > 65535:
        others = range(first - 1 - _ATTENTION_DP_PORTS, first - 1)
    return [(what, where, number) for number in (first, *others)] if first else []


def ports_of(settings: Mapping[str, t.Any], *, port: int, listen: str, unit: str) -> list[dict[str, t.Any]]:
    """All ports that the server is known to bind on this host, with the argument that each comes from."""
    found = [("port", listen, port)]
    meeting = settings.get("dist_init_addr")
    # torch's store listens on all addresses, whichever it was given; of several nodes it is the first one's.
    if not meeting:
        found.append(("nccl_port", "0.0.0.0", asked_number(settings, "nccl_port", 0)))
    elif asked_number(settings, "node_rank", 0) == 0:
        found.append(("dist_init_addr", "0.0.0.0", integer(str(meeting).rpartition(":")[2]) or 0))
    if _attention_dp(settings) and asked_number(settings, "node_rank", 0) == 0:
        seen = {number for _what, _where, number in found}
        found.extend(item for item in _attention_dp_ports(settings, port=port) if item[2] not in seen)
    found.extend(
        (dest, listen, asked_number(settings, dest, 0))
        for dest in ("encoder_bootstrap_port", "gated_launch_port", "grpc_port", "smg_http_sidecar_port")
        # With gRPC alone it may be the port itself; otherwise the rules of the arguments tell of it, with what to do.
        if dest != "grpc_port" or asked_number(settings, dest, 0) != port
    )
    # Their defaults are the same for all instances, and they are bound only where this is asked for.
    for dest, default, asked in (
        ("disaggregation_bootstrap_port", 8998, settings.get("disaggregation_mode") == "prefill"),
        ("engine_info_bootstrap_port", 6789, bool(settings.get(_SEEDS_WEIGHTS))),
    ):
        if asked:
            found.append((dest, listen, asked_number(settings, dest, default)))
    return [{"host": where, "port": number, "unit": unit, "what": what} for what, where, number in found if number]


def check_ports(
    settings: Mapping[str, t.Any],
    ports: Sequence[Mapping[str, t.Any]],
    origins: Mapping[str, str],
    *,
    origin: str,
    errors: list[str],
) -> None:
    """Ports among the arguments are ports: SGLang would find out once it has started its processes."""
    errors.extend(
        f"{origins.get(bound['what'], origin)}: {bound['what']} {bound['port']} is no port from 1 to 65535"
        for bound in ports
        # The instance's own is told before.
        if bound["what"] in origins
        and bound["what"] not in ("port", "dist_init_addr")
        and not 1 <= bound["port"] <= 65535
    )
    meeting = settings.get("dist_init_addr")
    if meeting and not 1 <= (integer(str(meeting).rpartition(":")[2]) or 0) <= 65535:
        errors.append(f"{origins.get('dist_init_addr', origin)}: dist_init_addr {meeting!r} is no HOST:PORT")
