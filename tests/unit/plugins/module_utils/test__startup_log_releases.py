# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whole starts of older releases. Their fixtures are no recordings, and say so in their first line."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._diagnosis import log_warnings
from ansible_collections.specdec.serving.plugins.module_utils._expected_markers import expected_markers
from ansible_collections.specdec.serving.plugins.module_utils._journal import Entry, clean
from ansible_collections.specdec.serving.plugins.module_utils._readiness import cross_check
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import (
    SERVING,
    StartupLog,
)

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MS = 1000
TARGET, DRAFT = "KimiK25ForConditionalGeneration", "DFlashDraftModel"
# The draft comes after the target's pools and graphs, and has its own.
IN_ROUNDS = [
    ("starting", ""),
    ("loading_weights", ""),
    ("allocating_kv_cache", "target"),
    ("capturing_graphs", "target"),
    ("loading_draft", ""),
    ("allocating_kv_cache", "draft"),
    ("capturing_graphs", "draft"),
    ("binding", ""),
    ("warming_up", ""),
]
RELEASES = [
    pytest.param("0.4.6", "startup-eagle.log", {"speculative_algorithm": "EAGLE"}, False, "", id="0.4.6"),
    pytest.param("0.5.9", "startup-eagle.log", {"speculative_algorithm": "EAGLE"}, True, "", id="0.5.9"),
    pytest.param(
        "0.5.12", "startup-dflash.log", {"speculative_algorithm": "DFLASH"}, True, "compressed-tensors", id="0.5.12"
    ),
]


def entries(release: str, name: str) -> list[Entry]:
    text = (FIXTURES / f"sglang-{release}" / name).read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    return [
        Entry("", 0, number * MS, 40, clean(line), "", "", None, "", 0, "", True) for number, line in enumerate(lines)
    ]


def fed(release: str, name: str) -> StartupLog:
    log = StartupLog()
    log.feed_all(entries(release, name))
    return log


@pytest.mark.parametrize(("release", "name", "settings", "elapsed", "quant"), RELEASES)
def test_a_whole_start(release: str, name: str, settings: dict[str, t.Any], elapsed: bool, quant: str) -> None:
    log = fed(release, name)
    assert log.marker_counts == {TARGET: 8, DRAFT: 8}
    assert log.markers == expected_markers({**settings, "tp_size": 8})
    target, draft = log.weights
    assert [(model.type, model.role, len(model.ranks)) for model in (target, draft)] == [
        (TARGET, "target", 8),
        (DRAFT, "draft", 8),
    ]
    assert (target.elapsed_s is not None, target.quant) == (elapsed, quant)
    assert (target.mem_usage_gb, target.avail_mem_gb) == (72.24, 21.76)
    assert (log.max_total_num_tokens, log.startup_timings) == (262144, {})
    assert log.uvicorn_running == "http://127.0.0.1:33133"
    assert (log.fired_up, log.bind_failed, log.first_exception, log.clues) == (True, None, None, [])
    assert log_warnings(log, release) == []
    # What follows in the fixture is the stop.
    assert (log.draining is not None, log.draining and log.draining.remaining) == (True, 0)


@pytest.mark.parametrize(("release", "name", "settings", "elapsed", "quant"), RELEASES)
def test_phases_come_in_two_rounds(
    release: str, name: str, settings: dict[str, t.Any], elapsed: bool, quant: str
) -> None:
    log = StartupLog()
    told: list[str] = []
    for entry in entries(release, name):
        log.feed(entry)
        if not told or log.phase != told[-1]:
            told.append(log.phase)
    assert [(span.phase, span.model) for span in log.timeline] == IN_ROUNDS
    # Eight ranks go their own way: none that is behind takes the start back to a phase that is over.
    assert told == [*(phase for phase, _model in IN_ROUNDS), SERVING]
    # The phases lie end to end, and nothing of the start is in none.
    spans = log.timeline
    assert all(first.start_us + (first.duration_us or 0) == second.start_us for first, second in zip(spans, spans[1:]))
    assert log.fired_up_us == spans[-1].start_us + (spans[-1].duration_us or 0)


@pytest.mark.parametrize("at", range(10, 150, 10))
def test_a_start_in_two_rounds_goes_on_in_the_next_slice(at: int) -> None:
    lines = entries("0.5.12", "startup-dflash.log")
    first = StartupLog()
    first.feed_all(lines[:at])
    second = StartupLog.load(json.loads(json.dumps(first.dump())))
    second.feed_all(lines[at:])
    whole = fed("0.5.12", "startup-dflash.log")
    assert (second.timeline, second.weights, second.phase) == (whole.timeline, whole.weights, whole.phase)


def test_without_times_of_the_server_there_is_nothing_to_check() -> None:
    timeline = [
        {"phase": span.phase, "start": 0.0, "duration": 0.0} for span in fed("0.5.12", "startup-dflash.log").timeline
    ]
    assert cross_check(timeline, None) == []
    assert cross_check(timeline, {"load_weight": 61.0}) != []


def test_fixtures_that_are_no_recordings_say_so() -> None:
    for folder in ("sglang-0.4.6", "sglang-0.5.9", "sglang-0.5.12"):
        for path in (FIXTURES / folder).iterdir():
            assert path.read_text(encoding="utf-8").startswith("# Not recorded.")
