# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory that the lab writes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import pytest
import yaml

from ansible_collections.specdec.serving.tests.support.lab.inventory import render, ssh_options


@dataclass(frozen=True)
class Reachable:
    name: str
    port: int
    key_file: str
    known_hosts_file: str


@pytest.mark.parametrize("folder", ["/home/me/clone", "/home/me/my clone", "/home/mé/it's: #1"])
def test_inventory_holds_connection_data_only(folder: str) -> None:
    host = Reachable("ct200", 40022, f"{folder}/client_key", f"{folder}/known_hosts")
    hosts = yaml.safe_load(render([host]))["all"]["hosts"]
    common_args = hosts["ct200"].pop("ansible_ssh_common_args")
    assert hosts == {
        "ct200": {
            "ansible_host": "127.0.0.1",
            "ansible_port": 40022,
            "ansible_user": "deploy",
            "ansible_ssh_private_key_file": f"{folder}/client_key",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
    }
    assert shlex.split(common_args) == ssh_options(f"{folder}/known_hosts")
    assert "StrictHostKeyChecking=yes" in shlex.split(common_args)


def test_every_host_is_an_entry() -> None:
    hosts = [Reachable(name, port, "/k", "/h") for name, port in (("ct200", 1), ("b300", 2))]
    found = yaml.safe_load(render(hosts))["all"]["hosts"]
    assert {name: values["ansible_port"] for name, values in found.items()} == {"ct200": 1, "b300": 2}


def test_ssh_takes_a_path_with_spaces_as_one_file() -> None:
    assert ssh_options("/a b/known_hosts")[1] == 'UserKnownHostsFile="/a b/known_hosts"'
