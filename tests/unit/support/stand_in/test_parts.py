# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The small pure parts: keys, durations, text, truth, and the wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zipfile
from pathlib import Path

import pytest
from sglang.stand_in import auth, conditions, text
from sglang.stand_in.times import DEFAULT_SECONDS, Times
from sglang.stand_in.truth import Truth

from ansible_collections.specdec.serving.tests.support.stand_in import build

KEY, ADMIN = "key-0123456789", "admin-0123456789"


@pytest.mark.parametrize(
    ("path", "level", "keys", "sent", "status"),
    [
        pytest.param("/v1/models", auth.NORMAL, (None, None), None, None, id="open"),
        pytest.param("/v1/models", auth.NORMAL, (KEY, None), None, 401, id="missing"),
        pytest.param("/v1/models", auth.NORMAL, (KEY, None), "wrong", 401, id="wrong"),
        pytest.param("/v1/models", auth.NORMAL, (KEY, None), KEY, None, id="right"),
        pytest.param("/v1/models", auth.NORMAL, (None, ADMIN), None, None, id="admin-only-leaves-normal-open"),
        pytest.param("/v1/models", auth.NORMAL, (KEY, ADMIN), ADMIN, 401, id="admin-is-no-api-key"),
        pytest.param("/health", auth.NORMAL, (KEY, ADMIN), None, None, id="health"),
        pytest.param("/ready", auth.NORMAL, (KEY, None), None, None, id="ready"),
        pytest.param("/metrics", auth.NORMAL, (KEY, None), None, None, id="metrics"),
        pytest.param("/flush_cache", auth.ADMIN_OPTIONAL, (None, None), None, None, id="optional-open"),
        pytest.param("/flush_cache", auth.ADMIN_OPTIONAL, (KEY, None), KEY, None, id="optional-api-key"),
        pytest.param("/flush_cache", auth.ADMIN_OPTIONAL, (KEY, ADMIN), KEY, 401, id="optional-api-key-with-admin"),
        pytest.param("/flush_cache", auth.ADMIN_OPTIONAL, (KEY, ADMIN), ADMIN, None, id="optional-admin"),
        pytest.param("/flush_cache", auth.ADMIN_OPTIONAL, (None, ADMIN), None, 401, id="optional-admin-missing"),
    ],
)
def test_keys(path: str, level: str, keys: tuple[str | None, str | None], sent: str | None, status: int | None) -> None:
    authorization = None if sent is None else f"Bearer {sent}"
    assert (
        auth.refusal(
            method="GET", path=path, authorization=authorization, api_key=keys[0], admin_api_key=keys[1], level=level
        )
        == status
    )


@pytest.mark.parametrize("value", ["Basic key-0123456789", "key-0123456789", "Bearer", ""])
def test_only_bearer_counts(value: str) -> None:
    assert (
        auth.refusal(
            method="GET", path="/v1/models", authorization=value, api_key=KEY, admin_api_key=None, level=auth.NORMAL
        )
        == 401
    )


def test_the_story_takes_210_seconds() -> None:
    steps = (
        "imports",
        "rank_imports",
        "init_parallel",
        "load_target",
        "load_draft",
        "kv_cache",
        "scheduler_ready",
        "bind",
    )
    total = sum(DEFAULT_SECONDS[step] for step in (*steps, "warm_up_poll", "warm_up"))
    assert total == pytest.approx(210, abs=5)


def test_scale_and_own_times() -> None:
    times = Times({"STAND_IN_SCALE": "0.5", "STAND_IN_TIMES": '{"load_target": 4, "health_timeout": 1}'})
    assert times.seconds("load_target") == 2.0
    assert times.seconds("load_draft") == DEFAULT_SECONDS["load_draft"] / 2
    assert times.seconds("health_timeout") == 0.5
    assert 1.8 <= times.jittered("load_target", "TP0") <= 2.0
    assert times.jittered("load_target", "TP0") != times.jittered("load_target", "TP1")
    assert times.jittered("load_target", "TP0") == times.jittered("load_target", "TP0")


