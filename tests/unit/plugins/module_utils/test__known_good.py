# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records of what was proven ready."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _known_good
from ansible_collections.specdec.serving.plugins.module_utils._known_good import (
    Record,
    generation_of,
    keep,
    load,
    unusable_records,
)
from ansible_collections.specdec.serving.plugins.module_utils._known_good_changes import listed, put_back_kept
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import Layout


def record(text: str, name: str = "a") -> Record:
    content = f"[Service]\nExecStart=/bin/{text}\n"
    return Record(
        name=name,
        unit=f"sglang-{name}.service",
        generation=generation_of(content),
        content=content,
        environment_file=f"/etc/{name}.{text}.env",
        environment_text="A=1\n",
        credential=f"/etc/credentials/{text}.yaml",
        engine=f"/opt/{text}",
        models=({"path": "/models/a", "files": {"config.json": 2}},),
        check={"port": 1},
        verdict={"invocation_id": "0" * 32, "at": 5.5, "elapsed": 2},
    )


def generations(state: Path, name: str = "a") -> list[str]:
    return [one.generation for one in load(str(state), name)]


def test_kept_and_read_back(tmp_path: Path) -> None:
    assert load(str(tmp_path), "a") == []
    assert keep(str(tmp_path), record("one"), most=3) == []
    (found,) = load(str(tmp_path), "a")
    assert (found.content, found.models, found.check, found.sequence) == (
        record("one").content,
        record("one").models,
        {"port": 1},
        1,
    )
    folder = tmp_path / "known-good" / "a"
    assert folder.stat().st_mode & 0o777 == 0o700
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_last_one_proven_is_the_first_and_the_oldest_goes(tmp_path: Path) -> None:
    one, two, three = record("one"), record("two"), record("three")
    for item in (one, two, one):  # the first one was proven again
        keep(str(tmp_path), item, most=2)
    assert generations(tmp_path) == [one.generation, two.generation]
    assert keep(str(tmp_path), three, most=2) == [two.generation]
    assert generations(tmp_path) == [three.generation, one.generation]
    assert keep(str(tmp_path), three, most=1) == [one.generation]


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    keep(str(tmp_path), record("one"), most=3)
    folder = tmp_path / "known-good" / "a"
    whole = json.loads((folder / f"{record('one').generation}.json").read_text())
    for number, text in enumerate(
        [
            "{",
            "[]",
            json.dumps({**whole, "format": 99}),
            json.dumps({**whole, "content": "changed"}),
            json.dumps({**whole, "unknown": 1}),
            json.dumps({**whole, "name": "b"}),
            json.dumps(whole),  # under another name
            "",
            "[" * 100_000,
        ]
    ):
        (folder / f"{number:012x}.json").write_text(text)
    (folder / ".half.json.1.new").write_text("{")
    (folder / "folder.json").mkdir()
    assert generations(tmp_path) == [record("one").generation]
    told = unusable_records(str(tmp_path), ["a", "none"])
    assert len(told) == 10
    assert f"{folder}/folder.json is passed over: it is a folder" in told
    assert f"{folder}/000000000000.json is passed over: it is damaged, or of another release of the collection" in told


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "yes"},
        {"verdict": {"at": "noon"}},
        {"verdict": {"at": float("nan")}},
        {"verdict": {"at": 1e300}},
        {"check": []},
        {"models": ["/models/a"]},
        {"sequence": "1"},
        {"engine": None},
        {"credential": 5},
        {"unit": "../../tmp/x.service"},
    ],
)
def test_a_record_of_wrong_types_is_passed_over(tmp_path: Path, change: dict[str, object]) -> None:
    keep(str(tmp_path), record("one"), most=3)
    (path,) = (tmp_path / "known-good" / "a").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert load(str(tmp_path), "a") == []
    assert listed(Layout("/etc/none", "/etc/none", str(tmp_path)), ["a"])["a"]["generations"] == []


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_record_that_others_could_have_written_is_passed_over(tmp_path: Path, mode: int) -> None:
    keep(str(tmp_path), record("one"), most=3)
    (path,) = (tmp_path / "known-good" / "a").iterdir()
    path.chmod(mode)
    assert load(str(tmp_path), "a") == []
    (told,) = unusable_records(str(tmp_path), ["a"])
    assert told.startswith(
        f"{path} is passed over: it could have been written by others (owner {os.geteuid()}, mode {mode:04o})"
    )


def test_a_record_of_another_owner_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(str(tmp_path), record("one"), most=3)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert load(str(tmp_path), "a") == []


def test_a_killed_run_loses_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(str(tmp_path), record("one"), most=1)

    def killed(_path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            keep(str(tmp_path), record("two"), most=1)
    # The new one was on the disk before the old one was to go.
    assert generations(tmp_path) == [record("two").generation, record("one").generation]
    keep(str(tmp_path), record("two"), most=1)
    assert generations(tmp_path) == [record("two").generation]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ((), ["a", "b@0", "b@10"]),
        (("b",), ["b@0", "b@10"]),
        (("b@10", "b"), ["b@10", "b@0"]),
        (("a",), ["a"]),
        (("c",), ["c"]),
    ],
)
def test_the_name_of_an_entry_means_all_of_its_gpus(tmp_path: Path, asked: tuple[str, ...], meant: list[str]) -> None:
    for name in ("a", "b@0", "b@10"):
        keep(str(tmp_path), record("one", name=name), most=3)
    layout = Layout(unit_dir=str(tmp_path), config_dir=str(tmp_path), state_dir=str(tmp_path))
    assert list(listed(layout, asked)) == meant


def test_what_records_name(tmp_path: Path) -> None:
    assert _known_good.named_by_records(str(tmp_path)) == set()
    keep(str(tmp_path), record("one"), most=3)
    keep(str(tmp_path), record("two", name="b@0"), most=3)
    assert _known_good.known_names(str(tmp_path)) == ["a", "b@0"]
    assert _known_good.named_by_records(str(tmp_path)) == {
        "/etc/a.one.env",
        "/etc/credentials/one.yaml",
        "/opt/one",
        "/etc/b@0.two.env",
        "/etc/credentials/two.yaml",
        "/opt/two",
    }
    _known_good.drop(str(tmp_path), "a")
    _known_good.drop(str(tmp_path), "a")
    assert os.listdir(tmp_path / "known-good") == ["b@0"]


def test_a_rollback_of_an_instance_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    keep(str(tmp_path), record("one", "kimi"), most=3)
    layout = Layout(str(tmp_path), str(tmp_path), str(tmp_path))
    found = put_back_kept(["kimmi"], layout, lambda _argv: (0, "", ""), now=1.0)
    assert found["changed"] is False
    assert found["instances"]["kimmi"]["reason"] == (
        "this host has no instance of that name; of these configurations are kept: kimi"
    )
