# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines below tmp_path, with a pip that only writes files."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _known_good
from ansible_collections.specdec.serving.plugins.module_utils._engine import (
    EngineError,
    EngineRequest,
    ensure_engine,
    locked_version,
    pip_environment,
    read_engine,
)
from ansible_collections.specdec.serving.plugins.module_utils._runner import command_runner


class FakePip:
    """``python -m venv``, pip and the version, for engines below one folder."""

    def __init__(self, version: str = "0.5.23") -> None:
        self.version = version
        self.calls: list[list[str]] = []
        self.fail_at = ""
        self.interrupt_at = ""

    def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        self.calls.append(list(argv))
        step = "version" if "-c" in argv else "freeze" if "freeze" in argv else argv[2]
        if step == "venv":
            python = Path(argv[3]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.write_text("#!/bin/sh\n")
            python.chmod(0o755)
        if step == self.interrupt_at:
            raise KeyboardInterrupt
        if step == self.fail_at:
            return 1, "Looking in links\n", "ERROR: No matching distribution found for torch\n"
        if step == "version":
            return 0, self.version + "\n", ""
        if step == "freeze":
            return 0, "torch==2.13.0\nsglang==0.5.23\n", ""
        return 0, "", ""

    def steps(self) -> list[str]:
        return ["version" if "-c" in call else "freeze" if "freeze" in call else call[2] for call in self.calls]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def request_(tmp_path: Path) -> EngineRequest:
    return EngineRequest(
        path=str(tmp_path / "engines" / "0.5.23-aaaaaaaaaaaa"),
        version="0.5.23",
        python="/usr/bin/python3",
        wheelhouse="/srv/wheelhouse",
    )


@pytest.fixture
def where(tmp_path: Path) -> dict[str, t.Any]:
    (tmp_path / "units").mkdir()
    (tmp_path / "proc" / "17").mkdir(parents=True)
    return {"unit_dir": str(tmp_path / "units"), "proc": str(tmp_path / "proc")}


def test_from_a_wheelhouse(request_: EngineRequest, where: dict[str, t.Any]) -> None:
    pip = FakePip()
    result = ensure_engine(request_, pip, **where)
    assert (result.changed, result.version, result.reason) == (True, "0.5.23", "not installed")
    assert pip.calls[0] == ["/usr/bin/python3", "-m", "venv", request_.path]
    assert pip.calls[1][-6:] == [
        "--no-index",
        "--no-deps",
        "--find-links",
        "/srv/wheelhouse",
        "--requirement",
        "/srv/wheelhouse/requirements.lock",
    ]
    content = json.loads(Path(request_.path, "engine.json").read_text())
    assert content["version"] == "0.5.23"
    assert content["packages"] == ["sglang==0.5.23", "torch==2.13.0"]


def test_from_an_index(request_: EngineRequest, where: dict[str, t.Any]) -> None:
    pip = FakePip()
    index = dataclasses.replace(
        request_, wheelhouse="", requirements=("sglang==0.5.23", "x"), index_url="https://user:password@i/simple"
    )
    ensure_engine(index, pip, **where)
    assert pip.calls[1][-3:] == ["--", "sglang==0.5.23", "x"]
    assert "--no-index" not in pip.calls[1]
    # Everybody can read a command line.
    assert "password" not in str(pip.calls)
    assert pip_environment(index) == {"PIP_INDEX_URL": "https://user:password@i/simple"}
    assert pip_environment(dataclasses.replace(index, index_url="")) == {}


def test_a_wheelhouse_says_everything(request_: EngineRequest) -> None:
    assert pip_environment(dataclasses.replace(request_, index_url="https://i")) == {"PIP_CONFIG_FILE": "/dev/null"}


def test_complete_already(request_: EngineRequest, where: dict[str, t.Any]) -> None:
    ensure_engine(request_, FakePip(), **where)
    pip = FakePip()
    result = ensure_engine(request_, pip, **where)
    assert (result.changed, result.version, result.reason) == (False, "0.5.23", "complete")
    assert pip.calls == []


@pytest.mark.parametrize("step", ["venv", "pip", "version", "freeze"])
def test_a_failure_leaves_nothing(request_: EngineRequest, where: dict[str, t.Any], step: str) -> None:
    pip = FakePip()
    pip.fail_at = step
    with pytest.raises(EngineError, match="No matching distribution found for torch"):
        ensure_engine(request_, pip, **where)
    assert not Path(request_.path).exists()


@pytest.mark.parametrize("step", ["venv", "pip", "version"])
def test_an_interruption_leaves_nothing(request_: EngineRequest, where: dict[str, t.Any], step: str) -> None:
    pip = FakePip()
    pip.interrupt_at = step
    with pytest.raises(KeyboardInterrupt):
        ensure_engine(request_, pip, **where)
    assert not Path(request_.path).exists()


@pytest.mark.parametrize("left", ["no marker", "damaged marker", "other format", "no python"])
def test_an_incomplete_engine_is_made_anew(request_: EngineRequest, where: dict[str, t.Any], left: str) -> None:
    ensure_engine(request_, FakePip(), **where)
    stale = Path(request_.path, "stale")
    stale.write_text("")
    marker = Path(request_.path, "engine.json")
    if left == "no marker":
        marker.unlink()
    elif left == "damaged marker":
        marker.write_text("{")
    elif left == "other format":
        marker.write_text('{"format": 99}')
    else:
        Path(request_.path, "bin", "python").unlink()
    assert read_engine(request_.path) == {}
    result = ensure_engine(request_, FakePip(), check_mode=True, **where)
    assert (result.changed, result.reason) == (True, "an earlier installation was not completed")
    assert stale.exists()
    assert ensure_engine(request_, FakePip(), **where).changed
    assert not stale.exists()


def test_a_local_part_of_the_version_does_not_count(request_: EngineRequest, where: dict[str, t.Any]) -> None:
    assert ensure_engine(request_, FakePip("0.5.23+standin"), **where).version == "0.5.23+standin"


def test_another_version_than_asked(request_: EngineRequest, where: dict[str, t.Any]) -> None:
    with pytest.raises(EngineError, match=r"installed SGLang '0\.5\.22', not '0\.5\.23'"):
        ensure_engine(request_, FakePip("0.5.22"), **where)
    assert not Path(request_.path).exists()


def test_no_version(request_: EngineRequest, where: dict[str, t.Any]) -> None:
    with pytest.raises(EngineError, match="'newest' is no SGLang version"):
        ensure_engine(dataclasses.replace(request_, version="newest"), FakePip(), **where)


def test_check_mode(request_: EngineRequest, where: dict[str, t.Any]) -> None:
    pip = FakePip()
    result = ensure_engine(request_, pip, check_mode=True, **where)
    assert (result.changed, result.version) == (True, "0.5.23")
    assert pip.calls == []
    assert not Path(request_.path).parent.exists()


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep: t.Callable[[], None] = lambda: None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


class TestTwoAtOnce:
    def hold(self, request_: EngineRequest) -> t.IO[str]:
        folder = Path(request_.path).parent
        folder.mkdir(parents=True)
        file = open(folder / ".0.5.23-aaaaaaaaaaaa.lock", "a")  # noqa: SIM115  held by the test
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def test_the_second_takes_what_the_first_installed(self, request_: EngineRequest, where: dict[str, t.Any]) -> None:
        file = self.hold(request_)
        time = Time()

        def first_one_ends() -> None:
            Path(request_.path, "bin").mkdir(parents=True)
            Path(request_.path, "bin", "python").touch(mode=0o755)
            Path(request_.path, "engine.json").write_text('{"format": 1, "version": "0.5.23"}')
            file.close()

        time.on_sleep = first_one_ends
        pip = FakePip()
        result = ensure_engine(request_, pip, clock=time.clock, sleep=time.sleep, **where)
        assert (result.changed, result.reason) == (False, "installed meanwhile")
        assert pip.calls == []

    def test_a_pip_that_outlives_us_keeps_the_next_one_out(
        self, request_: EngineRequest, where: dict[str, t.Any]
    ) -> None:
        left: list[int] = []

        class Outliving(FakePip):
            def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
                self.calls.append(list(argv))
                script = "sleep 60 >/dev/null 2>&1 & echo $!"
                left.append(int(command_runner()(["sh", "-c", script])[1]))
                raise KeyboardInterrupt

        time = Time()
        try:
            with pytest.raises(KeyboardInterrupt):
                ensure_engine(request_, Outliving(), **where)
            with pytest.raises(EngineError, match="another installation holds"):
                ensure_engine(request_, FakePip(), lock_timeout=30, clock=time.clock, sleep=time.sleep, **where)
        finally:
            for pid in left:
                os.kill(pid, signal.SIGKILL)

    def test_it_does_not_wait_for_ever(self, request_: EngineRequest, where: dict[str, t.Any]) -> None:
        file = self.hold(request_)
        time = Time()
        with pytest.raises(EngineError, match="another installation holds"):
            ensure_engine(request_, FakePip(), lock_timeout=30, clock=time.clock, sleep=time.sleep, **where)
        assert time.now >= 30
        file.close()


class TestOlderEngines:
    def make(self, request_: EngineRequest, where: dict[str, t.Any], count: int) -> list[str]:
        """Engines with rising age, the newest first."""
        paths: list[str] = []
        for number in range(count):
            path = f"{Path(request_.path).parent}/0.5.{number}-bbbbbbbbbbbb"
            ensure_engine(
                dataclasses.replace(request_, path=path, version=f"0.5.{number}", keep=99),
                FakePip(f"0.5.{number}"),
                **where,
            )
            os.utime(f"{path}/engine.json", (1000 + number, 1000 + number))
            paths.insert(0, path)
        return paths

    def left(self, request_: EngineRequest) -> list[str]:
        return sorted(name for name in os.listdir(Path(request_.path).parent) if not name.startswith("."))

    def test_the_newest_stay(self, request_: EngineRequest, where: dict[str, t.Any]) -> None:
        paths = self.make(request_, where, 5)
        assert ensure_engine(request_, FakePip(), check_mode=True, **where).removed == sorted(paths[2:])
        result = ensure_engine(request_, FakePip(), **where)
        assert result.removed == sorted(paths[2:])
        assert self.left(request_) == ["0.5.23-aaaaaaaaaaaa", "0.5.3-bbbbbbbbbbbb", "0.5.4-bbbbbbbbbbbb"]

    def test_one_that_a_known_good_record_needs_stays(
        self, request_: EngineRequest, where: dict[str, t.Any], tmp_path: Path
    ) -> None:
        paths = self.make(request_, where, 5)
        content = f"[Service]\nExecStart={paths[4]}/bin/python\n"
        record = _known_good.Record(
            "a", "sglang-a.service", _known_good.generation_of(content), content, "/e", "", engine=paths[4]
        )
        _known_good.keep(str(tmp_path / "state"), record, most=1)
        result = ensure_engine(dataclasses.replace(request_, state_dir=str(tmp_path / "state")), FakePip(), **where)
        assert result.removed == sorted(paths[2:4])

    def test_one_that_a_unit_or_a_process_names_stays(self, request_: EngineRequest, where: dict[str, t.Any]) -> None:
        paths = self.make(request_, where, 5)
        Path(where["unit_dir"], "sglang-x.service").write_text(f"[Service]\nExecStart={paths[4]}/bin/python -m x\n")
        Path(where["proc"], "17", "cmdline").write_bytes(f"{paths[3]}/bin/python\0-m\0x\0".encode())
        assert ensure_engine(request_, FakePip(), **where).removed == [paths[2]]

    def test_incomplete_ones_are_not_counted_and_not_removed(
        self, request_: EngineRequest, where: dict[str, t.Any]
    ) -> None:
        paths = self.make(request_, where, 3)
        Path(paths[2], "engine.json").unlink()
        assert ensure_engine(request_, FakePip(), **where).removed == []
        assert Path(paths[2]).exists()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("# sglang-engine: x\naiohttp==3.14.5\nsglang==0.5.23+standin\n", "0.5.23+standin"),
        ("sglang==0.5.23 ; python_version > '3'\n", "0.5.23"),
        ("sglang==0.5.23 \\\n    --hash=sha256:00\n", "0.5.23"),
        ("sglang-kernel==0.4.10\n", ""),
        ("", ""),
    ],
)
def test_locked_version(text: str, version: str) -> None:
    assert locked_version(text) == version
