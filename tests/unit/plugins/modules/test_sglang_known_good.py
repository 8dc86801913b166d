# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main() over units that the real sglang_unit wrote: keep, list, put back."""

from __future__ import annotations

import dataclasses
import os
import pwd
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.modules import sglang_known_good, sglang_unit

KEY = "sk-planted-key-55e1"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of a host belong to root; run the tests as root")


@dataclasses.dataclass
class Box:
    root: Path
    systemd: t.Any
    run_module: t.Any

    @property
    def folders(self) -> dict[str, str]:
        names = {"unit_dir": "units", "config_dir": "etc", "state_dir": "state"}
        return {option: str(self.root / name) for option, name in names.items()}

    def engine(self, name: str = "engine") -> Path:
        python = self.root / name / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text("")
        python.chmod(0o755)
        return self.root / name

    def deploy(self, word: str, *, name: str = "a", key: str = KEY, engine: str = "engine") -> dict[str, t.Any]:
        """Write a configuration and start it."""
        config = self.root / "etc"
        environment = f"{config}/{name}.{word:0>12}.env"
        credential = f"{config}/credentials/{name}.@SECRET@.yaml"
        unit = {
            "name": name,
            "unit": f"sglang-{name}.service",
            "content": f"[Service]\nExecStart={self.engine(engine)}/bin/python {word}\nEnvironmentFile={environment}\n"
            f"LoadCredential={name}.yaml:{credential}\n",
            "environment_file": environment,
            "environment_text": f'A="{word}"\n',
            "credential": credential,
            "engine": str(self.root / engine),
        }
        secrets = {name: {"config": {"api_key": key}}}
        user = pwd.getpwuid(0).pw_name
        code, result = self.run_module(sglang_unit, units=[unit], secrets=secrets, user=user, **self.folders)
        assert code == 0, result
        if result["restart_needed"]:
            self.systemd.start(f"sglang-{name}.service")
        return dict(result["units"][name])

    def proven(self, written: dict[str, t.Any], *, name: str = "a", **changes: t.Any) -> dict[str, t.Any]:
        values = {
            "name": name,
            "generation": written["generation"],
            "invocation_id": self.systemd.invocations[f"sglang-{name}.service"],
            "at": 1000.0,
            "elapsed": 2.5,
            "models": [str(self.root / "model")],
            "check": {"port": 30100, "settings": {"tp_size": 2}},
        }
        return {**values, **changes}

    def run(self, state: str, **options: t.Any) -> tuple[int, dict[str, t.Any]]:
        code, result = self.run_module(sglang_known_good, state=state, **self.folders, **options)
        assert KEY not in result["_output"]
        return code, result

    def keep(self, word: str, **options: t.Any) -> str:
        written = self.deploy(word, **options)
        name = options.get("name", "a")
        code, result = self.run("kept", instances=[self.proven(written, name=name)])
        assert (code, result["changed"]) == (0, True), result
        return str(written["generation"])

    def unit(self, name: str = "a") -> str:
        return (self.root / "units" / f"sglang-{name}.service").read_text()


@pytest.fixture
def box(tmp_path: Path, fake_systemd: t.Any, run_module: t.Any, monkeypatch: pytest.MonkeyPatch) -> Box:
    for module in (sglang_unit, sglang_known_good):
        monkeypatch.setattr(module, "command_runner", lambda: fake_systemd)
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return Box(tmp_path, fake_systemd, run_module)


def test_nothing_is_kept_at_first(box: Box) -> None:
    assert box.run("listed")[1]["instances"] == {}
    (entry,) = box.run("listed", names=["a"])[1]["instances"].values()
    assert entry == {
        "unit": "sglang-a.service",
        "installed": "",
        "asked": "",
        "rolled_back_at": 0,
        "generations": [],
    }
    assert box.run("put_back")[1]["put_back"] == []


def test_kept_and_listed(box: Box) -> None:
    generation = box.keep("one")
    code, result = box.run("listed")
    assert (code, result["changed"]) == (0, False)
    (entry,) = result["instances"].values()
    assert (entry["installed"], entry["asked"]) == (generation, generation)
    assert entry["generations"] == [
        {
            "generation": generation,
            "at": 1000.0,
            "elapsed": 2.5,
            "engine": str(box.root / "engine"),
            "models": [str(box.root / "model")],
            "port": 30100,
            "settings": {"tp_size": 2},
            "installed": True,
            "problem": "",
        }
    ]
    assert box.deploy("one")["known_good"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"generation": "0" * 12}, "is installed, not 000000000000", id="another-generation"),
        pytest.param({"generation": ""}, "not the one that was proven", id="no-generation"),
        pytest.param({"invocation_id": "f" * 32}, "started anew since the verdict", id="another-start"),
    ],
)
def test_what_was_not_proven_is_not_kept(box: Box, changes: dict[str, str], reason: str) -> None:
    written = box.deploy("one")
    code, result = box.run("kept", instances=[box.proven(written, **changes)])
    assert (code, result["changed"], result["instances"]["a"]["kept"]) == (0, False, False)
    assert reason in result["instances"]["a"]["reason"]
    assert result["instances"]["a"]["generations"] == []


def test_a_server_that_is_older_than_its_unit_proves_nothing(box: Box) -> None:
    box.deploy("one")
    old = box.systemd.invocations["sglang-a.service"]
    written = box.deploy("two")
    box.systemd.invocations["sglang-a.service"] = old  # it was not restarted
    result = box.run("kept", instances=[box.proven(written)])[1]
    assert "started before its unit was written" in result["instances"]["a"]["reason"]


