# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import sys
import typing as t
import zipfile
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._engine_parser import (
    EngineParser,
    cache_path,
    load_actions,
    parser_of_engine,
    parser_of_wheel,
    read_sources,
)
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner

#: A package that looks like SGLang's to the program that asks it.
SERVER_ARGS = """
import argparse, os, sys
class Old(argparse.Action):
    def __init__(self, option_strings, dest, new_flag=None, **kwargs):
        self.new_flag = new_flag
        super().__init__(option_strings, dest, nargs=0, **kwargs)
    def __call__(self, *words): pass
def human_readable_int(text): return int(text)
print("an import that talks")
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument(
            "--max-total-tokens", type=human_readable_int, default=0)
        parser.add_argument("--bs", type=int, nargs="+", choices=range(3))
        parser.add_argument("--old", action=Old, new_flag="--new")
        parser.add_argument("--quiet", action="store_true", help="(Deprecated: use --loud)")
        parser.add_argument("--home", default=os.environ["HOME"])
"""
FIELDS = """
class Memory:
    size: A[int, Arg(help="--not-a-flag", aliases=["--other-size"])] = 1
    graph: A[str, Arg(cli_name="--graph-backend")] = ""
    secret: A[str, Arg(no_cli=True)] = ""
    _own: A[int, "x"] = 1
    plain: int = 0
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An engine whose Python is this one, with the package above."""
    folder = tmp_path / "engines" / "0.5.23-abc"
    package = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/sglang"
    (package / "srt/arg_groups/fields").mkdir(parents=True)
    for name in (package, package / "srt"):
        (name / "__init__.py").write_text("")
    (package / "srt/server_args.py").write_text(SERVER_ARGS)
    (package / "srt/arg_groups/fields/memory.py").write_text(FIELDS)
    (folder / "bin").mkdir()
    script = f'#!/bin/sh\nPYTHONPATH={package.parent} exec {sys.executable} "$@"\n'
    (folder / "bin/python").write_text(script)
    (folder / "bin/python").chmod(0o755)
    (folder / "engine.json").write_text('{"format": 1}')
    return folder


def ask(engine: Path, **options: t.Any) -> EngineParser:
    return parser_of_engine(str(engine), make_runner=command_runner, **options)


def test_asked_once_and_kept(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ask(engine)
    assert (first.source, first.problem) == ("engine", "")
    flags = first.by_flag
    assert flags["--model"].required
    assert flags["--max-total-tokens"].type == "human_readable_int"
    assert flags["--max-total-tokens"].default == 0
    assert (flags["--bs"].nargs, flags["--bs"].choices) == ("+", (0, 1, 2))
    assert (flags["--old"].nargs, flags["--old"].old, flags["--old"].new_flag) == (0, True, "--new")
    assert (flags["--quiet"].takes_nothing, flags["--quiet"].old) == (True, True)
    # An import may write below HOME: never in the login's.
    assert not os.path.exists(flags["--home"].default)
    kept = Path(cache_path(str(engine)))
    assert (kept.parent, kept.stat().st_mode & 0o777) == (engine.parent, 0o644)
    assert sorted(path.name for path in engine.parent.iterdir()) == sorted([kept.name, engine.name])

    (engine / "bin/python").write_text("#!/bin/sh\nexit 9\n")
    second = ask(engine)
    assert second.source == "cache"
    assert second.actions == first.actions


def test_not_kept_in_check_mode(engine: Path) -> None:
    assert ask(engine, keep=False).source == "engine"
    assert not os.path.exists(cache_path(str(engine)))


def test_another_engine_or_platform_is_asked_again(engine: Path) -> None:
    ask(engine)
    assert ask(engine, environment={"OTHER": "1"}).source == "cache"
    assert ask(engine, environment={"SGLANG_USE_CPU_ENGINE": "1"}).source == "engine"
    assert ask(engine, environment={"SGLANG_USE_CPU_ENGINE": "1"}).source == "cache"
    (engine / "engine.json").write_text('{"format": 1, "installed_in_s": 2}')
    assert ask(engine, environment={"SGLANG_USE_CPU_ENGINE": "1"}).source == "engine"


@pytest.mark.parametrize("spoil", ["writable", "link", "garbage", "other-owner"])
def test_what_is_kept_is_not_trusted_blindly(engine: Path, spoil: str, tmp_path: Path) -> None:
    ask(engine)
    kept = Path(cache_path(str(engine)))
    if spoil == "writable":
        kept.chmod(0o666)
    elif spoil == "link":
        kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(tmp_path / "elsewhere")
    elif spoil == "garbage":
        kept.write_text("{")
    elif os.geteuid() == 0:
        os.chown(kept, 12345, 12345)
    else:
        pytest.skip("only root can give a file away")
    assert ask(engine).source == "engine"


def test_a_folder_that_cannot_be_written(engine: Path) -> None:
    os.mkdir(cache_path(str(engine)))  # even root cannot rename a file over a folder
    assert ask(engine).source == "engine"
    assert [path.name for path in engine.parent.iterdir() if "parser.json." in path.name] == []


def test_an_engine_that_cannot_be_imported_is_read_as_text(engine: Path) -> None:
    (source,) = engine.glob("lib/*/site-packages/sglang/srt/server_args.py")
    source.write_text("import torch_that_is_not_there\n" + SERVER_ARGS)
    found = ask(engine)
    assert found.source == "sources"
    assert "No module named 'torch_that_is_not_there'" in found.problem
    assert {
        "--model-path",
        "--model",
        "--max-total-tokens",
        "--bs",
        "--size",
        "--other-size",
        "--graph-backend",
    } <= set(found.by_flag)
    assert not found.by_flag["--bs"].known
    assert not os.path.exists(cache_path(str(engine)))


def test_names_in_sources(engine: Path) -> None:
    (package,) = engine.glob("lib/*/site-packages/sglang")
    names = {flag for action in read_sources(str(package)) for flag in action.flags}
    assert {"--size", "--other-size", "--graph-backend"} <= names
    assert not names & {"--secret", "---own", "--not-a-flag", "--plain", "--graph"}


def test_names_in_a_wheel(engine: Path, tmp_path: Path) -> None:
    (package,) = engine.glob("lib/*/site-packages/sglang")
    with zipfile.ZipFile(tmp_path / "sglang-0.5.23+x-py3-none-any.whl", "w") as wheel:
        for path in package.rglob("*.py"):
            wheel.write(path, f"sglang/{path.relative_to(package)}")
    found = parser_of_wheel(str(tmp_path), "0.5.23+x")
    assert found.source == "wheel"
    assert {"--model", "--size"} <= set(found.by_flag)
    assert parser_of_wheel(str(tmp_path), "0.5.22") == EngineParser()
    (tmp_path / "sglang-0.5.21-py3-none-any.whl").write_text("no zip")
    assert parser_of_wheel(str(tmp_path), "0.5.21") == EngineParser()


def test_an_engine_that_is_not_complete(tmp_path: Path) -> None:
    assert "is not complete" in ask(tmp_path / "none").problem


@pytest.mark.parametrize("rows", [[], [{}], [{"flags": 1, "dest": "x"}], ["x"]], ids=json.dumps)
def test_no_actions(rows: t.Any) -> None:
    with pytest.raises(ValueError, match="argparse actions"):
        load_actions(rows)
