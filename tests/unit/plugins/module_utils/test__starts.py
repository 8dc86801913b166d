# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _starts
from ansible_collections.specdec.serving.plugins.module_utils._starts import (
    Start,
    Subject,
    auto_timeout,
    cache_state,
    card_names,
    driver_version,
    estimate,
    load,
    note,
    parse_timeout,
    similar,
)

K26 = Subject(
    model_path="/models/k26",
    draft_model_path="/models/draft",
    release="0.5.23",
    driver="580.95.05",
    gpus=("NVIDIA B300", "NVIDIA B300"),
    tp_size=2,
    ep_size=2,
)


def start(total: float = 100.0, *, cache: str = "warm", subject: Subject = K26) -> Start:
    phases = (("starting", 10.0), ("loading_weights", total - 30.0), ("capturing_graphs", 20.0))
    return Start(subject=subject, invocation_id="a" * 32, at=1.0, cache=cache, phases=phases, total_s=total)


def result(number: int = 0, **changes: t.Any) -> dict[str, t.Any]:
    return {
        "ready": True,
        "invocation_id": f"{number:032x}",
        "detected_at": 1.7e9 + number,
        "log_incomplete": "",
        "timeline": [
            {"phase": "starting", "start": 0.0, "duration": 10.0},
            {"phase": "loading_weights", "start": 10.0, "duration": 70.0 + number},
        ],
        **changes,
    }


# ---- timeout


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(20, 20.0), ("1350", 1350.0), (" 1.5 ", 1.5), ("1e3", 1000.0), ("auto", None), (" Auto ", None)],
)
def test_timeouts(value: t.Any, seconds: float | None) -> None:
    assert parse_timeout(value) == seconds


@pytest.mark.parametrize(
    "value", [0, "0", -1, "-0.5", "nan", "inf", "-inf", "soon", "", None, "20 s", True, [], "1_0x"]
)
def test_timeouts_that_are_none(value: t.Any) -> None:
    with pytest.raises(ValueError, match=r"timeout .* seconds") as refused:
        parse_timeout(value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(
    ("totals", "seconds"), [([], 1350.0), ([100.0], 1350.0), ([450.0], 1350.0), ([500.0, 700.0, 600.0], 2100.0)]
)
def test_auto_timeout(totals: list[float], seconds: float) -> None:
    assert auto_timeout([start(total) for total in totals], K26) == seconds


# ---- which starts are alike


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "warm"),
        ({"tp_size": 8, "draft_model_path": ""}, "warm"),
        ({"release": ""}, "warm"),
        ({"release": "0.5.24"}, "cold"),
        ({"driver": "590.1"}, "cold"),
        ({"model_path": "/models/other"}, "cold"),
    ],
    ids=["same", "other sizes", "release not known yet", "other release", "other driver", "other model"],
)
def test_cache_state(changes: dict[str, t.Any], state: str) -> None:
    assert cache_state([start()], dataclasses.replace(K26, **changes)) == state


def test_the_first_start_is_cold() -> None:
    assert cache_state([], K26) == "cold"


@pytest.mark.parametrize(
    ("known", "alike"),
    [
        (start(), True),
        (start(subject=dataclasses.replace(K26, tp_size=1)), True),
        (start(cache="cold"), False),
        (start(subject=dataclasses.replace(K26, gpus=("NVIDIA H200",))), False),
        (start(subject=dataclasses.replace(K26, model_path="/models/other")), False),
        (start(subject=dataclasses.replace(K26, node_rank=1)), False),
    ],
    ids=["same", "other sizes", "cold", "other cards", "other model", "other rank"],
)
def test_similar(known: Start, alike: bool) -> None:
    # The cold one is what makes this start warm.
    assert (known in similar([start(999.0, cache="cold"), known], K26)) is alike


def test_a_cold_start_is_compared_with_cold_starts_of_other_releases() -> None:
    starts = [start(900.0, cache="cold"), start(90.0)]
    assert similar(starts, dataclasses.replace(K26, release="0.5.24")) == starts[:1]


# ---- estimate


