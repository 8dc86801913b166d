# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the sweep's tasks.

Ansible loads every file of this folder as soon as a play uses one filter of the collection. What these need (Optuna takes a third of a
second) is therefore loaded by the first use, so that a deployment does without.
"""

from __future__ import annotations

import importlib
import typing as t

_UTILS = "ansible_collections.specdec.serving.plugins.plugin_utils"
#: Name to the file that has it, and whether it is given plain values.
_FILTERS: t.Mapping[str, tuple[str, bool]] = {
    "sweep_plan": ("_sweep_text", True),
    "sweep_summary": ("_sweep_text", True),
    "trial_failure": ("_trial_failure", True),
    "trial_headline": ("_trials", False),
    "trial_times": ("_sweep_text", True),
    "with_trial": ("_trial_entry", False),
    "without_keys": ("_trial_entry", False),
}


def _filter(name: str) -> t.Callable[..., t.Any]:
    file, plainly = _FILTERS[name]

    def call(*args: t.Any, **kwargs: t.Any) -> t.Any:
        function = getattr(importlib.import_module(f"{_UTILS}.{file}"), name)
        if plainly:
            plain = importlib.import_module(f"{_UTILS}._slices").plain
            return function(*(plain(one) for one in args), **{key: plain(one) for key, one in kwargs.items()})
        return function(*args, **kwargs)

    return call


class FilterModule:
    """``sweep_plan``, ``sweep_summary``, ``trial_failure``, ``trial_headline``, ``trial_times``,
    ``with_trial``, ``without_keys``; documented in the YAML files of their names."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {name: _filter(name) for name in _FILTERS}
