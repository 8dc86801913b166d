# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.plugin_utils import _evidence_bundle
from ansible_collections.specdec.serving.plugins.plugin_utils._evidence_bundle import (
    BundleError,
    Fetched,
    bundle,
    secrets_in,
    table,
)

KEY = 'planted "key" 1'
NOW = 1_790_000_000.0
STEM = "sglang-evidence-20260921T141320Z"
VERDICT = {"state": "hung", "detected_at": NOW - 60, "diagnosis": {"cause": "stalled"}}
ARCHIVE = "20260921T141220Z-hung-0123456789abcdef0123456789abcdef"


def fetched(
    folder: Path,
    *,
    host: str = "b300",
    unit: str = "sglang-x.service",
    files: t.Mapping[str, str] | None = None,
    special: tarfile.TarInfo | None = None,
    verdict: t.Any = VERDICT,
) -> Fetched:
    path = folder / f"{ARCHIVE}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {"verdict.json": json.dumps(verdict), **(files or {})}.items():
            member = tarfile.TarInfo(f"{ARCHIVE}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        if special is not None:
            archive.addfile(special)
    return Fetched(host=host, unit=unit, path=path)


def _header(name: str, size: int, kind: bytes) -> bytes:
    member = tarfile.TarInfo(f"{ARCHIVE}/{name}")
    member.size, member.type = size, kind
    return member.tobuf(format=tarfile.USTAR_FORMAT)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 512)


def _plain_file(name: str, size: int) -> bytes:
    return _header(name, size, tarfile.REGTYPE) + _padded(b"z" * size)


def _folder(name: str) -> bytes:
    return _header(name, 0, tarfile.DIRTYPE)


def _pax(name: str, value: bytes) -> bytes:
    """A header that holds for the member that follows it."""
    text = b" " + name.encode() + b"=" + value + b"\n"
    length = len(text) + 1
    while length != len(text) + len(str(length)):
        length = len(text) + len(str(length))
    return _header("pax", length, tarfile.XHDTYPE) + _padded(str(length).encode() + text)


def names(path: str) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


def test_one_archive_with_a_folder_for_each_host_and_unit(tmp_path: Path) -> None:
    files = [
        fetched(tmp_path / "1", host="ct200", files={"journal.txt": "one", "processes/1-main.txt": "two"}),
        fetched(tmp_path / "2", host="b300", verdict={**VERDICT, "state": "crashed"}),
    ]
    path, rows, left_out = bundle(files, destination=str(tmp_path / "out"), secrets=[KEY], now=NOW)
    assert path == str(tmp_path / "out" / f"{STEM}.tar.gz")
    assert names(path) == [
        f"{STEM}/b300/sglang-x.service/{ARCHIVE}/verdict.json",
        f"{STEM}/ct200/sglang-x.service/{ARCHIVE}/verdict.json",
        f"{STEM}/ct200/sglang-x.service/{ARCHIVE}/journal.txt",
        f"{STEM}/ct200/sglang-x.service/{ARCHIVE}/processes/1-main.txt",
        f"{STEM}/index.txt",
    ]
    assert [(row.host, row.state, row.cause, row.time) for row in rows] == [
        ("b300", "crashed", "stalled", "2026-09-21 14:12:20"),
        ("ct200", "hung", "stalled", "2026-09-21 14:12:20"),
    ]
    assert left_out == []
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert table(rows).splitlines()[1].split() == [
        "b300",
        "sglang-x.service",
        "crashed",
        "stalled",
        "2026-09-21",
        "14:12:20",
    ]


def test_the_destination_may_be_a_name(tmp_path: Path) -> None:
    path, _rows, _left_out = bundle(
        [fetched(tmp_path / "1")], destination=str(tmp_path / "a" / "report.tar.gz"), secrets=[], now=NOW
    )
    assert path == str(tmp_path / "a" / "report.tar.gz")
    assert f"{STEM}/index.txt" in names(path)


@pytest.mark.parametrize(
    "leak",
    [
        pytest.param(KEY, id="plain"),
        pytest.param(json.dumps(KEY), id="json"),
        pytest.param(json.dumps(repr(KEY)), id="json of a repr"),
        pytest.param(base64.b64encode(KEY.encode()).decode(), id="base64"),
        pytest.param("planted%20%22key%22%201", id="url"),
    ],
)
def test_a_key_of_the_inventory_makes_it_fail_and_leaves_nothing(tmp_path: Path, leak: str) -> None:
    file = fetched(tmp_path / "1", files={"journal.txt": f"x {leak} y"})
    with pytest.raises(BundleError, match=r"a key of the inventory stands in journal\.txt") as raised:
        bundle([file], destination=str(tmp_path / "out"), secrets=[KEY], now=NOW)
    assert "planted" not in str(raised.value)
    assert list((tmp_path / "out").iterdir()) == []


