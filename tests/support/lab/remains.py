# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host leaves in the machine's firewall when its processes were killed from outside."""

from __future__ import annotations

import shlex

__all__ = ["delete_rules"]


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
