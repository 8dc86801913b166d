# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of keys: what is written is read back."""

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._credentials import credential_text, is_chosen, key_in

KEYS = {"api_key": "a: b #\"'\\x", "admin_api_key": "é"}


def test_text() -> None:
    assert credential_text(KEYS) == 'admin-api-key: "\\u00e9"\napi-key: "a: b #\\"\'\\\\x"\n'


def test_read_back() -> None:
    text = credential_text(KEYS)
    assert {name: key_in(text, name) for name in KEYS} == KEYS
    assert key_in(credential_text({"admin_api_key": "x"})) == ""
    assert key_in("") == ""


@pytest.mark.parametrize("text", ["api-key: planted", "api-key: 12345678", 'api_key: "half'])
def test_a_key_that_is_no_text_is_not_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="api_key is no text in double quotes") as caught:
        key_in(text)
    assert "planted" not in str(caught.value)


def test_chosen() -> None:
    assert is_chosen("0123456789abcdef")
    assert not is_chosen("0123456789abcdeF")
    assert not is_chosen("0123456789abcde")
    assert not is_chosen("@SECRET@")
