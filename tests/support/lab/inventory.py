# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible inventory of lab hosts: connection data and nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Protocol

__all__ = ["Reachable", "render", "ssh_options"]


class Reachable(Protocol):
    """What an inventory entry needs to know of a host."""

    @property
    def name(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def key_file(self) -> str: ...
    @property
    def known_hosts_file(self) -> str: ...


def ssh_options(known_hosts_file: str) -> list[str]:
    """Options that hold ssh to the lab's own key list; quoted, since ssh splits a file option at spaces."""
    return [
        "-o",
        f'UserKnownHostsFile="{known_hosts_file}"'
        if " " in known_hosts_file
        else f"UserKnownHostsFile={known_hosts_file}",
        "-o",
        "GlobalKnownHostsFile=/dev/null",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "IdentitiesOnly=yes",
    ]


def render(hosts: Iterable[Reachable]) -> str:
    """Inventory text (YAML). Strings are written as JSON, which YAML reads the same."""
    lines = [
        "# Connection data of lab hosts on loopback, written by tests/support/lab/lab.py up. Do not edit, do not commit.",
        "all:",
        "  hosts:",
    ]
    for host in hosts:
        # Ansible gives ssh_common_args to a template first: a path with braces must not become an expression.
        values = {
            "ansible_host": "127.0.0.1",
            "ansible_port": host.port,
            "ansible_user": "deploy",
            "ansible_ssh_private_key_file": host.key_file,
            "ansible_ssh_common_args": shlex.join(ssh_options(host.known_hosts_file)),
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        lines.append(f"    {host.name}:")
        lines += [f"      {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"
