# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of an instance, and its secrets."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils._instances import instance_secrets
from ansible_collections.specdec.serving.tests.unit.plugins.plugin_utils.resolving import KEY, faults, instance, resolve


@pytest.mark.parametrize(
    ("key", "message"),
    [
        pytest.param("", "shorter than 8", id="empty"),
        pytest.param("1234567", "shorter than 8", id="seven-characters"),
        pytest.param(9876543210, "no text", id="number"),
        pytest.param("a key with spaces", "HTTP header", id="spaces"),
        pytest.param("schlüssel-lang", "HTTP header", id="non-ascii"),
        pytest.param("line\nbreak-x", "HTTP header", id="newline"),
        pytest.param("-starts-with-dash", "option", id="dash"),
        pytest.param("not_found", "word of our results", id="state-not-found"),
        pytest.param("/models/a-big-one", "word of our results", id="model-path"),
        pytest.param("sglang-a.service", "word of our results", id="unit"),
        pytest.param("crash_loop", "word of our results", id="state"),
        pytest.param("port_owner", "word of our results", id="gate"),
        pytest.param("loading_draft", "word of our results", id="phase"),
        pytest.param("served-id", "word of our results", id="served-name"),
        pytest.param("/opt/specdec", "word of our results", id="part-of-a-path"),
    ],
)
@pytest.mark.parametrize("option", ["api_key", "admin_api_key"])
def test_keys_that_are_refused_are_not_quoted(key: t.Any, message: str, option: str) -> None:
    text = faults(instance(model_path="/models/a-big-one", served_model_name="served-id", **{option: key}))
    assert f"sglang_instances[0] (a): {option} " in text
    assert message in text
    if key and message != "word of our results":
        assert str(key) not in text


def test_a_key_that_is_a_word_of_another_instance() -> None:
    text = faults(instance(api_key="model-of-b"), instance(name="b", port=2, served_model_name="model-of-b"))
    assert "sglang_instances[0] (a): api_key equals a word" in text


def test_secrets_in_the_wrong_place_are_not_quoted() -> None:
    text = faults(KEY, {"name": "a", "model_path": "/x", "args": KEY, "apikey": KEY, "env": [KEY]})
    assert KEY not in text
    assert "did you mean 'api_key'?" in text


@pytest.mark.parametrize(
    "value", [[KEY], {"value": KEY}, f"{KEY}\n", f"{KEY}\0"], ids=["list", "mapping", "newline", "nul"]
)
@pytest.mark.parametrize("name", ["HF_TOKEN", "GITHUB_PAT", "DB_PWD", "SSH_PASSPHRASE"])
def test_a_secret_variable_of_the_wrong_type_or_form_is_not_quoted(name: str, value: t.Any) -> None:
    text = faults(instance(env={name: value}))
    assert f"sglang_instances[0] (a): env: '{name}' holds " in text
    assert KEY not in text


@pytest.mark.parametrize("name", ["GITHUB_PAT", "DB_PWD", "SSH_PASSPHRASE", "S3_ACCESS_KEYS"])
def test_variables_that_are_masked_in_results_are_kept_as_secrets(name: str) -> None:
    (item,) = resolve(instance(env={name: KEY}))
    assert KEY not in str(item)
    assert item["secret_environment_file"]


def test_a_secret_variable_with_a_bad_name() -> None:
    text = faults(instance(env={"HF TOKEN": KEY}))
    assert "'HF TOKEN' is no name for an environment variable" in text
    assert KEY not in text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("HUGGING_FACE_HUB_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("OPENAI_API_KEY", True),
        ("OPENAI_APIKEY", True),
        ("DB_PASSWORD", True),
        ("some_key", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("MAX_TOKENS_PER_STEP", False),
        ("NCCL_DEBUG", False),
        ("KEYBOARD_LAYOUT", False),
    ],
)
def test_which_variables_are_secret(name: str, secret: bool) -> None:
    raw = instance(env={name: "value-of-it"})
    (item,) = resolve(raw)
    assert ("value-of-it" not in json.dumps(item)) is secret
    assert bool(item["secret_environment_file"]) is secret
    assert instance_secrets([raw]) == ({"a": {"config": {}, "environment": {name: "value-of-it"}}} if secret else {})


def test_secrets_of_all_layers() -> None:
    found = instance_secrets(
        [instance(api_key=KEY, admin_api_key=KEY + "-admin", env={"A_TOKEN": "instance-token"}), instance(name="b")],
        default_env={"A_TOKEN": "default-token"},
        gpu_profile="mine",
        gpu_profiles={"mine": {"env": {"B_SECRET": "profile-secret"}}},
    )
    assert found == {
        "a": {
            "config": {"api_key": KEY, "admin_api_key": KEY + "-admin"},
            "environment": {"A_TOKEN": "instance-token", "B_SECRET": "profile-secret"},
        },
        "b": {"config": {}, "environment": {"A_TOKEN": "default-token", "B_SECRET": "profile-secret"}},
    }
