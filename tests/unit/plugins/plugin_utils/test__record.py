# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import stat
import typing as t
from pathlib import Path

import jsonschema
import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _bench_result
from ansible_collections.specdec.serving.plugins.plugin_utils import _record
from ansible_collections.specdec.serving.plugins.plugin_utils._record import RecordError

KEY = "sk-do-not-tell-me"
PARTS: dict[str, t.Any] = {
    "host": {"kernel": "6.1", "machine": "x86_64", "cpu": {"model": "c", "count": 2}, "memory_bytes": 1, "gpus": []},
    "engine": {"path": "/e", "version": "0.5.23", "packages_sha256": ""},
    "models": [{"role": "target", "path": "/m", "bytes": 1, "index_sha256": ""}],
    "arguments": {"tp_size": 8},
    "invocation": {"unit": "sglang-k26.service", "invocation_id": "a" * 32, "main_pid": 7},
    "workload": {"name": "natural-mixed"},
    "results": {
        "levels": [_bench_result.level_result(1, [], 1, _bench_result.Context())],
        "speculative": False,
        "valid": False,
        "ended": "nothing came",
        "api": "chat",
        "client_command": [],
        "elapsed": 1.0,
    },
}
READY = {"state": "ready", "ready": True, "gates": [], "log_tail": ["much"], "elapsed": 1.0}
# 2026-11-29 10:15:00 UTC
NOW = 1795947300.0


def record(**changes: t.Any) -> dict[str, t.Any]:
    return _record.make("benchmark", host="ct200", parts={**PARTS, **changes}, readiness=READY, now=NOW)


@pytest.mark.parametrize("readiness", [READY, None])
def test_a_record_fits_its_schema(readiness: dict[str, t.Any] | None) -> None:
    schema = json.loads(_record.SCHEMA_FILE.read_text(encoding="utf-8"))
    made = _record.make("benchmark", host="ct200", parts=PARTS, readiness=readiness, now=NOW)

    jsonschema.validate(made, schema)
    assert schema["properties"]["schema_version"]["const"] == _record.SCHEMA_VERSION
    assert set(schema["required"]) == set(made)
    assert "log_tail" not in (made["readiness"] or {})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**made, "kind": "guess"}, schema)


def test_a_part_that_is_missing_is_named() -> None:
    with pytest.raises(RecordError, match="lacks engine"):
        _record.make(
            "benchmark", host="h", parts={k: v for k, v in PARTS.items() if k != "engine"}, readiness=None, now=0
        )


def test_written_and_read_again(tmp_path: Path) -> None:
    path = _record.write(record(), str(tmp_path / "results"))

    assert Path(path).name == "20261129T101500Z-benchmark-ct200-k26-natural-mixed.json"
    assert _record.read(path) == record()
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o644
    assert [file.name for file in Path(path).parent.iterdir()] == [Path(path).name]


def test_no_record_replaces_another(tmp_path: Path) -> None:
    names = [Path(_record.write(record(), str(tmp_path))).name for _ in range(3)]

    assert len(set(names)) == 3
    assert len(list(tmp_path.iterdir())) == 3


def test_no_key_is_written(tmp_path: Path) -> None:
    path = _record.write(record(arguments={"api_key": KEY, "note": f"with {KEY}"}), str(tmp_path), secrets=[KEY, ""])

    assert KEY not in Path(path).read_text(encoding="utf-8")
    assert _record.read(path)["arguments"]["api_key"] == "********"


def test_a_key_that_cannot_be_masked_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nothing was written"):
        _record.write(record(arguments={KEY: 1}), str(tmp_path), secrets=[KEY])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="no record can be written to"):
        _record.write(record(), str(tmp_path / "file"))
    with pytest.raises(RecordError, match=r"no record can be written to .* nothing was begun"):
        _record.check_folder(str(tmp_path / "file"))


