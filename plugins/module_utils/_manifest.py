# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model folder holds, without reading its weights: names, sizes, and the hashes of the small files that rule the rest.

PRIVATE to the collection. Enough to see that a model was replaced, cut off or quantized anew under the same path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._runner import TooLate, within

__all__ = ("changes", "manifest")

#: Hashed, where they are there: which tensor lies where, and how the model is built (safetensors, transformers).
_HASHED = ("config.json", "model.safetensors.index.json")
_MOST_HASHED = 64 * 2**20
#: The folder may lie on a mount that does not answer.
_PATIENCE_S = 10.0


def _look(path: str) -> dict[str, t.Any]:
    # A model may be one file (GGUF); links are followed, for a Hugging Face snapshot is nothing but links.
    single = not os.path.isdir(path)
    folder = os.path.dirname(path) if single else path
    files: dict[str, int] = {}
    hashes: dict[str, str] = {}
    for name in [os.path.basename(path)] if single else sorted(os.listdir(path)):
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(os.path.join(folder, name))
            if not stat.S_ISREG(status.st_mode):
                continue
            files[name] = status.st_size
            if name in _HASHED and status.st_size <= _MOST_HASHED:
                with open(os.path.join(folder, name), "rb") as file:
                    hashes[name] = hashlib.sha256(file.read()).hexdigest()
    return {"path": path, "files": files, "sha256": hashes, "bytes": sum(files.values()), "problem": ""}


def manifest(path: str) -> dict[str, t.Any]:
    """``path``, ``files`` (name to bytes), ``sha256`` (of the small files that rule the rest), ``bytes``, ``problem``.

    A model id (no absolute path) has no files here. ``problem`` says why a folder could not be looked at; never raises.
    """
    empty = {"path": path, "files": {}, "sha256": {}, "bytes": 0, "problem": ""}
    if not path.startswith("/"):
        return empty
    try:
        return within(_PATIENCE_S, lambda: _look(path))
    except (OSError, TooLate) as error:
        return {**empty, "problem": str(error)}


def changes(before: t.Mapping[str, t.Any], after: t.Mapping[str, t.Any]) -> list[str]:
    """What is different in ``after``, a few words for each; [] where nothing is, or one of them could not be looked at."""
    if before.get("problem") or after.get("problem") or before.get("path") != after.get("path"):
        return []
    old, new = before.get("files") or {}, after.get("files") or {}
    found = [f"{name} is gone" for name in old if name not in new]
    found += [f"{name} is new" for name in new if name not in old]
    found += [
        f"{name} has {new[name]} bytes, not {old[name]}" for name in old if name in new and new[name] != old[name]
    ]
    hashes, now = before.get("sha256") or {}, after.get("sha256") or {}
    found += [
        f"{name} has another content"
        for name in hashes
        if name in now and hashes[name] != now[name] and old.get(name) == new.get(name)
    ]
    return found
