# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances of the stand-in, as an inventory of the role names them."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.tests.support.observer.units import MODEL_PATH


def instance(name: str = "a", port: int | str = 30100, **changes: t.Any) -> dict[str, t.Any]:
    """An entry of ``sglang_instances`` that starts in a moment, with a DFLASH draft."""
    return {
        "name": name,
        "model_path": MODEL_PATH,
        "port": port,
        "args": {
            "tp_size": 2,
            "disable_cuda_graph": True,
            "speculative_algorithm": "DFLASH",
            "speculative_draft_model_path": "/models/stand-in-draft",
            "speculative_dflash_block_size": 8,
        },
        "env": {"STAND_IN_SCALE": "0.002"},
        **changes,
    }


__all__ = ("MODEL_PATH", "instance")