def link() -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"{ARCHIVE}/shadow")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/shadow"
    return member


@pytest.mark.parametrize(
    "special",
    [
        pytest.param(link(), id="a link"),
        pytest.param(tarfile.TarInfo(f"{ARCHIVE}/../../x"), id="a way out"),
        pytest.param(tarfile.TarInfo("/etc//passwd"), id="an absolute name"),
        pytest.param(tarfile.TarInfo("bare"), id="no folder"),
    ],
)
def test_what_is_not_ours_is_left_out(tmp_path: Path, special: tarfile.TarInfo) -> None:
    files = [fetched(tmp_path / "1", special=special), fetched(tmp_path / "2", host="ct200")]
    path, rows, left_out = bundle(files, destination=str(tmp_path / "out"), secrets=[], now=NOW)
    assert [row.host for row in rows] == ["ct200"]
    assert "damaged" in left_out[0]
    assert not any("b300" in name for name in names(path))


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(_pax("x", b"y" * 3_000_000), id="a header without end"),
        pytest.param(_plain_file("journal.txt", 3_000_000), id="a file without end"),
        pytest.param(_plain_file("a", 900_000) + _plain_file("b", 900_000) * 2, id="many files"),
        pytest.param(b"".join(_folder(f"x/{number}") for number in range(2500)), id="many folders"),
        pytest.param(_pax("GNU.sparse.map", b"one,two") + _plain_file("a", 10), id="a sparse file of nonsense"),
    ],
)
def test_a_bomb_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: bytes) -> None:
    monkeypatch.setattr(_evidence_bundle, "_MOST_UNPACKED", 2_000_000)
    bomb = fetched(tmp_path / "1", host="hostile")
    # Without the zeros that end an archive.
    bomb.path.write_bytes(
        gzip.compress(gzip.decompress(bomb.path.read_bytes()).rstrip(b"\0").ljust(1024, b"\0") + tail)
    )
    files = [bomb, fetched(tmp_path / "2", host="ct200")]
    path, rows, left_out = bundle(files, destination=str(tmp_path / "out"), secrets=[], now=NOW)
    assert [row.host for row in rows] == ["ct200"]
    assert left_out[0].startswith("hostile: ")
    assert not any("hostile" in name for name in names(path))


@pytest.mark.parametrize(
    "verdict",
    [
        [],
        {"state": "x"},
        {**VERDICT, "detected_at": "soon"},
        {**VERDICT, "detected_at": 1e300},
        {**VERDICT, "detected_at": float("inf")},
    ],
)
def test_a_verdict_that_cannot_be_read(tmp_path: Path, verdict: t.Any) -> None:
    with pytest.raises(BundleError, match="verdict"):
        bundle([fetched(tmp_path / "1", verdict=verdict)], destination=str(tmp_path / "out"), secrets=[], now=NOW)
    assert list((tmp_path / "out").iterdir()) == []


def test_half_an_archive_is_told(tmp_path: Path) -> None:
    file = fetched(tmp_path / "1", files={"journal.txt": "".join(str(number) for number in range(10000))})
    file.path.write_bytes(file.path.read_bytes()[:2000])
    with pytest.raises(BundleError, match="damaged"):
        bundle([file], destination=str(tmp_path / "out"), secrets=[], now=NOW)


def test_a_destination_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="no archive can be made"):
        bundle([fetched(tmp_path / "1")], destination=str(tmp_path / "file" / "out"), secrets=[], now=NOW)


def test_secrets_of_an_inventory() -> None:
    variables = [
        [
            {
                "name": "a",
                "api_key": "planted-1",
                "env": {"HF_TOKEN": "planted-2", "HF_HOME": "/x"},
                "args": {"tp_size": 8},
            }
        ],
        {"WANDB_API_KEY": "planted-3", "SHORT_KEY": "abc"},
        {"mine": {"env": {"MY_SECRET": "planted-4"}}},
        [{"admin-api-key": "planted-5", "api_key": None}],
    ]
    assert secrets_in(variables) == {f"planted-{number}" for number in range(1, 6)}
