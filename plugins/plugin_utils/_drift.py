# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``sglang_drift`` is asked, and what it found as lines for a terminal. PRIVATE to the collection."""

from __future__ import annotations

import itertools
import typing as t

__all__ = ("drift_lines", "drift_word", "server_options")

_COLUMNS = ("HOST", "INSTANCE", "WHERE", "NAME", "SHOULD BE", "IS", "NEEDS")
_PLACES = {
    "boot": "start at boot",
    "credential": "key file",
    "environment": "environment file",
    "process": "running process",
    "server": "running server",
    "unit": "unit file",
}
_WIDTH = 48


def server_options(
    resolved: t.Sequence[t.Mapping[str, t.Any]], results: t.Sequence[t.Mapping[str, t.Any]] = ()
) -> list[dict[str, t.Any]]:
    """Return the ``servers`` option of M(specdec.serving.sglang_drift) for resolved instances.

    :param results: what M(specdec.serving.sglang_ready) returned in a loop over the names of instances.
    """
    said = {result.get("item"): result.get("server") or {} for result in results}
    return [
        {
            **{key: item[key] for key in ("name", "settings", "model_path", "served_model_name")},
            "server": said.get(item["name"], {}),
        }
        for item in resolved
    ]


def drift_word(result: t.Mapping[str, t.Any]) -> str:
    """``as asked``, ``3 differ``, or ``not compared``."""
    drift = result.get("drift")
    if drift is None:
        return "not compared"
    return f"{len(drift)} {'differs' if len(drift) == 1 else 'differ'}" if drift else "as asked"


def _text(value: t.Any) -> str:
    if value is None:
        return "-"
    if value is True:
        return "set"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return '""' if value == "" else str(value)


def _shortened(one: str, other: str) -> tuple[str, str]:
    """Both texts, long ones cut so that the place where they begin to differ is seen."""
    begin = 0
    if max(len(one), len(other)) > _WIDTH:
        same = (left == right for left, right in zip(one, other, strict=False))
        begin = max(sum(itertools.takewhile(bool, same)) - 12, 0)

    def cut(text: str) -> str:
        text = ("..." if begin else "") + text[begin:]
        return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."

    return cut(one), cut(other)


def drift_lines(results: t.Iterable[t.Mapping[str, t.Any]], host: str = "") -> list[tuple[str, ...]]:
    """One row per difference below a row of titles; empty when nothing differs.

    ``results`` are results of ``sglang_ready`` with the ``drift`` of ``sglang_drift``.
    """
    rows = []
    for result in results:
        name = str(result.get("unit", "")).removeprefix("sglang-").removesuffix(".service")
        for found in result.get("drift") or ():
            place = _PLACES.get(found["where"], found["where"])
            if found["where"] == "drop_in":
                place = f"drop-in {found['path']}"
            values = _shortened(_text(found["asked"]), _text(found["found"]))
            rows.append((str(result.get("host") or host), name, place, found["name"], *values, found["needs"]))
    return [_COLUMNS, *rows] if rows else []
