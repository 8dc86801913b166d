# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of instances."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.tests.unit.plugins.plugin_utils.resolving import faults, instance, resolve


class TestPorts:
    """What SGLang binds beside its port (server_args.py, PortArgs.init_new), read from 0.4.6 to 0.5.23."""

    def ports(self, version: str = "0.5.23", **changes: t.Any) -> list[tuple[str, int]]:
        (item,) = resolve(instance(**changes), version=version)
        assert {bound["unit"] for bound in item["ports"]} == {"sglang-a.service"}
        return [(bound["what"], bound["port"]) for bound in item["ports"]]

    def test_where_the_ranks_meet_follows_from_the_port_alone(self) -> None:
        assert self.ports() == [("port", 30001), ("nccl_port", 30701)]
        alone = resolve(instance())[0]
        assert resolve(instance(), instance(name="b", port=30002))[0] == alone

    @pytest.mark.parametrize(
        ("port", "nccl"), [(32067, 32767), (32068, 31368), (40000, 40700), (64836, 64136), (65535, 64835)], ids=str
    )
    def test_neither_handed_out_by_the_kernel_nor_beyond_the_last(self, port: int, nccl: int) -> None:
        assert self.ports(port=port)[1] == ("nccl_port", nccl)

    @pytest.mark.parametrize(
        ("version", "args"),
        [
            pytest.param("0.4.6", {}, id="no-such-argument"),
            pytest.param("0.5.23", {"nccl_port": None}, id="left-to-sglang"),
            pytest.param("0.5.23", {"dp_size": 2}, id="replicas"),
            pytest.param("0.5.23", {"dp_size": "2"}, id="replicas-as-text"),
        ],
    )
    def test_where_it_is_left_to_sglang(self, version: str, args: dict[str, t.Any]) -> None:
        assert self.ports(version, args=args) == [("port", 30001)]

    def test_asked_for(self) -> None:
        assert self.ports(args={"nccl-port": 31555}) == [("port", 30001), ("nccl_port", 31555)]

    def test_several_nodes_meet_at_the_first(self) -> None:
        nodes = {"nnodes": 2, "tp_size": 16, "dist_init_addr": "10.0.0.1:5000"}
        assert self.ports(args=nodes) == [("port", 30001), ("dist_init_addr", 5000)]
        assert self.ports(args={**nodes, "node_rank": 1}) == [("port", 30001)]

    @pytest.mark.parametrize(
        ("version", "args"),
        [("0.5.23", {"tp_size": 2, "attn_dp_size": 2}), ("0.5.12", {"tp": 2, "dp": 2, "enable_dp_attention": True})],
    )
    def test_attention_data_parallelism(self, version: str, args: dict[str, t.Any]) -> None:
        ports = self.ports(version, args=args)
        assert ports[:2] == [("port", 30001), ("nccl_port", 30701)]
        assert ports[2:] == [("attention DP, from port 30001", port) for port in range(30234, 30241)]
        low = self.ports(version, args=args, port=65300)
        assert [port for _what, port in low[2:]] == [*range(65533, 65526, -1)][:1] + list(range(65526, 65532))
        assert [port for _what, port in self.ports(version, args=args, port=65400)[2:]] == list(range(65167, 65174))

    def test_attention_data_parallelism_over_nodes(self) -> None:
        args = {"nnodes": 2, "tp_size": 16, "attn_dp_size": 16, "dist_init_addr": "[fd00::1]:5000"}
        (item,) = resolve(instance(args=args))
        assert [bound["port"] for bound in item["ports"]] == [30001, *range(5000, 5007)]
        assert item["ports"][-1]["host"] == "fd00::1"

    def test_ports_of_other_features(self) -> None:
        args = {"grpc_port": 40000, "disaggregation_mode": "prefill", "gated_launch_port": 41000}
        assert self.ports(args=args)[2:] == [
            ("gated_launch_port", 41000),
            ("grpc_port", 40000),
            ("disaggregation_bootstrap_port", 8998),
        ]

    @pytest.mark.parametrize(
        ("first", "second", "message"),
        [
            ({}, {"port": 30701}, "port 30701 is used by a (nccl_port) and b; set nccl_port"),
            (
                {"args": {"nccl_port": 31000}},
                {"args": {"nccl_port": 31000}},
                "31000 is used by a (nccl_port) and b (nccl_port)",
            ),
            (
                {"args": {"tp_size": 2, "attn_dp_size": 2}},
                {"args": {"tp_size": 2, "attn_dp_size": 2}},
                "port 30235 is used by a (attention DP, from port 30001) and b (attention DP, from port 30002)",
            ),
            ({"args": {"disaggregation_mode": "prefill"}},) * 2
            + ("port 8998 is used by a (disaggregation_bootstrap_port) and b (disaggregation_bootstrap_port)",),
        ],
    )
    def test_two_that_would_clash(self, first: t.Any, second: t.Any, message: str) -> None:
        text = faults(instance(**first), instance(**{"name": "b", "port": 30002, **second}))
        assert message in text
        assert len(text.splitlines()) == 1
