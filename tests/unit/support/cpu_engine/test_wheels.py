# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks, versions and repacked wheels of the CPU engine."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.tests.support.cpu_engine import wheels

METADATA = "Metadata-Version: 2.1\nName: Some.Thing\nVersion: {version}\nRequires-Dist: other\n\nVersion: of the text\n"


def make_wheel(folder: Path, *, version: str = "1.0", files: dict[str, bytes] | None = None) -> Path:
    """A wheel as pip would get it, deflated, with one executable and a signed RECORD."""
    path = folder / f"some_thing-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    info = f"some_thing-{version}.dist-info"
    content = files or {
        "some_thing/__init__.py": b"NUMBER = 1\n",
        "some_thing/bin/tool": b"#!/bin/sh\n",
        "some_thing/big.a": b"x" * 1000,
        'some_thing/odd, "name".txt': "häß".encode(),
    }
    with zipfile.ZipFile(path, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, date_time=(2026, 5, 7, 17, 34, 0))
            entry.external_attr = (0o100755 if name.endswith("tool") else 0o100644) << 16
            archive.writestr(entry, data)
        archive.writestr(f"{info}/METADATA", METADATA.format(version=version))
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux_2_28_x86_64\n"
        )
        archive.writestr(f"{info}/RECORD", "stale,sha256=x,1\n")
        archive.writestr(f"{info}/RECORD.jws", "{}")
    return path


def records(path: Path) -> dict[str, tuple[str, str]]:
    """Every row of a wheel's RECORD."""
    with zipfile.ZipFile(path) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(archive.read(name).decode().splitlines()))
    assert all(len(row) == 3 for row in rows)
    return {row[0]: (row[1], row[2]) for row in rows}


def check_record(path: Path) -> None:
    """RECORD names every file once, with the digest and size of what is there."""
    rows = records(path)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert sorted(rows) == sorted(names)
        for name in names:
            data = archive.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            expected = ("", "") if name.endswith("/RECORD") else (f"sha256={digest}", str(len(data)))
            assert rows[name] == expected, name


def unchanged(path: str, read: Callable[[], bytes]) -> bytes:
    return read()


def test_repack_changes_drops_and_keeps(tmp_path: Path) -> None:
    def edit(path: str, read: Callable[[], bytes]) -> bytes | None:
        if path.endswith(".a"):
            return None
        return read() + b"NUMBER = 2\n" if path.endswith("__init__.py") else read()

    source = make_wheel(tmp_path)
    (tmp_path / "out").mkdir()
    made = wheels.repack(source, folder=tmp_path / "out", local="specdec.h12", edit=edit)
    assert made.name == "some_thing-1.0+specdec.h12-cp311-cp311-manylinux_2_28_x86_64.whl"
    check_record(made)
    info = "some_thing-1.0+specdec.h12.dist-info"
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(
            [
                'some_thing/odd, "name".txt',
                "some_thing/__init__.py",
                "some_thing/bin/tool",
                f"{info}/METADATA",
                f"{info}/RECORD",
                f"{info}/WHEEL",
            ]
        )
        assert archive.read("some_thing/__init__.py") == b"NUMBER = 1\nNUMBER = 2\n"
        assert archive.getinfo("some_thing/bin/tool").external_attr >> 16 == 0o100755
        # the header's version, not the words of the description
        assert archive.read(f"{info}/METADATA").decode() == METADATA.format(version="1.0+specdec.h12")


def test_a_file_that_is_left_out_is_not_read(tmp_path: Path) -> None:
    asked: list[str] = []

    def edit(path: str, read: Callable[[], bytes]) -> bytes | None:
        asked.append(path)
        return None

    source = make_wheel(tmp_path, files={"some_thing/big.a": b"x" * 100})
    data = source.read_bytes()
    # Damage the content: reading it would raise.
    offset = data.index(b"some_thing/big.a") + len("some_thing/big.a")
    source.write_bytes(data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :])
    (tmp_path / "out").mkdir()
    check_record(wheels.repack(source, folder=tmp_path / "out", local="a", edit=edit))
    assert asked == ["some_thing/big.a"]


def test_repacking_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    source = make_wheel(tmp_path)
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(wheels.repack(source, folder=tmp_path / name, local="a", edit=unchanged).read_bytes())
    assert made[0] == made[1]


