# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command `sglang`: `serve` and `version`, the two that a deployment uses."""

from __future__ import annotations

import argparse


def main() -> None:
    """Console script entry. Exit status 2 for a wrong sub-command."""
    parser = argparse.ArgumentParser(prog="sglang")
    commands = parser.add_subparsers(dest="subcommand", required=True)
    commands.add_parser("serve", help="Launch an SGLang server.", add_help=False)
    commands.add_parser("version", help="Show the version information.")
    args, rest = parser.parse_known_args()
    if args.subcommand == "version":
        from sglang.version import __version__

        print(f"sglang version: {__version__}")
        print("git revision: stand-in")
        return
    if rest and not rest[0].startswith("-"):
        rest = ["--model-path", rest[0], *rest[1:]]
    from sglang.stand_in import server

    server.main(rest)


if __name__ == "__main__":
    main()
