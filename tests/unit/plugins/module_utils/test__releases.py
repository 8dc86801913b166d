# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Spellings by release, held against the flags that each release's parser has (the stand-in's profiles)."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._releases import (
    flags,
    release_features,
    reports_verify_steps,
)
from ansible_collections.specdec.serving.plugins.module_utils._signatures import SIGNATURES

PROFILES = Path(__file__).resolve().parents[3] / "support/stand_in/src/sglang/stand_in/profiles"
RELEASES = ("0.4.6", "0.5.9", "0.5.12", "0.5.23")

# Remedies for what a release cannot run into: its flags are not looked for in that release.
CANNOT_HAPPEN = {
    "F14": ("DFLASH, since 0.5.11", ("0.4.6", "0.5.9")),
    "F15": ("DFLASH, since 0.5.11", ("0.4.6", "0.5.9")),
    "F25": ("prefill graphs came later", ("0.4.6",)),
    "F24": ("prefill graphs came later", ("0.4.6",)),
}


def parser_of(release: str) -> dict[str, dict[str, t.Any]]:
    entries = json.loads((PROFILES / release / "arguments.json").read_text(encoding="utf-8"))
    return {flag: entry for entry in entries for flag in entry["flags"]}


def remedy_of(row: t.Any, release: str) -> str:
    names = dict.fromkeys(row.pattern.groupindex, "x")
    return str(row.remedy.format_map({**flags(release), **names}))


@pytest.mark.parametrize("release", RELEASES)
def test_remedies_name_flags_that_the_release_has(release: str) -> None:
    known = parser_of(release)
    wrong = [
        f"{row.id}: {flag}"
        for row in SIGNATURES
        if release not in CANNOT_HAPPEN.get(row.id, ("", ()))[1]
        for flag in re.findall(r"--[a-z0-9][a-z0-9-]*", remedy_of(row, release))
        if flag not in known
    ]
    assert wrong == []


@pytest.mark.parametrize("release", RELEASES)
def test_remedies_give_values_that_the_release_takes(release: str) -> None:
    known = parser_of(release)
    for row in SIGNATURES:
        for flag, value in re.findall(r"(--[a-z0-9][a-z0-9-]*) (?:to )?([a-z0-9_]+)\b", remedy_of(row, release)):
            choices = known.get(flag, {}).get("choices")
            if choices and value in ("disabled", "unquant", "fp8_e4m3", "auto"):
                assert value in choices, (row.id, flag, value)


@pytest.mark.parametrize("release", RELEASES)
def test_switches_are_arguments_that_the_release_has(release: str) -> None:
    known = {flag[2:].replace("-", "_"): entry for flag, entry in parser_of(release).items()}
    features = release_features(release)
    for switch in (features.prefill_graph_off, features.decode_graph_off, features.access_log_exclude):
        for dest, value in switch.items():
            assert dest in known
            if known[dest].get("choices"):
                assert value in known[dest]["choices"]
    assert features.config_file is ("config" in known)


@pytest.mark.parametrize(
    ("name", "release", "spelling"),
    [
        ("graph_max_bs", "0.5.13", "--cuda-graph-max-bs"),
        ("graph_max_bs", "0.5.14", "--cuda-graph-max-bs-decode"),
        ("graph_max_bs", "0.5.23+standin", "--cuda-graph-max-bs-decode"),
        ("graph_max_bs", "", "--cuda-graph-max-bs-decode"),
        ("graph_max_bs", "main", "--cuda-graph-max-bs-decode"),
        ("decode_graph_off", "0.5.12", "--disable-cuda-graph"),
        ("decode_graph_off", "0.5.15", "--disable-cuda-graph"),
        ("decode_graph_off", "0.5.23", "--cuda-graph-backend-decode disabled"),
        ("prefill_graph_off", "0.5.9", "no --enable-piecewise-cuda-graph"),
        ("prefill_graph_off", "0.5.12", "--disable-piecewise-cuda-graph"),
        ("prefill_graph_off", "0.5.20", "--cuda-graph-backend-prefill disabled"),
        ("attention_dp", "0.5.21", "--enable-dp-attention"),
        ("attention_dp", "0.5.22", "--attn-dp-size"),
        ("internal_ports", "0.4.6", "--dist-init-addr"),
        ("fewer_loader_threads", "0.4.6", ""),
    ],
)
def test_spelling(name: str, release: str, spelling: str) -> None:
    assert flags(release)[name] == spelling


@pytest.mark.parametrize(
    ("release", "counted"), [("0.4.6", False), ("0.4.6.post5", False), ("0.4.7", True), ("0.5.23", True), ("", True)]
)
def test_verify_steps_are_counted_since_0_4_7(release: str, counted: bool) -> None:
    assert reports_verify_steps(release) is counted


def test_features_are_complete_for_any_release() -> None:
    for version in ("0.0.1", "0.4.6", "0.5.4", "0.5.8", "0.5.10", "0.5.14", "1.2.3"):
        assert release_features(version).jit_deepgemm_variable
