# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ask a real SGLang what it says of command lines, without starting a server. Runs in the engine's own Python.

    ENGINE/bin/python ask.py < cases.json > answers.jsonl

`cases.json` is a list of `{"argv": [...], "environment": {...}}`, the last of which should be a good one. Each is parsed
(`prepare_server_args`) and, in a process of its own, resolved (`ServerArgs.resolve_once`), which is all that `launch_server` does
before it starts anything. An answer, one a line, is `{"step": "parse" | "resolve" | "", "status": 2 | 1 | 0, "error": "..."}`;
`""` means that nothing was refused. One that was resolved also has `"started"`: processes that resolving started and sockets that it bound.
Rules that ask the GPU itself cannot be answered where there is none; those that only look at `--device cuda` can.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def server_args() -> Any:
    """The engine's module: imported once, before processes are made."""
    return importlib.import_module("sglang.srt.server_args")


def parse(case: dict[str, Any]) -> dict[str, Any] | None:
    """What argparse refuses, or None. It changes nothing, so it needs no process of its own."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            server_args().prepare_server_args(case["argv"])
    except SystemExit as exc:
        return {"step": "parse", "status": exc.code, "error": errors.getvalue().strip().splitlines()[-1]}
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is the answer
        return {"step": "parse", "status": 1, "error": f"{type(exc).__name__}: {exc}"}
    return None


def resolve(case: dict[str, Any]) -> dict[str, Any]:
    """What its rules refuse."""
    os.environ.update(case.get("environment") or {})
    started: set[str] = set()
    sys.addaudithook(functools.partial(note, started))
    answer = resolved(case)
    return {**answer, "started": sorted(started)}


def note(started: set[str], event: str, details: tuple[Any, ...]) -> None:
    """An audit hook (PEP 578): everything by which a server would begin."""
    if event == "socket.bind":
        started.add(f"bind {details[1]}")
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        started.add(f"{event} {details[1] if event == 'subprocess.Popen' else details[0]}")
    elif event in ("os.fork", "os.forkpty"):
        started.add(event)


def resolved(case: dict[str, Any]) -> dict[str, Any]:
    """The answer alone."""
    try:
        arguments = server_args().prepare_server_args(case["argv"])
        arguments.resolve_once()
        arguments.check_server_args()
    except Exception as exc:  # noqa: BLE001 - likewise
        where = traceback.extract_tb(exc.__traceback__)[-1]
        return {
            "step": "resolve",
            "status": 1,
            "error": f"{type(exc).__name__}: {exc}",
            "where": f"{where.filename.rpartition('/srt/')[2]}:{where.lineno}",
        }
    return {"step": "", "status": 0, "error": ""}


def in_child(work: Callable[[], Any]) -> Any:
    """The result of `work`, done in a process of its own: resolving leaves traces in the environment and in modules."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            text = json.dumps(work())
        except BaseException as exc:  # noqa: BLE001 - the parent tells it
            text = json.dumps({"step": "ask", "status": -1, "error": repr(exc)})
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return json.loads(content)


def modules_of(case: dict[str, Any]) -> list[str]:
    resolve(case)
    return [name for name in sys.modules if name != "__main__"]


def main() -> None:
    cases = json.load(sys.stdin)
    server_args()

    logging.disable(logging.CRITICAL)
    # What resolving imports, so that not every child imports it again.
    for name in in_child(lambda: modules_of(cases[-1])) if cases else ():
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for case in cases:
        print(json.dumps(parse(case) or in_child(functools.partial(resolve, case))), flush=True)


if __name__ == "__main__":
    main()
