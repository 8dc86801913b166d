# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking back the port forwarding of one container."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.specdec.serving.tests.support.lab.remains import delete_network_rules, delete_rules

SAVED = (Path(__file__).parents[2] / "fixtures/netavark-1.4/iptables-save.txt").read_text()
# With the network 10.89.2.0/24, of which killed hosts left the bridge and the rules.
ALL_TABLES = (Path(__file__).parents[2] / "fixtures/netavark-1.4/iptables-save-network-left.txt").read_text()
KILLED = "669348e7b4e4ac82acb3d87e0b84c8b95d5acb3325ed18f9fd300eac6bdaf613"
CHAIN = "NETAVARK-DN-212A23F55F996"


def test_all_rules_of_the_port_and_no_other_are_deleted() -> None:
    words = delete_rules(SAVED, container_id=KILLED)
    assert [rule[:2] for rule in words] == [["-D", "NETAVARK-HOSTPORT-DNAT"], *([["-D", CHAIN]] * 3)]
    assert all(rule[rule.index("--dport") + 1] == "33203" for rule in words)
    assert len(words) == sum("--dport 33203" in line for line in SAVED.splitlines())
    # Quotes are resolved: the comment is one word for iptables.
    assert f"dnat name: specdec-lab-f2af6c09 id: {KILLED}" in words[0]


def test_nothing_is_deleted_without_a_container() -> None:
    assert delete_rules(SAVED, container_id="") == []
    assert delete_rules(SAVED, container_id="0" * 64) == []
    assert delete_rules("", container_id=KILLED) == []


def test_rules_and_chains_of_a_network_are_deleted_and_no_other() -> None:
    words = delete_network_rules(ALL_TABLES, subnet="10.89.2.0/24")
    chains = ["NETAVARK-77BB20461643D", "NETAVARK-DN-77BB20461643D"]
    assert words == [
        ["-t", "filter", "-D", *["NETAVARK_FORWARD", "-d", "10.89.2.0/24", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"]],
        ["-t", "filter", "-D", *["NETAVARK_FORWARD", "-s", "10.89.2.0/24", "-j", "ACCEPT"]],
        ["-t", "nat", "-D", "POSTROUTING", "-s", "10.89.2.0/24", "-j", chains[0]],
        *(["-t", "nat", "-F", chain] for chain in chains),
        *(["-t", "nat", "-X", chain] for chain in chains),
    ]  # fmt: skip


def test_nothing_is_deleted_for_an_unknown_subnet() -> None:
    assert delete_network_rules(ALL_TABLES, subnet="10.89.7.0/24") == []
    assert delete_network_rules("", subnet="10.89.2.0/24") == []
