# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that are missing, and the command that installs them."""

from __future__ import annotations

import pytest

from ansible_collections.specdec.serving.tests.support.lab import tools
from ansible_collections.specdec.serving.tests.support.lab.machine import Plan
from ansible_collections.specdec.serving.tests.support.lab.processes import NotPossible

PLAIN = Plan(own_namespace=False, runtime=None, run_options=())


def test_each_needed_program_has_a_package() -> None:
    names = tools.needed(Plan(own_namespace=True, runtime="runc", run_options=()), image=True)
    assert {"podman", "runc", "mmdebstrap"} <= set(names) <= set(tools.PACKAGES)
    assert "runc" not in tools.needed(PLAIN, image=False)


def test_missing_keeps_what_is_not_found() -> None:
    assert tools.missing(["podman", "runc"], which=lambda name: "/usr/bin/podman" if name == "podman" else None) == [
        "runc"
    ]


@pytest.mark.parametrize(("root", "head"), [(True, ["apt-get"]), (False, ["sudo", "apt-get"])])
def test_one_command_names_each_package_once(root: bool, head: list[str]) -> None:
    command = tools.install_command(["ssh", "ssh-keygen", "mmdebstrap"], root=root)
    assert command[: len(head)] == head
    assert command[-3:] == ["debian-archive-keyring", "mmdebstrap", "openssh-client"]


def test_nothing_is_called_when_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_call", lambda argv: pytest.fail(f"called {argv}"))
    monkeypatch.setattr(tools, "missing", lambda _names: [])
    tools.ensure(["podman"])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        pytest.param({"apt-get"}, "sudo apt-get install -y -o DPkg::Lock::Timeout=600 podman", id="no-sudo"),
        pytest.param(
            {"apt-get", "sudo"},
            "sudo apt-get install -y -o DPkg::Lock::Timeout=600 podman",
            id="sudo-asks-for-a-password",
        ),
        pytest.param({"sudo"}, "package manager", id="no-apt"),
    ],
)
def test_without_the_right_to_install_the_command_is_told(
    monkeypatch: pytest.MonkeyPatch, found: set[str], says: str
) -> None:
    called: list[list[str]] = []

    def call(argv: list[str]) -> int:
        called.append(argv)
        return 1

    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(tools, "missing", list)
    monkeypatch.setattr(tools, "_which", lambda name: f"/usr/bin/{name}" if name in found else None)
    monkeypatch.setattr(tools, "_call", call)
    with pytest.raises(NotPossible) as failure:
        tools.ensure(["podman"])
    assert says in str(failure.value)
    assert called in ([], [["sudo", "-n", "true"]])


def test_old_package_lists_are_fetched_and_the_install_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    absent = [["podman"], []]

    def call(argv: list[str]) -> int:
        called.append(" ".join(argv))
        return 100 if len(called) == 1 else 0

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(tools, "missing", lambda _names: absent.pop(0))
    monkeypatch.setattr(tools, "_which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(tools, "_call", call)
    tools.ensure(["podman"])
    install = "apt-get install -y -o DPkg::Lock::Timeout=600 podman"
    assert called == [install, "apt-get -o DPkg::Lock::Timeout=600 update", install]
