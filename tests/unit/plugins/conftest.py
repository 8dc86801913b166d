# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of units and of modules share."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path
from types import ModuleType

import pytest


class FakeSystemd:
    """systemctl over a folder of unit files: loads at a reload, starts and stops by hand."""

    def __init__(self, unit_dir: Path) -> None:
        self.unit_dir = unit_dir
        self.loaded: dict[str, str] = {}
        self.invocations: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.restarts: dict[str, int] = {}
        self.enabled: set[str] = set()
        self.calls: list[list[str]] = []
        self.fail: dict[str, tuple[int, str, str]] = {}
        self.starts = 0

    def start(self, unit: str) -> str:
        self.starts += 1
        self.invocations[unit] = f"{self.starts:032x}"
        self.states[unit] = "active"
        return self.invocations[unit]

    def __call__(self, argv: t.Sequence[str]) -> tuple[int, str, str]:
        self.calls.append(list(argv))
        words = [word for word in argv if not word.startswith("-")]
        verb = " ".join(words[:2])
        if verb in self.fail:
            return self.fail[verb]
        if words[0] == "systemd-analyze":
            return 0, "", ""
        if words[1] == "daemon-reload":
            self.loaded = {path.name: path.read_text() for path in self.unit_dir.glob("*.service")}
            return 0, "", ""
        unit = words[-1]
        if words[1] == "show":
            path = self.unit_dir / unit
            on_disk = path.read_text() if path.exists() else None
            lines = [
                f"Id={unit}",
                f"LoadState={'loaded' if on_disk is not None or unit in self.loaded else 'not-found'}",
                f"ActiveState={self.states.get(unit, 'inactive')}",
                f"NRestarts={self.restarts.get(unit, 0)}",
                f"InvocationID={self.invocations.get(unit, '')}",
                f"NeedDaemonReload={'yes' if self.loaded.get(unit) not in (None, on_disk) else 'no'}",
            ]
            return 0, "\n".join(lines) + "\n", ""
        if words[1] == "is-enabled":
            return (0, "enabled\n", "") if unit in self.enabled else (1, "disabled\n", "")
        if words[1] == "enable":
            self.enabled.add(unit)
        elif words[1] == "disable":
            self.enabled.discard(unit)
        elif words[1] == "stop":
            for name in words[2:]:
                self.states[name] = "inactive"
                self.invocations.pop(name, None)
        return 0, "", ""

    def verbs(self) -> list[str]:
        return [call[1] for call in self.calls if call[0] == "systemctl" and call[1] not in ("show", "is-enabled")]


@pytest.fixture
def fake_systemd(tmp_path: Path) -> FakeSystemd:
    """A systemctl over ``tmp_path / "units"``."""
    (tmp_path / "units").mkdir()
    return FakeSystemd(tmp_path / "units")


RunModule = t.Callable[..., "tuple[int, dict[str, t.Any]]"]


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> RunModule:
    """Run the real main() of a module: ``run_module(module, option=value)`` gives its exit status and its JSON."""
    from ansible.module_utils.testing import patch_module_args

    def run(module: ModuleType, **params: t.Any) -> tuple[int, dict[str, t.Any]]:
        with patch_module_args(params), pytest.raises(SystemExit) as exit_:
            module.main()
        output = capsys.readouterr().out
        result: dict[str, t.Any] = json.loads(output)
        result["_output"] = output
        return int(exit_.value.code or 0), result

    return run
