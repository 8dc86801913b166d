# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file that holds a server's keys, and how files of secrets are named. PRIVATE to the collection.

A file of secrets is never changed: another content is another file, so that the unit file, which names it, decides which one
counts. Its name is random, since a hash of a secret in a public unit file would give something of it away.
"""

from __future__ import annotations

import json
import re
import typing as t

__all__ = ("UNCHOSEN", "credential_text", "is_chosen", "key_in")

#: Stands in the name of a file of secrets until the host has found one with this content, or made one.
UNCHOSEN: t.Final = "@SECRET@"
#: What takes its place.
_CHOSEN = re.compile(r"[0-9a-f]{16}")
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_-]+):[ \t]+(?P<value>\S.*)")


def is_chosen(word: str) -> bool:
    """Whether this is what a host puts in the place of ``UNCHOSEN``."""
    return _CHOSEN.fullmatch(word) is not None


def credential_text(keys: t.Mapping[str, str]) -> str:
    """The YAML that SGLang merges by ``--config`` (srt/utils/server_args_config_parser.py): one JSON string per key."""
    return "".join(f"{name.replace('_', '-')}: {json.dumps(keys[name])}\n" for name in sorted(keys))


def key_in(text: str, name: str = "api_key") -> str:
    """The key called so in the text of :func:`credential_text`, '' when there is none.

    :raises ValueError: when its value is no JSON string; the text is not quoted.
    """
    for line in text.splitlines():
        found = _LINE.fullmatch(line.strip())
        if found and found["name"].replace("-", "_") == name:
            try:
                value = json.loads(found["value"])
            except ValueError:
                value = None
            if not isinstance(value, str):
                raise ValueError(f"{name} is no text in double quotes")
            return value
    return ""
