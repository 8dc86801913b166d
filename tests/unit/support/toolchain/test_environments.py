# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.toolchain import environments
from ansible_collections.specdec.serving.tests.support.toolchain.environments import Environment, Interpreter

OURS = (sys.version_info[0], sys.version_info[1])
NEVER = (9, 9)
#: The interpreter that runs this, outside of the environment that it runs in.
BASE = str(sys._base_executable)  # type: ignore[attr-defined]  # not in the stubs


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "none.txt").write_text("# nothing\n")
    return tmp_path


@pytest.fixture
def env() -> Environment:
    return Environment(name=".venv-none", versions=(OURS,), requirements=("none.txt",))


def test_candidates_are_ordered_by_wish_then_version(tmp_path: Path) -> None:
    on_path = tmp_path / "bin"
    for name in ("python3", "python3.13"):
        executable(on_path / name, "")
    for version in ("3.13.9", "3.13.10", "3.12.1", "3.8.1"):
        executable(tmp_path / "pyenv" / "versions" / version / "bin" / "python", "")
    environ = {"PATH": str(on_path), "PYENV_ROOT": str(tmp_path / "pyenv"), "PYTHON": "/my/python"}
    found = environments.candidates(versions=((3, 13), (3, 12)), environ=environ)
    assert [Path(path).relative_to(tmp_path).as_posix() for path in found[1:]] == [
        "bin/python3.13",
        "pyenv/versions/3.13.10/bin/python",
        "pyenv/versions/3.13.9/bin/python",
        "pyenv/versions/3.12.1/bin/python",
        "bin/python3",
    ]
    assert found[0] == "/my/python"


def test_pyenv_is_looked_for_in_the_home_folder(tmp_path: Path) -> None:
    python = executable(tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin" / "python", "")
    environ = {"PATH": "", "HOME": str(tmp_path)}
    assert environments.candidates(versions=((3, 13),), environ=environ) == [str(python)]


def test_probe_runs_the_interpreter() -> None:
    assert environments.probe(sys.executable) == Interpreter(path=BASE, version=OURS)


def test_an_environment_stands_for_the_interpreter_below_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    assert environments.probe(str(tmp_path / "v" / "bin" / "python")) == Interpreter(path=BASE, version=OURS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            '#!/bin/sh\necho "pyenv: python3.12: command not found" >&2; exit 127', "command not found", id="shim"
        ),
        pytest.param(
            "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'ensurepip'\" >&2; exit 1",
            "ensurepip",
            id="no venv",
        ),
        pytest.param("#!/bin/sh\nexit 0", "said 'nothing'", id="says nothing"),
        pytest.param("#!/no/such/interpreter\n", "cannot be run", id="cannot be run"),
    ],
)
def test_probe_says_why_an_interpreter_does_not_do(tmp_path: Path, text: str, reason: str) -> None:
    answer = environments.probe(str(executable(tmp_path / "python", text)))
    assert isinstance(answer, str)
    assert reason in answer


def test_a_candidate_that_does_not_work_is_passed_over(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / f"python{OURS[0]}.{OURS[1]}", "#!/bin/sh\nexit 1")
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    found = environments.find_interpreter(versions=(OURS,), environ={"PATH": str(tmp_path / "bin"), "HOME": "/none"})
    assert found.version == OURS


def test_the_error_names_everything_that_was_looked_at(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "python9.9", "#!/bin/sh\nexit 1")
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    with pytest.raises(environments.InterpreterNotFoundError) as caught:
        environments.find_interpreter(versions=(NEVER,), environ={"PATH": str(tmp_path / "bin"), "HOME": "/none"})
    message = str(caught.value)
    assert "no Python 9.9" in message
    assert f"{tmp_path}/bin/python9.9: cannot make a virtual environment" in message
    assert f"{tmp_path}/bin/python3: is Python {OURS[0]}.{OURS[1]}" in message
    assert "make venv PYTHON=" in message


