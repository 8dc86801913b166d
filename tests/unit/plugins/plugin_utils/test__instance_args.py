# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments of an instance over those of the GPU profile over the defaults."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.tests.unit.plugins.plugin_utils.resolving import instance, resolve


@pytest.mark.parametrize(
    ("version", "args", "expected"),
    [
        pytest.param("0.5.23", {}, ["--cuda-graph-backend-prefill", "disabled"], id="0.5.23"),
        pytest.param("0.5.14", {}, ["--cuda-graph-backend-prefill", "disabled"], id="0.5.14"),
        pytest.param("0.5.13", {}, ["--disable-piecewise-cuda-graph"], id="0.5.13"),
        pytest.param("0.5.10", {}, ["--disable-piecewise-cuda-graph"], id="0.5.10"),
        pytest.param("0.5.9", {}, [], id="0.5.9-has-it-off"),
        pytest.param("0.5.12", {"disable_cuda_graph": True}, [], id="graphs-off-anyway"),
        pytest.param("0.5.23", {"disable_cuda_graph": True}, [], id="graphs-off-anyway-new"),
        pytest.param(
            "0.5.23",
            {"cuda-graph-backend-prefill": "full"},
            ["--cuda-graph-backend-prefill", "full"],
            id="instance-decides",
        ),
        pytest.param("0.5.23", {"disable_prefill_cuda_graph": True}, [], id="instance-turned-it-off"),
    ],
)
def test_prefill_graph_of_the_rtx_pro_6000(version: str, args: dict[str, t.Any], expected: list[str]) -> None:
    (item,) = resolve(instance(args=args), version=version, gpu_profile="rtx_pro_6000")
    found = [word for word in item["argv"] if "prefill" in word or "piecewise" in word or word in ("disabled", "full")]
    assert found == [*expected, *(["--disable-prefill-cuda-graph"] if "disable_prefill_cuda_graph" in args else [])]


@pytest.mark.parametrize(("version", "has"), [("0.5.7", False), ("0.5.8", True), ("0.5.23", True)])
def test_access_log_excludes_only_where_the_flag_exists(version: str, has: bool) -> None:
    (item,) = resolve(instance(), version=version)
    assert ("--uvicorn-access-log-exclude-prefixes" in item["argv"]) is has


def test_access_log_excludes_can_be_taken_away() -> None:
    (item,) = resolve(instance(args={"uvicorn_access_log_exclude_prefixes": None}))
    assert "--uvicorn-access-log-exclude-prefixes" not in item["argv"]


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ({}, 0),
        ({"speculative_dflash_block_size": 8}, 0),
        ({"speculative_algorithm": "DFLASH", "speculative_dflash_block_size": 8}, 8),
        ({"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": "4"}, 4),
        ({"speculative_algorithm": "NGRAM"}, 0),
    ],
    ids=str,
)
def test_block_size(args: dict[str, t.Any], size: int) -> None:
    (item,) = resolve(instance(args=args))
    assert item["block_size"] == size
