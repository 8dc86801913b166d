# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wheels and lock files: names, versions, repacking with a correct RECORD. Pure of network and processes.

Formats: the binary distribution format (PEP 427), versions with a local part (PEP 440), RECORD (PEP 376).
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import re
import shutil
import typing as t
import zipfile
from pathlib import Path

__all__ = [
    "Wheel",
    "WheelError",
    "add_local_version",
    "build",
    "canonical_name",
    "fingerprint",
    "format_lock",
    "glibc_needed",
    "link_or_copy",
    "parse_lock",
    "repack",
]

#: What a ZIP archive can say at the earliest; a wheel made twice is the same byte for byte.
EPOCH = (1980, 1, 1, 0, 0, 0)

#: Gets a path within the wheel and its content; gives the content to write, or None to leave the file out.
Edit = t.Callable[[str, t.Callable[[], bytes]], "bytes | None"]


class WheelError(ValueError):
    """A file is no wheel, or a lock file no lock file; the message says which and why."""


@dataclasses.dataclass(frozen=True, order=True)
class Wheel:
    """What a wheel's file name says. ``name`` is canonical (lower case, single dashes)."""

    name: str
    version: str
    tags: tuple[str, ...]
    file_name: str

    @classmethod
    def parse(cls, file_name: str) -> Wheel:
        """Read ``NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl``; raises WheelError."""
        parts = file_name.removesuffix(".whl").split("-")
        if not file_name.endswith(".whl") or len(parts) not in (5, 6) or not all(parts):
            raise WheelError(f"{file_name!r} is no wheel's file name: NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl")
        return cls(
            name=canonical_name(parts[0]), version=parts[1], tags=tuple(parts[-1].split(".")), file_name=file_name
        )


def canonical_name(name: str) -> str:
    """Return the form of a package's name that two spellings of it share (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text: str) -> dict[str, str]:
    """Read ``name==version`` lines; blank lines and comments are skipped. Keys are canonical names, in file order."""
    pins: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        pin = line.split("#", 1)[0].strip()
        if not pin:
            continue
        match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)", pin)
        if match is None:
            raise WheelError(f"line {number} of the lock is {line!r}: write name==version")
        name = canonical_name(match[1])
        if name in pins:
            raise WheelError(f"line {number} of the lock names {name!r} a second time")
        pins[name] = match[2]
    return pins


def format_lock(pins: t.Mapping[str, str], *, head: t.Iterable[str]) -> str:
    """Write a lock: *head* as comments, then one pin a line, sorted by name."""
    lines = [f"# {line}".rstrip() for line in head]
    lines += [f"{name}=={version}" for name, version in sorted(pins.items())]
    return "\n".join(lines) + "\n"


def add_local_version(version: str, part: str) -> str:
    """Append *part* to a version's local part: ``1.0`` gives ``1.0+PART``, ``1.0+cpu`` gives ``1.0+cpu.PART``."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(\.[a-z][a-z0-9]*)*", part):
        raise WheelError(f"{part!r} is no local version part: letters and digits, each piece starting with a letter")
    return f"{version}{'.' if '+' in version else '+'}{part}"


def fingerprint(*parts: bytes | str) -> str:
    """Return eight hexadecimal digits of the SHA-256 of *parts*, behind an ``h`` so that a version may hold them."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return f"h{digest.hexdigest()[:8]}"


def glibc_needed(wheel: Wheel) -> tuple[int, int] | None:
    """Return the oldest glibc that one of the wheel's platform tags asks for, None if it asks for none."""
    legacy = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    needed: list[tuple[int, int]] = []
    for tag in wheel.tags:
        if match := re.match(r"manylinux_(\d+)_(\d+)_", tag):
            needed.append((int(match[1]), int(match[2])))
        elif match := re.match(r"(manylinux\d+)_", tag):
            needed.append(legacy[match[1]])
        else:
            return None
    return min(needed, default=None)


