# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What build.py decides without a network: its recipes, what is missing, when a result is current."""

from __future__ import annotations

import platform
import zipfile
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.cpu_engine import build, wheels


def make_wheel(folder: Path, *, name: str, version: str, files: dict[str, str], requires: str = "") -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n{requires}\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    return path


def test_requirements_pin_everything_that_is_repacked() -> None:
    pins = wheels.parse_lock((build.HERE / "requirements.txt").read_text(encoding="utf-8"))
    assert pins["sglang"] == "0.5.23"
    assert set(build.REPACKS) <= set(pins)
    assert set(build.LARGE) <= set(pins)


@pytest.mark.parametrize(
    ("name", "path", "dropped"),
    [
        ("torch", "torch/include/ATen/ATen.h", True),
        ("torch", "torch/bin/protoc", True),
        ("torch", "torch/bin/torch_shm_manager", False),
        ("torch", "torch/lib/libtorch_cpu.so", False),
        ("torch", "torch/testing/_internal/x.py", False),
        ("triton", "triton/backends/nvidia/bin/ptxas", True),
        ("triton", "triton/backends/nvidia/driver.py", False),
        ("triton", "triton/_C/libtriton.so", False),
        ("torchvision", "torchvision/_C.so", True),
        ("torchvision", "torchvision/extension.py", False),
        ("torchvision", "torchvision/ops/boxes.py", False),
    ],
)
def test_what_a_recipe_drops(name: str, path: str, dropped: bool) -> None:
    assert build.REPACKS[name].drops(path) is dropped


def test_torchvision_gets_its_schemas(tmp_path: Path) -> None:
    source = make_wheel(
        tmp_path,
        name="torchvision",
        version="0.28.0",
        files={"torchvision/extension.py": "BEFORE = 1\n", "torchvision/_C.so": "binary"},
    )
    (tmp_path / "out").mkdir()
    made = build.repacked(source, folder=tmp_path / "out", recipe=build.REPACKS["torchvision"])
    assert made.name.startswith("torchvision-0.28.0+specdec.h")
    with zipfile.ZipFile(made) as archive:
        text = archive.read("torchvision/extension.py").decode()
        assert "torchvision/_C.so" not in archive.namelist()
    assert text == "BEFORE = 1\n" + build.TORCHVISION_PATCH
    compile(text, "extension.py", "exec")


def test_a_patch_that_no_longer_fits_is_an_error(tmp_path: Path) -> None:
    source = make_wheel(tmp_path, name="torchvision", version="9", files={"torchvision/ops.py": ""})
    (tmp_path / "out").mkdir()
    with pytest.raises(build.BuildError, match=r"holds no torchvision/extension\.py"):
        build.repacked(source, folder=tmp_path / "out", recipe=build.REPACKS["torchvision"])


def test_the_version_follows_the_recipe(tmp_path: Path) -> None:
    source = make_wheel(tmp_path, name="a", version="1", files={"a/x": "", "a/y": ""})
    (tmp_path / "out").mkdir()
    names = {
        build.repacked(source, folder=tmp_path / "out", recipe=recipe).name
        for recipe in (build.Repack(), build.Repack(drop=("a/x",)), build.Repack(append=(("a/x", "1"),)))
    }
    assert len(names) == 3


def test_missing_ignores_local_parts_and_spelling(tmp_path: Path) -> None:
    for name in (
        "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl",
        "typing_extensions-4.16.0-py3-none-any.whl",
        "b-1-py3-none-any.whl",
    ):
        (tmp_path / name).touch()
    pins = {"torch": "2.13.0", "typing-extensions": "4.16.0", "b": "2", "c": "1"}
    assert build.missing(pins, folder=tmp_path) == ["b", "c"]


@pytest.mark.parametrize(
    ("requires", "needed"),
    [
        ("Requires-Dist: sympy\nRequires-Dist: jinja2\n", []),
        (
            (
                'Requires-Dist: sympy\nRequires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == "Linux"\n'
                'Requires-Dist: triton==3.7.1\nRequires-Dist: cuda-bindings<14; extra == "x"\n'
            ),
            ['nvidia-nccl-cu13==2.29.7; platform_system == "Linux"'],
        ),
    ],
    ids=["cpu build", "cuda build"],
)
def test_a_cuda_build_of_torch_is_noticed(tmp_path: Path, requires: str, needed: list[str]) -> None:
    wheel = make_wheel(tmp_path, name="torch", version="2.13.0", files={}, requires=requires)
    assert build.cuda_requirements(wheel) == needed


def test_published_folders_are_current_until_touched(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    assert not build.is_current(folder, key="k")
    for content in ("first", "second one"):
        fresh = build.workspace(folder)
        (fresh / "weights").write_text(content)
        (fresh / "weights").chmod(0o600)
        build.publish(fresh, folder=folder, key="k")
        assert (folder / "weights").read_text() == content
        # the service user of a lab host reads it
        assert (folder / "weights").stat().st_mode & 0o777 == 0o644
        assert build.is_current(folder, key="k")
        assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert not build.is_current(folder, key="other")
    (folder / "weights").write_text("short")
    assert not build.is_current(folder, key="k")


def test_leftovers_of_a_killed_build_go(tmp_path: Path) -> None:
    folder = tmp_path / "wheelhouse"
    (build.workspace(folder) / "half.whl").write_text("half")
    assert list(build.workspace(folder).iterdir()) == []
    assert not folder.exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"key": "k"}', '{"key": "k", "files": {"gone": 1}}'])
def test_a_broken_stamp_is_not_current(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / ".stamp").write_text(text)
    assert not build.is_current(tmp_path, key="k")


def test_other_platforms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(build.BuildError, match="aarch64"):
        build.check_platform()


def test_no_python_says_what_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.delenv("PYTHON", raising=False)
    shim = tmp_path / "python3.11"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.11: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    with pytest.raises(build.BuildError, match=r"(?s)python3\.11: .*command not found.*python3\.11-venv"):
        build.find_python()


def test_a_failing_command_quotes_its_end(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"(?s)ended with 3.*the reason"):
        build.run(["sh", "-c", "echo the reason >&2; exit 3"], log=tmp_path / "log")
    assert "the reason" in (tmp_path / "log").read_text()
