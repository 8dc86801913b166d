# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Numbers of the role about starts: those of the wait, and those of systemd. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.specdec.serving.plugins.module_utils._ready_options import number_faults
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import mapping_of

__all__ = [
    "check_wait",
    "start_limit_warnings",
    "wait_variable",
]

#: What a number of the units must be at least.
_LEAST: t.Final = {
    "drain_timeout": 0.0,
    "restart_delay": 0.0,
    "start_limit_burst": 0.0,
    "start_limit_interval": 0.0,
    "stop_timeout": 1.0,
}


def start_limit_warnings(limits: t.Any, *, errors: list[str]) -> list[str]:
    """Whether systemd gives up on a server that fails as late as a start may last, and does not start it for ever.

    Numbers that cannot be used are added to ``errors``: what is told later is told after something was changed.
    """
    values = mapping_of(limits, origin="sglang_start_limit_*", errors=errors)
    if not values:
        return []
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if name == "timeout" and value == "auto":
            continue
        spelt = f"sglang_{'ready_timeout' if name == 'timeout' else name}"
        try:
            # From the command line (-e) numbers come as text.
            number = float(value)
        except (TypeError, ValueError):
            errors.append(f"{spelt} {value!r} is no number")
            continue
        least = _LEAST.get(name, float("-inf"))
        if not least <= number < float("inf"):
            # systemd takes a stop timeout of 0 for none at all.
            errors.append(f"{spelt} {value!r} must be a number of {least:g} or more")
            continue
        numbers[name] = number
    if not {"start_limit_interval", "start_limit_burst", "restart_delay", "timeout"} <= numbers.keys():
        return []
    burst, interval = numbers["start_limit_burst"], numbers["start_limit_interval"]
    if burst < 1 or interval <= 0:
        return [
            "sglang_start_limit_burst or sglang_start_limit_interval is 0: a server that fails is started again for ever"
        ]
    # systemd counts starts from the first of an interval on, and begins anew after it.
    least = burst * (numbers["timeout"] + numbers["restart_delay"])
    if interval >= least:
        return []
    text = (
        f"sglang_start_limit_interval {interval:g} s is over before {burst:g} starts of up to sglang_ready_timeout {numbers['timeout']:g} s"
        f" have failed, so systemd may start a slow failing server for ever; make it {least:g} or more"
    )
    return [text]


def wait_variable(option: str) -> str:
    """The role's variable for an option of the wait."""
    return "sglang_evidence_keep" if option == "keep_evidence" else f"sglang_ready_{option}"


def check_wait(wait: t.Any, *, errors: list[str]) -> Mapping[str, t.Any]:
    """Options of the wait as the role's variables have them, told before anything is restarted when they cannot be used.

    Returns the numbers, without those that are left to the module.
    """
    numbers: dict[str, t.Any] = {}
    for option, value in mapping_of(wait, origin="sglang_ready_*", errors=errors).items():
        if option == "timeout":
            numbers[option] = value
            continue
        try:
            # From the command line (-e) numbers come as text.
            number = float(value)
        except (TypeError, ValueError):
            errors.append(f"{wait_variable(option)} {value!r} is no number")
            continue
        # Below 0 these are left to the module.
        left = number < 0 and option in ("generation_tokens", "stall_timeout", "spin_timeout")
        numbers[option] = None if left else number
    if "timeout" in numbers:
        errors.extend(number_faults(numbers, spelt=wait_variable))
    return numbers