def test_timeouts_do_not_shrink_to_nothing() -> None:
    assert Times({"STAND_IN_SCALE": "0"}).seconds("health_timeout") == 2.0


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        pytest.param({"STAND_IN_SCALE": "fast"}, "STAND_IN_SCALE is 'fast'", id="scale-word"),
        pytest.param({"STAND_IN_SCALE": "-1"}, "STAND_IN_SCALE is '-1'", id="scale-negative"),
        pytest.param({"STAND_IN_SEED": "x"}, "STAND_IN_SEED is 'x'", id="seed"),
        pytest.param({"STAND_IN_TIMES": "{"}, "STAND_IN_TIMES is '{'", id="no-json"),
        pytest.param({"STAND_IN_TIMES": '{"load": 1}'}, r"STAND_IN_TIMES names \['load'\]", id="unknown-step"),
        pytest.param({"STAND_IN_TIMES": '{"bind": -1}'}, "STAND_IN_TIMES is", id="negative"),
        pytest.param({"STAND_IN_TIMES": '{"bind": true}'}, "STAND_IN_TIMES is", id="boolean"),
    ],
)
def test_bad_times(environment: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Times(environment)


def test_greedy_text_repeats_and_depends_on_the_prompt() -> None:
    assert text.Stream("a").take(20) == text.Stream("a").take(20)
    assert text.Stream("a").take(20) != text.Stream("b").take(20)
    stream = text.Stream("a")
    assert stream.take(3) + stream.take(17) == text.Stream("a").take(20)


def test_an_answer_can_be_scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = [
        {"match": "half", "text": "x = 1\n"},
        {"match": "", "tokens": {"2": 17}, "top": {"2": [[-0.5, 17], [-0.6, 3]]}},
    ]
    file = tmp_path / "answers.json"
    file.write_text(json.dumps(script), encoding="utf-8")
    plain = text.Stream("other").take(4)
    for given in (str(file), json.dumps(script)):
        monkeypatch.setenv("STAND_IN_ANSWERS", given)
        stream = text.Stream("def half(n):")
        assert stream.natural_length == 6
        ids = stream.take(2) + stream.take(6)
        assert text.decode(ids) == "x = 1\n"
        assert ids[6:] == [text.END_OF_TEXT] * 2
        stream = text.Stream("other")
        assert stream.take(1) + stream.take(3) == [plain[0], plain[1], 17, plain[3]]
        rows = text.top_logprobs(text.script_for("other"), [5, 6, 17])
        assert rows[2] == [[-0.5, 17, None], [-0.6, 3, None]]
        assert [row[0][:2] for row in rows[:2]] == [[-0.125, 5], [-0.125, 6]]


def test_an_empty_answer_can_be_scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_ANSWERS", '[{"match": "x", "text": ""}]')
    stream = text.Stream("x")
    assert stream.natural_length == 1
    assert text.decode(stream.take(1)) == ""


def test_an_answer_can_be_scripted_for_certain_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"match": "", "tokens": {"0": 3}, "with": {"speculative_dflash_block_size": 16}}
    monkeypatch.setenv("STAND_IN_ANSWERS", json.dumps([entry]))
    monkeypatch.setattr(conditions, "_known", {})
    usual = text.Stream("x").take(2)
    conditions.know({"speculative_dflash_block_size": 16})
    assert text.Stream("x").take(2) == [3, usual[1]]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("[", "STAND_IN_ANSWERS: no JSON"),
        ("/no/such/file", "STAND_IN_ANSWERS: /no/such/file cannot be read"),
        ('[{"text": "x"}]', "STAND_IN_ANSWERS: entry 0 must be an object with 'match'"),
        ('[{"match": "x", "txt": "x"}]', "STAND_IN_ANSWERS: entry 0 must be an object with 'match'"),
        ('[{"match": "x", "with": 1}]', "STAND_IN_ANSWERS: entry 0: 'with' is 1"),
        ('[{"match": "x", "tokens": {"last": 1}}]', "STAND_IN_ANSWERS: entry 0: 'tokens' and 'top' are by place"),
    ],
)
def test_a_bad_script_is_told(given: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        text.read_script(given)


def test_drafts_are_accepted_in_bounds() -> None:
    stream = text.Stream("a")
    counts = [stream.correct_drafts(7) for _ in range(500)]
    assert min(counts) == 0
    assert max(counts) == 7
    # Expectation of a geometric series with 0.7, cut at 7.
    assert sum(counts) / 500 == pytest.approx(sum(0.7**n for n in range(1, 8)), abs=0.3)


def test_truth_in_a_folder_and_a_file(tmp_path: Path) -> None:
    Truth({"STAND_IN_TRUTH": str(tmp_path), "INVOCATION_ID": "abc"}).note("started", step="x")
    Truth({"STAND_IN_TRUTH": str(tmp_path / "all.jsonl")}).note("ready")
    Truth({}).note("nowhere")
    folder, file = sorted(tmp_path.iterdir())
    entry = json.loads(folder.read_text(encoding="utf-8"))
    assert (entry["event"], entry["invocation_id"], entry["step"]) == ("started", "abc", "x")
    assert folder.name == f"{entry['main_pid']}.jsonl"
    assert json.loads(file.read_text(encoding="utf-8"))["invocation_id"] is None
    assert entry["monotonic"] < entry["realtime"]


def test_build_writes_once(tmp_path: Path) -> None:
    version = build.profiles()[-1]
    assert build.build_wheelhouse(tmp_path, version) is True
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert build.build_wheelhouse(tmp_path, version) is False
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert sorted(before) == ["requirements.lock", f"sglang-{version}+standin-py3-none-any.whl"]
    lock = (tmp_path / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert lock[0].startswith(f"# sglang-engine: {version} stand-in, sources sha256 ")
    assert lock[1:] == [f"sglang=={version}+standin"]


def test_wheel_is_what_its_record_says(tmp_path: Path) -> None:
    build.build_wheelhouse(tmp_path, "0.5.23")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        record = archive.read("sglang-0.5.23+standin.dist-info/RECORD").decode().splitlines()
        for row in record:
            name, digest, size = row.rsplit(",", 2)
            names.remove(name)
            if digest:
                data = archive.read(name)
                expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, size) == (f"sha256={expected}", str(len(data)))
    assert names == set()


def test_unknown_release_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no profile '0\.4\.1': there are \['0\.4\.6', '0\.5\.9', '0\.5\.12', '0\.5\.23'"
    ):
        build.build_wheelhouse(tmp_path, "0.4.1")
    assert list(tmp_path.iterdir()) == []


def test_models_are_real_safetensors(tmp_path: Path) -> None:
    assert build.build_models(tmp_path) is True
    assert build.build_models(tmp_path) is False
    index = json.loads((tmp_path / "stand-in-target" / "model.safetensors.index.json").read_text(encoding="utf-8"))
    for tensor, name in index["weight_map"].items():
        data = (tmp_path / "stand-in-target" / name).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        assert header[tensor]["data_offsets"][1] == len(data) - 8 - length
    (tmp_path / "stand-in-draft" / "config.json").write_text("{}", encoding="utf-8")
    assert build.build_models(tmp_path) is True