def test_a_failing_edit_leaves_nothing(tmp_path: Path) -> None:
    def edit(path: str, read: Callable[[], bytes]) -> bytes | None:
        raise RuntimeError(path)

    source = make_wheel(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(RuntimeError):
        wheels.repack(source, folder=tmp_path / "out", local="a", edit=edit)
    assert list((tmp_path / "out").iterdir()) == []


def test_pip_installs_what_was_repacked_and_built(tmp_path: Path) -> None:
    source = make_wheel(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    made = wheels.repack(source, folder=out, local="specdec.h1", edit=unchanged)
    made.rename(out / made.name.replace("cp311-cp311-manylinux_2_28_x86_64", "py3-none-any"))
    package = tmp_path / "src" / "kernel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VALUE = 7\n")
    check_record(wheels.build(packages=[package], name="a-kernel", version="2+h1", summary="s", folder=out))
    lock = tmp_path / "requirements.lock"
    lock.write_text(wheels.format_lock({"some-thing": "1.0+specdec.h1", "a-kernel": "2+h1"}, head=["a head"]))
    target = tmp_path / "site"
    words = ["install", "--isolated", "--no-index", "--no-deps", "--find-links", out, "--target", target, "-r", lock]
    done = subprocess.run([sys.executable, "-m", "pip", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (target / "kernel" / "__init__.py").read_text() == "VALUE = 7\n"
    assert (target / "some_thing" / "bin" / "tool").stat().st_mode & 0o111
    assert (target / "some_thing-1.0+specdec.h1.dist-info" / "METADATA").is_file()


@pytest.mark.parametrize(
    "file_name",
    ["a-1.0.tar.gz", "a-1.0.whl", "a-1.0-py3-none.whl", "a--py3-none-any.whl", "a-1-2-3-py3-none-any.whl", ""],
)
def test_other_names_are_no_wheels(file_name: str) -> None:
    with pytest.raises(wheels.WheelError) as failure:
        wheels.Wheel.parse(file_name)
    assert repr(file_name) in str(failure.value)


def test_wheel_names_are_canonical() -> None:
    wheel = wheels.Wheel.parse("Ruamel.Yaml_clib-1.2+cpu-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    assert (wheel.name, wheel.version) == ("ruamel-yaml-clib", "1.2+cpu")
    assert wheel.tags == ("manylinux_2_17_x86_64", "manylinux2014_x86_64")


@pytest.mark.parametrize(
    ("platform", "needed"),
    [
        ("any", None),
        ("linux_x86_64", None),
        ("manylinux_2_28_x86_64", (2, 28)),
        ("manylinux2014_x86_64", (2, 17)),
        ("manylinux1_x86_64", (2, 5)),
        ("manylinux_2_17_x86_64.manylinux_2_34_x86_64", (2, 17)),
        ("manylinux_2_100_x86_64", (2, 100)),
    ],
)
def test_glibc_needed(platform: str, needed: tuple[int, int] | None) -> None:
    assert wheels.glibc_needed(wheels.Wheel.parse(f"a-1-cp311-cp311-{platform}.whl")) == needed


def test_lock_round_trip() -> None:
    pins = {"torch": "2.13.0+cpu.specdec.h1", "aiohttp": "3.14.5", "a-b": "1!2.post1"}
    text = wheels.format_lock(pins, head=["sglang-engine: x", ""])
    assert text == "# sglang-engine: x\n#\na-b==1!2.post1\naiohttp==3.14.5\ntorch==2.13.0+cpu.specdec.h1\n"
    assert wheels.parse_lock(text) == pins


def test_lock_takes_comments_and_canonical_names() -> None:
    assert wheels.parse_lock("# head\n\n PyYAML==6.0.4  # why\nJinja2==3\n") == {"pyyaml": "6.0.4", "jinja2": "3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a==1\nb>=2\n", "line 2 of the lock is 'b>=2'"),
        ("a\n", "line 1"),
        ("a==1.*\n", "line 1"),
        ("a==1; python_version > '3'\n", "line 1"),
        ("--index-url x\n", "line 1"),
        ("a-b==1\nA_b==1\n", "line 2 of the lock names 'a-b' a second time"),
    ],
)
def test_other_lines_are_refused(text: str, message: str) -> None:
    with pytest.raises(wheels.WheelError, match=message):
        wheels.parse_lock(text)


@pytest.mark.parametrize(
    ("version", "part", "expected"),
    [("1.0", "specdec.h1", "1.0+specdec.h1"), ("2.13.0+cpu", "specdec.h1", "2.13.0+cpu.specdec.h1")],
)
def test_local_version(version: str, part: str, expected: str) -> None:
    assert wheels.add_local_version(version, part) == expected


@pytest.mark.parametrize("part", ["", "A", "1", "a-b", "a..b", "a.01", "a+b"])
def test_bad_local_parts(part: str) -> None:
    with pytest.raises(wheels.WheelError, match="local version part"):
        wheels.add_local_version("1.0", part)


def test_fingerprint_tells_parts_apart_and_fits_a_version() -> None:
    assert wheels.fingerprint("ab", "c") != wheels.fingerprint("a", "bc")
    assert wheels.fingerprint(b"ab") == wheels.fingerprint("ab")
    assert wheels.add_local_version("1", wheels.fingerprint("x")).startswith("1+h")
