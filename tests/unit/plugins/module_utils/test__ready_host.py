# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the real host reads from files; the rest of it is tested on real hosts."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils._ready_host import installed_release, read_gpus


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
