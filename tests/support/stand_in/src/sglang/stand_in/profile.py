# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Profiles: what differs between SGLang releases, as data.

A profile is a folder `profiles/VERSION/`: `profile.json` (order of the ranks' stages, texts of the log),
`arguments.json` (the argparse actions), `resolved.json` (order of the resolved arguments and the values the real
engine puts where nothing was asked), `metrics.txt` (the shape of `/metrics`).
"""

from __future__ import annotations

import json
import os
from typing import Any

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles")


class Profile:
    """One release. Raises FileNotFoundError for a version without a folder."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._folder = os.path.join(_FOLDER, version)
        self._data: dict[str, Any] = self.load("profile.json")
        self.rank_stages: list[str] = self._data["rank_stages"]
        self.model_info_embedding: dict[str, Any] = self._data["model_info_embedding"]
        self._messages: dict[str, str] = self._data["messages"]

    def has(self, endpoint: str) -> bool:
        """Whether this release has the endpoint `/NAME` (only those that came or went are listed)."""
        return bool(self._data["endpoints"][endpoint])

    def text(self, name: str) -> str:
        with open(os.path.join(self._folder, name), encoding="utf-8") as stream:
            return stream.read()

    def load(self, name: str) -> Any:
        return json.loads(self.text(name))

    def message(self, key: str, **values: Any) -> str:
        """The log text `key` of this release with its values filled in."""
        return self._messages[key].format(**values)


def current() -> Profile:
    """The profile this wheel was built for."""
    from sglang.version import __version__

    return Profile(__version__)
