# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a run: one JSON document for each benchmark or evaluation. PRIVATE to the collection.

Its parts come from the target (``module_utils/_run_facts.py``), from the run, and from the proof of readiness before it. Sweeps
and reports read nothing else. ``roles/sglang/files/record.schema.json`` describes it; a reader refuses another ``schema_version``.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import math
import os
import re
import typing as t
from collections.abc import Iterable, Mapping
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils._files import commit, discard, stage, sync_folder
from ansible_collections.specdec.serving.plugins.module_utils._redact import redact, spellings
from ansible_collections.specdec.serving.plugins.plugin_utils import _given_files

SCHEMA = "specdec.serving/record"
SCHEMA_VERSION = 1
SCHEMA_FILE = Path(__file__).resolve().parents[2] / "roles/sglang/files/record.schema.json"
BENCHMARK, EVALUATION = "benchmark", "evaluation"
#: What is kept of the answer of sglang_ready.
_EVIDENCE = (
    "state",
    "ready",
    "elapsed",
    "gates",
    "invocation_id",
    "main_pid",
    "timeline",
    "weights",
    "server",
    "detected_at",
)
#: Of these a record holds all.
PARTS = ("host", "engine", "models", "arguments", "invocation", "workload", "results", "readiness")


#: How every error about the folder of the records begins.
NOT_WRITTEN = "no record can be written"
#: More than any record has.
_ROOM = 1 << 20
_MOST_BYTES = 256 << 20
_NAME_BYTES = 200


class RecordError(ValueError):
    """A record that cannot be written or read; the message says why."""


class NotWritten(RecordError):
    """The folder takes no record."""


def make(
    kind: str,
    *,
    host: str,
    parts: Mapping[str, t.Any],
    readiness: Mapping[str, t.Any] | None,
    now: float,
) -> dict[str, t.Any]:
    """A record.

    :param kind: ``benchmark`` or ``evaluation``.
    :param host: the inventory's name of the target.
    :param parts: ``host``, ``engine``, ``models``, ``arguments``, ``invocation``, ``workload``, ``results``.
    :param readiness: the answer of sglang_ready, None where readiness was not proved.
    :param now: seconds since the epoch.
    """
    missing = [name for name in PARTS if name not in parts and name != "readiness"]
    if missing:
        raise RecordError(f"a record of kind {kind} lacks {', '.join(missing)}")
    evidence = None if readiness is None else {key: readiness[key] for key in _EVIDENCE if key in readiness}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "written_at": dt.datetime.fromtimestamp(now, dt.UTC).isoformat(timespec="seconds"),
        **{name: parts[name] for name in PARTS if name != "readiness"},
        "host": {"name": host, **parts["host"]},
        "readiness": evidence,
    }


def file_name(record: Mapping[str, t.Any]) -> str:
    """Time first, so that names sort as the runs did: ``20261129T101500Z-benchmark-ct200-k26-dflash-natural-mixed.json``."""
    stamp = dt.datetime.fromisoformat(record["written_at"]).strftime("%Y%m%dT%H%M%SZ")
    unit = str(record["invocation"].get("unit", "")).removesuffix(".service").removeprefix("sglang-")
    words = [stamp, record["kind"], record["host"]["name"], unit, str(record["workload"].get("name", ""))]
    name = "-".join(re.sub(r"[^\w.@-]+", "_", word) for word in words if word)
    # A file system takes 255 bytes, of which the number of a second record and the hidden name of the first writing need some.
    return name.encode("utf-8")[:_NAME_BYTES].decode("utf-8", "ignore") + ".json"


def _as_json(value: t.Any) -> t.Any:
    """What JSON and UTF-8 cannot say, as null and as a question mark: servers tell NaN, and models write half a character."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_as_json(str(key)): _as_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    return value


def _name(temporary: str, target: Path) -> None:
    """Give a complete file its name. Raises FileExistsError where another has it."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        # A file system without hard links (a stick, a share): take the name first, which stands for a moment on an empty file.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        commit(temporary, str(target))


