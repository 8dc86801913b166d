# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main(): parameters in, JSON out."""

from __future__ import annotations

import dataclasses
import typing as t
from pathlib import Path

import pytest
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseFile, Owner
from ansible_collections.specdec.serving.plugins.modules import sglang_lease

ALICE = Owner(id="a" * 16, host="one", user="alice", pid=11, start_ticks=5, boot="b1", play="Deploy")
BOB = Owner(id="b" * 16, host="two", user="bob", pid=22, start_ticks=6, boot="b2")

Ask = t.Callable[..., "tuple[int, dict[str, t.Any]]"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "lease.json")


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the module warned of; Ansible itself keeps that for the whole process."""
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warnings.append(text))
    return warnings


@pytest.fixture
def ask(path: str, run_module: t.Any) -> Ask:
    def run(owner: Owner = ALICE, **options: t.Any) -> tuple[int, dict[str, t.Any]]:
        code, result = run_module(sglang_lease, path=path, owner=dataclasses.asdict(owner), **options)
        return code, result

    return run


def test_hold_show_and_free(ask: Ask) -> None:
    code, result = ask(purpose="deploy")
    assert (code, result["changed"], result["new"], result["held_by_other"]) == (0, False, True, False)
    token = result["token"]
    assert result["lease"]["token"] == token
    code, result = ask(BOB, state="shown")
    assert code == 0
    assert result["holder"].startswith("alice@one (ansible-playbook with pid 11, play 'Deploy'), for deploy, since ")
    assert result["lease"]["owner"]["play"] == "Deploy"
    assert ask(purpose="again", token=token)[1]["new"] is False
    assert ask(state="free", token=token)[1]["token"] == token
    code, result = ask(state="free", token=token)
    assert (code, result["token"], result["lease"], result["changed"]) == (0, "", {}, False)
    assert ask(state="shown")[1]["holder"] == ""


def test_the_second_fails_and_names_the_first(ask: Ask, path: str) -> None:
    token = ask(purpose="deploy")[1]["token"]
    before = Path(path).read_text()
    code, result = ask(BOB)
    assert (code, result["held_by_other"], result["busy"], result["lease"]["token"]) == (1, True, False, token)
    assert result["msg"].startswith("another run holds the lease of this host: alice@one ")
    assert result["msg"].endswith(
        "Nothing was changed. Wait for it (sglang_lease_wait: SECONDS), or take it over (sglang_lease_force: true):"
        " that run then fails before its next change"
    )
    assert Path(path).read_text() == before


@pytest.mark.parametrize(("how", "why"), [({"force": True}, "by force"), ({"gone": "1"}, "has ended")])
def test_taking_it_over(ask: Ask, warned: list[str], how: dict[str, t.Any], why: str) -> None:
    token = ask(purpose="deploy")[1]["token"]
    code, result = ask(BOB, **({"gone": token} if "gone" in how else how))
    assert (code, result["new"]) == (0, True)
    (warning,) = warned
    assert warning.startswith("took the lease of alice@one (ansible-playbook with pid 11, play 'Deploy')")
    assert warning.endswith(why)
    code, result = ask(purpose="deploy", token=token)
    assert (code, "was taken over" in result["msg"]) == (1, True)


def test_check_mode_takes_none_and_tells_of_one(ask: Ask, warned: list[str], path: str) -> None:
    code, result = ask(purpose="deploy", _ansible_check_mode=True)
    assert (code, result["token"], result["held_by_other"]) == (0, "", False)
    assert not Path(path).parent.exists()

    token = ask(purpose="deploy")[1]["token"]
    before = Path(path).read_text()
    code, result = ask(BOB, _ansible_check_mode=True)
    assert (code, result["token"], result["held_by_other"]) == (0, "", True)
    (warning,) = warned
    assert warning.startswith("another run holds the lease of this host: alice@one ")
    assert "A real run would fail" in warning
    for how in ({"force": True}, {"gone": token}):
        assert ask(BOB, _ansible_check_mode=True, **how)[0] == 0
    assert warned == [warning]
    assert ask(state="free", token=token, _ansible_check_mode=True)[0] == 0
    assert Path(path).read_text() == before


def test_a_damaged_record(ask: Ask, path: str) -> None:
    ask(purpose="deploy")
    Path(path).write_text("{")
    code, result = ask(BOB)
    assert (code, result["held_by_other"], result["lease"]) == (1, True, {})
    assert "cannot be understood" in result["msg"]
    code, result = ask(state="shown")
    assert (code, "cannot be understood" in result["msg"]) == (1, True)
    assert ask(BOB, force=True)[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl": 0}, "ttl 0 must be above 0"),
        ({"state": "free"}, "state=free needs the token"),
        ({"token": "no"}, "'no' is no token of a lease"),
    ],
)
def test_what_makes_no_sense(ask: Ask, options: dict[str, t.Any], message: str) -> None:
    code, result = ask(**options)
    assert (code, message in result["msg"]) == (1, True)


def test_without_its_action_plugin(run_module: t.Any, path: str) -> None:
    code, result = run_module(sglang_lease, path=path)
    assert (code, "runs through its action plugin" in result["msg"]) == (1, True)


def test_the_lock_is_released_when_it_ends(ask: Ask, path: str) -> None:
    ask(purpose="deploy")
    assert LeaseFile(path, patience=0.0).take(BOB, "deploy", force=True).new
