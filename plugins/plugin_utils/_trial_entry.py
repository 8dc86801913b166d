# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An entry of ``sglang_instances`` as a trial wants it. PRIVATE to the collection.

Apart from the study, since filters use it in nearly every task of a sweep, and each worker of Ansible imports what its filters import.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

__all__ = ["with_trial", "without_keys"]


def without_keys(entry: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """An entry of ``sglang_instances`` without its secrets."""
    return {key: value for key, value in entry.items() if key not in ("admin_api_key", "api_key")}


def with_trial(entry: Mapping[str, t.Any], changed: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """An entry of ``sglang_instances`` as a trial wants it. ``changed``: ``entry`` of a trial, or the winner."""
    return {**entry, "args": changed["args"], "env": {**(entry.get("env") or {}), **changed["env"]}}
