# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many markers (`Load weight end` lines) a start logs, from what was asked. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "expected_markers",
    "markers_unavailable",
]

# Speculation without weights of its own (SGLang 0.5.23 speculative/spec_info.py).
_NO_DRAFT = ("NGRAM", "UNO")
_QUIET_LEVELS = ("warning", "warn", "error", "critical", "fatal")


def _setting(settings: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        for key in (name, name.replace("_", "-")):
            value = settings.get(key)
            if value is not None and value != "":
                return value
    return None


#: Of no use is a number of ranks that nobody has; a server may say anything of itself.
_MOST_RANKS = 100_000


def _size(settings: Mapping[str, Any], *names: str) -> int:
    value = _setting(settings, *names)
    try:
        size = int(value) if value is not None else 1
    except (OverflowError, TypeError, ValueError):
        raise ValueError(
            f"{names[0]} is {value!r}, which is not a whole number: the expected markers cannot be worked out"
        ) from None
    if not 1 <= size <= _MOST_RANKS:
        limit = "less than 1" if size < 1 else f"more than {_MOST_RANKS}"
        raise ValueError(
            f"{names[0]} is {repr(value)[:40]}, which is {limit}: the expected markers cannot be worked out"
        )
    return size


def markers_unavailable(settings: Mapping[str, Any], *, environment: Mapping[str, str] | None = None) -> str:
    """Why this configuration logs no `Load weight end` lines to count; "" when it does."""
    if str(_setting(settings, "startup_weight_load_mode") or "").lower() == "overlap":
        return "startup_weight_load_mode is overlap: the weights are committed after graph capture, without a line per model"
    level = str(_setting(settings, "log_level") or "info").lower()
    if level in _QUIET_LEVELS:
        return f"log_level is {level!r}: the markers are logged at level info"
    if environment and environment.get("SGLANG_LOGGING_CONFIG_PATH"):
        return "SGLANG_LOGGING_CONFIG_PATH is set: the markers depend on a logging configuration of your own"
    return ""


def expected_markers(settings: Mapping[str, Any], *, environment: Mapping[str, str] | None = None) -> int:
    """How many `Load weight end` lines one start logs on this host; 0 when `markers_unavailable` tells why there are none.

    Ranks on this host (tp x pp over all hosts, times the data-parallel replicas) x models with weights of their own.
    `settings` maps SGLang's dest names to the asked values. Raises ValueError for sizes that are no positive numbers.
    """
    if markers_unavailable(settings, environment=environment):
        return 0
    world = _size(settings, "tp_size", "tensor_parallel_size", "tp") * _size(
        settings, "pp_size", "pipeline_parallel_size"
    )
    replicas = _size(settings, "dp_size", "data_parallel_size")
    if str(_setting(settings, "enable_dp_attention") or "false").lower() not in ("false", "0", "no"):
        replicas = 1  # attention DP splits the same processes, it adds none
    ranks = max(1, world // _size(settings, "nnodes")) * replicas
    algorithm = str(_setting(settings, "speculative_algorithm") or "").upper()
    draft = algorithm not in ("", "NONE", *_NO_DRAFT)
    return ranks * (2 if draft else 1)