def timeline(*phases: tuple[str, float]) -> list[dict[str, t.Any]]:
    return [{"phase": name, "start": 0.0, "duration": seconds} for name, seconds in phases]


def test_no_estimate_without_earlier_starts() -> None:
    assert estimate([], K26, timeline(("starting", 1.0)), 1.0) is None


@pytest.mark.parametrize(
    ("so_far", "uptime", "left"),
    [
        ([("starting", 4.0)], 4.0, 96.0),
        # The first phase took longer this time; what comes after does not get shorter by that.
        ([("starting", 40.0), ("loading_weights", 20.0)], 60.0, 70.0),
        ([("starting", 10.0), ("loading_weights", 200.0)], 210.0, 20.0),
        ([("starting", 10.0), ("capturing_graphs", 5.0)], 15.0, 85.0),
        ([("starting", 10.0), ("capturing_graphs", 5.0)], 500.0, 0.0),
        ([], 10.0, 90.0),
    ],
    ids=["first phase", "late", "phase overdue", "other order", "other order, overdue", "no log"],
)
def test_the_rest(so_far: list[tuple[str, float]], uptime: float, left: float) -> None:
    found = estimate([start()], K26, timeline(*so_far), uptime)
    assert found is not None
    assert (found.left_s, found.count, found.slowest_s) == (left, 1, 100.0)
    assert found.longer is (uptime > 100.0)


def test_starts_of_the_same_sizes_are_preferred_and_the_median_counts() -> None:
    other = dataclasses.replace(K26, tp_size=1, draft_model_path="")
    starts = [start(100.0), start(110.0), start(500.0), start(7.0, subject=other)]
    found = estimate(starts, K26, timeline(("starting", 0.0)), 0.0)
    assert found is not None
    assert (found.total_s, found.slowest_s, found.count) == (110.0, 500.0, 3)
    unlike = estimate(starts, dataclasses.replace(K26, tp_size=4), timeline(("starting", 0.0)), 0.0)
    assert unlike is not None
    assert unlike.count == 4


# ---- what is kept


def test_a_start_is_kept_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    for number in (0, 1, 1, 0):
        assert note(folder, result(number), K26) == ""
    starts = load(folder)
    assert [one.invocation_id for one in starts] == [f"{number:032x}" for number in (0, 1)]
    assert [one.cache for one in starts] == ["cold", "warm"]
    assert starts[1] == Start(
        subject=K26,
        invocation_id=f"{1:032x}",
        at=1.7e9 + 1,
        cache="warm",
        phases=(("starting", 10.0), ("loading_weights", 71.0)),
        total_s=81.0,
    )
    assert (tmp_path / "state/starts.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "changes",
    [
        {"ready": False},
        {"log_incomplete": "journald dropped lines"},
        {"timeline": []},
        {"timeline": [{"phase": "loading_weights", "start": 5.0, "duration": 1.0}]},
        {"invocation_id": ""},
    ],
    ids=["not ready", "journal incomplete", "no timeline", "beginning unseen", "no invocation"],
)
def test_what_was_not_seen_whole_is_not_kept(tmp_path: Path, changes: dict[str, t.Any]) -> None:
    assert note(str(tmp_path), result(**changes), K26) == ""
    assert list(tmp_path.iterdir()) == []


def test_no_folder_keeps_nothing() -> None:
    assert (note("", result(), K26), load("")) == ("", [])


def test_half_a_line_harms_nobody(tmp_path: Path) -> None:
    path = tmp_path / "starts.jsonl"
    note(str(tmp_path), result(0), K26)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    assert len(load(str(tmp_path))) == 1
    assert note(str(tmp_path), result(1), K26) == ""
    assert [one.invocation_id for one in load(str(tmp_path))] == [f"{number:032x}" for number in (0, 1)]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"[1, 2]\n",
        b"null\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b"\0" * 512 + b"\n",
    ],
    ids=["no text", "list", "null", "empty", "deep", "zeros"],
)
def test_nonsense_in_the_file_is_passed_over(tmp_path: Path, line: bytes) -> None:
    note(str(tmp_path), result(0), K26)
    with (tmp_path / "starts.jsonl").open("ab") as file:
        file.write(line)
    assert note(str(tmp_path), result(1), K26) == ""
    assert len(load(str(tmp_path))) == 2


