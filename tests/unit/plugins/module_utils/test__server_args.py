# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime as dt
import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._server_args import (
    ServerArgsError,
    build_server_args,
    canonical_dest,
    merge_server_args,
    parse_release,
)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param({"trust_remote_code": True}, ["--trust-remote-code"], id="true-is-a-bare-flag"),
        pytest.param({"trust-remote-code": True}, ["--trust-remote-code"], id="dashes"),
        pytest.param({"enable_metrics": False, "x": None, "y": []}, [], id="left-out"),
        pytest.param({"tp": 8}, ["--tp-size", "8"], id="abbreviation-in-full"),
        pytest.param({"tensor_parallel_size": 8}, ["--tensor-parallel-size", "8"], id="alias-as-written"),
        pytest.param({"mem_fraction_static": 0.85}, ["--mem-fraction-static", "0.85"], id="float"),
        pytest.param({"random_seed": -1}, ["--random-seed", "-1"], id="negative-number"),
        pytest.param({"context_length": "2k"}, ["--context-length", "2k"], id="human-number"),
        pytest.param(
            {"cuda_graph_bs_decode": [1, 8, 32]}, ["--cuda-graph-bs-decode", "1", "8", "32"], id="list-is-several-words"
        ),
        pytest.param(
            {"cuda_graph_config": {"decode": {"max_bs": 16, "s": "é $"}}},
            ["--cuda-graph-config", '{"decode":{"max_bs":16,"s":"é $"}}'],
            id="mapping-is-json",
        ),
        pytest.param({"chat_template": ""}, ["--chat-template", ""], id="empty-text"),
        pytest.param({"chat_template": "-x"}, ["--chat-template=-x"], id="text-that-looks-like-an-option"),
        pytest.param({"flag": "true"}, ["--flag", "true"], id="text-true-is-a-value"),
        pytest.param({"tp_size": 2, "ep_size": 2}, ["--tp-size", "2", "--ep-size", "2"], id="order-is-kept"),
    ],
)
def test_words(args: dict[str, t.Any], words: list[str]) -> None:
    assert list(build_server_args(args, origin="args").words) == words


def test_settings_use_one_name_per_argument() -> None:
    built = build_server_args({"tensor-parallel-size": 8, "ep": 8, "enable_metrics": True, "x": None}, origin="args")
    assert built.settings == {"tp_size": 8, "ep_size": 8, "enable_metrics": True}


def test_json_is_the_same_value() -> None:
    value = {"method": "x", "n": 16, "s": "a b%c$d", "deep": [1, {"b": None}]}
    words = build_server_args({"json_model_override_args": value}, origin="args").words
    assert json.loads(words[1]) == value


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        pytest.param({"tp": 1, "tp-size": 2}, ["'tp' and 'tp-size'", "tp_size"], id="abbreviation-and-name"),
        pytest.param(
            {"tensor_parallel_size": 1, "tp_size": 1}, ["'tensor_parallel_size' and 'tp_size'"], id="alias-and-name"
        ),
        pytest.param({"enable-metrics": True, "enable_metrics": True}, ["same argument"], id="dash-and-underscore"),
        pytest.param(
            {"api_ke": "/x"}, ["'api_ke' belongs to the role", "'api_key' of the instance"], id="part-of-a-key"
        ),
        pytest.param(
            {"ssl-keyfile-pass": "/x"},
            ["'ssl-keyfile-pass' belongs to the role", "let 'ssl_keyfile' name a key without one"],
            id="password",
        ),
        pytest.param({"model": "/x"}, ["'model' belongs to the role", "'model_path' of the instance"], id="model"),
        pytest.param({"api-key": "sk-secret-1"}, ["'api_key' of the instance"], id="api-key"),
        pytest.param({"config": "x.yaml"}, ["--config"], id="config"),
        pytest.param({"--tp-size": 1}, ["write it as 'tp-size'"], id="with-dashes"),
        pytest.param({"tp size": 1}, ["'tp size' is no argument name"], id="space"),
        pytest.param({"x": ["a", True]}, ["True cannot be one of several"], id="boolean-in-list"),
        pytest.param({"x": ["-a"]}, ["starts with '-'"], id="option-in-list"),
        pytest.param({"x": [[1]]}, ["cannot be one of several"], id="nested-list"),
        pytest.param({"x": float("nan")}, ["nan"], id="nan"),
        pytest.param({"x": {"a": float("inf")}}, ["JSON"], id="inf-in-json"),
        pytest.param({"x": {1: 2}}, ["the key 1"], id="json-key"),
        pytest.param({"x": dt.date(2026, 1, 1)}, ["date", "quote it"], id="date"),
        pytest.param({1: 2}, ["1 is no argument name"], id="number-as-name"),
    ],
)
def test_refused(args: dict[t.Any, t.Any], parts: list[str]) -> None:
    with pytest.raises(ServerArgsError) as caught:
        build_server_args(args, origin="instance a: args")
    message = str(caught.value)
    assert message.startswith("instance a: args: ")
    assert [part for part in parts if part not in message] == []
    assert "sk-secret-1" not in message


def test_all_faults_at_once() -> None:
    with pytest.raises(ServerArgsError) as caught:
        build_server_args({"port": 1, "host": "x", "--y": 1}, origin="args")
    assert len(caught.value.errors) == 3


def test_later_layers_win_by_meaning() -> None:
    merged = merge_server_args(
        {"tp_size": 1, "enable_metrics": True, "device": "cpu"}, {"tp": 8, "enable-metrics": False}
    )
    assert merged == {"device": "cpu", "tp": 8, "enable-metrics": False}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.23", (0, 5, 23)),
        ("0.5.23+standin", (0, 5, 23)),
        ("0.5.6.post2", (0, 5, 6)),
        ("v0.5.12", (0, 5, 12)),
        ("1.0", (1, 0, 0)),
    ],
)
def test_parse_release(version: str, expected: tuple[int, int, int]) -> None:
    assert parse_release(version) == expected


@pytest.mark.parametrize("version", ["", "latest", "0.5.x", "0.5.23;rm"], ids=repr)
def test_parse_release_refuses(version: str) -> None:
    with pytest.raises(ServerArgsError, match="no SGLang version"):
        parse_release(version)


@pytest.mark.parametrize(("name", "dest"), [("model", "model_path"), ("TP-x", "TP_x"), ("ep", "ep_size")])
def test_canonical_dest(name: str, dest: str) -> None:
    assert canonical_dest(name) == dest
