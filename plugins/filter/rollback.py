# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters with which the role sglang keeps what was proven ready and goes back to it."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.plugins.plugin_utils._rollback import (
    generations_table,
    outcome,
    proven,
    put_back_outcome,
    unready,
)


class FilterModule:
    """The filters documented in the YAML files of their names."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {
            "generations_table": generations_table,
            "sglang_outcome": outcome,
            "sglang_proven": proven,
            "sglang_put_back_outcome": put_back_outcome,
            "sglang_unready": unready,
        }
