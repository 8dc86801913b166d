# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Records the command line of SGLang's benchmark client, from its wheel, without its dependencies.

    record.py sglang-0.5.10-py3-none-any.whl > tests/unit/fixtures/sglang-0.5.10/client-arguments.json

The statements that build the parser are the wheel's own and are run as they are, with stand-ins for what they name besides; so what is
recorded is what argparse made of them: `flags`, `dest`, `nargs`, `choices`, `type`, `action`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

CLIENTS = ("sglang/benchmark/serving.py", "sglang/bench_serving.py")


class Anything(argparse.Action):
    """In place of the client's own actions; never called."""

    def __call__(self, *_unused: object) -> None:
        raise NotImplementedError


def number(text: str) -> float:
    """In place of the client's own converters of numbers."""
    return float(text)


def building(source: str) -> list[ast.stmt]:
    """The statements of the client's program up to `parse_args`."""
    tree = ast.parse(source)
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "cli_main":
            body = node.body
            break
        if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
            body = node.body
    kept: list[ast.stmt] = []
    for statement in body:
        if "parse_args" in ast.dump(statement):
            return kept
        kept.append(statement)
    raise SystemExit("no parse_args in the client's program")


def backends(source: str) -> dict[str, None]:
    """The keys of ASYNC_REQUEST_FUNCS, which are the choices of --backend."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if names == ["ASYNC_REQUEST_FUNCS"]:
                return {str(key.value): None for key in node.value.keys if isinstance(key, ast.Constant)}
    raise SystemExit("no ASYNC_REQUEST_FUNCS in the client")


def actions(source: str) -> list[dict[str, Any]]:
    names: dict[str, Any] = {
        "argparse": argparse,
        "ArgumentParser": argparse.ArgumentParser,
        "ASYNC_REQUEST_FUNCS": backends(source),
        "LoRAPathAction": Anything,
        "_finite_positive_float": number,
        "_goodput_slo": str,
        "GOODPUT_SLO_METRICS": (),
        "_DEFAULT_SGLANG_FLUSH_CACHE_TIMEOUT": 0.0,
    }
    exec(compile(ast.Module(body=building(source), type_ignores=[]), "client", "exec"), names)
    found = []
    for action in names["parser"]._actions:
        row = {
            "flags": action.option_strings,
            "dest": action.dest,
            "action": type(action).__name__,
            "nargs": action.nargs,
            "type": getattr(action.type, "__name__", None),
            "choices": None if action.choices is None else list(action.choices),
        }
        found.append({key: value for key, value in row.items() if value is not None})
    return found


def main() -> None:
    path = Path(sys.argv[1])
    with zipfile.ZipFile(path) as wheel:
        name = next(name for name in CLIENTS if name in wheel.namelist())
        source = wheel.read(name).decode()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    head = {"wheel": path.name, "sha256": digest, "file": name}
    rows = ",\n  ".join(json.dumps(row) for row in actions(source))
    print(f'{{"source": {json.dumps(head)},\n "actions": [\n  {rows}\n]}}')


if __name__ == "__main__":
    main()
