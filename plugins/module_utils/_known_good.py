# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configurations that were proven ready on this host, kept so that they can be put back. PRIVATE to the collection.

A *generation* is the hash of a unit file. The unit file names everything else by its content: the environment file by a
hash, files of secrets by names of their own, the engine by its lock. So equal generations are equal configurations.
``STATE_DIR/known-good/NAME/GENERATION.json`` holds one of them: texts, names of secret files (never what is in them), the engine,
what the model folders held, the verdict, and with which options its readiness is proven again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._files import remove_left_behind, write_file

__all__ = (
    "Record",
    "drop",
    "folder_of",
    "generation_of",
    "keep",
    "known_names",
    "load",
    "load_all",
    "named_by_records",
    "unusable_records",
)

FOLDER = "known-good"
_FORMAT = 1
_SUFFIX = ".json"


@dataclasses.dataclass(frozen=True)
class Record:
    """One configuration that was proven ready.

    ``check`` are the options of ``sglang_ready`` that prove it again; ``models`` manifests of the model folders; ``verdict`` has
    ``invocation_id``, ``at`` (seconds since the epoch on this host) and ``elapsed`` (seconds of the start). ``sequence`` grows with
    each proof: the clock of a host may be set back.
    """

    name: str
    unit: str
    generation: str
    content: str
    environment_file: str
    environment_text: str
    secret_environment_file: str = ""
    credential: str = ""
    engine: str = ""
    models: tuple[dict[str, t.Any], ...] = ()
    check: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    verdict: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    sequence: int = 0

    @property
    def named_files(self) -> tuple[str, ...]:
        """The files that this configuration needs beside the unit file."""
        return tuple(filter(None, (self.environment_file, self.secret_environment_file, self.credential)))


def generation_of(content: str) -> str:
    """The generation that a unit file is: 12 hex digits."""
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def folder_of(state_dir: str, name: str) -> str:
    """Where the records of an instance lie."""
    return f"{state_dir}/{FOLDER}/{name}"


def _parse(text: str, name: str) -> Record | None:
    """None for a file that is damaged, of another format, or of another instance."""
    try:
        value = json.loads(text)
        if value.pop("format") != _FORMAT:
            return None
        record = Record(**{**value, "models": tuple(value["models"])})
        whole = record.name == name and generation_of(record.content) == record.generation
        times = [float(record.verdict.get(key) or 0) for key in ("at", "elapsed")]
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return None
    texts = (
        record.environment_file,
        record.environment_text,
        record.secret_environment_file,
        record.credential,
        record.engine,
    )
    kinds = isinstance(record.check, dict) and all(isinstance(model, dict) for model in record.models)
    # Times that a calendar knows; not a number is in none of these.
    kinds = (
        kinds
        and all(0 <= time < 1e11 for time in times)
        and isinstance(record.sequence, int)
        and all(isinstance(text, str) for text in texts)
    )
    return record if whole and kinds and record.unit == f"sglang-{name}.service" else None


def _read(path: str, name: str) -> tuple[Record | None, str]:
    """A record, or why it is none. What is in it runs as root says, so that nobody else may have written it."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return (
                None,
                f"it could have been written by others (owner {status.st_uid}, mode {status.st_mode & 0o7777:04o})",
            )
        record = _parse(file.read(), name)
    if record is None or os.path.basename(path) != record.generation + _SUFFIX:
        return None, "it is damaged, or of another release of the collection"
    return record, ""


def _look(state_dir: str, name: str) -> tuple[list[Record], list[str]]:
    """The records of an instance, the last one proven first, and what is not taken for one, with the reason."""
    found: list[Record] = []
    unusable = []
    folder = folder_of(state_dir, name)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for file_name in sorted(os.listdir(folder)):
            if file_name.startswith(".") or not file_name.endswith(_SUFFIX):
                continue
            record, why = None, "it is a folder"
            # Anything else, such as a disk that cannot be read, is told: what a record names is removed without it.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                record, why = _read(f"{folder}/{file_name}", name)
            if record is not None:
                found.append(record)
            else:
                unusable.append(f"{folder}/{file_name} is passed over: {why}")
    return sorted(found, key=lambda record: record.sequence, reverse=True), unusable


def load(state_dir: str, name: str) -> list[Record]:
    """What was proven of an instance, the last one first. Files that are no records are passed over."""
    return _look(state_dir, name)[0]


def unusable_records(state_dir: str, names: t.Iterable[str]) -> list[str]:
    """Files of instances that lie where records do and are not used, with the reason, one text each."""
    return [text for name in names for text in _look(state_dir, name)[1]]


def known_names(state_dir: str) -> list[str]:
    """The instances that have a folder of records."""
    try:
        return sorted(os.listdir(f"{state_dir}/{FOLDER}"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def load_all(state_dir: str) -> list[Record]:
    """The records of all instances."""
    return [record for name in known_names(state_dir) for record in load(state_dir, name)]


def named_by_records(state_dir: str) -> set[str]:
    """The files of environment and secrets, and the engines, that are needed to put one of them back."""
    return {path for record in load_all(state_dir) for path in (*record.named_files, record.engine) if path}


def keep(state_dir: str, record: Record, *, most: int) -> list[str]:
    """Write a record as the last one proven, and drop the oldest beyond ``most``; return the generations that were dropped.

    The new one is on the disk before another goes.
    """
    folder = folder_of(state_dir, record.name)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    remove_left_behind(folder)
    known = load(state_dir, record.name)
    newest = dataclasses.replace(record, sequence=max((one.sequence for one in known), default=0) + 1)
    text = json.dumps({"format": _FORMAT, **dataclasses.asdict(newest)}, indent=1, sort_keys=True)
    write_file(f"{folder}/{record.generation}{_SUFFIX}", text + "\n")
    others = [one for one in known if one.generation != record.generation]
    dropped = [one.generation for one in others[max(most - 1, 0) :]]
    for generation in dropped:
        os.unlink(f"{folder}/{generation}{_SUFFIX}")
    return dropped


def drop(state_dir: str, name: str) -> None:
    """Forget an instance."""
    folder = folder_of(state_dir, name)
    with contextlib.suppress(FileNotFoundError):
        for file_name in os.listdir(folder):
            os.unlink(f"{folder}/{file_name}")
        os.rmdir(folder)