class _Writer:
    """Writes a wheel and its RECORD, in the order in which files are given, to a path that appears when complete."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._partial = target.with_name(f".{target.name}.partial")
        # Stored, not deflated: the wheelhouse is built once and installed from many times.
        self._archive = zipfile.ZipFile(self._partial, "w", compression=zipfile.ZIP_STORED)
        self._rows: list[tuple[str, str, str]] = []

    def add(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        info = zipfile.ZipInfo(path, date_time=EPOCH)
        info.external_attr = (0o100000 | mode) << 16
        self._archive.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._rows.append((path, f"sha256={digest}", str(len(data))))

    def finish(self, dist_info: str) -> Path:
        record = f"{dist_info}/RECORD"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*self._rows, (record, "", "")])
        info = zipfile.ZipInfo(record, date_time=EPOCH)
        info.external_attr = 0o100644 << 16
        self._archive.writestr(info, text.getvalue())
        self._archive.close()
        return self._partial.replace(self._target)

    def abandon(self) -> None:
        self._archive.close()
        self._partial.unlink(missing_ok=True)


def repack(source: Path, *, folder: Path, local: str, edit: Edit) -> Path:
    """Write a changed copy of the wheel *source* to *folder*, its version marked by the local part *local*.

    *edit* is asked for every file outside the metadata. RECORD, the metadata's version and the name of its folder
    are put right; signatures of the old RECORD are left out. Returns the new wheel's path; raises WheelError if
    *source* is no wheel.
    """
    old = Wheel.parse(source.name)
    version = add_local_version(old.version, local)
    raw_name, _version, rest = source.name.split("-", 2)
    old_info, new_info = f"{raw_name}-{old.version}.dist-info", f"{raw_name}-{version}.dist-info"
    writer = _Writer(folder / f"{raw_name}-{version}-{rest}")
    try:
        with zipfile.ZipFile(source) as archive:
            if f"{old_info}/METADATA" not in archive.namelist():
                raise WheelError(f"{source} holds no {old_info}/METADATA")
            for entry in archive.infolist():
                mode = (entry.external_attr >> 16) & 0o777 or 0o644
                directory, _, name = entry.filename.partition("/")
                if entry.is_dir() or (directory == old_info and name in ("RECORD", "RECORD.jws", "RECORD.p7s")):
                    continue
                if directory == old_info:
                    data = archive.read(entry)
                    if name == "METADATA":
                        data = _with_version(data, version=version, source=source)
                    writer.add(f"{new_info}/{name}", data, mode=mode)
                    continue
                # Read only when asked: a file that is left out may be large.
                changed = edit(entry.filename, lambda entry=entry: archive.read(entry))  # type: ignore[misc]  # a default cannot be typed
                if changed is not None:
                    writer.add(entry.filename, changed, mode=mode)
        return writer.finish(new_info)
    except BaseException:
        writer.abandon()
        raise


def _with_version(metadata: bytes, *, version: str, source: Path) -> bytes:
    head, blank, body = metadata.partition(b"\n\n")
    head, found = re.subn(rb"(?m)^Version:.*$", b"Version: " + version.encode(), head)
    if found != 1:
        raise WheelError(f"the metadata of {source} holds {found} versions")
    return head + blank + body


def build(*, packages: t.Sequence[Path], name: str, version: str, summary: str, folder: Path) -> Path:
    """Make a wheel of pure Python *packages* (folders, each installed under its own name) and return its path."""
    distribution = name.replace("-", "_")
    dist_info = f"{distribution}-{version}.dist-info"
    writer = _Writer(folder / f"{distribution}-{version}-py3-none-any.whl")
    try:
        for package in packages:
            for path in sorted(package.rglob("*.py")):
                writer.add(f"{package.name}/{path.relative_to(package).as_posix()}", path.read_bytes())
        writer.add(
            f"{dist_info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n"
            "License: GPL-3.0-or-later\n".encode(),
        )
        writer.add(
            f"{dist_info}/WHEEL",
            b"Wheel-Version: 1.0\nGenerator: specdec.serving\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        return writer.finish(dist_info)
    except BaseException:
        writer.abandon()
        raise


def link_or_copy(source: Path, target: Path) -> None:
    """Make *target* the same file as *source*, a copy where links are not possible."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
