# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fault matrix as a table for people and as JSON."""

from __future__ import annotations

import dataclasses
import json
import statistics
import typing as t
from pathlib import Path

from ansible_collections.specdec.serving.tests.support.fault_matrix.model import Outcome

_HEAD = ("fault", "what happens", "expected", "got", "own time", "seconds", "ok")


@dataclasses.dataclass(frozen=True)
class Report:
    """All outcomes, rows that could not run (with the reason), and what the machine did meanwhile."""

    outcomes: tuple[Outcome, ...]
    skipped: t.Mapping[str, str]
    machine: t.Mapping[str, float]
    limit_s: float

    @property
    def wrong(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.problems]

    @property
    def late(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.late]

    def summary(self) -> str:
        seconds = sorted(outcome.seconds for outcome in self.outcomes if outcome.seconds is not None) or [0.0]
        machine = ", ".join(f"{name} {value:.3g}" for name, value in self.machine.items())
        return (
            f"{len(self.outcomes)} faults, {len(self.wrong)} wrong, {len(self.late)} later than {self.limit_s:g} s; seconds"
            f" to the verdict: median {statistics.median(seconds):.3f}, p95 {seconds[int(len(seconds) * 0.95)]:.3f},"
            f" most {seconds[-1]:.3f}; {len(self.skipped)} not run; machine: {machine}"
        )

    def markdown(self) -> str:
        """The table."""
        rows = [_HEAD, *(_cells(outcome) for outcome in sorted(self.outcomes, key=_order))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
        ]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        lines += ["", self.summary(), ""]
        lines += [f"- {name}: not run: {reason}" for name, reason in self.skipped.items()]
        for outcome in self.outcomes:
            if not outcome.ok:
                problems = [*outcome.problems, *(["late"] if outcome.late else [])]
                lines.append(f"- {outcome.fault.id}: {'; '.join(problems)}. It said: {outcome.message!r}")
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """``fault-matrix.md`` and ``fault-matrix.json`` in *folder*."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fault-matrix.md").write_text(self.markdown(), encoding="utf-8")
        rows = [
            {
                "fault": outcome.fault.id,
                "group": outcome.fault.group,
                "what": outcome.fault.what,
                "expected": {"state": outcome.fault.state, "cause": outcome.fault.cause},
                "got": {"state": outcome.state, "cause": outcome.cause},
                "own_time": outcome.fault.own_time,
                "seconds": outcome.seconds,
                "ok": outcome.ok,
                "problems": list(outcome.problems),
                "msg": outcome.message,
                "wall_s": round(outcome.wall_s, 3),
            }
            for outcome in sorted(self.outcomes, key=_order)
        ]
        value = {"limit_s": self.limit_s, "machine": self.machine, "skipped": self.skipped, "rows": rows}
        (folder / "fault-matrix.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _order(outcome: Outcome) -> tuple[str, str]:
    return outcome.fault.group, outcome.fault.id


def _verdict(state: str, cause: str) -> str:
    return f"{state} ({cause})" if cause else state


def _cells(outcome: Outcome) -> tuple[str, ...]:
    fault = outcome.fault
    return (
        f"{fault.group}: {fault.id}",
        fault.what.replace("|", "/"),
        _verdict(fault.state, fault.cause),
        _verdict(outcome.state, outcome.cause),
        fault.own_time,
        "-" if outcome.seconds is None else f"{outcome.seconds:.3f}",
        "yes" if outcome.ok else "LATE" if not outcome.problems else "NO",
    )


__all__ = ("Report",)
