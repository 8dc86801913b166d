# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many markers a start logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._expected_markers import (
    expected_markers,
    markers_unavailable,
)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 1),
        ({"tp_size": 8}, 8),
        ({"tp_size": "8"}, 8),
        ({"tp-size": 8, "speculative-algorithm": "DFLASH"}, 16),
        ({"tp_size": 8, "ep_size": 8, "speculative_algorithm": "DFLASH", "speculative_draft_model_path": "/d"}, 16),
        ({"tp_size": 4, "speculative_algorithm": "DFLASH"}, 8),
        ({"tp_size": 8, "speculative_algorithm": "dflash"}, 16),
        ({"speculative_algorithm": "EAGLE"}, 2),
        ({"speculative_algorithm": "EAGLE3"}, 2),
        ({"speculative_algorithm": "NEXTN"}, 2),
        ({"speculative_algorithm": "STANDALONE"}, 2),
        ({"speculative_algorithm": "DSPARK"}, 2),
        ({"tp_size": 2, "speculative_algorithm": "NGRAM"}, 2),
        ({"tp_size": 2, "speculative_algorithm": "UNO"}, 2),
        ({"speculative_algorithm": None}, 1),
        ({"speculative_algorithm": ""}, 1),
        ({"tp_size": 8, "attn_dp_size": 4}, 8),
        ({"tp_size": 2, "dp_size": 2, "speculative_algorithm": "DFLASH"}, 8),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": False}, 64),
        ({"tp_size": 4, "pp_size": 2}, 8),
        ({"tp_size": 16, "nnodes": 2, "node_rank": 0, "speculative_algorithm": "DFLASH"}, 16),
        ({"tp_size": 16, "nnodes": 2, "node_rank": 1, "speculative_algorithm": "DFLASH"}, 16),
        ({"tp_size": 8, "pp_size": 2, "nnodes": 2}, 8),
        ({"tp_size": 2, "startup_weight_load_mode": "serial"}, 2),
        ({"log_level": "info"}, 1),
        ({"log_level": "debug"}, 1),
    ],
)
def test_expected_markers(settings: Mapping[str, Any], count: int) -> None:
    assert markers_unavailable(settings) == ""
    assert expected_markers(settings) == count


@pytest.mark.parametrize(
    ("settings", "environment", "reason"),
    [
        ({"startup_weight_load_mode": "overlap"}, {}, "startup_weight_load_mode is overlap"),
        ({"log_level": "warning"}, {}, "log_level is 'warning'"),
        ({"log_level": "ERROR"}, {}, "log_level is 'error'"),
        ({}, {"SGLANG_LOGGING_CONFIG_PATH": "/x.json"}, "SGLANG_LOGGING_CONFIG_PATH is set"),
    ],
)
def test_configurations_without_markers(
    settings: Mapping[str, Any], environment: Mapping[str, str], reason: str
) -> None:
    assert expected_markers(settings, environment=environment) == 0
    assert reason in markers_unavailable(settings, environment=environment)


@pytest.mark.parametrize("value", ["eight", 0, -1, [8], "1.5"])
def test_sizes_that_are_none(value: Any) -> None:
    with pytest.raises(ValueError, match=r"tp_size is .*the expected markers cannot be worked out"):
        expected_markers({"tp_size": value})