@pytest.mark.parametrize("total", ["NaN", "Infinity", "-1", '"long"', "1e308", "1" + "0" * 400])
def test_a_start_of_impossible_length_is_passed_over(tmp_path: Path, total: str) -> None:
    note(str(tmp_path), result(0), K26)
    path = tmp_path / "starts.jsonl"
    path.write_text(path.read_text().replace('"total_s": 80.0', f'"total_s": {total}'))
    assert load(str(tmp_path)) == []


def test_a_size_without_end_is_passed_over(tmp_path: Path) -> None:
    note(str(tmp_path), result(0), K26)
    path = tmp_path / "starts.jsonl"
    path.write_text(path.read_text().replace('"tp_size": 2', '"tp_size": Infinity'))
    assert load(str(tmp_path)) == []


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "starts.jsonl")
    # Held open, so that without care the read would wait for ever and not only the opening.
    held = os.open(tmp_path / "starts.jsonl", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert load(str(tmp_path)) == []
        assert "was not noted" in note(str(tmp_path), result(), K26)
    finally:
        os.close(held)


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    for number in range(260):
        note(str(tmp_path), result(number), K26)
    starts = load(str(tmp_path))
    assert 200 <= len(starts) < 250
    assert starts[-1].invocation_id == f"{259:032x}"
    assert [path.name for path in tmp_path.iterdir()] == ["starts.jsonl"]
    assert (tmp_path / "starts.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_huge_file_is_cut(tmp_path: Path) -> None:
    note(str(tmp_path), result(0), K26)
    path = tmp_path / "starts.jsonl"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + path.read_bytes())
    assert note(str(tmp_path), result(1), K26) == ""
    assert len(load(str(tmp_path))) == 2
    assert path.stat().st_size < 10_000


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = note(str(tmp_path / "file/state"), result(), K26)
    assert "was not noted" in said
    assert "starts.jsonl" in said


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "starts.jsonl").symlink_to(tmp_path / "elsewhere")
    assert "was not noted" in note(str(tmp_path), result(), K26)
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_is_held_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_starts, "_LOCK_S", 0.0)
    monkeypatch.setattr(_starts, "_LOCK_POLL_S", 0.0)
    path = tmp_path / "starts.jsonl"
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "locked by another process" in note(str(tmp_path), result(), K26)
    assert note(str(tmp_path), result(), K26) == ""


def test_who_waited_for_a_replaced_file_takes_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note(str(tmp_path), result(0), K26)
    path = tmp_path / "starts.jsonl"
    real = fcntl.flock
    swapped: list[bool] = []

    def flock(descriptor: int, how: int) -> None:
        if not swapped:
            swapped.append(True)
            copy = tmp_path / "copy"
            copy.write_bytes(path.read_bytes())
            os.replace(copy, path)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    note(str(tmp_path), result(1), K26)
    assert len(path.read_text().splitlines()) == 2


def test_a_line_is_plain_json(tmp_path: Path) -> None:
    note(str(tmp_path), result(), K26)
    line = json.loads((tmp_path / "starts.jsonl").read_text())
    assert (line["model_path"], line["cache"], line["total_s"], line["gpus"]) == (
        "/models/k26",
        "cold",
        80.0,
        ["NVIDIA B300", "NVIDIA B300"],
    )


# ---- the machine


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12.2.0\n",
            "550.54.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n",
            "580.95.05",
        ),
        ("nothing\n", ""),
    ],
)
def test_driver_version(tmp_path: Path, text: str, version: str) -> None:
    path = tmp_path / "version"
    path.write_text(text)
    assert driver_version(str(path)) == version
    assert driver_version(str(tmp_path / "missing")) == ""


def test_card_names() -> None:
    gpus = {"0000:41:00": "/dev/nvidia1 (NVIDIA RTX PRO 6000)", "0000:01:00": "/dev/nvidia0 (NVIDIA B300)", "x": ""}
    assert card_names(gpus) == ("", "NVIDIA B300", "NVIDIA RTX PRO 6000")
