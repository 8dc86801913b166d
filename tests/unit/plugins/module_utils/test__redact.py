# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.specdec.serving.plugins.module_utils._redact import MASK, mask_command, redact, redact_text

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "sglang-0.5.23"
KEY = "sk-test-12345"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"server_args={{'api_key': '{KEY}', 'port': 1}}", id="repr of a dict"),
        pytest.param(f"ServerArgs(api_key='{KEY}', admin_api_key='{KEY}')", id="repr of a class"),
        pytest.param(f'{{"api_key":"{KEY}","admin_api_key":"{KEY}"}}', id="json"),
        pytest.param(f"python -m sglang.launch_server --api-key {KEY} --port 1", id="flag and word"),
        pytest.param(f"--admin-api-key={KEY}", id="flag and equals"),
        pytest.param(f"--api_key '{KEY} with a space'", id="quoted with a space"),
        pytest.param(f"api-key: {KEY}", id="yaml"),
        pytest.param(f"ssl_keyfile_password='{KEY}'", id="key file password"),
        pytest.param(f"Authorization: Bearer {KEY}", id="header"),
        pytest.param(f"'api_key': 'it\\'s {KEY}'", id="escaped quote"),
    ],
)
def test_masks_secrets_by_their_name(text: str) -> None:
    cleaned = redact_text(text)
    assert KEY not in cleaned
    assert MASK in cleaned


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("'api_key': None, 'admin_api_key': None", id="no key set"),
        pytest.param("tokens per second, token usage: 0.01", id="other words with token"),
        pytest.param("the api_key was refused", id="prose"),
    ],
)
def test_leaves_the_rest(text: str) -> None:
    assert redact_text(text) == text


def test_masks_known_secrets_anywhere_and_the_longest_first() -> None:
    assert redact_text("a secret-long b secret", ["secret", "secret-long"]) == f"a {MASK} b {MASK}"


def test_structures_are_masked_by_key_and_by_value() -> None:
    value = {
        "server": {"api_key": KEY, "admin-api-key": "other", "port": 30001},
        "tail": [f"x {KEY}"],
        "none": {"api_key": None},
    }
    assert redact(value, [KEY]) == {
        "server": {"api_key": MASK, "admin-api-key": MASK, "port": 30001},
        "tail": [f"x {MASK}"],
        "none": {"api_key": None},
    }


def test_recorded_server_args_line_with_a_key_planted() -> None:
    log = (FIXTURES / "startup-cpu-plain.log").read_text(encoding="utf-8")
    line = next(text for text in log.splitlines() if "server_args=" in text)
    planted = line.replace("'api_key': None", f"'api_key': '{KEY}'")
    assert KEY in planted
    assert redact_text(planted) == line.replace("'api_key': None", f"'api_key': '{MASK}'")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "S3cret", "--port", "1"], "--api-key ******** --port 1"),
        (["--api-key=S3cret", "x"], "--api-key=******** x"),
        (["--admin-api-key", "S3cret"], "--admin-api-key ********"),
        (["--ssl-keyfile-password", "S3cret"], "--ssl-keyfile-password ********"),
        (["--api-k", "S3cret"], "--api-k ********"),
        (["--api", "S3cret"], "--api ********"),
        (["--admin", "S3cret"], "--admin ********"),
        (["--ssl-keyfile-p", "S3cret"], "--ssl-keyfile-p ********"),
        (["--ssl-keyfile", "/etc/key.pem"], "--ssl-keyfile /etc/key.pem"),
        (["--hf-token", "S3cret"], "--hf-token ********"),
        (["--max-total-tokens", "100", "--tokenizer-path", "/t"], "--max-total-tokens 100 --tokenizer-path /t"),
        (
            ["sh", "-c", "API_KEY=S3cret exec python --api-key S3cret"],
            "sh -c API_KEY=******** exec python --api-key ********",
        ),
        (["sh", "-c", "x --api-key 'S3 cret' y"], "sh -c x --api-key ******** y"),
        (["curl", "-H", "Authorization: Bearer S3cret"], "curl -H Authorization: Bearer ********"),
        (["http://user:S3cret@host/"], "http://user:********@host/"),
        (["sglang::scheduler --api-key S3cret   "], "sglang::scheduler --api-key ********"),
        (["--api-key"], "--api-key"),
        ([], ""),
    ],
)
def test_mask_command(words: list[str], shown: str) -> None:
    assert mask_command(words) == shown


@given(st.lists(st.text(max_size=30), max_size=6))
def test_mask_command_never_raises_and_hides_the_key(words: list[str]) -> None:
    masked = mask_command([*words, "python", "--admin-api-key", "S3cret-Value", *words])
    if "--admin-api-key" in masked:
        assert "S3cret-Value" not in masked
