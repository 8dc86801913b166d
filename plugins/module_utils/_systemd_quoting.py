# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write values into unit and environment files so that systemd reads back the same bytes. PRIVATE to the collection.

systemd has several grammars, and no quoting function of another language fits any of them:

=====================  =======================================================================
where                  what is special (man page)
=====================  =======================================================================
a word of ExecStart=   quotes and C escapes (systemd.syntax(7)), then ``%`` specifiers
                       (systemd.unit(5)), then ``$`` variables, also inside quotes, and ``;``
                       alone (systemd.service(5), "COMMAND LINES")
a word of a list       quotes, C escapes, ``%`` specifiers; no variables (RequiresMountsFor=)
a single value         only ``%`` specifiers; quotes and backslashes are literal (Description=,
                       WorkingDirectory=, EnvironmentFile=, LoadCredential=)
an EnvironmentFile     double quotes as in a POSIX shell: a backslash counts only before
                       ``"``, ``\\``, a back-tick and ``$``; no specifiers, no variables
                       (systemd.exec(5))
=====================  =======================================================================

Refused everywhere, since no grammar carries them on every release: newline, NUL, and text that is not
valid Unicode (a lone surrogate). Each error quotes the value and says where it came from.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

__all__ = [
    "CredentialFile",
    "QuotingError",
    "environment_file",
    "environment_line",
    "exec_line",
    "exec_word",
    "list_word",
    "setting_value",
]

# Characters that are literal in every grammar above, so that the usual unit stays readable.
_BARE_WORD = re.compile(r"[A-Za-z0-9_./:,=+@-]+\Z")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CREDENTIAL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*\Z")

# Linux refuses to execute with one argument (or variable) above MAX_ARG_STRLEN, its NUL included (execve(2)).
_MAX_WORD_BYTES = 131072
# systemd reads configuration lines, continuations included, up to LONG_LINE_MAX (1 MiB).
_MAX_LINE_BYTES = 1024 * 1024


class QuotingError(ValueError):
    """A value that systemd cannot carry unchanged."""


@dataclass(frozen=True)
class CredentialFile:
    """The one word of a command line that systemd is meant to expand: a file among the unit's credentials.

    A type of its own, so that a user's value that looks the same is still escaped.
    ``${CREDENTIALS_DIRECTORY}`` exists since systemd 247 together with LoadCredential=; the specifier ``%d``
    means the same folder, but only since systemd 250, and is therefore not used.
    """

    name: str

    def __post_init__(self) -> None:
        if not _CREDENTIAL_NAME.match(self.name):
            raise QuotingError(
                f"{self.name!r} is no name for a credential file:"
                " letters, digits, '_', '.', '@' and '-' only, not starting with '.', '@' or '-'"
            )

    def __str__(self) -> str:
        return "${CREDENTIALS_DIRECTORY}/" + self.name


def _is_noncharacter(code: int) -> bool:
    return 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE


def _checked(value: str, *, origin: str) -> str:
    if not isinstance(value, str):
        raise QuotingError(f"{origin}: {value!r} is not a string")
    if "\n" in value:
        raise QuotingError(f"{origin}: {value!r} contains a newline; a value must be a single line")
    if "\0" in value:
        raise QuotingError(f"{origin}: {value!r} contains a NUL character, which no argument or variable can hold")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as exc:
        raise QuotingError(
            f"{origin}: {value!r} is not valid Unicode text (lone surrogate at position {exc.start}),"
            " probably a file name in another encoding than UTF-8"
        ) from exc
    if size + 1 > _MAX_WORD_BYTES:
        raise QuotingError(f"{origin}: {value[:40]!r}... has {size} bytes; Linux takes at most {_MAX_WORD_BYTES - 1}")
    # value may be a subclass of str (Ansible tags its values); join gives back a plain one.
    return "".join(value)


def _quoted(value: str, *, variables: bool) -> str:
    parts = ['"']
    for char in value:
        code = ord(char)
        if char in '"\\':
            parts.append("\\" + char)
        elif char == "%":
            parts.append("%%")
        elif char == "$" and variables:
            parts.append("$$")
        elif code < 0x20 or code == 0x7F or _is_noncharacter(code):
            # A raw carriage return ends the line for systemd, and a noncharacter makes it drop the line as "not UTF-8".
            parts.extend(f"\\x{byte:02x}" for byte in char.encode("utf-8"))
        else:
            parts.append(char)
    parts.append('"')
    return "".join(parts)


