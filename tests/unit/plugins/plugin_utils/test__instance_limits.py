# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers of the role about starts."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.tests.unit.plugins.plugin_utils.resolving import faults, instance, resolve


@pytest.mark.parametrize(
    ("wait", "message"),
    [
        ({"timeout": "0"}, "sglang_ready_timeout '0' must be a number of seconds above 0"),
        ({"timeout": "20", "stall_timeout": "21"}, "sglang_ready_stall_timeout 21 is above sglang_ready_timeout 20"),
        ({"timeout": 20, "stable_for": 50}, "sglang_ready_stable_for 50 is not below sglang_ready_timeout 20"),
        ({"timeout": "auto", "spin_timeout": "soon"}, "sglang_ready_spin_timeout 'soon' is no number"),
        ({"timeout": "auto", "stable_for": -1}, "sglang_ready_stable_for -1.0 must not be below 0"),
        ({"timeout": "auto", "keep_evidence": -1}, "sglang_evidence_keep -1.0 must not be below 0"),
        ("soon", "sglang_ready_*: expected a mapping, not text"),
    ],
)
def test_a_wait_that_would_be_refused_after_the_restart(wait: t.Any, message: str) -> None:
    assert faults(instance(), wait=wait).startswith(message)


@pytest.mark.parametrize(("tokens", "refused"), [("4", True), (9, True), (10, False), (0, False), (-1, False)])
def test_tokens_that_one_verify_step_could_give_are_refused(tokens: t.Any, refused: bool) -> None:
    speculative = instance(
        args={
            "speculative_algorithm": "DFLASH",
            "speculative_dflash_block_size": 8,
            "speculative_draft_model_path": "/models/d",
        }
    )
    wait = {"timeout": "1350", "generation_tokens": tokens}
    if not refused:
        assert resolve(speculative, wait=wait)
        return
    message = faults(speculative, wait=wait)
    assert message.startswith(f"sglang_ready_generation_tokens {tokens}: {tokens} tokens can fit in one verify step")
    assert "ask for 10 or more, leave it at -1" in message


def test_a_wait_that_is_left_to_the_module_in_part() -> None:
    left = {"generation_tokens": -1, "stall_timeout": "-1", "spin_timeout": -1}
    assert resolve(instance(), wait={"timeout": "1350", "stable_for": 0, "max_restarts": 0, **left})


def test_the_wait_is_told_with_the_other_faults() -> None:
    assert len(faults(instance(port=0), wait={"timeout": "0"}).splitlines()) == 2


class TestStartLimit:
    LIMITS: t.ClassVar = {"start_limit_interval": 5400, "start_limit_burst": 3, "restart_delay": 15, "timeout": "1350"}

    def test_the_default_ends_a_loop_of_the_slowest_starts(self) -> None:
        (item,) = resolve(instance(), limits=self.LIMITS)
        assert item["warnings"] == []

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"start_limit_interval": 1800}, "sglang_start_limit_interval 1800 s is over before 3 starts"),
            ({"timeout": 3600}, "make it 10845 or more"),
            ({"start_limit_burst": 0}, "started again for ever"),
            ({"start_limit_interval": "0"}, "started again for ever"),
        ],
    )
    def test_a_loop_without_end_is_told(self, changes: dict[str, t.Any], words: str) -> None:
        (item,) = resolve(instance(), limits={**self.LIMITS, **changes})
        (warning,) = item["warnings"]
        assert words in warning

    def test_an_unknown_timeout_is_not_judged(self) -> None:
        (item,) = resolve(instance(), limits={**self.LIMITS, "timeout": "auto", "start_limit_interval": 60})
        assert item["warnings"] == []

    def test_what_is_no_number_is_refused(self) -> None:
        assert "sglang_restart_delay 'soon' is no number" in faults(
            instance(), limits={**self.LIMITS, "restart_delay": "soon"}
        )
