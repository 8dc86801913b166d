#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the wait of sglang_ready on a lab host without Ansible: options as JSON on stdin, the result as JSON on stdout.

Options are the module's, with its defaults. `--no-sock-diag` makes the kernel's socket diagnosis unavailable, so that
the fallback on /proc is what decides. `--keep-evidence` keeps the evidence of a failed start, as the module does.
"""

from __future__ import annotations

import errno
import functools
import json
import sys

from ansible_collections.specdec.serving.plugins.module_utils import _evidence, _ready_host, _sockets
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import defaults, options_from
from ansible_collections.specdec.serving.plugins.module_utils._waiter import Waiter


def _no_sock_diag(port: int) -> list[_sockets.Listener]:
    raise OSError(errno.EPROTONOSUPPORT, "switched off for a test")


def main() -> None:
    """Read, wait, write."""
    if "--no-sock-diag" in sys.argv[1:]:
        vars(_ready_host)["listeners"] = functools.partial(_sockets.listeners, sock_diag=_no_sock_diag)
    params = {**defaults(), **json.load(sys.stdin)}
    options = options_from(params)
    with _ready_host.SystemHost(options.unit, options.endpoint, options.listen_host) as host:
        result = Waiter(options, host).run()
    if "--keep-evidence" in sys.argv[1:]:
        _evidence.keep(result, params, wait=options.wait)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
