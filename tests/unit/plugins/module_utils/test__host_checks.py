# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of a host. Answers of nvidia-smi have the form that its documentation gives: no GPU was at hand to record any."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._host_checks import (
    Findings,
    check_cache_folders,
    check_driver,
    check_fabric,
    check_limits,
    check_persistence,
    check_shared_memory,
    check_toolchain,
    foreign_processes,
    inaccessible,
    virtualization,
)


class Answers:
    """Answers by the beginning of the command line; what has none is not there."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        self.asked.append(list(argv))
        for word, (code, text) in self.answers.items():
            if any(word in part.replace("-", "_") for part in argv):
                return code, text, ""
        return 127, "", "No such file or directory"


def test_foreign_processes(tmp_path: Path) -> None:
    for pid, command in ((41, b"sglang::scheduler_TP0\0"), (42, b"python\0train.py\0--api-key\0sk-secret\0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S 1 " + " ".join("0" for _ in range(48)))
        (tmp_path / str(pid) / "cmdline").write_bytes(command)
    units = {41: "sglang-a.service", 42: "session-3.scope"}
    runner = Answers(
        compute_apps=(0, "41, GPU-a, 70000\n42, GPU-a, 40960\n42, GPU-b, 10\n43, GPU-b, [N/A]\n44, GPU-b, 4\n")
    )
    found = foreign_processes(
        runner, {"sglang-a.service"}, proc=str(tmp_path), unit_of=lambda pid, **_proc: units.get(pid)
    )
    assert [(item.pid, item.uuids, item.mib, item.large) for item in found] == [
        (42, ("GPU-a", "GPU-b"), 40970.0, True),
        (43, ("GPU-b",), None, True),
        (44, ("GPU-b",), 4.0, False),
    ]
    assert found[0].text == "pid 42 (python train.py --api-key ********) of session-3.scope holds 40970 MiB"
    assert found[1].text == "pid 43 (not visible from here) holds an unknown amount of memory"
    assert foreign_processes(Answers(), set()) == []


def test_shared_memory() -> None:
    findings = Findings()
    check_shared_memory(findings, size=2**30)
    assert findings.warnings == []
    check_shared_memory(findings, size=64 * 2**20)
    assert findings.warnings[0].startswith("/dev/shm has 64 MiB: NCCL fails")
    check_shared_memory(findings, path="/no/such")
    assert "cannot be looked at" in findings.warnings[1]


LIMITS = "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         {soft:<20} {hard:<20} bytes\n"


@pytest.mark.parametrize(
    ("hard", "capabilities", "nr_open", "warned"),
    [
        ("8388608", "000001ffffffffff", "1048576", []),
        ("8388608", "00000000a80425fb", "1048576", ["systemd may lock 8388608 bytes"]),
        ("unlimited", "00000000a80425fb", "1048576", []),
        ("unlimited", "0", "524288", ["fs.nr_open is 524288"]),
    ],
)
def test_limits(tmp_path: Path, hard: str, capabilities: str, nr_open: str, warned: list[str]) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/limits").write_text(LIMITS.format(soft=hard, hard=hard))
    (tmp_path / "1/status").write_text(f"Name:\tsystemd\nCapEff:\t{capabilities}\n")
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/nr_open").write_text(nr_open + "\n")
    findings = Findings()
    check_limits(findings, proc=str(tmp_path))
    assert [any(text.startswith(part) for text in findings.warnings) for part in warned] == [True] * len(warned)
    assert len(findings.warnings) == len(warned)


def test_limits_unknown(tmp_path: Path) -> None:
    findings = Findings()
    check_limits(findings, proc=str(tmp_path))
    assert findings == Findings()


class TestAccess:
    ITEMS = (("w", "/var/cache/a b"), ("r", "/models/m"))

    def test_what_fails_is_told(self) -> None:
        runner = Answers(setpriv=(1, "w:/var/cache/a b\n"))
        assert inaccessible(runner, (998, 997), self.ITEMS) == [("w", "/var/cache/a b")]
        assert runner.asked[0][:5] == ["setpriv", "--reuid=998", "--regid=997", "--init-groups", "--"]

    def test_it_cannot_be_tried(self) -> None:
        assert inaccessible(Answers(), (998, 997), self.ITEMS) is None

    def test_nothing_to_try(self) -> None:
        assert inaccessible(Answers(), (998, 997), ()) == []

    @pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
    def test_for_real(self) -> None:
        # Not pytest's own folder, which nobody else may enter.
        with tempfile.TemporaryDirectory(prefix="specdec-access-") as folder:
            self.try_as_nobody(Path(folder))

    def try_as_nobody(self, tmp_path: Path) -> None:
        os.chmod(tmp_path, 0o755)
        for name, mode in (("open", 0o777), ("shut", 0o700), ("with space", 0o755)):
            (tmp_path / name).mkdir()
            (tmp_path / name).chmod(mode)
        (tmp_path / "secret.json").touch(0o600)

        def run(argv: t.Sequence[str]) -> tuple[int, str, str]:
            done = subprocess.run(list(argv), capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr

        items = [
            (mode, str(tmp_path / name))
            for mode, name in (
                ("w", "open"),
                ("w", "shut"),
                ("r", "shut"),
                ("r", "with space"),
                ("w", "with space"),
                ("r", "secret.json"),
            )
        ]
        assert inaccessible(run, (65534, 65534), items) == [items[1], items[2], items[4], items[5]]


def test_cache_folders(tmp_path: Path) -> None:
    def statvfs(path: str) -> t.Any:
        flags = os.ST_RDONLY if path.endswith("ro") else 0
        return SimpleNamespace(f_flag=flags, f_bavail=10 if path.endswith("full") else 10**9, f_frsize=2**20)

    for name in ("ro", "full", "good"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    findings = Findings()
    check_cache_folders(
        findings,
        [str(tmp_path / name) for name in ("ro/a/b", "full/x", "full/y", "good/z", "file/a")],
        statvfs=statvfs,
    )
    assert len(findings.errors) == 2
    assert "lies on a read-only file system" in findings.errors[0]
    assert "is no folder" in findings.errors[1]
    assert [text.partition(":")[0] for text in findings.warnings] == [f"{str(tmp_path / 'full')!r} has 10 MiB left"]


def tools(*names: str) -> t.Callable[..., str | None]:
    return lambda name, **_path: f"/usr/bin/{name}" if name in names else None


@pytest.mark.parametrize(
    ("there", "needs_gpu", "compiles", "errors", "warnings"),
    [
        (("g++", "ninja", "nvcc"), True, "", [], ["Python.h"]),
        ((), True, "", [], ["g++, ninja, nvcc"]),
        ((), False, "", [], []),
        (("g++",), False, "a: NGRAM", ["a: NGRAM compiles a library at its first start, but ninja is not"], []),
        (("ninja",), False, "a: NGRAM", ["a C++ compiler (g++) is not"], []),
        (("clang++", "ninja"), False, "a: NGRAM", [], []),
    ],
)
def test_toolchain(
    there: tuple[str, ...], needs_gpu: bool, compiles: str, errors: list[str], warnings: list[str]
) -> None:
    findings = Findings()
    check_toolchain(
        findings, path="/bin", include="/no/include", needs_gpu=needs_gpu, needs_compiler=compiles, which=tools(*there)
    )
    for found, parts in ((findings.errors, errors), (findings.warnings, warnings)):
        assert len(found) == len(parts)
        assert all(part in text for part, text in zip(parts, found))


@pytest.mark.parametrize(
    ("driver", "cuda", "wrong"),
    [
        ("580.95.05", "13.0", False),
        ("580.65.06", "13.0", False),
        ("575.57.08", "13.0", True),
        ("525.60.13", "12.9", False),
        ("520.61.05", "12.4", True),
        ("", "13.0", False),
        ("575.57.08", "", False),
        ("575.57.08", "99.1", False),
    ],
)
def test_driver(driver: str, cuda: str, wrong: bool) -> None:
    findings = Findings()
    check_driver(findings, driver=driver, torch_cuda=cuda)
    assert bool(findings.errors) is wrong


def test_persistence() -> None:
    findings = Findings()
    check_persistence(findings, Answers(persistence_mode=(0, "0, Enabled\n1, Disabled\n2, Disabled\n")))
    assert findings.warnings[0].startswith("persistence mode is off for GPU 1, 2")
    check_persistence(findings, Answers())
    assert len(findings.warnings) == 1


B300 = ("NVIDIA B300 SXM6 AC",)


@pytest.mark.parametrize(
    ("names", "needed", "answers", "errors", "warnings"),
    [
        (B300, 8, {"fabric.state": (0, "0, Completed, Success\n1, Completed, Success\n")}, 0, 0),
        (B300, 8, {"fabric.state": (0, "0, In Progress, N/A\n1, Completed, Success\n")}, 1, 0),
        (B300, 8, {"fabric.state": (0, "0, Completed, Insufficient Resources\n")}, 1, 0),
        (B300, 8, {"fabric.state": (2, 'Field "fabric.state" is not a valid field to query.'), "is_active": (3, "inactive\n")}, 0, 1),
        (B300, 8, {"fabric.state": (2, ""), "is_active": (0, "active\n")}, 0, 0),
        (B300, 1, {}, 0, 0),
        (("NVIDIA RTX PRO 6000 Blackwell Server Edition",), 8, {}, 0, 0),
    ],
)  # fmt: skip
def test_fabric(names: tuple[str, ...], needed: int, answers: dict[str, t.Any], errors: int, warnings: int) -> None:
    findings = Findings()
    check_fabric(findings, Answers(**answers), names=names, gpus_needed=needed)
    assert (len(findings.errors), len(findings.warnings)) == (errors, warnings)


@pytest.mark.parametrize(
    ("answer", "word"), [((0, "podman\n"), "podman"), ((1, "none\n"), "none"), ((127, ""), ""), ((1, ""), "")]
)
def test_virtualization(answer: tuple[int, str], word: str) -> None:
    assert virtualization(Answers(systemd_detect_virt=answer)) == word
