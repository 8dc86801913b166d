# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._ready_options import (
    OptionError,
    defaults,
    number_faults,
    options_from,
)

PARAMS = {**defaults(), "unit": "sglang-x.service", "port": 30001}


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"timeout": "0"}, "timeout '0' must be a number of seconds above 0"),
        ({"timeout": "20", "stall_timeout": 21.0}, "stall_timeout 21 is above timeout 20"),
        ({"timeout": "20", "spin_timeout": 21.0}, "spin_timeout 21 is above timeout 20"),
        ({"spin_timeout": float("nan")}, "spin_timeout nan must be a number of seconds, 0 = never"),
        ({"stable_for": float("inf")}, "stable_for inf must be a number of seconds"),
        ({"timeout": "20", "stable_for": 50.0}, "stable_for 50 is not below timeout 20"),
        ({"timeout": "20", "stable_for": 20.0}, "stable_for 20 is not below timeout 20"),
        ({"generation_tokens": -1}, "generation_tokens -1 must not be below 0"),
    ],
)
def test_numbers_that_cannot_be_used(params: dict[str, t.Any], part: str) -> None:
    with pytest.raises(OptionError, match=part):
        options_from({**PARAMS, **params})


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"timeout": "20"}, id="defaults above the timeout"),
        pytest.param({"timeout": "auto", "stable_for": 5000.0, "stall_timeout": 5000.0}, id="nothing to compare with"),
        pytest.param({"timeout": "20", "stall_timeout": 20.0, "spin_timeout": 0.0, "stable_for": 19.0}, id="just so"),
    ],
)
def test_numbers_that_can(params: dict[str, t.Any]) -> None:
    assert options_from({**PARAMS, **params}).unit == PARAMS["unit"]


def test_all_faults_by_the_callers_own_names() -> None:
    faults = number_faults({"timeout": "20", "stall_timeout": 30.0, "stable_for": 30.0}, spelt="sglang_ready_{}".format)
    assert [fault.split(" ")[0] for fault in faults] == ["sglang_ready_stable_for", "sglang_ready_stall_timeout"]
    for fault in faults:
        assert fault.count("sglang_ready_timeout") == 2
        assert " timeout" not in fault
