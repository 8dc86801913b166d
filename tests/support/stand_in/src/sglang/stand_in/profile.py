# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Profiles: what differs between SGLang releases, as data.

A profile is a folder `profiles/VERSION/`: `profile.json` (where it is from, order of the ranks' stages, endpoints,
traits, texts of the log), `arguments.json` (the argparse actions), `resolved.json` (order of the resolved arguments and
the values the real engine puts where nothing was asked), `metrics.txt` (the shape of `/metrics`).

Traits: `prog` (argparse's), `launch_warning` (of `python -m sglang.launch_server`), `renamed_arguments` (argparse dest to
the field that the engine keeps it in), `server_args_line` (mapping, dataclass), `rank_prefix` (dimensions: those above
1; always_tp), `draft_captures` (labels of the draft's graphs by algorithm, `*` = any other), `child_watchdog` (a dead child
ends the server), `crash_diagnostics` (5 s and py-spy before it ends itself), `logs_kill`, `dead_rank` (how main tells of
a rank that died while loading: raise, log), `drain_ends` (exit: status 0; kill: SIGKILL of itself), `bind_failed_status`,
`health` (generates; trivial: 200 as soon as the port is open), `open_prefixes` (paths without a key), `loopback_info`
(what the warm-up asks), `server_info` (full, plain, flat: internal states merged in), `spec_meta` (keys of meta_info to
their meaning), `chat_spec_details` (a chat tells them when it is asked to), `meta_info` (keys in order; null = all that the stand-in knows).
"""

from __future__ import annotations

import json
import os
from typing import Any

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles")


class Profile:
    """One release. Raises ValueError for a version without a folder."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._folder = os.path.join(_FOLDER, version)
        if not os.path.isdir(self._folder):
            raise ValueError(f"no profile of release {version!r} here: there are {sorted(os.listdir(_FOLDER))}")
        self._data: dict[str, Any] = self.load("profile.json")
        self.rank_stages: list[str] = self._data["rank_stages"]
        self.traits: dict[str, Any] = self._data["traits"]
        self.model_info_embedding: dict[str, Any] | None = self._data["model_info_embedding"]
        self._messages: dict[str, str] = self._data["messages"]

    def has(self, endpoint: str) -> bool:
        """Whether this release has the endpoint (only those that came or went are listed)."""
        return bool(self._data["endpoints"].get(endpoint, True))

    def text(self, name: str) -> str:
        with open(os.path.join(self._folder, name), encoding="utf-8") as stream:
            return stream.read()

    def load(self, name: str) -> Any:
        return json.loads(self.text(name))

    def says(self, key: str) -> bool:
        """Whether this release logs the text `key` at all."""
        return key in self._messages

    def message(self, key: str, **values: Any) -> str:
        """The log text `key` of this release with its values filled in."""
        return self._messages[key].format(**values)


def current() -> Profile:
    """The release that STAND_IN_RELEASE names, else the one this wheel was built for.

    A wheel holds one profile; the source tree holds all.
    """
    from sglang.version import __version__

    return Profile(os.environ.get("STAND_IN_RELEASE") or __version__)