def _check_when_full(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        _record.check_folder(str(folder))
    except RecordError as error:
        os._exit(7 if "too large" in str(error) else 2)
    os._exit(1)


def test_a_folder_without_room_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    _record.check_folder(str(tmp_path / "results"))
    process = multiprocessing.get_context("fork").Process(target=_check_when_full, args=(tmp_path / "results",))
    process.start()
    process.join(30)
    assert process.exitcode == 7
    assert list((tmp_path / "results").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ("[]", "no record"),
        ("{}", "no record"),
        ('{"schema": "specdec.serving/record", "schema_version": 2}', "has schema_version 2"),
    ],
)
def test_what_is_no_record(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "r.json").write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=says):
        _record.read(str(tmp_path / "r.json"))


def test_what_json_cannot_say_is_written_all_the_same(tmp_path: Path) -> None:
    odd = {"load": float("nan"), "most": [float("inf")], "said": "half \ud800", "raw": "\udc80", 1: (1.5,)}
    path = _record.write(record(arguments=odd), str(tmp_path))

    text = Path(path).read_text(encoding="utf-8")
    json.loads(text, parse_constant=pytest.fail)
    found = _record.read(path)["arguments"]
    assert found == {"load": None, "most": [None], "said": "half ?", "raw": "?", "1": [1.5]}


def test_long_names_of_hosts_and_units(tmp_path: Path) -> None:
    made = {**record(invocation={"unit": "sglang-" + "ü" * 120}), "host": {"name": "h" * 253}}
    names = [Path(_record.write(made, str(tmp_path))).name for _ in range(2)]

    assert sorted(len(name.encode()) for name in names) == [205, 207]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_names: t.Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    paths = [_record.write(record(), str(tmp_path)) for _ in range(2)]

    assert len({*paths}) == len(list(tmp_path.iterdir())) == 2
    assert all(_record.read(path) == record() for path in paths)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"results": []}, "results is missing or of another type"),
        ({"workload": None}, "workload is missing or of another type"),
        ({"models": {}}, "models is missing or of another type"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, change: dict[str, t.Any], says: str) -> None:
    (tmp_path / "r.json").write_text(json.dumps({**record(), **change}), encoding="utf-8")
    with pytest.raises(RecordError, match=rf"r\.json is damaged: {says}"):
        _record.read(str(tmp_path / "r.json"))


def test_files_that_no_record_is_in(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("[" * 100_000, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    for path in (f"{tmp_path}/deep", f"{tmp_path}/pipe", str(tmp_path), "~nobody-of-that-name/r.json"):
        with pytest.raises(RecordError, match="cannot be read as a record"):
            _record.read(path)
    with pytest.raises(RecordError, match=r"no record can be written .* no home"):
        _record.check_folder("~nobody-of-that-name/results")


def test_what_was_measured_is_not_lost_with_its_record(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = {"table": "all of it", "levels": []}

    kept = _record.keep(answer, record(), str(tmp_path / "results"))
    assert kept == {**answer, "record": str(next((tmp_path / "results").iterdir()))}
    lost = _record.keep(answer, record(), str(tmp_path / "file"))
    assert (lost["table"], lost["failed"], lost["record"]) == ("all of it", True, "")
    assert lost["msg"].startswith(_record.NOT_WRITTEN)
    also = _record.keep({**answer, "failed": True, "msg": "NO parity"}, record(), str(tmp_path / "file"))
    assert also["msg"].endswith("; NO parity")
    with pytest.raises(RecordError, match="nothing was written"):
        _record.keep(answer, record(arguments={KEY: 1}), str(tmp_path), secrets=[KEY])


def test_options_of_other_types_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="readiness is 'ready'; give what sglang_ready returned"):
        _record.check_options({"readiness": "ready"})
    with pytest.raises(RecordError, match=r"results_dir is \['r'\]; give the path"):
        _record.check_options({"results_dir": ["r"]})
    folder = tmp_path / "results"
    _record.check_options({"readiness": READY, "results_dir": str(folder)}, check_mode=True)
    assert not folder.exists()
    _record.check_options({"readiness": None, "results_dir": str(folder)})
    assert folder.exists()
