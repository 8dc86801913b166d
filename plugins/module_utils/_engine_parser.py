# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line that an installed SGLang really takes, asked once per engine and kept beside it. PRIVATE to the collection.

The engine's own Python builds the engine's own parser (``ServerArgs.add_cli_args``, in every release from 0.4.6 on) and
prints its actions; nothing is parsed and no server is started. That imports torch and takes seconds, so the answer is
kept as ``engines/.NAME.parser.json``: an engine is never edited, and the file names the engine that it is of.
An engine whose parser cannot be imported is read as text: then names are known, types and choices are not.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import re
import stat
import tempfile
import typing as t
import zipfile

from ansible_collections.specdec.serving.plugins.module_utils._files import write_file
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner

__all__ = (
    "EngineParser",
    "ParserAction",
    "cache_path",
    "load_actions",
    "parser_of_engine",
    "parser_of_wheel",
    "read_sources",
)

_FORMAT = 1
_MARK = "specdec-parser:"
#: Variables of an instance that decide which platform SGLang's import looks for, and which plugins it loads.
PLATFORM_VARIABLES = ("SGLANG_PLATFORM", "SGLANG_PLUGINS", "SGLANG_USE_CPU_ENGINE")

# Runs in the engine. Whatever an import prints comes before the mark.
_PROGRAM = r"""
import argparse, json, sys, sysconfig
try:
    from sglang.srt.plugins import load_plugins
    load_plugins()
except ImportError:
    pass
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
def plain(value):
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
actions = []
for action in parser._actions:
    kind = action.type
    help_text = action.help if isinstance(action.help, str) else ""
    row = {
        "flags": list(action.option_strings), "dest": action.dest, "action": type(action).__name__, "nargs": action.nargs,
        "type": None if kind is None else getattr(kind, "__name__", str(kind)),
        "choices": None if action.choices is None else [plain(choice) for choice in action.choices],
        "default": plain(action.default), "required": bool(action.required), "hidden": help_text == argparse.SUPPRESS,
        "new_flag": plain(getattr(action, "new_flag", None)), "error_message": plain(getattr(action, "error_message", None)),
        "deprecated": help_text.lstrip("([ ").lower().startswith("deprecated"),
    }
    actions.append({key: value for key, value in row.items() if value is not None and value is not False})
found = {"actions": actions, "include": sysconfig.get_paths()["include"]}
try:
    import torch
    found["torch_cuda"] = torch.version.cuda or ""
    found["torch"] = torch.__version__
except ImportError:
    pass
try:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    names = [name for name in SpeculativeAlgorithm.__members__ if name != "NONE"]
    for module in ("sglang.srt.speculative.spec_registry",):
        registry = __import__(module, fromlist=["x"])
        names += list(getattr(registry, "_RESERVED_ALIASES", ()))
        names += list(getattr(registry, "_REGISTRY", ()))
    found["algorithms"] = sorted(set(map(str, names)))
except Exception:
    pass
print("\n" + MARK + json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class ParserAction:
    """One action of argparse. ``type`` is the name of its converter; ``choices`` None = anything; ``default`` as JSON has it.

    ``known`` is false for an action of which only the name could be found out.
    """

    flags: tuple[str, ...]
    dest: str
    action: str = "_StoreAction"
    nargs: int | str | None = None
    type: str | None = None
    choices: tuple[t.Any, ...] | None = None
    default: t.Any = None
    required: bool = False
    hidden: bool = False
    new_flag: str = ""
    error_message: str = ""
    deprecated: bool = False
    known: bool = True

    @property
    def takes_nothing(self) -> bool:
        """A bare flag."""
        return self.nargs == 0

    @property
    def old(self) -> bool:
        """A flag that still works and says that it will not for long."""
        return self.deprecated or bool(self.new_flag) or self.action.startswith("Deprecated")


@dataclasses.dataclass(frozen=True)
class EngineParser:
    """The actions of an engine, and what else one import told.

    ``source``: ``engine`` (just asked), ``cache``, ``sources`` or ``wheel`` (read as text: names only) or '' (nothing known); ``problem`` says
    what went wrong. ``torch_cuda`` is the CUDA version of torch's build, '' = none or unknown. ``include`` is the folder of Python's
    C headers. ``algorithms`` are the names that ``speculative_algorithm`` may have, () = unknown.
    """

    actions: tuple[ParserAction, ...] = ()
    source: str = ""
    problem: str = ""
    torch_cuda: str = ""
    include: str = ""
    algorithms: tuple[str, ...] = ()

    @property
    def by_flag(self) -> dict[str, ParserAction]:
        """Every spelling of every flag."""
        return {flag: action for action in self.actions for flag in action.flags}


def load_actions(rows: t.Iterable[t.Mapping[str, t.Any]]) -> tuple[ParserAction, ...]:
    """Actions from the JSON that the program prints. Keys that are not known are left out.

    :raises ValueError: when the JSON has another shape.
    """
    names = {field.name for field in dataclasses.fields(ParserAction)}
    found = []
    try:
        for row in rows:
            values = {key: value for key, value in row.items() if key in names}
            values["flags"] = tuple(row["flags"])
            if row.get("choices") is not None:
                values["choices"] = tuple(row["choices"])
            if values.get("default") == "==SUPPRESS==":
                values["default"] = None
            found.append(ParserAction(**values))
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError(f"no list of argparse actions: {exc}") from exc
    if not found:
        raise ValueError("no argparse actions")
    return tuple(found)


def cache_path(engine: str) -> str:
    """Where the answer of an engine is kept: beside its folder, since that is never edited."""
    folder, name = os.path.split(engine.rstrip("/"))
    return f"{folder}/.{name}.parser.json"


def _identity(engine: str, environment: t.Mapping[str, str]) -> str:
    """What the answer depends on: the packages of the engine, what was asked, and how."""
    digest = hashlib.sha256(_PROGRAM.encode("utf-8"))
    with open(f"{engine}/engine.json", "rb") as file:
        digest.update(file.read())
    digest.update(json.dumps([_FORMAT, engine, sorted(environment.items())]).encode("utf-8"))
    return digest.hexdigest()


def _parsed(text: str) -> EngineParser:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    return EngineParser(
        actions=load_actions(content["actions"]),
        torch_cuda=str(content.get("torch_cuda") or ""),
        include=str(content.get("include") or ""),
        algorithms=tuple(str(name) for name in content.get("algorithms") or ()),
    )


def _read_cache(path: str, identity: str) -> EngineParser | None:
    """What is kept, if it is of this engine and nobody but its owner could have written it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode) or state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o022:
        os.close(handle)
        return None
    with os.fdopen(handle, encoding="utf-8") as file:
        try:
            kept = json.load(file)
            if kept["identity"] != identity:
                return None
            return dataclasses.replace(_parsed(json.dumps(kept["answer"])), source="cache")
        except (KeyError, TypeError, ValueError):
            return None


