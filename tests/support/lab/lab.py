#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real systemd hosts with sshd on this machine: ``lab.py up NAME...`` and the rest. See README.md beside this file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# The checkout's own collection path, so that this runs with any Python and nothing installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / ".collections"))

from ansible_collections.specdec.serving.tests.support.lab.hosts import Host, Lab
from ansible_collections.specdec.serving.tests.support.lab.inventory import render
from ansible_collections.specdec.serving.tests.support.lab.processes import LabError, NotPossible


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab.py", description="Real systemd hosts with sshd on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)

    up = commands.add_parser("up", help="make hosts that are not there; wait until they accept logins")
    up.add_argument("names", nargs="+", metavar="NAME")
    up.add_argument(
        "--inventory",
        type=Path,
        metavar="FILE",
        help="write an Ansible inventory with the connection data of these hosts",
    )
    up.add_argument(
        "--volume",
        action="append",
        metavar="HOST:GUEST[:ro]",
        help="a folder of this machine to show inside (repeatable)",
    )
    up.add_argument("--journal-size", metavar="SIZE", help="journald's SystemMaxUse=, such as 64M")

    down = commands.add_parser("down", help="remove hosts of this checkout (default: all)")
    down.add_argument("names", nargs="*", metavar="NAME")

    reboot = commands.add_parser("reboot", help="cut a host's power and switch it on again; its files stay")
    reboot.add_argument("name", metavar="NAME")

    status = commands.add_parser("status", help="show the hosts of this checkout")
    status.add_argument("--json", action="store_true", dest="as_json")

    execute = commands.add_parser("exec", help="run a command inside, as root")
    execute.add_argument("name", metavar="NAME")
    execute.add_argument("words", nargs=argparse.REMAINDER, metavar="-- CMD")

    ssh = commands.add_parser("ssh", help="log in as deploy, or run a command so")
    ssh.add_argument("name", metavar="NAME")
    ssh.add_argument("words", nargs=argparse.REMAINDER, metavar="[-- CMD]")

    address = commands.add_parser("address", help="print the host's address in the lab's network")
    address.add_argument("name", metavar="NAME")

    journal = commands.add_parser("journal", help="print a unit's journal")
    journal.add_argument("name", metavar="NAME")
    journal.add_argument("unit", metavar="UNIT")
    return parser


def _command(words: Sequence[str]) -> list[str]:
    return list(words[1:] if words[:1] == ["--"] else words)


def _show(hosts: Sequence[Host], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([{**host.to_json(), "running": host.alive()} for host in hosts], indent=2))
        return
    if not hosts:
        print("no lab hosts; make some with: tests/support/lab/lab.py up NAME")
    for host in hosts:
        print(f"{host.name:<16} {'running' if host.alive() else 'dead':<8} 127.0.0.1:{host.port:<6} {host.address}")


def _run(arguments: argparse.Namespace) -> int:
    lab = Lab()
    if arguments.command == "up":
        hosts = lab.up(arguments.names, volumes=arguments.volume, journal_size=arguments.journal_size)
        if arguments.inventory is not None:
            text = render(hosts.values())
            if not arguments.inventory.exists() or arguments.inventory.read_text() != text:
                arguments.inventory.parent.mkdir(parents=True, exist_ok=True)
                arguments.inventory.write_text(text)
        _show(list(hosts.values()), as_json=False)
    elif arguments.command == "down":
        for name in lab.down(arguments.names or None):
            print(f"removed {name}")
    elif arguments.command == "reboot":
        _show([lab.reboot(arguments.name)], as_json=False)
    elif arguments.command == "status":
        _show(list(lab.records().values()), as_json=arguments.as_json)
    elif arguments.command == "address":
        print(lab.host(arguments.name).address)
    elif arguments.command == "journal":
        sys.stdout.write(lab.host(arguments.name).journal(arguments.unit))
    else:
        host, words = lab.host(arguments.name), _command(arguments.words)
        if arguments.command == "exec":
            if not words:
                raise LabError("exec: name a command after --")
            argv = host.exec_argv(words, tty=sys.stdin.isatty() and sys.stdout.isatty())
        else:
            argv = host.ssh_argv(" ".join(words))  # as ssh itself joins them
        os.execvp(argv[0], argv)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 when something failed; 2 when this machine lacks something, the text says what."""
    try:
        return _run(_parser().parse_args(argv))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2 if isinstance(error, NotPossible) else 1


if __name__ == "__main__":
    sys.exit(main())
