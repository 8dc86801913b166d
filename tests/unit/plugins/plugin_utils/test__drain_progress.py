# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.specdec.serving.plugins.plugin_utils._drain_progress import progress_lines


def test_one_line_for_each_unit_that_has_not_ended() -> None:
    units = {
        "sglang-a.service": {"phase": "waiting", "requests_left": 1},
        "sglang-b.service": {"phase": "waiting", "requests_left": None},
        "sglang-c.service": {"phase": "stopping", "requests_left": 3},
        "sglang-d.service": {"phase": "ended", "requests_left": 0},
    }
    assert progress_lines({"elapsed": 15.2, "timeout": 60.0, "units": units}) == [
        "sglang-a.service | draining | 1 request left |   15 of 60 s",
        "sglang-b.service | draining | requests not known |   15 of 60 s",
        "sglang-c.service | stopping | 3 requests left |   15 s",
    ]
    assert progress_lines({}) == []
