# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of the wait: slices, progress lines, reconnects. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import json
import os
import typing as t

#: The first slice is short, so that a wrong configuration shows soon.
FIRST_SLICE_S = 15.0
SLICE_S = 60.0
DEFAULT_TIMEOUT_S = 1350.0
# The module itself ends the wait at its timeout; the controller gives it this long to say so over a poor connection.
GRACE_S = 30.0
# A host that never answered once is more likely misspelt than restarting.
NEVER_REACHED_S = 60.0
RETRY_S = 1.0


def plain(value: t.Any) -> t.Any:
    """A deep copy in plain JSON types: since ansible-core 2.19 values from a playbook are tagged subclasses."""
    return json.loads(json.dumps(value, default=str))


def _truth(value: t.Any) -> bool:
    return str(value).strip().lower() not in ("false", "no", "off", "0", "n", "f")


def progress_line(host: str, answer: t.Mapping[str, t.Any]) -> str:
    """One line for people: host, unit, phase, ranks done, seconds, memory."""
    parts = [host, str(answer.get("unit", "")), str(answer.get("phase") or answer.get("state", ""))]
    if answer.get("state") == "stopping":
        left = answer.get("draining")
        parts[-1] = "stopping" if left is None else f"stopping, {left} requests left"
    markers = answer.get("markers") or {}
    if markers.get("expected"):
        parts.append(f"ranks {markers.get('seen', 0)}/{markers['expected']}")
    parts.append(f"{float(answer.get('elapsed', 0)):.0f} s")
    memory = [
        model.get("mem_usage_gb") for model in answer.get("weights") or () if model.get("mem_usage_gb") is not None
    ]
    if memory:
        parts.append(f"weights {sum(memory):.1f} GB a rank")
    return " | ".join(parts)


@dataclasses.dataclass
class SliceLoop:
    """Calls the module until it has a verdict.

    ``execute`` runs one slice with extra arguments and may raise ``lost`` for a dropped connection; ``parent`` gives the
    parent's pid, which changes when the controller is killed. Raises ``lost`` when the host stays away until the
    deadline, and ValueError for a timeout that is no number.
    """

    arguments: dict[str, t.Any]
    check_mode: bool
    execute: t.Callable[[dict[str, t.Any]], dict[str, t.Any]]
    lost: type[Exception]
    report: t.Callable[[dict[str, t.Any]], None]
    complain: t.Callable[[str], None]
    monotonic: t.Callable[[], float]
    sleep: t.Callable[[float], None]
    parent: t.Callable[[], int] = os.getppid

    def run(self) -> dict[str, t.Any]:
        if self.check_mode or not _truth(self.arguments.get("wait", True)):
            return self.execute({})
        started = self.monotonic()
        parent = self.parent()
        reached = False
        extra: dict[str, t.Any] = {"slice": FIRST_SLICE_S}
        while True:
            if self.parent() != parent:
                raise ValueError("ansible-playbook is gone; the wait ends with it")
            try:
                answer = self.execute(extra)
            except self.lost as error:
                allowed = self._timeout() + GRACE_S if reached else min(NEVER_REACHED_S, self._timeout())
                if self.monotonic() - started >= allowed:
                    raise
                self.complain(f"connection lost, trying again: {str(error).strip().splitlines()[-1]}")
                self.sleep(RETRY_S)
                continue
            reached = True
            if answer.get("failed") or answer.get("finished", True) or answer.get("skipped"):
                return answer
            self.report(answer)
            extra = {"slice": SLICE_S, "resume": answer["resume"]}

    def _timeout(self) -> float:
        text = self.arguments.get("timeout", DEFAULT_TIMEOUT_S)
        try:
            return float(text)
        except (TypeError, ValueError):
            raise ValueError(f"timeout {text!r} is no number of seconds") from None


__all__ = ("FIRST_SLICE_S", "GRACE_S", "NEVER_REACHED_S", "RETRY_S", "SLICE_S", "SliceLoop", "plain", "progress_line")
