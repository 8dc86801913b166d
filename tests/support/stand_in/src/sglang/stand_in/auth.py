# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who may call what (engine: utils/auth.py:85-150). Pure, so that a table can test it."""

from __future__ import annotations

import hmac

NORMAL, ADMIN_OPTIONAL = "normal", "admin_optional"
OPEN_PREFIXES = ("/health", "/ready", "/metrics")


def refusal(
    *,
    method: str,
    path: str,
    authorization: str | None,
    api_key: str | None,
    admin_api_key: str | None,
    level: str,
    open_prefixes: tuple[str, ...] = OPEN_PREFIXES,
) -> int | None:
    """HTTP status of the refusal, None when the request may pass."""
    if method == "OPTIONS" or path.startswith(open_prefixes):
        return None
    key = (admin_api_key or api_key) if level == ADMIN_OPTIONAL else api_key
    if not key:
        return None
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), key.encode()):
        return None
    return 401
