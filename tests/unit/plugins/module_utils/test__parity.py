# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _parity
from ansible_collections.specdec.serving.plugins.module_utils._parity import Baseline, Generation, ParityError

SETTINGS = {"version": "0.5.23", "attention_backend": "triton", "page_size": 1, "speculative_algorithm": None}


def baseline_of(*ids: int, second: int = 99, gap: float = 2.0) -> Generation:
    """Each token is the likeliest; the next is ``second``, less likely by ``gap`` nats."""
    return Generation(ids, tuple(((token, -0.5), (second, -0.5 - gap)) for token in ids))


def plain(*ids: int) -> Generation:
    return Generation(ids)


@pytest.mark.parametrize(
    ("gap", "other", "kind"),
    [
        (0.05, 99, "tie"),
        (0.0, 99, "tie"),
        # Just below and just above the limit.
        (0.0999, 99, "tie"),
        (0.1001, 99, "mismatch"),
        (2.0, 99, "mismatch"),
        # A third token: how likely it was is not known.
        (0.05, 98, "mismatch"),
    ],
)
def test_the_gap_at_the_first_difference_decides(gap: float, other: int, kind: str) -> None:
    found = _parity.difference(4, baseline_of(1, 2, 3, gap=gap), plain(1, other, 7))
    assert found is not None
    assert (found.prompt, found.at, found.kind, found.baseline, found.other) == (4, 1, kind, 2, other)
    assert found.gap == (pytest.approx(gap) if other == 99 else None)


def test_what_follows_the_first_difference_does_not_matter() -> None:
    found = _parity.difference(0, baseline_of(1, 2, 3, gap=0.01), plain(1, 99, 98))
    assert found is not None
    assert (found.at, found.kind) == (1, "tie")


def test_the_same_tokens_are_no_difference() -> None:
    assert _parity.difference(0, baseline_of(1, 2), plain(1, 2)) is None
    assert _parity.difference(0, plain(), plain()) is None


def test_the_token_that_the_baseline_gave_may_be_its_second() -> None:
    # Noise within the baseline's own server: it sampled what its report ranks second.
    generation = Generation((5,), (((6, -0.70), (5, -0.71)),))
    found = _parity.difference(0, generation, plain(6))
    assert found is not None
    assert found.kind == "tie"
    assert found.gap == pytest.approx(-0.01)


@pytest.mark.parametrize(("baseline", "other"), [((1, 2), (1,)), ((1,), (1, 2))])
def test_an_answer_that_ends_earlier_is_a_mismatch(baseline: tuple[int, ...], other: tuple[int, ...]) -> None:
    found = _parity.difference(0, baseline_of(*baseline, gap=0.01), plain(*other))
    assert found is not None
    assert (found.at, found.kind, found.gap) == (1, "mismatch", None)


def test_without_log_probabilities_every_difference_is_a_mismatch() -> None:
    found = _parity.difference(0, plain(1), plain(2))
    assert found is not None
    assert found.kind == "mismatch"


def test_a_probability_that_is_none_is_no_tie() -> None:
    generation = Generation((1,), (((1, float("-inf")), (2, float("-inf"))),))
    found = _parity.difference(0, generation, plain(2))
    assert found is not None
    assert (found.kind, found.gap) == ("mismatch", None)


def make(first: list[Generation], second: list[Generation], **changes: t.Any) -> Baseline:
    baseline = Baseline(
        settings=SETTINGS,
        prompts="p",
        max_new_tokens=3,
        generations=tuple(first),
        floor=tuple(_parity.differences(first, second)),
        recorded_at="2026-11-29T10:15:00+00:00",
        flushed=True,
    )
    return dataclasses.replace(baseline, **changes)


FIRST = [baseline_of(1, 2, 3), baseline_of(4, 5, 6, gap=0.01), baseline_of(7, 8, 9)]
SAME = [plain(1, 2, 3), plain(4, 5, 6), plain(7, 8, 9)]
ONE_MISMATCH = [plain(1, 2, 99), plain(4, 5, 6), plain(7, 8, 9)]
ONE_TIE = [plain(1, 2, 3), plain(4, 99, 0), plain(7, 8, 9)]
TWO_MISMATCHES = [plain(1, 2, 99), plain(4, 5, 6), plain(7, 99, 9)]


@pytest.mark.parametrize(
    ("second", "now", "passed", "counts"),
    [
        (SAME, SAME, True, (3, 0, 0)),
        (SAME, ONE_TIE, True, (2, 1, 0)),
        (SAME, ONE_MISMATCH, False, (2, 0, 1)),
        # The baseline differs from itself as often.
        (ONE_MISMATCH, ONE_MISMATCH, True, (2, 0, 1)),
        (ONE_MISMATCH, TWO_MISMATCHES, False, (1, 0, 2)),
        # Its ties are no licence for mismatches.
        (ONE_TIE, ONE_MISMATCH, False, (2, 0, 1)),
    ],
)
def test_the_gate_is_the_floor(second: t.Any, now: t.Any, passed: bool, counts: tuple[int, int, int]) -> None:
    found = _parity.compared(make(FIRST, second), now, SETTINGS, flushed=True)
    assert (found["equal"], found["ties"], found["mismatches"]) == counts
    assert found["passed"] is passed
    assert _parity.verdict_text(found).startswith("parity: " if passed else "NO parity: ")
    assert found["differing"] == []


