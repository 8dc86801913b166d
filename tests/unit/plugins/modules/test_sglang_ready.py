# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main(): parameters in, JSON out."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState
from ansible_collections.specdec.serving.plugins.modules import sglang_ready

KEY = "sk-planted-key-1"


class StoppedHost:
    """A machine whose unit does not run."""

    def __init__(self, unit: str, *_address: t.Any) -> None:
        self.unit = unit

    def __enter__(self) -> t.Any:
        return self

    def __exit__(self, *_unused: object) -> None:
        pass

    def monotonic(self) -> float:
        return 1000.0

    def realtime(self) -> float:
        return 1e9

    def boot_id(self) -> str:
        return "boot"

    def show(self) -> UnitState:
        return UnitState(id=self.unit, load_state="loaded")

    def main_alive(self) -> None:
        return None

    def main_arguments(self) -> dict[str, t.Any]:
        return {}

    def reason(self, _unit: UnitState) -> None:
        return None


def run(capsys: pytest.CaptureFixture[str], **params: t.Any) -> tuple[int, dict[str, t.Any]]:
    with patch_module_args({"unit": "sglang-x.service", "port": 30001, **params}), pytest.raises(SystemExit) as exit_:
        sglang_ready.main()
    return int(exit_.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        pytest.param({"unit": "sglang-x@.service"}, "template", id="template without instance"),
        pytest.param({"unit": "sglang-x.socket"}, "no service", id="no service"),
        pytest.param({"timeout": 0}, "above 0", id="timeout 0"),
        pytest.param({"timeout": "soon"}, "'soon'", id="timeout in words"),
        pytest.param({"timeout": "nan"}, "above 0", id="timeout nan"),
        pytest.param({"port": 70000}, "1 to 65535", id="port"),
        pytest.param({"api_key": "ready"}, "at least 8", id="short key"),
        pytest.param({"leader": "b300"}, "neither host:port nor a URL", id="leader"),
        pytest.param({"client_url": "b300"}, "client_url 'b300' is no URL", id="client_url"),
        pytest.param({"host": "no-such-host.invalid"}, "no-such-host.invalid", id="unknown name"),
        pytest.param({"settings": {"tp_size": "many"}, "wait": False}, "tp_size", id="a setting that is no number"),
    ],
)
def test_refused_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, params: dict[str, t.Any], words: str
) -> None:
    if "host" not in params:
        monkeypatch.setattr(sglang_ready, "SystemHost", StoppedHost)
    code, result = run(capsys, **params)
    assert (code, result["failed"]) == (1, True)
    assert words in result["msg"]


def test_the_key_is_read_from_its_file_and_never_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    class Host(StoppedHost):
        def __init__(self, unit: str, endpoint: t.Any, *rest: t.Any) -> None:
            super().__init__(unit, endpoint, *rest)
            seen.append(endpoint.api_key)

    monkeypatch.setattr(sglang_ready, "SystemHost", Host)
    path = tmp_path / "a.yaml"
    path.write_text('admin-api-key: "adm-planted-1"\napi-key: "sk-planted-1"\n')
    assert run(capsys, wait=False, api_key_file=str(path))[0] == 0
    path.write_text('admin-api-key: "adm-planted-1"\n')
    assert run(capsys, wait=False, api_key_file=str(path))[0] == 0
    assert seen == ["sk-planted-1", None]
    path.write_text("api-key: sk-planted-1\n")
    for where, words in ((path, "is no text in double quotes"), (tmp_path / "none", "No such file")):
        code, result = run(capsys, wait=False, api_key_file=str(where))
        assert code == 1
        assert f"api_key_file {str(where)!r} cannot be read as a file of keys: " in result["msg"]
        assert words in result["msg"]
        assert "sk-planted-1" not in str(result)
    assert "mutually exclusive" in run(capsys, api_key="sk-planted-1", api_key_file=str(path))[1]["msg"]


def test_a_state_fails_the_task_only_when_it_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_ready, "SystemHost", StoppedHost)
    waited = run(capsys)
    looked = run(capsys, wait=False)
    checked = run(capsys, _ansible_check_mode=True)
    assert [code for code, _result in (waited, looked, checked)] == [1, 0, 0]
    assert {result["state"] for _code, result in (waited, looked, checked)} == {"stopped"}
    assert waited[1]["msg"].startswith("sglang-x.service is not ready: stopped. The unit is not running. Start it, by")


def test_the_whole_result_is_documented(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the documentation")
    documented = set(yaml.safe_load(sglang_ready.RETURN))
    monkeypatch.setattr(sglang_ready, "SystemHost", StoppedHost)
    _code, result = run(capsys, wait=False, api_key=KEY)
    assert set(result) - documented <= {"changed", "failed", "invocation", "warnings"}
    assert KEY not in json.dumps(result)
