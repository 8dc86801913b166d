# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which units of a host the role sglang wrote, and which of them nobody lists any more. PRIVATE to the collection.

A unit is ours when its own file begins with the role's line for that very unit, so that neither foreign files nor copies of
ours are; or when there is a record of it in the state folder, which is what a removal that was interrupted leaves.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, show
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import read_state

__all__ = ("OwnUnit", "find_units")

_UNIT = re.compile(r"sglang-(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*(@[0-9]+)?)\.service\Z")
#: The first line of templates/sglang.service.j2.
_HEADER = "# {unit}: written by the role specdec.serving.sglang. "


@dataclasses.dataclass(frozen=True)
class OwnUnit:
    """One unit of ours. ``since`` is when it came into its state (UTC, '' = it has been so since boot or is not known to systemd)."""

    name: str
    unit: str
    active_state: str
    sub_state: str
    since: str
    enabled: bool
    has_unit_file: bool
    control_group: str = ""

    @property
    def text(self) -> str:
        """`sglang-old.service: active (running) since 2026-11-29 22:40:11 UTC, starts at boot`."""
        since = f" since {self.since}" if self.since else ""
        boot = "starts at boot" if self.enabled else "does not start at boot"
        files = boot if self.has_unit_file else "only other files of it are left"
        return f"{self.unit}: {self.active_state} ({self.sub_state}){since}, {files}"

    def as_dict(self) -> dict[str, t.Any]:
        """For results."""
        found = dataclasses.asdict(self)
        del found["control_group"]
        return {**found, "text": self.text}


def _begins_with_our_line(path: str, unit: str) -> bool:
    # A link leads to a file of somebody else, or masks the unit.
    if os.path.islink(path):
        return False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().startswith(_HEADER.format(unit=unit))
    except OSError:
        return False


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _utc(microseconds: int) -> str:
    """A time of CLOCK_MONOTONIC as the clock on the wall shows it."""
    if not microseconds:
        return ""
    seconds = time.time() - (time.monotonic() - microseconds / 1e6)
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def find_units(runner: Runner, *, unit_dir: str, state_dir: str, without: t.Collection[str] = ()) -> list[OwnUnit]:
    """The units of ours but those named in ``without``, by name.

    :raises SystemdError: when systemd cannot be asked.
    """
    files = {}
    for unit in _names(unit_dir):
        found = _UNIT.match(unit)
        if found and _begins_with_our_line(f"{unit_dir}/{unit}", unit):
            files[unit] = found.group("name")
    ours = dict(files)
    for file_name in _names(state_dir):
        name, extension = os.path.splitext(file_name)
        unit = f"sglang-{name}.service"
        # Where somebody put another file in the place of ours, the unit is theirs.
        if extension != ".json" or not _UNIT.match(unit) or os.path.lexists(f"{unit_dir}/{unit}"):
            continue
        if os.path.isfile(f"{state_dir}/{file_name}") and read_state(state_dir, name).get("unit") == unit:
            ours[unit] = name
    units = []
    for unit, name in sorted(ours.items()):
        if unit in without:
            continue
        state = show(runner, unit)
        units.append(
            OwnUnit(
                name=name,
                unit=unit,
                active_state=state.active_state,
                sub_state=state.sub_state,
                since=_utc(state.state_change_us),
                enabled=state.unit_file_state == "enabled",
                has_unit_file=unit in files,
                control_group=state.control_group,
            )
        )
    return units
