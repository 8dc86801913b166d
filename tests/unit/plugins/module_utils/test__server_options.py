# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that name a server."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._server_options import (
    ADMIN_KEY,
    SERVER,
    check_server,
    endpoint_from,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError

PARAMS = {
    **{name: option.get("default") for name, option in {**SERVER, **ADMIN_KEY}.items()},
    "unit": "sglang-x.service",
    "port": 30001,
}
NO_FILE = "/nonexistent/ca.pem"


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"port": 0}, "port 0 is out of range"),
        ({"port": 65536}, "port 65536 is out of range"),
        ({"host": "http://127.0.0.1"}, "is no address"),
        ({"api_key": "seven77"}, "api_key has 7 characters; use at least 8"),
        ({"admin_api_key": "with white space"}, "admin_api_key holds white space"),
        ({"scheme": "https", "ca_path": NO_FILE}, "ca_path"),
    ],
)
def test_what_cannot_be_used(params: dict[str, t.Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        check_server({**PARAMS, **params})


def test_a_unit_that_is_none() -> None:
    with pytest.raises(SystemdError):
        check_server({**PARAMS, "unit": "a.socket"})


def test_authorities_count_where_somebody_speaks_https() -> None:
    check_server({**PARAMS, "ca_path": NO_FILE}, schemes=("http",))
    with pytest.raises(ValueError, match="ca_path"):
        check_server({**PARAMS, "ca_path": NO_FILE}, schemes=("https",))


def test_where_the_server_is_asked() -> None:
    endpoint = endpoint_from({**PARAMS, "host": "0.0.0.0", "api_key": ""})
    assert (endpoint.host, endpoint.port, endpoint.api_key) == ("127.0.0.1", 30001, None)
    assert endpoint_from(PARAMS, host="10.0.0.1", port=1).port == 1
