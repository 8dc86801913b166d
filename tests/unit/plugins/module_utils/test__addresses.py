# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._addresses import (
    Address,
    models_url,
    parse_server,
    parse_url,
)


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("http://127.0.0.1:30001", Address("http", "127.0.0.1", 30001), "http://127.0.0.1:30001/v1/models"),
        ("http://127.0.0.1:30001/", Address("http", "127.0.0.1", 30001), "http://127.0.0.1:30001/v1/models"),
        ("https://serve.example/v1/", Address("https", "serve.example", 443, "/v1"), "https://serve.example/v1/models"),
        (
            "https://gate.example/k26",
            Address("https", "gate.example", 443, "/k26"),
            "https://gate.example/k26/v1/models",
        ),
        ("http://[fd00::1]:8000", Address("http", "fd00::1", 8000), "http://[fd00::1]:8000/v1/models"),
    ],
)
def test_urls(text: str, address: Address, url: str) -> None:
    assert parse_url(text, name="client_url") == address
    assert models_url(address) == url


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("serve.example", "is no URL"),
        ("serve.example:30001", "is no URL"),
        ("ftp://serve.example", "is no URL"),
        ("http://", "is no URL"),
        ("http://x:70000", "is no URL"),
        ("http://x:port", "is no URL"),
        ("http://x:0", "out of range"),
        ("http://[::1", "is no URL"),
        ("http://a b", "white space"),
        ("http://x/\nHost: y", "white space"),
        ("http://x/v1?key=1", "query"),
        ("http://x/#a", "query or fragment"),
    ],
)
def test_urls_that_are_none(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as refused:
        parse_url(text, name="client_url")
    assert "client_url" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["http://user:planted-word@x", "http://planted-word@x:1", "http://user:planted-word@[x"]
)
def test_no_password_in_a_message(text: str) -> None:
    with pytest.raises(ValueError, match="client_url") as refused:
        parse_url(text, name="client_url")
    assert "planted-word" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("10.0.0.1:30001", "http://10.0.0.1:30001"),
        ("ct200:30001", "http://ct200:30001"),
        ("[fd00::1]:30001", "http://[fd00::1]:30001"),
        ("https://ct200", "https://ct200"),
    ],
)
def test_servers(text: str, url: str) -> None:
    assert parse_server(text, name="leader").url == url


def test_the_scheme_of_the_server_itself_is_taken() -> None:
    assert parse_server("ct200:30001", name="leader", scheme="https").url == "https://ct200:30001"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ct200", "neither"),
        (":30001", "neither"),
        ("ct200:", "neither"),
        ("fd00::1:30001", "neither"),
        ("ct200:70000", "no URL"),
        ("http://ct200:1/v1", "has a path"),
    ],
)
def test_servers_that_are_none(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as refused:
        parse_server(text, name="leader")
    assert "leader" in str(refused.value)
