# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read unit and environment files as systemd does, also those that were edited by hand. PRIVATE to the collection.

The other direction of ``_systemd_quoting.py``, after the same man pages: systemd.syntax(7), systemd.unit(5) for
specifiers, systemd.service(5) "COMMAND LINES", systemd.exec(5) for ``Environment=`` and ``EnvironmentFile=``.
"""

from __future__ import annotations

import os
import re
import typing as t

__all__ = ("Settings", "environment_values", "exec_words", "expanded", "merged", "parse_unit", "split_words")

#: (section, key) to its values in the order of the file; an empty value takes those before it away.
Settings = dict[tuple[str, str], list[str]]

_BLANK = " \t\r\n"
_COMMENTS = "#;"
_SIMPLE_ESCAPES = dict(zip("abfnrtvs\\\"'", "\a\b\f\n\r\t\v \\\"'"))
_NUMERIC_ESCAPE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
#: Specifiers with one meaning for all services of the system manager (systemd.unit(5), "SPECIFIERS").
_FOLDERS = dict(zip("tSCLETVh", ("/run", "/var/lib", "/var/cache", "/var/log", "/etc", "/tmp", "/var/tmp", "/root")))
_FIXED_SPECIFIERS = {**_FOLDERS, **dict.fromkeys("ug", "root"), **dict.fromkeys("UG", "0"), "%": "%"}
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def _logical_lines(text: str) -> t.Iterator[str]:
    """Lines without comments; a line that ends in a backslash goes on in the next one, with a space in its place."""
    pending = ""
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(_BLANK)
        # A comment between the parts of a continued line does not end it.
        if line[:1] and line[0] in _COMMENTS:
            continue
        line = pending + line
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            pending = line[:-1] + " "
            continue
        pending = ""
        yield line.strip(_BLANK)
    if pending:
        yield pending.strip(_BLANK)


def parse_unit(text: str) -> Settings:
    """The settings of one unit file or drop-in. An empty value, which resets a list, stays in it as ''."""
    found: Settings = {}
    section = ""
    for line in _logical_lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        if equals and section:
            found.setdefault((section, key.rstrip(_BLANK)), []).append(value.lstrip(_BLANK))
    return found


#: Of these every further line adds to those before it (systemd.unit(5), .exec(5), .service(5)); of others the last one counts.
_LISTS = re.compile(
    r"Exec\w+|Environment|EnvironmentFile|UnsetEnvironment|PassEnvironment|\w*Paths|LoadCredential\w*|SetCredential\w*"
    r"|After|Before|Wants|Requires|Requisite|BindsTo|PartOf|Upholds|Conflicts|RequiresMountsFor|Documentation|OnFailure|OnSuccess"
    r"|Condition\w+|Assert\w+|WantedBy|RequiredBy|Also|Alias|SystemCall(?:Filter|Log|Architectures)|RestrictAddressFamilies"
    r"|RestrictNamespaces|CapabilityBoundingSet|AmbientCapabilities|DeviceAllow|IPAddress(?:Allow|Deny)|SupplementaryGroups"
    r"|SuccessExitStatus|RestartPreventExitStatus|RestartForceExitStatus|LogExtraFields|SocketBind\w+|CPUAffinity"
)


def merged(*files: Settings) -> Settings:
    """What a unit file with its drop-ins comes to, in the order in which systemd reads them."""
    result: Settings = {}
    for settings in files:
        for key, values in settings.items():
            kept = result.get(key, []) if _LISTS.fullmatch(key[1]) else []
            for value in values:
                # Of what is no list, an empty value means the default.
                kept = [*kept, value] if value and (_LISTS.fullmatch(key[1]) or not kept) else [value] if value else []
            result[key] = kept
    return {key: values for key, values in result.items() if values}


def _unescaped(text: str, at: int) -> tuple[bytes, int]:
    """The C escape that begins after the backslash at ``at``, and where it ends; an unknown one stays as it is."""
    char = text[at + 1 : at + 2]
    if char in _SIMPLE_ESCAPES:
        return _SIMPLE_ESCAPES[char].encode(), at + 2
    found = _NUMERIC_ESCAPE.match(text, at + 1)
    if not found:
        return ("\\" + char).encode("utf-8", "surrogateescape"), at + 1 + len(char)
    byte, short, long, octal = found.groups()
    if byte or octal:
        return bytes([int(byte, 16) if byte else int(octal, 8) & 0xFF]), found.end()
    code = int(short or long, 16)
    return (chr(code).encode("utf-8", "surrogatepass") if code <= 0x10FFFF else b"?"), found.end()


def split_words(text: str) -> list[str]:
    """Words of a value, without quotes and C escapes; a quote that is not closed ends with the value."""
    words: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in _BLANK:
            at += 1
            continue
        word, quote = bytearray(), ""
        while at < len(text) and (quote or text[at] not in _BLANK):
            char = text[at]
            if char == "\\":
                part, at = _unescaped(text, at)
                word += part
                continue
            at += 1
            if quote and char == quote:
                quote = ""
            elif not quote and char in "\"'":
                quote = char
            else:
                word += char.encode("utf-8", "surrogateescape")
        words.append(word.decode("utf-8", "surrogateescape"))
    return words


def exec_words(value: str) -> list[str]:
    """Words of ``ExecStart=`` as they stand there: the program without its prefixes, nothing expanded."""
    # Only a bare ";" ends a command; SGLang's units have one command.
    words = split_words(re.sub(r"(?<=[ \t])\\;(?=[ \t]|$)", r'";"', value))
    if words:
        words[0] = words[0].lstrip("-@:+!")
    return words


def _specifiers(text: str, unit: str) -> str | None:
    """The text with its specifiers filled in; None when it has one whose value is not known here."""
    stem = unit.rpartition(".")[0]
    prefix, sign, instance = stem.partition("@")
    known = {**_FIXED_SPECIFIERS, "n": unit, "N": stem, "p": prefix, "H": os.uname().nodename}
    if "\\" not in instance and "-" not in instance:
        known["i"] = known["I"] = instance if sign else ""
    unknown: list[str] = []

    def value(match: t.Match[str]) -> str:
        name = match.group(1)
        if name not in known:
            unknown.append(name)
        return known.get(name, "")

    result = re.sub(r"%(.)", value, text, flags=re.DOTALL)
    return None if unknown else result


def expanded(words: t.Sequence[str], *, unit: str, environment: t.Mapping[str, str] | None = None) -> list[str | None]:
    """Words of a unit file as a program gets them: specifiers, then with ``environment`` variables too.

    None stands for a word whose specifiers are not known here (``%m``, say).
    """
    result: list[str | None] = []
    for position, word in enumerate(words):
        text = _specifiers(word, unit)
        alone = re.fullmatch(r"\$(|[^{$].*)", text or "", re.DOTALL)
        if text is None or environment is None:
            result.append(text)
        elif alone and position:
            # It becomes as many words as the variable holds; and no variable is called `ONE-x`.
            result.extend(split_words(environment.get(alone.group(1), "")))
        else:
            result.append(_with_variables(text, environment))
    return result


def _with_variables(text: str, environment: t.Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: environment.get(match.group(1), "") if match.group(1) else "$", text)


def environment_values(text: str) -> dict[str, str]:
    """Variables of a file that ``EnvironmentFile=`` names (systemd.exec(5)); a later line outdoes an earlier one."""
    found: dict[str, str] = {}
    at, end = 0, len(text)
    while at < end:
        # To the beginning of an assignment.
        while at < end and text[at] in _BLANK:
            at += 1
        if at < end and text[at] in _COMMENTS:
            at = _after_comment(text, at)
            continue
        line_end = text.find("\n", at)
        line_end = end if line_end < 0 else line_end
        equals = text.find("=", at, line_end)
        if equals < 0:
            at = line_end
            continue
        name = text[at:equals].strip(_BLANK)
        value, at = _environment_value(text, equals + 1)
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            found[name] = value
    return found


def _after_comment(text: str, at: int) -> int:
    while at < len(text) and text[at] != "\n":
        at += 2 if text[at] == "\\" else 1
    return at


def _environment_value(text: str, at: int) -> tuple[str, int]:
    """The value that begins at ``at``, and where it ends."""
    value: list[str] = []
    #: White space at the end does not count, unless it was quoted or escaped.
    solid = 0
    bare = False
    while at < len(text):
        char = text[at]
        at += 1
        if char in "\r\n":
            break
        if char == "\\":
            bare = True
            escaped = text[at : at + 1]
            at += 1
            if escaped != "\n":
                value.append(escaped)
            solid = len(value)
        elif char in "\"'" and not bare:
            part, at = _quoted_part(text, at, char)
            value.extend(part)
            solid = len(value)
        elif char in _BLANK and not bare:
            continue
        else:
            bare = True
            value.append(char)
            if char not in _BLANK:
                solid = len(value)
    return "".join(value[:solid]), at


def _quoted_part(text: str, at: int, quote: str) -> tuple[str, int]:
    part: list[str] = []
    while at < len(text):
        char = text[at]
        at += 1
        if char == quote:
            break
        if char == "\\" and quote == '"':
            escaped = text[at : at + 1]
            at += 1
            if escaped and escaped in '"\\`$':
                part.append(escaped)
            elif escaped != "\n":
                part.append("\\" + escaped)
            continue
        part.append(char)
    return "".join(part), at
