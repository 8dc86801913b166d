# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read from a host: files below tmp_path, a /proc of our own, and systemctl as recorded text."""

from __future__ import annotations

import dataclasses
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._drift import Asked, compare
from ansible_collections.specdec.serving.plugins.module_utils._drift_host import look
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import Instance, Layout, apply_present

INVOCATION = "a1" * 16
KEY = "sk-planted-key-81c"


@dataclasses.dataclass
class Box:
    root: Path
    systemd: t.Any
    asked: Asked
    layout: Layout
    #: More lines of `systemctl show`.
    shown: list[str]

    def runner(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        code, stdout, stderr = self.systemd(argv)
        if argv[1] == "show":
            stdout += "".join(f"{line}\n" for line in self.shown)
        if argv[1] == "show-environment":
            stdout = "LANG=C.UTF-8\nPROXY=$'x\\n'\n"
        return code, stdout, stderr

    def look(self) -> t.Any:
        return look(self.asked, self.layout, self.runner, proc=str(self.root / "proc"))

    def run(self, words: t.Sequence[str], environment: t.Mapping[str, str], pid: int = 7) -> None:
        """The main process of the unit."""
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pid} (python) S 1 " + " ".join(["0"] * 17 + ["99"] + ["0"] * 30))
        (folder / "cmdline").write_text("\0".join(words) + "\0")
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))
        self.systemd.states["sglang-a.service"] = "active"
        self.systemd.invocations["sglang-a.service"] = INVOCATION
        self.shown = [line for line in self.shown if not line.startswith("MainPID")] + [f"MainPID={pid}"]


@pytest.fixture
def box(tmp_path: Path, fake_systemd: t.Any) -> Box:
    """An instance that was deployed and runs."""
    config, unit_dir = tmp_path / "etc", tmp_path / "units"
    instance = Instance(
        name="a",
        unit="sglang-a.service",
        content=(
            "[Service]\nExecStart=/bin/a --config ${CREDENTIALS_DIRECTORY}/a.yaml --page-size 64\n"
            f"EnvironmentFile={config}/a.000000000000.env\nLoadCredential=a.yaml:{config}/credentials/a.@SECRET@.yaml\n"
        ),
        environment_file=f"{config}/a.000000000000.env",
        environment_text='A="1"\n',
        credential=f"{config}/credentials/a.@SECRET@.yaml",
    )
    asked = Asked(instance, str(config), {"config": {"api_key": KEY}, "environment": {}})
    layout = Layout(str(unit_dir), str(config), str(tmp_path / "state"))
    apply_present([instance], layout, {"a": asked.secrets}, fake_systemd)
    fake_systemd.start("sglang-a.service")
    box = Box(tmp_path, fake_systemd, asked, layout, ["UnitFileState=enabled"])
    given = tmp_path / "run"
    given.mkdir()
    (written,) = (config / "credentials").iterdir()
    (given / "a.yaml").write_text(written.read_text())
    box.run(
        ["/bin/a", "--config", f"{given}/a.yaml", "--page-size", "64"],
        {"INVOCATION_ID": INVOCATION, "CREDENTIALS_DIRECTORY": str(given), "A": "1", "PROXY": "x"},
    )
    # The start that a deployment makes is the one it remembers.
    apply_present([instance], layout, {"a": asked.secrets}, box.runner)
    return box


def kinds(box: Box) -> list[tuple[str, str]]:
    return [(one.where, one.name) for one in compare(box.asked, box.look())]


def test_as_deployed(box: Box) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in box.root.rglob("*"))
    assert kinds(box) == []
    assert sorted((path, path.stat().st_mtime_ns) for path in box.root.rglob("*")) == before


def test_the_process(box: Box) -> None:
    box.run(
        ["/bin/a", "--page-size", "32"],
        {"INVOCATION_ID": INVOCATION, "A": "2", "B": "1", "PROXY": "x", "LANG": "C"},
    )
    assert kinds(box) == [("process", "config"), ("process", "page_size"), ("process", "A"), ("process", "B")]


def test_the_key_that_the_process_was_given(box: Box) -> None:
    (box.root / "run" / "a.yaml").write_text('api-key: "sk-planted-old-81c"\n')
    assert kinds(box) == [("process", "api_key")]


@pytest.mark.parametrize(
    "environment", [{"INVOCATION_ID": "b2" * 16, "A": "2"}, {}], ids=["another invocation's", "written over"]
)
def test_a_process_that_cannot_be_told(box: Box, environment: dict[str, str]) -> None:
    box.run(["/bin/other"], environment)
    assert kinds(box) == []


def test_a_process_that_is_gone(box: Box) -> None:
    box.shown.append("MainPID=8")
    assert kinds(box) == []


def test_files(box: Box) -> None:
    Path(box.asked.instance.environment_file).write_text('A="1"\nB="2"\n')
    assert kinds(box) == [("environment", "B"), ("process", "B")]
    Path(box.asked.instance.environment_file).unlink()
    assert kinds(box) == [("environment", "A"), ("process", "A")]


def test_a_mode_that_was_changed(box: Box) -> None:
    Path(box.layout.unit_dir, "sglang-a.service").chmod(0o600)
    ((where, name),) = kinds(box)
    assert (where, name) == ("unit", "text")


def test_nothing_there(box: Box) -> None:
    Path(box.layout.unit_dir, "sglang-a.service").unlink()
    assert kinds(box) == [("unit", "file")]


def test_environment_files_by_a_pattern(box: Box) -> None:
    for name, text in (("x.conf", "A=3\nX=1\n"), ("y.conf", "A=4\n")):
        (box.root / name).write_text(text)
    unit = Path(box.layout.unit_dir, "sglang-a.service")
    unit.write_text(unit.read_text() + f"EnvironmentFile=-{box.root}/?.conf\n")
    found = {(one.where, one.name): one.found for one in compare(box.asked, box.look())}
    assert found["environment", "A"] == "4"
    assert found["environment", "X"] == "1"
    assert found["unit", "EnvironmentFile"] == f"-{box.root}/?.conf"


def test_masked(box: Box) -> None:
    box.shown.append("LoadState=masked")
    assert kinds(box) == [("systemd", "LoadState")]


def test_drop_ins_that_systemd_has_read(box: Box) -> None:
    path = box.root / "a b.conf"
    path.write_text("[Service]\nTasksMax=5\n")
    box.shown.append(f'DropInPaths="{path}"')
    assert kinds(box) == [("drop_in", "TasksMax")]