def exec_word(value: str | CredentialFile, *, origin: str) -> str:
    """Return one argument of ``ExecStart=``.

    :param value: the argument as the program shall see it, or a :class:`CredentialFile`.
    :param origin: where the value comes from, for the error.
    :raises QuotingError: when systemd cannot carry the value.
    """
    if isinstance(value, CredentialFile):
        return str(value)
    value = _checked(value, origin=origin)
    return value if _BARE_WORD.match(value) else _quoted(value, variables=True)


def exec_line(words: t.Sequence[str | CredentialFile], *, origin: str) -> str:
    """Return the value of ``ExecStart=``: one option with its values per line, so that a diff shows one option.

    The first word is the program: an absolute path, without ``$`` (systemd expands ``$$`` in argv[0] but not
    in the path that it executes).

    :raises QuotingError: for a program or a word that systemd cannot carry.
    """
    if not words:
        raise QuotingError(f"{origin}: an empty command line")
    program = words[0]
    if isinstance(program, CredentialFile) or not program.startswith("/") or "$" in program:
        raise QuotingError(f"{origin}: the program must be an absolute path without '$', not {str(program)!r}")
    lines = [exec_word(program, origin=origin)]
    for word in words[1:]:
        text = exec_word(word, origin=origin)
        # Only a line break for reading: systemd joins continued lines with a space.
        if isinstance(word, str) and word.startswith("--") and len(word) > 2:
            lines.append(text)
        else:
            lines[-1] += " " + text
    result = " \\\n  ".join(lines)
    if len(result.encode("utf-8")) > _MAX_LINE_BYTES - 64:
        raise QuotingError(f"{origin}: the command line is longer than the 1 MiB that systemd reads")
    return result


def list_word(value: str, *, origin: str) -> str:
    """Return one word of a list setting, such as ``RequiresMountsFor=`` or ``ReadWritePaths=``.

    :raises QuotingError: when systemd cannot carry the value.
    """
    value = _checked(value, origin=origin)
    return value if _BARE_WORD.match(value) else _quoted(value, variables=False)


def setting_value(value: str, *, origin: str) -> str:
    """Return the value of a single-value setting, such as ``Description=`` or ``WorkingDirectory=``.

    systemd knows no quotes here: what it would strip or join (outer white space, a last backslash, control
    characters) is refused.

    :raises QuotingError: when systemd cannot carry the value.
    """
    value = _checked(value, origin=origin)
    if value != value.strip(" \t\r"):
        raise QuotingError(f"{origin}: {value!r} starts or ends with white space, which systemd strips")
    if value.endswith("\\"):
        raise QuotingError(f"{origin}: {value!r} ends with a backslash, which systemd takes as a continued line")
    for char in value:
        code = ord(char)
        if (code < 0x20 and char != "\t") or code == 0x7F or _is_noncharacter(code):
            raise QuotingError(f"{origin}: {value!r} contains the control character or noncharacter {char!r}")
    return value.replace("%", "%%")


def environment_line(name: str, value: str, *, origin: str) -> str:
    """Return ``NAME="value"`` for a file that ``EnvironmentFile=`` names.

    :raises QuotingError: for a name that is no variable name or a value that systemd would drop.
    """
    if not isinstance(name, str) or not _VARIABLE_NAME.match(name):
        raise QuotingError(f"{origin}: {name!r} is no name for an environment variable: letters, digits and '_' only")
    value = _checked(value, origin=f"{origin}: {name}")
    for char in value:
        if _is_noncharacter(ord(char)) or char == "\ufeff":
            raise QuotingError(
                f"{origin}: {name}: {value!r} contains {char!r}, for which systemd ignores the assignment"
            )
    return "".join(name) + '="' + re.sub(r'(["\\`$])', r"\\\1", value) + '"'


def environment_file(values: t.Mapping[str, str], *, origin: str) -> str:
    """Return the text of an environment file, sorted by name, so that equal content gives an equal hash.

    :raises QuotingError: see :func:`environment_line`.
    """
    return "".join(environment_line(name, values[name], origin=origin) + "\n" for name in sorted(values))
