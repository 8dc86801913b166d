# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import stat
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _bench_job as job

UNIT = "specdec-benchmark-sglang-a.service"


class Commands:
    """Answers by the second word of a command, and notes all of them."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        self.asked.append(list(argv))
        return self.answers.get(argv[1].lstrip("-"), (0, "", ""))


def test_one_client_for_each_server() -> None:
    assert job.job_unit("sglang-a.service") == UNIT


def test_the_engines_python(tmp_path: Path) -> None:
    (tmp_path / "python").touch(mode=0o755)

    assert job.python_of("/e/bin/python3.11") == "/e/bin/python3.11"
    assert job.python_of(f"{tmp_path}/sglang") == f"{tmp_path}/python"
    assert job.python_of("/nowhere/sglang") == ""
    assert job.python_of("") == ""


def test_the_client_inherits_caches_and_no_secrets() -> None:
    environ = {
        "HF_HOME": "/c/hf",
        "HF_TOKEN": "hf_secret",
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "https_proxy": "http://p",
        "LD_PRELOAD": "/x",
        "HOME": "/c",
    }
    found = job.client_environment(b"\0".join(f"{k}={v}".encode() for k, v in environ.items()) + b"\0rest")

    assert found["HF_HOME"] == "/c/hf"
    assert found["SGLANG_USE_CPU_ENGINE"] == "1"
    assert found["HOME"] == "/c"
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert found["HF_HUB_OFFLINE"] == "1"
    assert not {"HF_TOKEN", "https_proxy", "LD_PRELOAD"} & set(found)


def test_the_folder_is_readable_to_its_user_only(tmp_path: Path) -> None:
    prompts = tmp_path / "given"
    prompts.write_text("{}\n", encoding="utf-8")
    folder = job.Folder(str(tmp_path / "run/a"))
    folder.make({"kind": "fixed"}, {"api_key": "k"}, {"prompts.jsonl": str(prompts)}, "")

    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o700
    files = sorted(os.listdir(folder.path))
    assert files == ["alive", "driver.py", "job.json", "keys.json", "prompts.jsonl"]
    assert {stat.S_IMODE(os.stat(f"{folder.path}/{name}").st_mode) for name in files} == {0o600}
    compile(Path(folder.path, "driver.py").read_text(encoding="utf-8"), "driver.py", "exec")
    assert folder.exists()
    folder.make({}, {}, {}, "")
    assert "prompts.jsonl" not in os.listdir(folder.path)
    folder.remove()
    folder.remove()
    assert not folder.exists()


def test_what_the_client_tells(tmp_path: Path) -> None:
    folder = job.Folder(str(tmp_path / "a"))
    folder.make({}, {}, {}, "")
    assert (folder.progress(), folder.end(), folder.runs(), folder.log(), folder.kept()) == ({}, {}, [], "", {})

    Path(folder.path, "progress.json").write_text('{"phase": "measured"}', encoding="utf-8")
    Path(folder.path, "runs.jsonl").write_text('{"kind": "warm_up"}\n{"kind": "meas', encoding="utf-8")
    Path(folder.path, "client.log").write_text("x" * 10000 + "the end", encoding="utf-8")
    folder.keep({"host": {}})
    assert folder.progress() == {"phase": "measured"}
    assert folder.runs() == [{"kind": "warm_up"}]
    assert folder.log().endswith("the end")
    assert len(folder.log()) < 5000
    assert folder.kept() == {"host": {}}


def test_no_link_of_the_clients_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"reason": "secret"}), encoding="utf-8")
    folder = job.Folder(str(tmp_path / "a"))
    folder.make({}, {}, {}, "")
    Path(folder.path, "end.json").symlink_to(secret)

    assert folder.end() == {}


def test_the_unit_ends_by_itself_and_holds_no_key(tmp_path: Path) -> None:
    run = Commands()
    job.start(run, UNIT, job.Folder("/run/f"), python="/e/bin/python", user="sglang", longest_s=60)

    (argv,) = run.asked
    assert argv[:2] == ["systemd-run", "--quiet"]
    assert "--property=RuntimeMaxSec=60" in argv
    assert "--property=User=sglang" in argv
    assert argv[-4:] == ["/e/bin/python", "-u", "/run/f/driver.py", "/run/f"]


def test_a_unit_that_cannot_be_started() -> None:
    with pytest.raises(job.JobError, match=r"could not be started .*: Failed to start"):
        job.start(
            Commands(quiet=(1, "", "Failed to start\n")), UNIT, job.Folder("/f"), python="p", user="", longest_s=1
        )


@pytest.mark.parametrize(("state", "stops"), [("active", True), ("deactivating", True), ("inactive", False)])
def test_only_what_runs_is_stopped(state: str, stops: bool) -> None:
    run = Commands(show=(0, f"LoadState=loaded\nActiveState={state}\n", ""))
    job.stop(run, UNIT)

    assert (["systemctl", "stop", "--", UNIT] in run.asked) == stops


def test_the_servers_user() -> None:
    assert job.unit_user(Commands(show=(0, "sglang\n", "")), "sglang-a.service") == "sglang"


def test_what_keeps_the_folder_from_being_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (f"{tmp_path}/file", f"{tmp_path}/file/a"):
        with pytest.raises(job.JobError, match=r"cannot be made: .*state_dir"):
            job.Folder(path).make({}, {}, {}, "")
    with pytest.raises(job.JobError, match=r"cannot be made: .*prompts"):
        job.Folder(f"{tmp_path}/a").make({}, {}, {"prompts.jsonl": f"{tmp_path}/prompts"}, "")


def test_a_user_may_be_a_number(tmp_path: Path) -> None:
    job.Folder(f"{tmp_path}/a").make({}, {}, {}, str(os.getuid()))
    for user in ("4000000000", "9" * 30, "nobody-of-that-name"):
        with pytest.raises(job.JobError, match=f"User={user} .* is no account"):
            job.Folder(f"{tmp_path}/a").make({}, {}, {}, user)
