# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that modules of units share, and what is made of them. PRIVATE to the collection.

Documented in ``plugins/doc_fragments/_units.py``.
"""

from __future__ import annotations

import pwd
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._systemd import check_unit_name
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import Instance, Layout, UnitError

__all__ = ("CONFIG", "FOLDERS", "INSTANCES", "instances_from", "layout_from")

FOLDERS: dict[str, t.Any] = {
    "unit_dir": {"type": "path", "default": "/etc/systemd/system"},
    "state_dir": {"type": "path", "default": "/var/lib/specdec/sglang"},
}

CONFIG: dict[str, t.Any] = {"config_dir": {"type": "path", "default": "/etc/specdec/sglang"}}

INSTANCES: dict[str, t.Any] = {
    "units": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "unit": {"type": "str", "required": True},
            "content": {"type": "str", "default": ""},
            "environment_file": {"type": "path", "default": ""},
            "environment_text": {"type": "str", "default": ""},
            "secret_environment_file": {"type": "path", "default": ""},
            "credential": {"type": "path", "default": ""},
            "credential_by_systemd": {"type": "bool", "default": True},
            "engine": {"type": "path", "default": ""},
        },
    },
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "user": {"type": "str", "default": "sglang"},
    "cache_dirs": {"type": "list", "elements": "path", "default": []},
    "enabled": {"type": "bool", "default": True},
}


def layout_from(params: t.Mapping[str, t.Any]) -> Layout:
    """Where things go. The ids are None where the user does not exist, or none is among the options."""
    entry: pwd.struct_passwd | None = None
    if "user" in params:
        try:
            entry = pwd.getpwnam(params["user"])
        except KeyError:
            entry = None
    return Layout(
        unit_dir=params["unit_dir"],
        config_dir=params["config_dir"],
        state_dir=params["state_dir"],
        cache_dirs=tuple(params.get("cache_dirs") or ()),
        user_id=entry.pw_uid if entry else None,
        group_id=entry.pw_gid if entry else None,
    )


def instances_from(params: t.Mapping[str, t.Any]) -> list[Instance]:
    """The units as they shall be. Raises UnitError when one lacks its files, SystemdError for a name that is no unit's."""
    instances = []
    for unit in params["units"]:
        missing = [name for name in ("content", "environment_file") if not unit[name]]
        if missing:
            raise UnitError(f"units: {unit['name']!r} lacks {', '.join(missing)}")
        check_unit_name(unit["unit"])
        instances.append(Instance(**unit))
    return instances
