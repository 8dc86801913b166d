# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses of other servers as people write them. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import urllib.parse

_PORTS = {"http": 80, "https": 443}


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a server answers: ``host`` without brackets, ``path`` without a slash at its end."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_url(text: str, *, name: str) -> Address:
    """An http or https URL, such as `https://serve.example/v1`. Raises ValueError that names the option ``name``."""
    told = f"{name} {_hidden(text)!r}"
    if any(sign.isspace() or ord(sign) < 32 for sign in text):
        raise ValueError(f"{told} holds white space")
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{told} is no URL: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{told} is no URL: give one such as http://127.0.0.1:30001 or https://serve.example")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{told} holds a user name or password; give the server's key as api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"{told} has a query or fragment; give the server's base URL")
    if port == 0:
        raise ValueError(f"{told}: port 0 is out of range: 1 to 65535")
    return Address(
        scheme=parts.scheme, host=parts.hostname, port=port or _PORTS[parts.scheme], path=parts.path.rstrip("/")
    )


def parse_server(text: str, *, name: str, scheme: str = "http") -> Address:
    """`host:port`, `[address]:port`, or a URL without a path. Raises ValueError that names the option ``name``."""
    if "://" in text:
        address = parse_url(text, name=name)
        if address.path:
            raise ValueError(f"{name} {text!r} has a path; give the server's own URL, or host:port")
        return address
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or (":" in host and not host.startswith("[")):
        raise ValueError(f"{name} {text!r} is neither host:port nor a URL, such as 10.0.0.1:30001 or [fd00::1]:30001")
    return parse_url(f"{scheme}://{text}", name=name)


def _hidden(text: str) -> str:
    """The text without what may be a password."""
    scheme, separator, rest = text.partition("://")
    userinfo, at, tail = rest.rpartition("@")
    return f"{scheme}{separator}********@{tail}" if separator and at and userinfo else text


def models_url(address: Address) -> str:
    """Where a server lists its models. The base URL of OpenAI's clients ends in /v1, so that is allowed here."""
    return address.url + ("/models" if address.path.endswith("/v1") else "/v1/models")


__all__ = ("Address", "models_url", "parse_server", "parse_url")
