# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts leave in the machine's firewall when their processes were killed from outside (netavark with iptables)."""

from __future__ import annotations

import shlex

__all__ = ["delete_network_rules", "delete_rules"]


def _value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words[:-1] else ""


def delete_rules(saved: str, *, container_id: str) -> list[list[str]]:
    """Arguments for ``iptables -t nat`` that remove the port forwarding of one container.

    *saved* is the output of ``iptables-save -t nat``. netavark marks the rule of a published port with the container's
    id in a comment; that rule jumps to the network's chain, where the rules of this port are. Rules of other
    containers, of other networks and of other programs are never named.
    """
    rules = [shlex.split(line) for line in saved.splitlines() if line.startswith("-A ")]
    marked = [rule for rule in rules if container_id and f"id: {container_id}" in _value(rule, "--comment")]
    inner = {(_value(rule, "-j"), _value(rule, "--dport")) for rule in marked}
    return [
        ["-D", *rule[1:]]
        for rule in [*marked, *(rule for rule in rules if (rule[1], _value(rule, "--dport")) in inner)]
    ]


def delete_network_rules(saved: str, *, subnet: str) -> list[list[str]]:
    """Arguments for ``iptables`` that remove what belongs to the network with this subnet (``10.89.0.0/24``), in order.

    *saved* is the output of ``iptables-save``, all tables. netavark takes these rules back with the network's last
    container, unless that one was killed. The network's two chains are found by the rule that sends its subnet there.
    """
    table = ""
    chains: set[tuple[str, str]] = set()
    rules: list[tuple[str, list[str]]] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":"):
            chains.add((table, line[1:].split()[0]))
        elif line.startswith("-A "):
            rules.append((table, shlex.split(line)))
    targets = {
        _value(rule, "-j") for _table, rule in rules if rule[1] == "POSTROUTING" and _value(rule, "-s") == subnet
    }
    own = {name for target in targets for name in (target, target.replace("NETAVARK-", "NETAVARK-DN-"))}
    own_chains = sorted(chain for chain in chains if chain[1] in own and chain[1].startswith("NETAVARK-"))
    deleted = [
        ["-t", table, "-D", *rule[1:]]
        for table, rule in rules
        if (table, _value(rule, "-j")) in own_chains
        or (rule[1] == "NETAVARK_FORWARD" and subnet in (_value(rule, "-s"), _value(rule, "-d")))
    ]
    emptied = [["-t", table, option, chain] for option in ("-F", "-X") for table, chain in own_chains]
    return [*deleted, *emptied]
