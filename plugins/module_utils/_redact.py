# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removal of secrets from everything that leaves the host. PRIVATE to the collection.

SGLang itself prints its keys: in the journal's ``server_args=`` line, in ``/server_info`` (``api_key``,
``admin_api_key`` and the expanded ``launch_command``) and, when they are given as arguments, in
``/proc/PID/cmdline`` (SGLang 0.5.23 ``entrypoints/engine.py:173,1185``).
"""

from __future__ import annotations

import base64
import functools
import json
import re
import shlex
import typing as t
import urllib.parse

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
    """Mask every string of ``secrets`` wherever and however it stands in ``text``, and what by its name or form is a secret."""
    return _masker(frozenset(filter(None, secrets))).text(text)


def redact(value: t.Any, secrets: t.Iterable[str] = ()) -> t.Any:
    """The same for a whole structure of dicts, lists and strings; values under a secret's name are masked."""
    return _masker(frozenset(filter(None, secrets))).value(value)


@functools.lru_cache(maxsize=4)
def _masker(secrets: frozenset[str]) -> Masker:
    return Masker(secrets)


# --- command lines, also those of foreign programs --------------------------------------------------------------------------

_SECRET_NAME = r"[\w-]*(?:api[-_]?key|passw(?:or)?d|passphrase|secret|token|credential)"
_SECRET_FLAG = re.compile(rf"^--?{_SECRET_NAME}$", re.IGNORECASE)
_SECRET_PAIR = re.compile(rf"(?<![\w-])((?:--?)?{_SECRET_NAME}\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s'\"]+)", re.IGNORECASE)
_SECRET_WORDS = re.compile(rf"(?<![\w-])(--?{_SECRET_NAME}\s+)(\"[^\"]*\"|'[^']*'|[^\s'\"]+)", re.IGNORECASE)
_BEARER = re.compile(r"(\b(?:Bearer|Basic)\s+)[^\s'\"]+", re.IGNORECASE)
_USERINFO = re.compile(r"(\w://[^\s/:@]*:)[^\s/@]+@")
# https://TOKEN@host: names of users are shorter.
_USER_TOKEN = re.compile(r"(\w://)[^\s/:@*]{12,}@")
# argparse takes abbreviations: --api-k KEY sets the key as well.
_SGLANG_SECRETS = (("--api-key", 4), ("--admin-api-key", 4), ("--ssl-keyfile-password", len("--ssl-keyfile-")))


def is_secret_flag(word: str) -> bool:
    """Whether the word after it on a command line is a secret."""
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
        if equals and is_secret_flag(flag):
            shown.append(f"{flag}={MASK}")
            continue
        hide_next = is_secret_flag(word)
        for pattern in (_SECRET_PAIR, _SECRET_WORDS, _BEARER):
            word = pattern.sub(rf"\g<1>{MASK}", word)
        shown.append(_USERINFO.sub(rf"\g<1>{MASK}@", word))
    return " ".join(shown)


def secret_words(words: t.Sequence[str]) -> set[str]:
    """The values of secret arguments on a command line: what `mask_command` hides behind its flags."""
    found: set[str] = set()
    for word, following in zip(words, [*words[1:], ""]):
        flag, equals, value = word.partition("=")
        if equals and (is_secret_flag(flag) or is_secret_variable(flag)):
            found.add(value)
        elif is_secret_flag(word):
            found.add(following)
    return found - {""}


# --- variables, and text of any kind ------------------------------------------------------------------------------------------