def _write_cache(path: str, identity: str, answer: t.Mapping[str, t.Any]) -> None:
    write_file(path, json.dumps({"identity": identity, "answer": answer}) + "\n", mode=0o644)


def _names_in_fields(text: str) -> t.Iterator[tuple[str, ...]]:
    """The flags of one file of ``arg_groups/fields`` (0.5.20 and newer): annotated attributes of classes."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            if not isinstance(item.annotation, ast.Subscript):
                continue
            flags = ["--" + item.target.id.replace("_", "-")]
            hidden = item.target.id.startswith("_")
            for call in ast.walk(item.annotation):
                for keyword in call.keywords if isinstance(call, ast.Call) else ():
                    texts = [
                        part.value
                        for part in ast.walk(keyword.value)
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    ]
                    if keyword.arg == "aliases":
                        flags += texts
                    elif keyword.arg == "cli_name" and texts:
                        flags[0] = texts[0]
                    elif keyword.arg == "no_cli":
                        hidden = True
            if not hidden:
                yield tuple(flags)


def _actions_in(fields: t.Iterable[str], server_args: str) -> tuple[ParserAction, ...]:
    """Names of flags from source texts: the files of ``arg_groups/fields``, and ``server_args.py``.

    Older releases, and the flags that 0.5.20 and newer register by hand, stand as texts in the latter.
    """
    found: dict[str, ParserAction] = {}

    def add(flags: t.Sequence[str]) -> None:
        action = ParserAction(flags=tuple(flags), dest=flags[0].lstrip("-").replace("-", "_"), known=False)
        for flag in flags:
            found.setdefault(flag, action)

    for text in fields:
        with contextlib.suppress(SyntaxError):
            for flags in _names_in_fields(text):
                add(flags)
    for match in re.finditer(r"add_argument\(\s*((?:[\"']--?[a-z][\w-]*[\"']\s*,?\s*)+)", server_args):
        add(re.findall(r"[\"'](--?[a-z][\w-]*)[\"']", match.group(1)))
    return tuple(dict.fromkeys(found.values()))


def read_sources(package: str) -> tuple[ParserAction, ...]:
    """Names of flags from the source text of ``sglang`` in the folder ``package``; nothing is imported."""
    fields: list[str] = []
    server_args = ""
    for path in sorted(glob.glob(f"{glob.escape(package)}/srt/arg_groups/fields/*.py")):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            fields.append(file.read())
    with contextlib.suppress(OSError), open(f"{package}/srt/server_args.py", encoding="utf-8") as file:
        server_args = file.read()
    return _actions_in(fields, server_args)


def parser_of_wheel(wheelhouse: str, version: str) -> EngineParser:
    """Names of flags from the wheel of SGLang that is going to be installed; empty where there is none."""
    for path in sorted(glob.glob(f"{glob.escape(wheelhouse)}/sglang-{glob.escape(version)}-*.whl")):
        with contextlib.suppress(OSError, ValueError, zipfile.BadZipFile), zipfile.ZipFile(path) as wheel:
            texts = {
                name: wheel.read(name).decode("utf-8", "replace")
                for name in wheel.namelist()
                if re.fullmatch(r"sglang/srt/(server_args|arg_groups/fields/\w+)\.py", name)
            }
            server_args = texts.pop("sglang/srt/server_args.py", "")
            return EngineParser(actions=_actions_in(texts.values(), server_args), source="wheel")
    return EngineParser()


def _package(engine: str) -> str:
    folders = glob.glob(f"{glob.escape(engine)}/lib/python3*/site-packages/sglang")
    return folders[0] if folders else ""


def parser_of_engine(
    engine: str,
    *,
    make_runner: t.Callable[..., Runner],
    environment: t.Mapping[str, str] | None = None,
    keep: bool = True,
    timeout: float = 300.0,
) -> EngineParser:
    """The parser of a complete engine, from what is kept or from the engine itself.

    :param make_runner: :func:`_runner.command_runner`; it is given the environment.
    :param environment: of an instance; only ``PLATFORM_VARIABLES`` of it count.
    :param keep: write the answer beside the engine. That fails silently where one may not write.
    """
    chosen = {name: value for name, value in (environment or {}).items() if name in PLATFORM_VARIABLES}
    path = cache_path(engine)
    try:
        identity = _identity(engine, chosen)
    except OSError as exc:
        return EngineParser(problem=f"the engine {engine!r} is not complete: {exc.strerror}")
    kept = _read_cache(path, identity)
    if kept is not None:
        return kept
    # Imports write caches below HOME, which must not be the login's.
    with tempfile.TemporaryDirectory(prefix="specdec-parser-") as home:
        variables = {
            "HOME": home,
            "HF_HUB_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SGLANG_CACHE_DIR": f"{home}/sglang",
            "XDG_CACHE_HOME": f"{home}/xdg",
            **chosen,
        }
        runner = make_runner(timeout=timeout, **variables)
        code, stdout, stderr = runner([f"{engine}/bin/python", "-c", _PROGRAM.replace("MARK", repr(_MARK), 1)])
    problem = ""
    try:
        if code != 0:
            raise ValueError(([line for line in stderr.splitlines() if line.strip()] or ["no output"])[-1].strip())
        answer = json.loads(stdout.rpartition(_MARK)[2])
        found = dataclasses.replace(_parsed(json.dumps(answer)), source="engine")
    except (KeyError, ValueError) as exc:
        problem = f"{engine}/bin/python could not build SGLang's parser (status {code}): {exc}"
    else:
        if keep:
            with contextlib.suppress(OSError):
                _write_cache(path, identity, answer)
        return found
    return EngineParser(actions=read_sources(_package(engine)), source="sources", problem=problem)
