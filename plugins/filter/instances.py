# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters with which the role sglang turns its variables into units."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.specdec.serving.plugins.plugin_utils._drift import server_options
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_host import resolve_engine
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import InstancesError
from ansible_collections.specdec.serving.plugins.plugin_utils._instances import (
    instance_secrets,
    preflight_options,
    resolve_instances,
    unit_options,
)

_Result = t.TypeVar("_Result")


def _explained(function: t.Callable[..., _Result]) -> t.Callable[..., _Result]:
    def call(*args: t.Any, **kwargs: t.Any) -> _Result:
        try:
            return function(*args, **kwargs)
        except InstancesError as exc:
            heading = "this cannot be deployed; nothing on the host was changed:"
            # Not "from exc": Ansible would append the same text once more.
            raise AnsibleFilterError("\n".join([heading, *(f"- {error}" for error in exc.errors)])) from None

    return call


class FilterModule:
    """What the role's variables become; each is documented in the YAML file of its name."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {
            "sglang_checks": _explained(preflight_options),
            "sglang_engine": _explained(resolve_engine),
            "sglang_instances": _explained(resolve_instances),
            "sglang_secrets": _explained(instance_secrets),
            "sglang_servers": server_options,
            "sglang_units": _explained(unit_options),
        }
