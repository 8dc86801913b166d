# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which values must not be seen in evidence: those of environment files, command lines and files of keys. PRIVATE to the collection."""

from __future__ import annotations

import json
import os
import re
import shlex
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._redact import is_secret_variable, secret_words

__all__ = (
    "Secrets",
    "settings_in",
    "words_of",
)

_SETTING = re.compile(
    r"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\n]*)", re.MULTILINE | re.DOTALL
)


def _plain_value(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def settings_in(text: str) -> list[tuple[str, str]]:
    """NAME and value of each line of an environment file (systemd.exec(5)), without quotes."""
    return [(match.group(1), _plain_value(match.group(2))) for match in _SETTING.finditer(text)]


def words_of(text: str) -> list[str]:
    """The words of a command line, as a shell splits them."""
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


_YAML_LINE = re.compile(r"^[ \t]*['\"]?([\w-]+)['\"]?[ \t]*:[ \t]*(.*)$", re.MULTILINE)


def _yaml_value(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


class Secrets:
    """Collects what must not be seen."""

    #: Of these each text holds plenty that is no secret.
    _COMMON = re.compile(r"(?:true|false|none|null|auto|default|enabled|disabled|[0-9.]{0,7})\Z", re.IGNORECASE)

    def __init__(self, given: t.Iterable[str] = ()) -> None:
        self.found = {secret for secret in given if secret}

    def value(self, value: str) -> None:
        """A value under a name that looks secret. A path tells where a secret lies, and is needed to understand a failure."""
        if len(value) >= 6 and not self._COMMON.match(value) and not (value.startswith("/") and os.path.exists(value)):
            self.found.add(value)
            if "\n" in value:  # a log shows its lines one by one
                self.found.update(line for line in value.splitlines() if len(line) >= 6)

    def variables(self, settings: t.Iterable[tuple[str, str]]) -> None:
        for name, value in settings:
            if is_secret_variable(name):
                self.value(value)

    def command(self, words: t.Sequence[str]) -> None:
        for value in secret_words(words):
            self.value(value)

    def credential(self, text: str, *, every: bool) -> None:
        """A file of keys: with ``every`` each value in it, else those of names that look secret."""
        pairs = [(name, _yaml_value(value)) for name, value in _YAML_LINE.findall(text)]
        if not pairs and every:
            self.value(text.strip())
        for name, value in pairs:
            if every or is_secret_variable(name.replace("-", "_")):
                self.value(value)