def write(record: Mapping[str, t.Any], folder: str, *, secrets: Iterable[str] = ()) -> str:
    """Write a record into a folder of the controller, which is made where it is missing, and give its path.

    Another run finds all of it or nothing. Raises RecordError when a secret would stand in it all the same.
    """
    known = {secret for secret in secrets if secret}
    clean = redact(_as_json(dict(record)), known)
    text = json.dumps(clean, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    if any(spelling in text for secret in known for spelling in spellings(secret)):
        raise RecordError(
            "a key of the server stands in what was measured, in a form that could not be masked; nothing was written"
        )
    temporary = ""
    try:
        target = _given_files.expanded(folder) / file_name(clean)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = stage(str(target), text, mode=0o644)
        # Two runs may end in the same second; neither replaces the other's record.
        for number in range(1, 1000):
            try:
                _name(temporary, target)
                sync_folder(str(target.parent))
                break
            except FileExistsError:
                target = target.with_name(f"{target.stem.removesuffix(f'_{number - 1}')}_{number}.json")
        else:
            raise NotWritten(f"{NOT_WRITTEN} to {folder!r}: it holds too many records of the same second")
    except OSError as error:
        # Ansible would add the cause to the message, which has it.
        raise NotWritten(f"{NOT_WRITTEN} to {folder!r}: {error}") from None
    finally:
        discard(temporary)
    return str(target.resolve())


def keep(
    answer: Mapping[str, t.Any], record: Mapping[str, t.Any], folder: str, *, secrets: Iterable[str] = ()
) -> dict[str, t.Any]:
    """The answer of a run with the path of its record. Where the disk is full by now it fails, and keeps what was measured.

    Raises RecordError when a secret would stand in it: then nothing of it may be shown, either.
    """
    try:
        return {**answer, "record": write(record, folder, secrets=secrets)}
    except NotWritten as error:
        also = f"; {answer['msg']}" if answer.get("failed") and answer.get("msg") else ""
        return {
            **answer,
            "record": "",
            "failed": True,
            "msg": f"{error}; what was measured stands in this result{also}",
        }


def check_options(arguments: Mapping[str, t.Any], *, check_mode: bool = False) -> None:
    """See whether ``readiness`` and ``results_dir`` of a task can be used, before anything is measured. Raises RecordError."""
    readiness, folder = arguments.get("readiness"), arguments.get("results_dir")
    if readiness is not None and not isinstance(readiness, Mapping):
        raise RecordError(f"readiness is {readiness!r:.120}; give what sglang_ready returned")
    if folder and not isinstance(folder, str):
        raise RecordError(f"results_dir is {folder!r:.120}; give the path of a folder on the controller")
    if folder and not check_mode:
        check_folder(folder)


def check_folder(folder: str) -> None:
    """See whether the folder of the records, which is made where it is missing, takes one; before anything is measured.

    :raises RecordError: when it does not.
    """
    try:
        target = _given_files.expanded(folder) / "room"
        target.parent.mkdir(parents=True, exist_ok=True)
        discard(stage(str(target), bytes(_ROOM)))
    except OSError as error:
        raise RecordError(f"{NOT_WRITTEN} to {folder!r}: {error}; nothing was begun") from None


def read(path: str) -> dict[str, t.Any]:
    """A record of this schema version. Raises RecordError."""
    try:
        content = json.loads(_given_files.read(_given_files.expanded(path), _MOST_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read as a record: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise RecordError(f"{path} is no record of a run: its schema is not {SCHEMA!r}")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema_version {content.get('schema_version')!r}; this release reads {SCHEMA_VERSION}"
        )
    for name in PARTS:
        part = content.get(name, "")
        kind = list if name == "models" else dict
        if not isinstance(part, kind) and not (name == "readiness" and part is None):
            raise RecordError(f"{path} is damaged: {name} is missing or of another type; take another record")
    return content


__all__ = (
    "BENCHMARK",
    "EVALUATION",
    "NOT_WRITTEN",
    "PARTS",
    "SCHEMA",
    "SCHEMA_FILE",
    "SCHEMA_VERSION",
    "NotWritten",
    "RecordError",
    "check_folder",
    "check_options",
    "file_name",
    "keep",
    "make",
    "read",
    "write",
)