def test_unlike_backends_are_not_compared() -> None:
    found = _parity.compared(make(FIRST, SAME), SAME, {**SETTINGS, "attention_backend": "flashinfer"}, flushed=True)
    assert found["passed"] is False
    assert found["incomparable"] == ["attention_backend: 'triton' when the baseline was recorded, 'flashinfer' now"]
    text = _parity.verdict_text(found)
    assert text.startswith("not comparable: attention_backend")
    assert text.endswith("record the baseline again with the settings of now")


def test_settings_that_a_baseline_has_lost_are_not_taken_for_the_same() -> None:
    for lost in ({}, {"version": "0.5.23"}):
        found = _parity.compared(make(FIRST, SAME, settings=lost), SAME, SETTINGS, flushed=True)
        assert found["passed"] is False, lost
    # Another release may tell less; that it is another one is enough.
    old = {"version": "0.5.10"}
    found = _parity.compared(make(FIRST, SAME, settings=old), SAME, SETTINGS, flushed=True)
    assert [text.partition(":")[0] for text in found["incomparable"]] == ["version"]


def test_what_may_differ_is_told() -> None:
    found = _parity.compared(make(FIRST, SAME), SAME, {**SETTINGS, "page_size": 64}, flushed=False)
    assert found["passed"] is True
    assert [text.partition(":")[0] for text in found["differing"]] == ["page_size", "prefix cache"]


def test_a_baseline_is_read_as_it_was_written() -> None:
    baseline = make(FIRST, ONE_TIE)
    assert _parity.read_baseline(baseline.to_text(), name="b.json") == baseline
    assert _parity.recorded(baseline)["floor"]["ties"] == 1
    assert "1 ties" in _parity.verdict_text(_parity.recorded(baseline))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        make(FIRST, SAME).to_text()[:-20],
        json.dumps({**json.loads(make(FIRST, SAME).to_text()), "floor": [{}]}),
        "[" * 100_000,
        make([], []).to_text(),
        make([baseline_of()], [plain()]).to_text(),
        make([plain(1, 2)], [plain(1, 2)]).to_text(),
        make(FIRST, SAME, max_new_tokens=float("inf")).to_text(),
        # A floor that lets everything pass.
        make(FIRST, ONE_MISMATCH, floor=tuple(_parity.differences(FIRST, ONE_MISMATCH)) * 9).to_text(),
        make(FIRST, ONE_MISMATCH).to_text().replace('"mismatch"', '"none"'),
        make(FIRST, ONE_MISMATCH).to_text().replace('"prompt":0', '"prompt":7'),
    ],
)
def test_a_file_that_is_no_baseline_is_named(text: str) -> None:
    with pytest.raises(ParityError, match=r"^b\.json: .*record it again"):
        _parity.read_baseline(text, name="b.json")


def test_tokens_are_read_from_an_answer() -> None:
    answer = {
        "text": " a b",
        "output_ids": [3, 4],
        "meta_info": {
            "output_token_logprobs": [[-0.1, 3, None], [-0.2, 4, None]],
            "output_top_logprobs": [[[-0.1, 3, None], [-2.0, 9, None]], [[-0.2, 4, None], [-1.9, 8, None]]],
        },
    }
    assert _parity.generation(answer) == Generation((3, 4), (((3, -0.1), (9, -2.0)), ((4, -0.2), (8, -1.9))))
    assert _parity.generation({"output_ids": [1], "meta_info": {}}) == Generation((1,))


@pytest.mark.parametrize(
    "answer",
    [
        {"text": "x", "meta_info": {}},
        [],
        {"output_ids": ["x"]},
        {"output_ids": [1, 2], "meta_info": {"output_top_logprobs": [[[-0.1, 1, None]]]}},
        {"output_ids": [1], "meta_info": {"output_top_logprobs": [[["a"]]]}},
        {"output_ids": [1], "meta_info": {"output_top_logprobs": [[{"token": 1}]]}},
        {"output_ids": [1], "meta_info": {"output_top_logprobs": 5}},
        {"output_ids": [1], "meta_info": [5]},
        {"output_ids": [float("inf")], "meta_info": {}},
        {"output_ids": [], "meta_info": {}},
        {"output_ids": [1], "meta_info": {"finish_reason": {"type": "abort", "message": "no memory"}}},
    ],
)
def test_an_answer_without_tokens_is_refused(answer: t.Any) -> None:
    with pytest.raises(ParityError, match=r"/generate"):
        _parity.generation(answer)


def test_settings_hold_no_keys() -> None:
    info = {**SETTINGS, "api_key": "sk-secret-1", "launch_command": "--api-key sk-secret-1", "model_path": "/m"}
    assert _parity.settings_of(info) == {**SETTINGS, "model_path": "/m"}


@pytest.mark.parametrize(("algorithm", "expected"), [(None, False), ("NONE", False), ("", False), ("DFLASH", True)])
def test_whether_a_server_speculates(algorithm: t.Any, expected: bool) -> None:
    assert _parity.speculates({"speculative_algorithm": algorithm}) is expected