def test_keep_none_and_check_mode(box: Box) -> None:
    written = box.deploy("one")
    assert box.run("kept", instances=[box.proven(written)], keep=0)[1]["changed"] is False
    assert box.run("kept", instances=[box.proven(written)], _ansible_check_mode=True)[1]["changed"] is True
    assert not (box.root / "state" / "known-good").exists()
    assert "below 0" in box.run("kept", instances=[], keep=-1)[1]["msg"]


def test_put_back_and_back_again(box: Box) -> None:
    first = box.keep("one")
    good = box.unit()
    second = box.keep("two", key="sk-another-key-55e1")
    code, result = box.run("put_back", _ansible_check_mode=True, _ansible_diff=True)
    assert (code, result["changed"], result["put_back"]) == (0, True, ["a"])
    assert box.unit() != good
    assert [entry["after_header"] for entry in result["diff"]] == [str(box.root / "units" / "sglang-a.service")]

    before = box.systemd.invocations["sglang-a.service"]
    result = box.run("put_back")[1]
    entry = result["instances"]["a"]
    assert box.unit() == good
    assert result["restart_needed"] == ["a"]
    assert (entry["put_back"], entry["installed"], entry["asked"], entry["reason"]) == (first, first, second, "")
    assert entry["rolled_back_at"] > 0
    assert entry["proven_at"] == 1000.0
    credential = entry["check"]["api_key_file"]
    assert Path(credential).read_text() == f'api-key: "{KEY}"\n'
    assert entry["check"] == {
        "port": 30100,
        "settings": {"tp_size": 2},
        "unit": "sglang-a.service",
        "replaces": before,
        "api_key_file": credential,
    }
    # Proven again, with nothing but a verdict: the record keeps what it knew.
    invocation = box.systemd.start("sglang-a.service")
    again = {"name": "a", "generation": first, "invocation_id": invocation, "at": 2000.0}
    kept = box.run("kept", instances=[again])[1]["instances"]["a"]["generations"]
    assert [(one["generation"], one["at"], one["port"]) for one in kept] == [
        (first, 2000.0, 30100),
        (second, 1000.0, 30100),
    ]
    # Which one is the last now: the other way round.
    assert box.run("put_back")[1]["instances"]["a"]["put_back"] == second
    assert box.run("listed")[1]["instances"]["a"]["rolled_back_at"] == 0


def test_only_unproven(box: Box) -> None:
    box.keep("one")
    second = box.keep("two")
    entry = box.run("put_back", only_unproven=True)[1]["instances"]["a"]
    assert entry["put_back"] == ""
    assert "the one that was proven ready last (1970-01-01 00:16 UTC)" in entry["reason"]
    box.deploy("three")
    assert box.run("put_back", only_unproven=True)[1]["instances"]["a"]["put_back"] == second


def test_by_name(box: Box) -> None:
    first = box.keep("one")
    box.keep("two")
    box.keep("three")
    assert box.run("put_back", generation=first[:6])[1]["instances"]["a"]["put_back"] == first
    code, result = box.run("put_back", generation="0123", names=["a"])
    assert code == 1
    assert "a: generation '0123' is not kept; kept: " in result["msg"]
    assert "4 to 12 hexadecimal digits" in box.run("put_back", generation="the last")[1]["msg"]
    assert "is no name of an instance" in box.run("put_back", names=["../a"])[1]["msg"]


def test_a_generation_of_one_instance_leaves_the_others_alone(box: Box) -> None:
    first = box.keep("one")
    box.keep("two")
    box.keep("other", name="b@0")
    result = box.run("put_back", generation=first)[1]
    assert list(result["instances"]) == ["a"]


def test_what_was_removed_does_not_come_back_unasked(box: Box) -> None:
    box.keep("one")
    (box.root / "units" / "sglang-a.service").unlink()
    assert box.run("put_back")[1]["put_back"] == []
    assert box.run("put_back", names=["a"])[1]["put_back"] == ["a"]


def test_one_that_lacks_something_is_passed_over(box: Box) -> None:
    first = box.keep("one")
    box.keep("two", engine="other-engine")
    box.deploy("three")
    (box.root / "other-engine" / "bin" / "python").unlink()
    entry = box.run("put_back")[1]["instances"]["a"]
    assert entry["put_back"] == first
    problems = [one["problem"] for one in box.run("listed")[1]["instances"]["a"]["generations"]]
    assert problems == [f"'{box.root}/other-engine' is gone", ""]


def test_a_model_that_changed_is_told(box: Box) -> None:
    box.keep("one")
    box.keep("two")
    (box.root / "model" / "config.json").write_text("[1]")
    entry = box.run("put_back")[1]["instances"]["a"]
    assert entry["model_changes"] == [f"{box.root}/model: config.json has 3 bytes, not 2"]


def test_what_hangs_is_killed_once_the_files_are_there(box: Box) -> None:
    box.keep("one")
    box.deploy("two")
    box.systemd.calls.clear()
    box.run("put_back", kill=["a", "b"])
    assert box.systemd.verbs() == ["daemon-reload", "reset-failed", "kill"]
    assert box.systemd.calls[-1] == ["systemctl", "kill", "--signal=SIGKILL", "--", "sglang-a.service"]


def test_systemd_says_no(box: Box) -> None:
    box.keep("one")
    box.deploy("two")
    before = box.unit()
    box.systemd.fail["systemctl daemon-reload"] = (1, "", "Failed to connect to bus")
    code, result = box.run("put_back")
    assert code == 1
    assert "Failed to connect to bus" in result["msg"]
    assert box.unit() == before
