# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._redact import MASK, redact, redact_argv, redact_text

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
    value = {"server": {"api_key": KEY, "admin-api-key": "other", "port": 30001}, "tail": [f"x {KEY}"], "none": {"api_key": None}}
    assert redact(value, [KEY]) == {
        "server": {"api_key": MASK, "admin-api-key": MASK, "port": 30001},
        "tail": [f"x {MASK}"],
        "none": {"api_key": None},
    }


def test_argv() -> None:
    argv = ["python", "--api-key", KEY, "--port", "1", f"--admin-api-key={KEY}", "--api_key", KEY]
    assert redact_argv(argv) == ["python", "--api-key", MASK, "--port", "1", f"--admin-api-key={MASK}", "--api_key", MASK]


def test_recorded_server_args_line_with_a_key_planted() -> None:
    log = (FIXTURES / "startup-cpu-plain.log").read_text(encoding="utf-8")
    line = next(text for text in log.splitlines() if "server_args=" in text)
    planted = line.replace("'api_key': None", f"'api_key': '{KEY}'")
    assert KEY in planted
    assert redact_text(planted) == line.replace("'api_key': None", f"'api_key': '{MASK}'")
