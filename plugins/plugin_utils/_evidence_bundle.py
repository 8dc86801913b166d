# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes one archive for a bug report of the evidence fetched from several hosts. PRIVATE to the collection.

The archives come from the hosts, so nothing in them is trusted: no file is unpacked to disk, only plain files are taken over,
under names of our own, and each is searched for every key of the inventory before it becomes part of the result.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import tarfile
import time
import typing as t
import zlib
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils._files import replacing
from ansible_collections.specdec.serving.plugins.module_utils._redact import is_secret_variable, spellings
from ansible_collections.specdec.serving.plugins.plugin_utils._charts import text_table

#: Far above what an archive holds; what is larger is none of ours.
_MOST_BYTES = 64 * 1024 * 1024
_MOST_FILES = 2000
#: Of one archive, unpacked: a few kilobytes of it could fill the memory.
_MOST_UNPACKED = 256 * 1024 * 1024
_SHORTEST_SECRET = 8


class BundleError(Exception):
    """There is no archive; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Fetched:
    """One archive of one unit, fetched from a host to ``path`` here."""

    host: str
    unit: str
    path: Path


@dataclasses.dataclass(frozen=True)
class Row:
    """What one archive is about; ``time`` as its verdict was made, in UTC."""

    host: str
    unit: str
    state: str
    cause: str
    time: str
    archive: str


def secrets_in(value: t.Any) -> set[str]:
    """Every text under a name that looks secret, at any depth of the variables of an inventory."""
    found: set[str] = set()
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, (dict, list)):
                found |= secrets_in(item)
            elif item is not None and is_secret_variable(str(name).replace("-", "_")):
                found.add(str(item))
    elif isinstance(value, list):
        for item in value:
            found |= secrets_in(item)
    # Shorter ones are refused by the role; they would be found in any text.
    return {secret for secret in found if len(secret) >= _SHORTEST_SECRET}


class _Bounded(io.RawIOBase):
    """What an archive holds when it is unpacked, up to a limit, also where it is a header that is endless."""

    def __init__(self, unpacked: gzip.GzipFile) -> None:
        super().__init__()
        self._file = unpacked
        self._left = _MOST_UNPACKED

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: t.Any) -> int:
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise BundleError(f"it holds more than {_MOST_UNPACKED // 2**20} MiB")
        return count


def _members(file: Fetched) -> t.Iterator[tuple[str, bytes]]:
    """Name and content of each file in an archive, its first folder left out. Raises BundleError for what cannot be ours."""
    with gzip.open(file.path, "rb") as unpacked, tarfile.open(fileobj=_Bounded(unpacked), mode="r|") as archive:
        for count, member in enumerate(archive):
            if member.isdir() and count < _MOST_FILES:
                continue
            name = member.name.partition("/")[2]
            unsafe = not name or any(part in ("", ".", "..") for part in name.split("/"))
            if not member.isreg() or unsafe or member.size > _MOST_BYTES or count >= _MOST_FILES:
                raise BundleError(f"{member.name[:200]!r} is nothing that an archive of evidence holds")
            content = archive.extractfile(member)
            if content is not None:
                yield name, content.read()


def _row(file: Fetched, verdict: bytes) -> Row:
    try:
        found = json.loads(verdict)
        diagnosis = found.get("diagnosis") or {}
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(float(found["detected_at"])))
        return Row(file.host, file.unit, str(found["state"]), str(diagnosis.get("cause", "")), at, file.path.name)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, OSError, RecursionError) as error:
        raise BundleError(f"its verdict cannot be read: {error!r}") from error


def _search(file: Fetched, name: str, content: bytes, secrets: t.Mapping[bytes, str]) -> None:
    for spelling in secrets:
        if spelling in content or spelling in name.encode():
            raise _SecretFoundError(
                f"a key of the inventory stands in {name} of {file.path.name} (host {file.host}, {file.unit}): no archive was made, and what"
                f" was fetched is deleted. On the host it is still there, readable by root alone. Please report this as a bug"
            )


class _SecretFoundError(BundleError):
    """It must never be taken for a damaged archive."""


def _add(archive: tarfile.TarFile, name: str, content: bytes, now: float) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, int(now)
    archive.addfile(member, io.BytesIO(content))


def _target(destination: str, stem: str) -> Path:
    """Where the archive goes: into ``destination`` where that is a folder, else to that file."""
    path = Path(destination).expanduser()
    if not path.is_dir() and path.name.endswith(".tar.gz"):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
    path.mkdir(parents=True, exist_ok=True)
    return path / f"{stem}.tar.gz"


def bundle(
    files: t.Sequence[Fetched], *, destination: str, secrets: t.Iterable[str], now: float
) -> tuple[str, list[Row], list[str]]:
    """Write one archive with a folder per host, unit and start; give its path, what is in it, and what was left out.

    :param destination: a folder, relative to the current one, or the name of the archive.
    :param secrets: texts that must not be in it, in any spelling.
    :raises BundleError: when one is, when nothing could be read, or when the archive cannot be written. Then there is none.
    """
    stem = time.strftime("sglang-evidence-%Y%m%dT%H%M%SZ", time.gmtime(now))
    sought = {spelling.encode(): secret for secret in secrets for spelling in spellings(secret)}
    rows: list[Row] = []
    left_out: list[str] = []
    try:
        path = _target(destination, stem)
    except OSError as error:
        raise BundleError(f"no archive can be made in {destination!r}: {error}") from error
    try:
        with replacing(str(path)) as out:
            with tarfile.open(fileobj=out, mode="w:gz") as archive:
                for file in sorted(files, key=lambda one: (one.host, one.unit, one.path.name)):
                    try:
                        contents = dict(_members(file))
                        row = _row(file, contents.get("verdict.json", b""))
                    except _SecretFoundError:
                        raise
                    except (BundleError, EOFError, OSError, ValueError, tarfile.TarError, zlib.error) as error:
                        left_out.append(f"{file.host}: {file.unit}/{file.path.name} is damaged and left out: {error}")
                        continue
                    folder = f"{stem}/{_plain(file.host)}/{_plain(file.unit)}/{file.path.name.removesuffix('.tar.gz')}"
                    for name, content in contents.items():
                        _search(file, name, content, sought)
                        _add(archive, f"{folder}/{name}", content, now)
                    rows.append(row)
                _add(archive, f"{stem}/index.txt", (table(rows) + "\n").encode(), now)
            if not rows:
                raise BundleError("; ".join(left_out) or "there is no evidence to put into an archive")
    except OSError as error:
        raise BundleError(f"the archive {path} cannot be written: {error}") from error
    return str(path), rows, left_out


def _plain(text: str) -> str:
    name = "".join(sign if sign.isalnum() or sign in "._@:-" else "_" for sign in text)
    return name if name.strip(".") else "_"


_COLUMNS = ("HOST", "UNIT", "STATE", "CAUSE", "TIME (UTC)")


def table(rows: t.Iterable[Row]) -> str:
    """One line an archive: host, unit, state, cause, time."""
    cells = [_COLUMNS] + [(row.host, row.unit, row.state, row.cause, row.time) for row in rows]
    return text_table(cells)


__all__ = ("BundleError", "Fetched", "Row", "bundle", "secrets_in", "table")
