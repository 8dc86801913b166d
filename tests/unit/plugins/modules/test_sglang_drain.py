# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real main(): parameters in, JSON out; the machine is that of the tests of the drain."""

from __future__ import annotations

import typing as t

import pytest
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.specdec.serving.plugins.module_utils._lease import LeaseLost
from ansible_collections.specdec.serving.plugins.modules import sglang_drain
from ansible_collections.specdec.serving.tests.unit.plugins.module_utils.test__drain import Host

A = "sglang-a.service"

Run = t.Callable[..., "tuple[int, dict[str, t.Any]]"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    machine = Host()
    monkeypatch.setattr(sglang_drain, "SystemMachine", lambda _lease: machine)
    return machine


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warnings.append(text))
    return warnings


def test_what_it_returns_is_documented(host: Host, run_module: Run) -> None:
    host.serve(A, 3)
    code, result = run_module(sglang_drain, units=[A], _ansible_diff=True)
    assert (code, result["changed"], result["finished"]) == (0, True, True)
    assert result["units"][A]["outcome"] == "drained"
    assert result["diff"] == [
        {
            "before": f"{A}: active, requests: 1\n",
            "after": f"{A}: inactive\n",
            "before_header": A,
            "after_header": A,
        }
    ]
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the documentation")
    documented = yaml.safe_load(sglang_drain.RETURN)
    assert set(result) - {"changed", "diff", "invocation", "_output", "warnings"} <= set(documented)
    assert set(result["units"][A]) == set(documented["units"]["contains"])


def test_slices(host: Host, run_module: Run) -> None:
    host.serve(A, 20)
    code, result = run_module(sglang_drain, units=[A], slice=60)
    assert (code, result["finished"], result["changed"]) == (0, False, False)
    # However long it may take: people want to see how many are left.
    assert result["elapsed"] == 15.0
    code, result = run_module(sglang_drain, units=[A], slice=60, resume=result["resume"])
    assert (code, result["finished"], result["units"][A]["outcome"]) == (0, True, "drained")


@pytest.mark.parametrize(
    ("options", "prospect"),
    [
        ({}, "A real run would wait up to 60 s for them, then abort what is left"),
        ({"timeout": 0}, "A real run would fail, since no time is given for them to end"),
        ({"timeout": 0, "force": True}, "A real run would abort them at once"),
    ],
)
def test_check_mode_tells_the_number(
    host: Host, run_module: Run, warned: list[str], options: dict[str, t.Any], prospect: str
) -> None:
    host.serve(A, 1000, 1000)
    code, result = run_module(sglang_drain, units=[A], _ansible_check_mode=True, **options)
    assert (code, result["changed"], result["finished"], host.jobs) == (0, True, True, [])
    assert result["units"][A]["requests"] == 2
    assert warned == [f"{A} has requests running: 2. {prospect}"]


def test_what_was_aborted_is_a_warning(host: Host, run_module: Run, warned: list[str]) -> None:
    host.serve(A, 1000)
    assert run_module(sglang_drain, units=[A], timeout=5)[0] == 0
    assert warned == [f"{A}: 1 request was aborted after 5.0 s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": ["a b"]}, "no valid unit name"),
        ({"units": [A], "timeout": -1}, "timeout -1 must be a number of seconds, 0 or more"),
        ({"units": [A], "timeout": "inf"}, "timeout inf must be"),
        ({"units": [A], "timeout": 0}, f"{A} has 1 request running"),
        ({"units": [A], "lease": "x"}, "'x' is no token of a lease"),
    ],
)
def test_what_it_refuses(host: Host, run_module: Run, options: dict[str, t.Any], message: str) -> None:
    host.serve(A, 1000)
    code, result = run_module(sglang_drain, **options)
    assert (code, message in result["msg"], host.jobs) == (1, True, [])


@pytest.mark.parametrize(("again", "jobs"), [(False, 1), (True, 0)])
def test_only_after_a_lost_answer_another_start_is_left_alone(
    host: Host, run_module: Run, again: bool, jobs: int
) -> None:
    host.serve(A)
    code, result = run_module(sglang_drain, units=[A], state="restarted", replaces={A: "f" * 32}, again=again)
    assert (code, result["changed"], len(host.jobs)) == (0, bool(jobs), jobs)


def test_a_check_refuses_and_changes_nothing(host: Host, run_module: Run) -> None:
    host.serve(A)
    code, result = run_module(sglang_drain, units=[A], state="checked", timeout=0)
    assert (code, result["changed"], result["units"][A]["requests"]) == (0, False, 0)
    host.serve(A, 1000)
    assert run_module(sglang_drain, units=[A], state="checked", timeout=0)[0] == 1
    assert run_module(sglang_drain, units=[A], state="checked", timeout=5)[0] == 0
    assert host.jobs == []


def test_a_lease_that_was_lost(host: Host, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_token: str) -> None:
        raise LeaseLost("taken over by bob")

    host.serve(A)
    monkeypatch.setattr(sglang_drain, "renew", lost)
    code, result = run_module(sglang_drain, units=[A], lease="aaaaaaaa.1")
    assert (code, result["msg"], host.jobs) == (1, "taken over by bob", [])
