# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`python -m sglang.launch_server`: starts the stand-in server."""

from __future__ import annotations

import sys
import warnings

from sglang.stand_in import profile, server


def run_server(argv: list[str]) -> None:
    """Run until the server ends; leaves by SystemExit or by a signal, like the real one."""
    server.main(argv)


if __name__ == "__main__":
    if profile.current().traits["launch_warning"]:
        warnings.warn(
            "'python -m sglang.launch_server' is still supported, but 'sglang serve' is the recommended entrypoint.\n"
            "  Example: sglang serve --model-path <model> [options]",
            UserWarning,
            stacklevel=1,
        )
    run_server(sys.argv[1:])
