#!/usr/bin/env python3
# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the stand-in's wheelhouse and model folders under build/ of the checkout. Standard library only, no network.

    tests/support/stand_in/build.py [--version 0.5.23] [--wheelhouse DIR] [--models DIR]

Writes `DIR/sglang-VERSION+standin-py3-none-any.whl` with its `requirements.lock`, and the folders `stand-in-target`
and `stand-in-draft`. What is there and right stays untouched.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import re
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SOURCES = HERE / "src"
# The story's weights: 72.24 GiB on each of eight GPUs, and a draft of 6.5 GB.
TARGET_BYTES = int(72.24 * 8 * 2**30)
DRAFT_BYTES = 6_500_000_000


def profiles() -> list[str]:
    """Releases that the stand-in can be, oldest first."""
    names = [path.name for path in (SOURCES / "sglang" / "stand_in" / "profiles").iterdir()]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def _files(version: str) -> dict[str, bytes]:
    """Content of the wheel by name, without its metadata: the sources and this release's profile."""
    files = {}
    for path in sorted(SOURCES.rglob("*")):
        name = path.relative_to(SOURCES).as_posix()
        if not path.is_file() or "__pycache__" in name or path.suffix == ".pyc":
            continue
        parts = name.split("/")
        if "profiles" in parts and parts[parts.index("profiles") + 1] != version:
            continue
        files[name] = path.read_bytes()
    files["sglang/version.py"] = re.sub(rb'"\d[^"]*"', f'"{version}"'.encode(), files["sglang/version.py"])
    return files


def _wheel(version: str, files: dict[str, bytes]) -> bytes:
    """A wheel (PEP 427), the same bytes for the same sources."""
    info = f"sglang-{version}+standin.dist-info"
    content = dict(files)
    content[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}+standin\n"
        "Summary: Stand-in for SGLang: same command line, log, endpoints, processes and signals, no model inside\n"
        "License: GPL-3.0-or-later\nRequires-Python: >=3.9\n"
    ).encode()
    content[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: specdec-stand-in\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    content[f"{info}/entry_points.txt"] = b"[console_scripts]\nsglang = sglang.cli.main:main\n"
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in content.items()
    )
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()


def build_wheelhouse(folder: Path, version: str) -> bool:
    """Write wheel and lock; whether anything changed. Raises ValueError for a release without a profile."""
    if version not in profiles():
        raise ValueError(f"no profile {version!r}: there are {profiles()} in {SOURCES / 'sglang/stand_in/profiles'}")
    files = _files(version)
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    lock = folder / "requirements.lock"
    wheel = folder / f"sglang-{version}+standin-py3-none-any.whl"
    # The digest in the lock makes another engine of other sources.
    text = f"# sglang-engine: {version} stand-in, sources sha256 {digest.hexdigest()}\nsglang=={version}+standin\n"
    if wheel.is_file() and lock.is_file() and lock.read_text(encoding="utf-8") == text:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("sglang-*.whl"):
        if old != wheel:
            old.unlink()
    _replace(wheel, _wheel(version, files))
    _replace(lock, text.encode())
    return True


def make_model(folder: Path, *, config: dict[str, Any], total_bytes: int, shards: int, parameters: int = 64) -> bool:
    """A model folder of a few KB: configuration, index that claims `total_bytes`, and real small safetensors."""
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    tensors = {f"model.layers.{number}.weight": name for number, name in enumerate(names)}
    files = {
        "config.json": json.dumps(config, indent=2).encode() + b"\n",
        "model.safetensors.index.json": json.dumps(
            {"metadata": {"total_size": total_bytes}, "weight_map": tensors}, indent=2
        ).encode()
        + b"\n",
        "tokenizer_config.json": b'{"model_max_length": 262144}\n',
    }
    for number, name in enumerate(names):
        header = json.dumps(
            {
                f"model.layers.{number}.weight": {
                    "dtype": "BF16",
                    "shape": [parameters],
                    "data_offsets": [0, 2 * parameters],
                }
            }
        ).encode()
        files[name] = struct.pack("<Q", len(header)) + header + bytes(2 * parameters)
    changed = False
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            _replace(path, data)
            changed = True
    return changed


def build_models(folder: Path) -> bool:
    """`stand-in-target` (like Kimi K2.6, int4) and `stand-in-draft` (like its DFlash draft, block 8)."""
    target = make_model(
        folder / "stand-in-target",
        config={
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "text_config": {
                "model_type": "kimi_k2",
                "max_position_embeddings": 262144,
                "num_hidden_layers": 61,
                "hidden_size": 7168,
                "kv_lora_rank": 512,
                "quantization_config": {"quant_method": "compressed-tensors"},
            },
            "vision_config": {"model_type": "moonvit"},
        },
        total_bytes=TARGET_BYTES,
        shards=8,
    )
    draft = make_model(
        folder / "stand-in-draft",
        config={
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "block_size": 8,
            "max_position_embeddings": 262144,
            "num_hidden_layers": 5,
            "hidden_size": 7168,
        },
        total_bytes=DRAFT_BYTES,
        shards=1,
    )
    return target or draft


def _replace(path: Path, data: bytes) -> None:
    """Write whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    os.replace(fresh, path)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--version", default=profiles()[-1], choices=profiles(), help="SGLang release to stand in for")
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "build" / "wheelhouse" / "stand-in")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    args = parser.parse_args(argv)
    for what, changed in (
        (args.wheelhouse, build_wheelhouse(args.wheelhouse, args.version)),
        (args.models, build_models(args.models)),
    ):
        print(f"{'wrote' if changed else 'unchanged'} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
