# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Real commands, one of which does not end."""

from __future__ import annotations

import sys

from ansible_collections.specdec.serving.plugins.module_utils._evidence_machine import Output, run_all


def test_commands_run_side_by_side_and_none_holds_up_the_rest() -> None:
    python = [sys.executable, "-c"]
    found = run_all(
        {
            "good": [*python, "print('fine')"],
            "bad": [*python, "import sys; print('why', file=sys.stderr); sys.exit(3)"],
            "stuck": [*python, "import time; print('begun', flush=True); time.sleep(600)"],
            "absent": ["/no/such/program"],
            "much": [*python, "print('x' * 100000 + 'end')"],
        },
        timeout=5.0,
        limit=1000,
    )
    assert found["good"] == Output("fine\n")
    assert found["bad"] == Output("why\n", "ended with 3")
    assert found["stuck"] == Output("begun\n", "no end after 5.0 s")
    assert found["absent"].note == "not found"
    assert found["much"].text.endswith("xend\n")
    assert len(found["much"].text) <= 2000
    assert found["much"].note == "only the last 1000 bytes"
