# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._sandbox import SandboxView, try_sandbox


def refused_settings(settings: t.Sequence[str], runner: t.Any) -> tuple[dict[str, str], str]:
    view = try_sandbox(settings, runner)
    assert view.credentials is None
    return dict(view.refused), view.untried


SETTINGS = [
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "PrivateTmp=yes",
    "ProtectSystem=strict",
    "ProtectProc=invisible",
    "RestrictRealtime=yes",
    "SystemCallFilter=~@mount @swap",
    "SystemCallFilter=@chown",
]


def process(
    *,
    privileges: str = "1",
    capabilities: str = "0" * 16,
    seccomp: str = "2",
    root: str = "ro",
    proc: str = "hidepid=invisible",
) -> str:
    """What a process under the sandbox says of itself: proc(5), cut to what matters."""
    return (
        f"Name:\tcat\nCapEff:\t{capabilities}\nCapBnd:\t{capabilities}\nNoNewPrivs:\t{privileges}\nSeccomp:\t{seccomp}\nSeccomp_filters:\t9\n"
        "100 99 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/l\n"
        f"120 100 0:50 / / {root},relatime shared:1 master:2 - overlay overlay rw,lowerdir=/l\n"
        f"130 120 0:60 / /proc rw,nosuid,nodev,noexec,relatime shared:3 - proc proc rw,{proc}\n"
    )


class FakeSystemd:
    """Starts transient units; ``bad`` are settings that fail, ``together`` a pair that does."""

    def __init__(self, bad: t.Mapping[str, tuple[int, str]] | None = None, **shown: str) -> None:
        self.bad = bad or {}
        self.together: set[str] = set()
        self.credentials = True
        self.shown = shown
        self.journal = ""
        self.started: list[list[str]] = []

    def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        if argv[0] == "journalctl":
            return 0, self.journal, ""
        assert argv[0] == "systemd-run"
        settings = [word for before, word in zip(argv, argv[1:]) if before == "--property"]
        self.started.append(settings)
        for setting in settings:
            if setting.partition("=")[0] in self.bad:
                code, text = self.bad[setting.partition("=")[0]]
                return code, "", text
        if self.together and self.together <= {setting.partition("=")[0] for setting in settings}:
            return 226, "", ""
        there = self.credentials and any(setting.startswith("SetCredential=") for setting in settings)
        return 0, process(**self.shown) + f"credential {'is-here' if there else ''}\n", ""


def test_where_all_works_one_unit_is_started() -> None:
    systemd = FakeSystemd()
    assert refused_settings(SETTINGS, systemd) == ({}, "")
    assert systemd.started == [SETTINGS]


def test_nothing_to_try_starts_nothing() -> None:
    systemd = FakeSystemd()
    assert refused_settings([], systemd) == ({}, "")
    assert systemd.started == []


def test_a_setting_that_fails_is_named_with_systemds_words() -> None:
    systemd = FakeSystemd({"PrivateTmp": (226, "")})
    systemd.journal = (
        "specdec-probe-1.service: Failed to set up mount namespacing: /run/systemd/unit-root/proc: Operation not permitted\n"
        "specdec-probe-1.service: Failed at step NAMESPACE spawning /usr/bin/cat: Operation not permitted\n"
        "specdec-probe-1.service: Main process exited, code=exited, status=226/NAMESPACE\n"
    )
    refused, why = refused_settings(SETTINGS, systemd)
    assert why == ""
    assert refused == {
        "PrivateTmp": "systemd fails at step NAMESPACE: Failed to set up mount namespacing: /run/systemd/unit-root/proc: Operation not permitted"
    }
    # Lines of one property stay together: the second alone would forbid all other calls.
    assert SETTINGS[6:] in systemd.started
    assert SETTINGS[7:] not in systemd.started


def test_without_a_journal_the_step_is_named() -> None:
    refused, _why = refused_settings(SETTINGS, FakeSystemd({"SystemCallFilter": (228, "")}))
    assert refused == {"SystemCallFilter": "systemd fails at step SECCOMP (status 228)"}


def test_what_this_systemd_does_not_know_is_named() -> None:
    told = "Failed to start transient service unit: Cannot set property ProtectProc, or unknown property."
    refused, _why = refused_settings(SETTINGS, FakeSystemd({"ProtectProc": (1, told)}))
    assert refused == {"ProtectProc": f"systemd refuses it: {told}"}


def test_two_that_work_alone_only() -> None:
    systemd = FakeSystemd()
    systemd.together = {"PrivateTmp", "ProtectProc"}
    refused, _why = refused_settings(SETTINGS, systemd)
    assert list(refused) == ["ProtectProc"]
    assert refused["ProtectProc"].startswith(
        "not together with NoNewPrivileges, CapabilityBoundingSet, PrivateTmp, ProtectSystem: "
    )


@pytest.mark.parametrize(
    ("shown", "names", "words"),
    [
        pytest.param({"privileges": "0"}, {"NoNewPrivileges"}, "no effect", id="privileges"),
        pytest.param(
            {"capabilities": "00000000a80425fb"}, {"CapabilityBoundingSet"}, "capabilities are left", id="capabilities"
        ),
        pytest.param(
            {"seccomp": "0"}, {"RestrictRealtime", "SystemCallFilter"}, "filters no system calls", id="no-seccomp"
        ),
        pytest.param({"root": "rw"}, {"PrivateTmp", "ProtectSystem", "ProtectProc"}, "CAP_SYS_ADMIN", id="no-mounts"),
        pytest.param({"proc": "gid=0"}, {"ProtectProc"}, "/proc", id="no-hidepid"),
        pytest.param({"proc": "hidepid=2"}, set(), "", id="hidepid-of-older-kernels"),
    ],
)
def test_what_systemd_passes_over_without_a_word(shown: dict[str, str], names: set[str], words: str) -> None:
    refused, why = refused_settings(SETTINGS, FakeSystemd(None, **shown))
    assert (set(refused), why) == (names, "")
    assert all(words in reason for reason in refused.values())


def test_where_no_unit_can_be_started_nothing_is_refused() -> None:
    def no_bus(argv: t.Sequence[str]) -> tuple[int, str, str]:
        return 1, "", "Failed to connect to bus: No such file or directory"

    refused, why = refused_settings(SETTINGS, no_bus)
    assert refused == {}
    assert "Failed to connect to bus" in why
    refused, why = refused_settings(SETTINGS, lambda _argv: (127, "", "No such file or directory: 'systemd-run'"))
    assert refused == {}
    assert "systemd-run" in why


@pytest.mark.parametrize("there", [True, False])
def test_whether_credentials_reach_a_unit(there: bool) -> None:
    systemd = FakeSystemd()
    systemd.credentials = there
    assert try_sandbox(SETTINGS, systemd, credentials=True) == SandboxView(credentials=there)
    assert len(systemd.started) == 1
    # Also without a sandbox, and where a part of it is refused.
    assert try_sandbox([], systemd, credentials=True).credentials is there
    systemd.bad = {"PrivateTmp": (226, "")}
    view = try_sandbox(SETTINGS, systemd, credentials=True)
    assert (list(view.refused), view.credentials) == (["PrivateTmp"], there)
