# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Looks for secrets in whatever was collected, however they are written. It shares nothing with what masks them."""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import re
import shlex
import tarfile
import threading
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["ArgumentWatch", "encodings", "find", "members"]


def _base64(secret: bytes) -> Iterator[bytes]:
    """The signs that a secret has in base64 at each place of a longer text, without those it shares with its neighbours."""
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + secret + b"\0\0")
        first, last = -(-shift * 8 // 6), (shift + len(secret)) * 8 // 6
        yield text[first:last]
        yield base64.urlsafe_b64encode(b"\0" * shift + secret + b"\0\0")[first:last]


def encodings(secret: str) -> dict[str, set[bytes]]:
    """The bytes to look for, by the name of the encoding."""
    raw = secret.encode()
    as_json = json.dumps(secret)[1:-1]
    urls = {urllib.parse.quote(secret, safe=safe) for safe in ("", "/", "/:")} | {urllib.parse.quote_plus(secret)}
    quoted = re.sub(r'(["\\])', r"\\\1", secret)
    found: dict[str, set[str]] = {
        "raw": {secret},
        "json": {as_json, json.dumps(as_json)[1:-1], as_json.replace("/", "\\/")},
        "repr": {repr(secret)[1:-1], repr(repr(secret)[1:-1])[1:-1], repr(as_json)[1:-1]},
        "shell": {shlex.quote(secret).strip("'")},
        "url": urls | {url.lower() for url in urls},
        # Environment files, ExecStart= in a unit file, and as systemctl shows it.
        "systemd": {re.sub(r'(["\\$`])', r"\\\1", secret)}
        | {
            text.replace("%", percent).replace("$", dollar)
            for text in (secret, quoted)
            for percent in ("%", "%%")
            for dollar in ("$", "$$")
        },
        "html": {html.escape(secret), html.escape(secret, quote=False)},
        "hex": {raw.hex(), raw.hex().upper()},
        "escapes": {
            "".join(f"\\u{ord(sign):04x}" for sign in secret),
            "".join(f"\\u{ord(sign):04X}" for sign in secret),
        },
    }
    return {**{name: {text.encode() for text in texts} for name, texts in found.items()}, "base64": set(_base64(raw))}


def find(blob: bytes, secrets: Mapping[str, str]) -> list[str]:
    """Which secrets stand in a text, as ``NAME (ENCODING)``; the secret itself is never in the answer."""
    return [
        f"{name} ({encoding})"
        for name, secret in secrets.items()
        for encoding, texts in encodings(secret).items()
        if any(text in blob for text in texts)
    ]


def members(archive: bytes, *, prefix: str = "") -> Iterator[tuple[str, int, str, bytes]]:
    """Path, mode, owner and content of each file of a tar archive; archives within are opened, too."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as opened:
        for member in opened:
            file = opened.extractfile(member) if member.isreg() else None
            if file is None:
                continue
            content = file.read()
            path = f"{prefix}{member.name}"
            yield path, member.mode, member.uname, content
            if content[:2] == b"\x1f\x8b":
                try:
                    inner = gzip.decompress(content)
                except (OSError, EOFError, zlib.error):
                    continue
                if path.endswith(".tar.gz"):
                    yield from members(inner, prefix=f"{path}!")
                else:
                    yield f"{path}!", member.mode, member.uname, inner


class ArgumentWatch:
    """Notes the command line of every process of this machine, those of lab hosts included, many times a second.

    A process that lives for less than the pause may be missed: what is seen is a sample.
    """

    PAUSE_S = 0.03

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.samples = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(self.PAUSE_S):
            self.samples += 1
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    self.seen.add((folder / "cmdline").read_bytes())
                except OSError:
                    continue

    def __enter__(self) -> ArgumentWatch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()
