# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that name a server, which several modules have: specification, checks, endpoint. PRIVATE to the collection.

Documented in ``plugins/doc_fragments/_server.py``.
"""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint, HttpError, check_ca_path
from ansible_collections.specdec.serving.plugins.module_utils._sockets import probe_host
from ansible_collections.specdec.serving.plugins.module_utils._systemd import check_unit_name

__all__ = ("ADMIN_KEY", "SERVER", "check_server", "endpoint_from")

SERVER: dict[str, dict[str, t.Any]] = {
    "unit": {"type": "str", "required": True},
    "host": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "required": True},
    "scheme": {"type": "str", "choices": ["http", "https"], "default": "http"},
    "validate_certs": {"type": "bool", "default": True},
    "ca_path": {"type": "path"},
    "api_key": {"type": "str", "no_log": True},
}

ADMIN_KEY: dict[str, dict[str, t.Any]] = {"admin_api_key": {"type": "str", "no_log": True}}

_SHORTEST_KEY = 8


def check_server(params: t.Mapping[str, t.Any], *, schemes: t.Container[str] = ()) -> None:
    """Raises ValueError or SystemdError with what is wrong and what to do. ``schemes``: of other servers that are asked."""
    check_unit_name(params["unit"])
    if not 1 <= params["port"] <= 65535:
        raise ValueError(f"port {params['port']} is out of range: 1 to 65535")
    if "/" in params["host"]:
        raise ValueError(
            f"host {params['host']!r} is no address: give what the server was told as --host, such as 127.0.0.1; the"
            " scheme and the port have options of their own"
        )
    for name in ("api_key", "admin_api_key"):
        if params.get(name):
            _check_key(params[name], name)
    if params["ca_path"] and (params["scheme"] == "https" or "https" in schemes):
        try:
            check_ca_path(params["ca_path"])
        except HttpError as error:
            raise ValueError(str(error)) from error


def _check_key(key: str, name: str) -> None:
    # Ansible masks a no_log value wherever it stands in the result: "ready" as a key would mask the verdict.
    if len(key) < _SHORTEST_KEY:
        raise ValueError(
            f"{name} has {len(key)} characters; use at least {_SHORTEST_KEY}, or words of the result would be masked with it"
        )
    if any(ord(sign) < 33 or ord(sign) > 126 for sign in key):
        raise ValueError(f"{name} holds white space or signs outside of ASCII, which no HTTP header can carry")


def endpoint_from(params: t.Mapping[str, t.Any], **other: t.Any) -> Endpoint:
    """Where the server is asked. ``other``: parameters of the endpoint in place of those of the options."""
    found = {
        "host": probe_host(params["host"]),
        "port": params["port"],
        "scheme": params["scheme"],
        "api_key": params["api_key"] or None,
        "validate_certs": params["validate_certs"],
        "ca_path": params["ca_path"],
    }
    return Endpoint(**{**found, **other})
