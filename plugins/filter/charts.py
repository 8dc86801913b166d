# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that show results of sglang_ready in a terminal."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.plugins.plugin_utils._charts import startup_chart, status_table, work_text


class FilterModule:
    """``startup_chart``, ``status_table`` and ``work_text``; documented in the YAML files of their names."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        return {"startup_chart": startup_chart, "status_table": status_table, "work_text": work_text}