def ensure(root: Path, env: Environment, monkeypatch: pytest.MonkeyPatch, *, pip: str = "") -> Path:
    """Make ``env`` without pip, which takes seconds to install; ``pip`` is a script that stands for it."""
    real_run = environments._run

    def run(argv: t.Sequence[str | Path]) -> None:
        if "venv" in argv:
            real_run([*argv[:-1], "--without-pip", argv[-1]])
        else:
            assert list(argv[1:3]) == ["-m", "pip"]
            real_run([argv[0], "-c", pip])

    def given(**_: object) -> Environment:
        return env

    with monkeypatch.context() as patch:
        patch.setattr(environments, "environment", given)
        patch.setattr(environments, "_run", run)
        return environments.ensure(name=env.name, root=root, environ={"PYTHON": sys.executable})


def test_an_environment_is_made_once(root: Path, env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = ensure(root, env, monkeypatch)
    assert (root / ".venv-none").resolve() == venv
    done = subprocess.run(
        [root / ".venv-none" / "bin" / "python", "-c", "import sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).resolve() == venv

    def never(**_: object) -> t.NoReturn:
        raise AssertionError("built again")

    monkeypatch.setattr(environments, "build", never)
    assert ensure(root, env, monkeypatch) == venv


def test_changed_requirements_switch_to_a_new_environment(
    root: Path, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure(root, env, monkeypatch)
    (root / "requirements" / "none.txt").write_text("# nothing either\n")
    second = ensure(root, env, monkeypatch)
    assert second != first
    assert (root / ".venv-none").resolve() == second
    assert first.exists()  # something may still run in it
    (root / "requirements" / "none.txt").write_text("# nothing at all\n")
    third = ensure(root, env, monkeypatch)
    assert [path.exists() for path in (first, second, third)] == [False, True, True]


@pytest.mark.parametrize("what", ["made-with", "bin/python"])
def test_an_incomplete_environment_is_made_again(
    root: Path, env: Environment, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    venv = ensure(root, env, monkeypatch)
    (venv / what).unlink()
    assert ensure(root, env, monkeypatch) == venv
    assert (venv / what).exists()


def test_an_interrupted_build_leaves_the_present_one(
    root: Path, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure(root, env, monkeypatch)
    (root / "requirements" / "none.txt").write_text("no-such-package==1\n")
    with pytest.raises(environments.ToolchainError, match="ended with 4"):
        ensure(root, env, monkeypatch, pip="raise SystemExit(4)")
    assert (root / ".venv-none").resolve() == first


def test_a_folder_in_the_way_is_not_removed(root: Path, env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".venv-none").mkdir()
    with pytest.raises(environments.ToolchainError, match="move it away"):
        ensure(root, env, monkeypatch)


def test_a_pinned_requirement_is_found(tmp_path: Path) -> None:
    file = tmp_path / "r.txt"
    file.write_text("# x\nansible-core-extra==9\nansible-core==2.21.5; x\nansible-core==2.19\n")
    assert environments.requirement(file=file, name="ansible-core") == "ansible-core==2.21.5"
    with pytest.raises(environments.ToolchainError, match="pins no 'jinja2'"):
        environments.requirement(file=file, name="jinja2")


def test_every_requirement_of_the_checkout_is_pinned() -> None:
    for name in (".venv", ".venv-py39"):
        env = environments.environment(name=name)
        for file in filter(None, [*env.requirements, env.constraints]):
            lines = (environments.ROOT / "requirements" / file).read_text().splitlines()
            loose = [line for line in lines if line and not line.startswith("#") and "==" not in line]
            assert not loose, f"requirements/{file} leaves versions open: {loose!r}"


def test_constraints_agree_with_the_requirements() -> None:
    env = environments.environment(name=".venv")
    folder = environments.ROOT / "requirements"
    fixed = {line.lower() for line in (folder / env.constraints).read_text().splitlines()}
    for file in env.requirements:
        lines = [line for line in (folder / file).read_text().splitlines() if line and not line.startswith("#")]
        assert {line.lower() for line in lines} <= fixed, f"requirements/{file} and {env.constraints} differ"
