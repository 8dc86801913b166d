# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the real host reads from files; the rest of it is tested on real hosts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import _ready_host
from ansible_collections.specdec.serving.plugins.module_utils._http import Endpoint
from ansible_collections.specdec.serving.plugins.module_utils._ready_host import (
    SystemHost,
    installed_release,
    read_gpus,
    resolve,
)
from ansible_collections.specdec.serving.plugins.module_utils._systemd import SystemdError

REEXEC = (1, "", "Failed to get properties: Transport endpoint is not connected")
NO_SYSTEMD = (1, "", "System has not been booted with systemd as init system (PID 1). Can't operate.")
SHOWN = (0, "LoadState=loaded\nActiveState=active\n", "")


@pytest.mark.parametrize(
    ("answers", "asked"),
    [([SHOWN], 1), ([REEXEC, REEXEC, SHOWN], 3), ([REEXEC] * 99, 51), ([NO_SYSTEMD], 1)],
    ids=["at once", "back soon", "never back", "no systemd"],
)
def test_a_systemd_that_runs_itself_anew_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, str, str]], asked: int
) -> None:
    left, now = list(answers), [0.0]
    monkeypatch.setattr(_ready_host, "_RUN", lambda _argv: left.pop(0))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pause(_host: SystemHost, seconds: float) -> None:
        now[0] = round(now[0] + seconds, 3)

    monkeypatch.setattr(SystemHost, "pause", pause)
    host = SystemHost("x.service", Endpoint(host="127.0.0.1", port=1))
    if answers[-1] is SHOWN:
        assert host.show().active_state == "active"
    else:
        with pytest.raises(SystemdError):
            host.show()
    assert len(answers) - len(left) == asked


@pytest.mark.parametrize("name", ["a" * 300, "a..b", "a\0b"], ids=["long", "empty label", "zero"])
def test_a_name_that_is_none_is_told(name: str) -> None:
    with pytest.raises(SystemdError, match="has no address on this machine"):
        resolve(name, 1)


def test_gpus_are_named_by_their_address(tmp_path: Path) -> None:
    for address, minor in (("0000:41:00.0", 3), ("0000:C1:00.0", 7)):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(f"Model: \t NVIDIA B300\nDevice Minor: \t {minor}\n")
    assert read_gpus(str(tmp_path)) == {
        "0000:41:00": "/dev/nvidia3 (NVIDIA B300)",
        "0000:c1:00": "/dev/nvidia7 (NVIDIA B300)",
    }
    assert read_gpus(str(tmp_path / "none")) == {}


def test_the_release_is_read_beside_the_program(tmp_path: Path) -> None:
    program = str(tmp_path / "bin" / "python")
    assert installed_release(program) == ""
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "sglang-0.5.23+standin.dist-info").mkdir(parents=True)
    (packages / "sglang_kernel-0.4.10.dist-info").mkdir()
    assert installed_release(program) == "0.5.23+standin"
    # Two of them: the environment is damaged, and neither can be trusted.
    (packages / "sglang-0.5.9.dist-info").mkdir()
    assert installed_release(program) == ""
    assert installed_release("") == ""
