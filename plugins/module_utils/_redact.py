# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removal of secrets from everything that leaves the host. PRIVATE to the collection.

SGLang itself prints its keys: in the journal's ``server_args=`` line, in ``/server_info`` (``api_key``,
``admin_api_key`` and the expanded ``launch_command``) and, when they are given as arguments, in
``/proc/PID/cmdline`` (SGLang 0.5.23 ``entrypoints/engine.py:173,1185``).
"""

from __future__ import annotations

import re
import typing as t

MASK = "********"

#: SGLang arguments whose value is a secret, by dest (0.5.23 ``arg_groups/fields/serving.py``).
SECRET_ARGUMENTS = ("admin_api_key", "api_key", "ssl_keyfile_password")

_NAMES = "|".join(name.replace("_", "[-_]") for name in SECRET_ARGUMENTS)
# A quoted value may hold anything but its quote; a bare one ends at white space or a closing sign.
_VALUE = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?!None\b|null\b)[^\s,)}\]'"]+)"""
_PATTERNS = (
    # --api-key VALUE, --api-key=VALUE
    re.compile(r"(?P<keep>--(?:" + _NAMES + r")(?:=|\s+))(?P<value>" + _VALUE + ")"),
    # 'api_key': 'VALUE', "api_key": "VALUE", api_key='VALUE', api-key: VALUE (a YAML line)
    re.compile(r"(?P<keep>(?<![-\w])['\"]?(?:" + _NAMES + r")['\"]?\s*[:=]\s*)(?P<value>" + _VALUE + ")"),
    re.compile(r"(?P<keep>\bBearer\s+)(?P<value>[^\s'\",]+)", re.IGNORECASE),
)


def _mask(match: t.Match[str]) -> str:
    value = match.group("value")
    quote = value[0] if value[0] in "'\"" else ""
    return match.group("keep") + quote + MASK + quote


def redact_text(text: str, secrets: t.Iterable[str] = ()) -> str:
    """Mask secret arguments by their name and every string of ``secrets`` wherever it stands in ``text``."""
    for pattern in _PATTERNS:
        text = pattern.sub(_mask, text)
    # The longest first: one key may be the beginning of another.
    for secret in sorted(set(filter(None, secrets)), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def redact(value: t.Any, secrets: t.Iterable[str] = ()) -> t.Any:
    """The same for a whole structure of dicts, lists and strings; values under a secret argument's name are masked."""
    known = tuple(secrets)
    if isinstance(value, str):
        return redact_text(value, known)
    if isinstance(value, dict):
        return {
            key: MASK
            if isinstance(key, str) and key.replace("-", "_") in SECRET_ARGUMENTS and item
            else redact(item, known)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact(item, known) for item in value]
    return value


# --- command lines, also those of foreign programs --------------------------------------------------------------------------

_SECRET_NAME = r"[\w-]*(?:api[-_]?key|passw(?:or)?d|passphrase|secret|token|credential)"
_SECRET_FLAG = re.compile(rf"^--?{_SECRET_NAME}$", re.IGNORECASE)
_SECRET_PAIR = re.compile(rf"(?<![\w-])((?:--?)?{_SECRET_NAME}\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s'\"]+)", re.IGNORECASE)
_SECRET_WORDS = re.compile(rf"(?<![\w-])(--?{_SECRET_NAME}\s+)(\"[^\"]*\"|'[^']*'|[^\s'\"]+)", re.IGNORECASE)
_BEARER = re.compile(r"(\b(?:Bearer|Basic)\s+)[^\s'\"]+", re.IGNORECASE)
_USERINFO = re.compile(r"(\w://[^\s/:@]*:)[^\s/@]+@")
# argparse takes abbreviations: --api-k KEY sets the key as well.
_SGLANG_SECRETS = (("--api-key", 4), ("--admin-api-key", 4), ("--ssl-keyfile-password", len("--ssl-keyfile-")))


def _is_secret_flag(word: str) -> bool:
    if _SECRET_FLAG.match(word):
        return True
    return any(len(word) >= least and full.startswith(word) for full, least in _SGLANG_SECRETS)


def mask_command(words: t.Sequence[str]) -> str:
    """A command line for a message, its secrets masked: `--api-key X`, `--api-key=X`, `TOKEN=X`, `user:X@host`."""
    if len(words) == 1:  # a title set by the process itself: one string, perhaps padded
        words = words[0].split()
    shown: list[str] = []
    hide_next = False
    for word in words:
        if hide_next:
            shown.append(MASK)
            hide_next = False
            continue
        flag, equals, _value = word.partition("=")
        if equals and _is_secret_flag(flag):
            shown.append(f"{flag}={MASK}")
            continue
        hide_next = _is_secret_flag(word)
        for pattern in (_SECRET_PAIR, _SECRET_WORDS, _BEARER):
            word = pattern.sub(rf"\g<1>{MASK}", word)
        shown.append(_USERINFO.sub(rf"\g<1>{MASK}@", word))
    return " ".join(shown)


__all__ = ("MASK", "SECRET_ARGUMENTS", "mask_command", "redact", "redact_text")
