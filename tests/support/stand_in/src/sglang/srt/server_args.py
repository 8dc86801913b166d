# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The command line, as the real engine offers it to those who ask for it without starting a server."""

from __future__ import annotations

import argparse

from sglang.stand_in import profile
from sglang.stand_in.arguments import add_arguments


class ServerArgs:
    """Only what builds a parser."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add the release's flags."""
        add_arguments(parser, profile.current())