_SECRET_VARIABLE = re.compile(
    r"(TOKEN|SECRET|PASSW(OR)?D|PASSPHRASE|CREDENTIALS?|API_?KEYS?|ACCESS_?KEYS?)(?![A-Z])|(^|_)(KEY|PAT|PWD)(_|$)",
    re.IGNORECASE,
)
#: Variables that bear such a name and tell where or what, not the secret itself.
_PUBLIC_VARIABLES = {"CREDENTIALS_DIRECTORY", "PWD", "OLDPWD"}


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret: `HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`, `DB_PASSWORD`."""
    return name not in _PUBLIC_VARIABLES and _SECRET_VARIABLE.search(name) is not None


#: From this many bytes on, what encodes a secret cannot well be anything else.
_SURE_BYTES = 8


def _utf16(text: str) -> list[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


def _base64_cores(raw: bytes) -> set[str]:
    """What stays the same in base64 whatever stands before and after: ``user:SECRET`` of basic authentication, a line with its end."""
    found = set()
    for before in range(3):
        text = base64.b64encode(b"\0" * before + raw).decode("ascii")
        # A sign holds six bits: only those that are the secret's alone.
        core = text[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        found |= {core, core.translate(_URL_SAFE)}
    return found


def _base64(raw: bytes) -> set[str]:
    """All that ``spellings`` knows of base64."""
    whole = base64.b64encode(raw).decode("ascii")
    return {whole, whole.translate(_URL_SAFE), *_base64_cores(raw)}


_URL_SAFE = str.maketrans("+/", "-_")
_ENCODED_SIGNS = re.compile(r"%[0-9A-Fa-f%]|\\|&#|\$\$")


def _loosely(secret: str) -> str:
    """A pattern for a secret of which any sign may be escaped: as in JSON, URLs, XML, C, Python and units of systemd."""
    parts = []
    for sign in secret:
        number = ord(sign)
        ways = [rf"\\{{0,4}}{re.escape(sign)}", "".join(rf"\\{{1,4}}u{unit:04x}" for unit in _utf16(sign))]
        ways += [
            "".join(f"%{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape")),
            rf"&#(?:0*{number}|x0*{number:x});",
        ]
        if number < 256:
            ways += [rf"\\{{1,4}}x{number:02x}", rf"\\{{1,4}}{number:03o}"]
        if sign in "%$":
            ways[0] += "{1,2}"
        # Digits of an escape may be small or capital, the secret itself may not.
        parts.append(f"(?:{ways[0]}|(?i:{'|'.join(ways[1:])}))")
    return "".join(parts)


_SECRET_KEY = re.compile(
    r"(?:api[-_]?keys?|access[-_]?keys?|passw(?:or)?d|passphrase|secrets?|credentials?|token)\Z", re.IGNORECASE
)
#: What tokenizers and servers call tokens that everybody may know.
_PUBLIC_TOKEN = re.compile(
    r"(?:^|[-_])(?:bos|eos|pad|unk|cls|sep|mask|noise|image|audio|video|vision|boi|eoi|special|stop|start|end|think|tool|first|last|next|new"
    r"|draft|target|prompt|input|output|cached|extra|added|additional|per)[-_]token\Z",
    re.IGNORECASE,
)
#: Neither a number nor what tokenizers write (``<|im_end|>``, ``[MASK]``).
_KEY_LIKE = re.compile(r"(?![\d.,+-]*\Z)[^<|\[\]]{6,}\Z")


def _is_secret_item(key: t.Any, item: t.Any) -> bool:
    """Whether an item of a structure is a secret by its key. Flags and absent ones are not."""
    if not isinstance(key, str) or not item:
        return False
    if key.replace("-", "_") in SECRET_ARGUMENTS:
        return True
    by_name = _SECRET_KEY.search(key) is not None and not _PUBLIC_TOKEN.search(key)
    return by_name and isinstance(item, (str, int)) and not isinstance(item, bool)


def _escaped(text: str) -> set[str]:
    return {
        text,
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(text)[1:-1],
        text.replace("\\", "\\\\").replace('"', '\\"'),
        text.replace("\\", "\\\\").replace("'", "\\'"),
    }


def spellings(secret: str) -> set[str]:
    """A secret as JSON, Python, a shell, a URL and systemd write it, twice over where one quotes the other, in hex and in base64."""
    urls = {
        urllib.parse.quote(secret),
        urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus(secret),
    }
    once = {
        *_escaped(secret),
        secret.replace("/", "\\/"),
        shlex.quote(secret),
        "".join(f"\\x{ord(sign):02x}" if sign in " \t'\"\\" else sign for sign in secret),
        *urls,
        *(re.sub("%[0-9A-F]{2}", lambda match: match.group().lower(), url) for url in urls),
    }
    found = {again for text in once for again in _escaped(text)}
    raw = secret.encode("utf-8", "surrogateescape")
    if len(raw) >= _SURE_BYTES:
        found |= _base64(raw)
        # JSON may write every sign so, with small or capital digits.
        escaped = "".join(f"\\u{unit:04x}" for unit in _utf16(secret))
        found |= {raw.hex(), raw.hex().upper(), escaped, escaped.upper().replace("\\U", "\\u")}
    return found


_WORD = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?!None\b|null\b)[^\s'"]+)"""
_ANYWHERE = (
    # Of every program: --hf-token X, --password=X, and the words of a list as Python or JSON prints it.
    re.compile(rf"(?P<keep>(?<![\w-])--?{_SECRET_NAME}(?:=|\s+|['\"]\s*,\s*))(?P<value>{_WORD})", re.IGNORECASE),
    # What argparse takes for SGLang's keys.
    re.compile(
        rf"(?P<keep>(?<![\w-])--(?:api(?:-k(?:ey?)?)?|admin(?:-[a-z-]*)?)(?:=|\s+|['\"]\s*,\s*))(?P<value>{_WORD})"
    ),
    # Names that are sure enough in running text; `token` alone is not, where tokens are counted.
    re.compile(
        r"(?P<keep>(?<![\w-])['\"]?[\w-]*(?:api[-_]key|passw(?:or)?d|passphrase|secret|access[-_]key|(?:hf|auth|access|bearer)[-_]token)"
        rf"['\"]?\s*[=:]\s*)(?P<value>{_VALUE})",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<keep>\bAuthorization['\"]?\s*:\s*['\"]?Basic\s+)(?P<value>[^\s'\",]+)", re.IGNORECASE),
    # Keys that tell by their own form: Hugging Face, OpenAI and its likes, GitHub, AWS, JSON Web Tokens.
    re.compile(
        r"(?P<keep>(?<![A-Za-z0-9]))(?P<value>hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[opsu]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16}"
        r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    ),
)
# "token": "...", my_token=...: the name alone is not enough, where tokens are counted and tokenizers have theirs.
_TOKEN = re.compile(
    rf"""(?P<keep>(?<![\w#-])(?P<quote>['"]?)(?P<name>[\w-]*token)(?P=quote)\s*(?P<sign>[=:])\s*)(?P<value>{_VALUE})""",
    re.IGNORECASE,
)
# A unit's SetCredential=NAME:VALUE, which may go on in the next line.
_CREDENTIAL_LINES = re.compile(
    r"(?P<keep>^[ \t]*SetCredential(?:Encrypted)?=[^:\n]*:)(?P<value>(?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE
)
# NAME=VALUE, 'NAME': 'VALUE', and in a unit file "NAME=VALUE with blanks".
_ASSIGNMENT = re.compile(
    r"""(?P<keep>(?<![A-Za-z0-9_])(?:(?P<open>["'])(?=[A-Z][A-Z0-9_]*=))?(?P<name>[A-Z][A-Z0-9_]*)['"]?\s*[=:]\s*)"""
    r"""(?P<value>(?(open)(?:\\.|(?!(?P=open))[^\n\\])*|(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s'"]+)))"""
)
#: Without one of these a line holds nothing that the patterns would find, which are too slow for every line of a log. Not the
#: bare word `token`: SGLang counts tokens in every other line.
_TRIGGERS = (
    *("key", "passw", "passphrase", "secret", "credential", "bearer", "basic", "--api", "--admin", "://"),
    *(
        "auth-token",
        "auth_token",
        "access-token",
        "access_token",
        "-token ",
        "-token\t",
        "token=",
        "token =",
        "token'",
        'token"',
        "_token:",
        "-token:",
    ),
    *("hf_", "hf-", "sk-", "ghp_", "gho_", "ghs_", "ghu_", "akia", "eyj"),
)
_TRIGGERS_AS_WRITTEN = ("PAT", "PWD", "TOKEN")


def _suspicious_lines(text: str) -> list[tuple[int, int]]:
    """Begin and end of the lines that may hold a secret, in order."""
    lower = text.lower()
    if len(lower) != len(text):  # a letter of two: places would not agree
        return [(0, len(text))]
    found = set()
    for searched, triggers in ((lower, _TRIGGERS), (text, _TRIGGERS_AS_WRITTEN)):
        for trigger in triggers:
            at = searched.find(trigger)
            while at >= 0:
                end = searched.find("\n", at)
                end = len(text) if end < 0 else end
                found.add((searched.rfind("\n", 0, at) + 1, end))
                at = searched.find(trigger, end)
    return sorted(found)


def _mask_lines(text: str) -> str:
    """The text with what looks secret masked, line by line."""
    parts = []
    done = 0
    for begin, end in _suspicious_lines(text):
        parts += [text[done:begin], "\n".join(map(_mask_line, text[begin:end].split("\n")))]
        done = end
    if parts:
        text = "".join([*parts, text[done:]])
    # The only one that goes over lines.
    return _CREDENTIAL_LINES.sub(_mask, text) if "SetCredential" in text else text


def _mask_line(line: str) -> str:
    for pattern in (*_PATTERNS, *_ANYWHERE):
        line = pattern.sub(_mask, line)
    line = _TOKEN.sub(_mask_token, line)
    line = _ASSIGNMENT.sub(_mask_assignment, line)
    line = _USERINFO.sub(rf"\g<1>{MASK}@", line)
    return _USER_TOKEN.sub(rf"\g<1>{MASK}@", line)


def _mask_token(match: t.Match[str]) -> str:
    if _PUBLIC_TOKEN.search(match.group("name")) or not _KEY_LIKE.match(match.group("value").strip("'\"")):
        return match.group()
    # "Unexpected token: x" is no key.
    prose = match.group("name").lower() == "token" and not match.group("quote") and match.group("sign") == ":"
    return match.group() if prose else _mask(match)


def _mask_assignment(match: t.Match[str]) -> str:
    return _mask(match) if is_secret_variable(match.group("name")) else match.group()


class Masker:
    """Takes secrets out of text of any kind: logs, unit files, environments, command lines.

    Known values are masked in all their `spellings`, wherever they stand; others by the name before them, or by their
    own form. What is left of a line stays readable.
    """

    def __init__(self, secrets: t.Iterable[str] = ()) -> None:
        known: set[str] = set()
        cores: set[str] = set()
        loose: list[str] = []
        for secret in filter(None, secrets):
            known |= spellings(secret)
            raw = secret.encode("utf-8", "surrogateescape")
            if len(raw) >= _SURE_BYTES:
                known -= _base64(raw)
                cores |= _base64_cores(raw)
                loose.append(_loosely(secret))
        self._known = sorted(known, key=len, reverse=True)
        self._cores = sorted(cores, key=len, reverse=True)
        self._loose = re.compile("|".join(sorted(loose, key=len, reverse=True))) if loose else None

    def text(self, text: str) -> str:
        """The text without secrets. Give whole lines."""
        # What is known comes first: a pattern may see but a part of a value that holds signs. The longest first: one key may be the
        # beginning of another.
        for secret in self._known:
            if secret in text:
                text = text.replace(secret, MASK)
        for core in self._cores:
            if core in text:
                # The signs beside it hold the rest of the secret's bits.
                text = re.sub(rf"[A-Za-z0-9+/_-]*{re.escape(core)}[A-Za-z0-9+/_-]*={{0,2}}", MASK, text)
        if self._loose is not None and _ENCODED_SIGNS.search(text):
            lines = text.split("\n")
            text = "\n".join(self._loose.sub(MASK, line) if _ENCODED_SIGNS.search(line) else line for line in lines)
        return _mask_lines(text)

    def value(self, value: t.Any) -> t.Any:
        """A whole structure of dicts, lists and strings; values under a secret's name are masked."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: MASK if _is_secret_item(key, item) else self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value


__all__ = (
    "MASK",
    "SECRET_ARGUMENTS",
    "Masker",
    "is_secret_variable",
    "mask_command",
    "redact",
    "redact_text",
    "secret_words",
    "spellings",
)
