# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files beside a unit file that change it (systemd.unit(5), "drop-in"). PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import glob
import os

from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, UnitState, show
from ansible_collections.specdec.serving.plugins.module_utils._systemd_reading import parse_unit

__all__ = ("TRIAL", "DropIn", "drop_in_paths", "drop_ins_of", "show_with_drop_ins")

#: Name of the file with which a trial changes a unit for a while (``_trial_unit.py``).
TRIAL = "90-specdec-trial.conf"
#: Where drop-ins of an administrator lie, the first outdoing the others (systemd.unit(5), "UNIT FILE LOAD PATH"); the
#: folder of our units stands between the two parts.
_FOLDERS_ABOVE = ("/etc/systemd/system.control", "/run/systemd/system.control")
_FOLDERS_BELOW = ("/run/systemd/system",)
#: Drop-ins of the distribution, mostly for services of all kinds.
_VENDOR_FOLDERS = ("/usr/lib/", "/lib/", "/usr/local/lib/")


@dataclasses.dataclass(frozen=True)
class DropIn:
    """One such file. ``vendor``: of the distribution, for units of every kind."""

    path: str
    text: str
    vendor: bool = False

    @property
    def is_trial(self) -> bool:
        """Whether it is a trial's, which goes away by itself."""
        return os.path.basename(self.path) == TRIAL

    def warning(self, unit: str) -> str:
        """What a deployment says of it, which leaves it alone; '' where it changes nothing, or is the distribution's."""
        keys = list(dict.fromkeys(key for _section, key in parse_unit(self.text)))
        if not keys or self.vendor:
            return ""
        if self.is_trial:
            return f"{unit}: a trial goes on in it ({self.path}), and takes precedence until it ends"
        return (
            f"{unit}: the drop-in {self.path} sets {', '.join(keys)}. It is not of this role, which leaves it where it is:"
            " remove it, or set the same in the inventory"
        )


def _names(unit: str) -> list[str]:
    """Folders with drop-ins of one service, the nearest first: `a-b@0.service.d`, `a-b@.service.d`, `a-.service.d`, `service.d`."""
    stem = unit.removesuffix(".service")
    prefix, sign, _instance = stem.partition("@")
    names = [stem, *([f"{prefix}@"] if sign else [])]
    parts = prefix.split("-")
    names += ["-".join(parts[:count]) + "-" for count in range(len(parts) - 1, 0, -1)]
    return [f"{name}.service.d" for name in names] + ["service.d"]


def _folders(unit_dir: str) -> tuple[str, ...]:
    return (*_FOLDERS_ABOVE, unit_dir, *_FOLDERS_BELOW)


def _files(folder: str) -> list[str]:
    return sorted(glob.glob(f"{glob.escape(folder)}/*.conf"))


def _unread(state: UnitState, unit: str, unit_dir: str) -> bool:
    """Whether a drop-in lies in a folder that systemd does not know.

    It remembers which folders there are: one that was made since its last reload is not among them, and then it does not say
    that it has to reload (seen with 252).
    """
    if state.load_state != "loaded":
        return False
    known = {os.path.basename(path) for path in state.drop_in_paths}
    return any(
        os.path.basename(path) not in known and os.path.isfile(path) and os.path.getsize(path) > 0
        for folder in _folders(unit_dir)
        for path in _files(f"{folder}/{unit}.d")
    )


def show_with_drop_ins(runner: Runner, unit: str, unit_dir: str) -> UnitState:
    """The unit's state, where ``need_daemon_reload`` is true for drop-ins in new folders, too; see :func:`_systemd.show`."""
    state = show(runner, unit)
    if state.need_daemon_reload or not _unread(state, unit, unit_dir):
        return state
    return dataclasses.replace(state, need_daemon_reload=True)


def drop_in_paths(state: UnitState, unit: str, unit_dir: str) -> list[str]:
    """Drop-ins of a unit: those that systemd has read or, where it has to read them again, those that lie there."""
    if not state.need_daemon_reload:
        return list(state.drop_in_paths)
    found: dict[str, str] = {os.path.basename(path): path for path in state.drop_in_paths if os.path.exists(path)}
    for name in reversed(_names(unit)):
        for folder in reversed(_folders(unit_dir)):
            # One name counts once: the nearest folder.
            found.update((os.path.basename(path), path) for path in _files(f"{folder}/{name}"))
    return [found[name] for name in sorted(found)]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def drop_ins_of(state: UnitState, unit: str, unit_dir: str) -> tuple[DropIn, ...]:
    """The drop-ins of a unit with their texts, in systemd's order."""
    return tuple(
        DropIn(path, _read(path), vendor=path.startswith(_VENDOR_FOLDERS))
        for path in drop_in_paths(state, unit, unit_dir)
    )
