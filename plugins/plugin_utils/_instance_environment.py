# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The environment of an instance, and what in it and among its keys is secret. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.specdec.serving.plugins.module_utils._readiness import GATES, PHASES, STATES
from ansible_collections.specdec.serving.plugins.module_utils._redact import is_secret_variable
from ansible_collections.specdec.serving.plugins.module_utils._systemd_quoting import QuotingError, environment_line
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import mapping_of, plain_text, type_words

__all__ = [
    "check_key",
    "merge_environment",
]

#: What the results of our modules consist of (design: states, phases, gates, causes). Ansible masks a secret wherever
#: its text appears, so a key that equals one of them would make results unreadable and show what the key is.
#: Shorter words are refused by their length.
_RESULT_WORDS = frozenset(
    {
        # sglang_ready refuses these by itself, but only when the server was restarted already.
        *GATES,
        *PHASES,
        *STATES,
        "127.0.0.1",
        "activating",
        "changeme",
        "deactivating",
        "diagnosis",
        "follower",
        "generation",
        "inactive",
        "invocation_id",
        "localhost",
        "main_pid",
        "password",
        "port_conflict",
        "port_owned_by_other",
        "rank_straggler",
        "settings",
        "sglang.service",
        "speculation_inactive",
        "speculation_not_exercised",
        "timeline",
        "wrong_model",
    }
)

_MIN_KEY_LENGTH = 8
_UNFIT_SECRET = "holds a secret that an environment file cannot hold: give it as one line of valid text"

#: Set by systemd or by the role for the unit -> what to do instead.
_OWNED_VARIABLES: t.Final[Mapping[str, str]] = {
    "CREDENTIALS_DIRECTORY": "systemd sets it",
    "CUDA_VISIBLE_DEVICES": "set 'gpus' of the instance",
    "INVOCATION_ID": "systemd sets it",
    "JOURNAL_STREAM": "systemd sets it",
}


def merge_environment(
    layers: Sequence[tuple[str, t.Any]], *, errors: list[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Merge layers (origin, mapping), later over earlier; return (plain, secret-looking) variables."""
    merged: dict[str, tuple[str, str]] = {}
    for origin, layer in layers:
        for name, value in mapping_of(layer, origin=origin, errors=errors).items():
            if not isinstance(name, str):
                errors.append(f"{origin}: {name!r} is no variable name (not a string)")
            elif name in _OWNED_VARIABLES:
                errors.append(f"{origin}: {name!r} cannot be set here: {_OWNED_VARIABLES[name]}")
            elif value is None:
                merged.pop(name, None)
            elif isinstance(value, bool):
                errors.append(
                    f"{origin}: {name!r} is the boolean {value!r}; write the text that the program expects, quoted"
                )
            elif isinstance(value, (str, int, float)):
                merged[name] = (origin, plain_text(value) if isinstance(value, str) else repr(value))
            else:
                what = type_words(value) if is_secret_variable(name) else repr(value)
                errors.append(f"{origin}: {name!r} holds {what}, which is no text or number")
    plain: dict[str, str] = {}
    secret: dict[str, str] = {}
    for name, (origin, value) in merged.items():
        if not value or not is_secret_variable(name):
            plain[name] = value
        elif len(value) < _MIN_KEY_LENGTH:
            errors.append(
                f"{origin}: {name!r} is treated as a secret because of its name, and is shorter than"
                f" {_MIN_KEY_LENGTH} characters, so that it cannot be masked in results"
            )
        else:
            secret[name] = value
    for values, masked in ((plain, False), (secret, True)):
        for name, value in values.items():
            # The name alone first: of a secret nothing else may be quoted.
            for text, told in ((None, False), (value, masked)):
                try:
                    environment_line(name, text or "", origin=merged[name][0])
                except QuotingError as exc:
                    errors.append(f"{merged[name][0]}: {name!r} {_UNFIT_SECRET}" if told else str(exc))
                    break
    return plain, secret


def check_key(key: t.Any, *, origin: str, words: t.Iterable[str], errors: list[str]) -> None:
    """Check one key; no message quotes it."""
    if key is None:
        return
    if not isinstance(key, str):
        errors.append(f"{origin} is no text (a number such as 12345678 must be quoted)")
        return
    key = plain_text(key)
    if len(key) < _MIN_KEY_LENGTH:
        errors.append(f"{origin} is shorter than {_MIN_KEY_LENGTH} characters; leave it out to have no key")
    elif not re.fullmatch(r"[\x21-\x7e]+", key):
        errors.append(
            f"{origin} holds a character that an HTTP header cannot carry: printable ASCII without spaces only"
        )
    elif key.startswith("-"):
        errors.append(f"{origin} starts with '-', so SGLang would take it for an option")
    elif key in _RESULT_WORDS or any(key in word for word in words):
        errors.append(
            f"{origin} equals a word of our results (a state, port, id, path or unit name), which Ansible would mask"
            " everywhere; choose a random key"
        )
