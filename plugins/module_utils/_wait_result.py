# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of a wait for readiness, made of what was seen and found. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._diagnosis import Diagnosis, log_warnings
from ansible_collections.specdec.serving.plugins.module_utils._findings import Finding
from ansible_collections.specdec.serving.plugins.module_utils._readiness import (
    FOLLOWER,
    NOT_FOUND,
    READY,
    STOPPED,
    STOPPING,
    Gate,
    cross_check,
)
from ansible_collections.specdec.serving.plugins.module_utils._ready_options import Options
from ansible_collections.specdec.serving.plugins.module_utils._startup_log import SERVING, StartupLog
from ansible_collections.specdec.serving.plugins.module_utils._systemd import UnitState


def timeline_of(log: StartupLog, unit: UnitState, now: float) -> list[dict[str, t.Any]]:
    """Phases of the start with their seconds; the last one goes on until now, or until the main process ended."""
    start_us = unit.exec_main_start_us
    if not start_us or not unit.invocation_id:
        return []
    ended_us = unit.exec_main_exit_us
    until_us = ended_us if ended_us > start_us and not unit.main_pid else int(now * 1e6)
    return [
        {
            "phase": span.phase,
            "start": round((span.start_us - start_us) / 1e6, 3),
            "duration": round(
                (max(until_us - span.start_us, 0) if span.duration_us is None else span.duration_us) / 1e6, 3
            ),
            **({"model": span.model} if span.model else {}),
        }
        for span in log.timeline
    ]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a wait, or of one slice of it; times are seconds, ``now`` and ``started`` of CLOCK_MONOTONIC."""

    finding: Finding
    finished: bool
    options: Options
    unit: UnitState
    log: StartupLog
    gates: t.Sequence[Gate]
    #: ``ServerChecks.server``
    server: t.Mapping[str, t.Any]
    now: float
    #: The same moment since the epoch.
    realtime: float
    started: float
    phase: str
    phase_since: float
    timeout: float
    timeline: list[dict[str, t.Any]]
    #: What earlier starts tell of this one; {} = nothing.
    estimate: t.Mapping[str, t.Any]
    expected_markers: int
    node_rank: int
    #: Why the journal cannot hold all of it, '' = it can.
    log_incomplete: str
    notices: t.Sequence[str]
    unknown_settings: t.Mapping[str, str]
    diagnosed: Diagnosis | None
    #: What each process did, of a server that hung or took too long.
    hang_lists: t.Mapping[str, t.Any]

    @property
    def _ready(self) -> bool:
        return self.finding.state == READY

    def result(self) -> dict[str, t.Any]:
        """The module's result, with secrets as the server told them, and without what the next slice needs."""
        finding, unit, log = self.finding, self.unit, self.log
        start = unit.exec_main_start_us / 1e6
        result: dict[str, t.Any] = {
            "changed": False,
            "state": finding.state,
            "ready": self._ready,
            "elapsed": round(self.now - self.started, 3),
            "phase": SERVING if self._ready else self.phase,
            "phase_for": round(self.now - self.phase_since, 3),
            "gates": [{"name": gate.name, "passed": gate.passed, "detail": gate.detail} for gate in self.gates],
            "unit": self.options.unit,
            "port": self.options.endpoint.port,
            "invocation_id": unit.invocation_id,
            "main_pid": unit.main_pid,
            "uptime": round(self.now - start, 3) if unit.main_pid and start else 0.0,
            "timeline": self.timeline,
            "weights": [{**dataclasses.asdict(model), "ranks": len(model.ranks)} for model in log.weights],
            "markers": {"seen": log.markers, "expected": self.expected_markers},
            "server": {key: value for key, value in self.server.items() if key != "skip_tokenizer_init"},
            "detected_at": self.realtime,
            "detected_at_monotonic": self.now,
            "timeout": self.timeout,
            "diagnosis": {} if self._ready or finding.state == FOLLOWER else self._diagnosis(),
            "log_tail": log.tail(self.options.log_lines),
            "log_incomplete": self.log_incomplete,
            "finished": self.finished,
            "notices": self._notices(),
        }
        if log.draining is not None and finding.state == STOPPING:
            result["draining"] = log.draining.remaining
        if self.node_rank:
            result["node_rank"] = self.node_rank
        if self.estimate:
            result["estimate"] = dict(self.estimate)
        if finding.state != FOLLOWER and self.finished and self.options.wait and not self._ready:
            result["msg"] = self._message()
        return result

    def _notices(self) -> list[str]:
        unit, version = self.options.unit, str(self.server.get("version") or "")
        notices = list(self.notices)
        if not self.log_incomplete and not self.node_rank:
            # A follower's answers are its leader's, its journal is its own.
            notices += cross_check(self.timeline, self.server.get("startup_time"))
        for name, meant in self.unknown_settings.items():
            guess = f"; {meant} may be meant" if meant else ""
            notices.append(
                f"{unit}: settings has {name!r}, which this release does not report, so it was not compared:"
                f" it may be misspelt{guess}"
            )
        if self._ready and self.log_incomplete:
            notices.append(f"{unit}: {self.log_incomplete}; the other gates decided")
        if self._ready:
            notices += [f"{unit}: {warning}" for warning in log_warnings(self.log, version, severities=("warning",))]
        if self._ready and self.unit.n_restarts:
            notices.append(f"{unit}: systemd has restarted it {self.unit.n_restarts} times by itself")
        if self.unit.need_daemon_reload:
            notices.append(f"{unit}: its file changed on disk, and systemd has not read it yet (daemon-reload)")
        if self.finding.state == FOLLOWER:
            notices.append(
                f"{unit}: node rank {self.node_rank} runs; give leader (host:port of rank 0) to prove that it serves"
            )
        return notices

    def _diagnosis(self) -> dict[str, t.Any]:
        found = self.diagnosed
        evidence = list(found.evidence) if found else []
        if self.log.argument_error and not evidence:
            evidence.append(self.log.argument_error)
        return {
            "id": found.id if found else "",
            "cause": self.finding.cause,
            "summary": self.finding.summary,
            "remedy": self.finding.remedy,
            "severity": found.severity if found else "error",
            "rank": found.rank if found else "",
            "evidence": evidence,
            "warnings": list(found.warnings) if found else log_warnings(self.log),
            "exit": self.unit.exit_text(),
            **self.hang_lists,
        }

    def _unit_name(self) -> str:
        """The unit as it was asked for, and what systemd calls it if that is an alias."""
        asked, known = self.options.unit, self.unit.id
        return f"{asked} (an alias of {known})" if known and known != asked else asked

    def _message(self) -> str:
        finding = self.finding
        verdict = f"{self._unit_name()} is not ready: {finding.state}"
        if finding.cause and finding.cause != finding.state:
            verdict += f" ({finding.cause})"
        if finding.state not in (STOPPED, NOT_FOUND):
            # Of these it would read as if it had run for so long.
            verdict += f" after {self.now - self.started:.1f} s"
        parts = (verdict, _sentence(finding.summary), finding.remedy)
        return ". ".join(part.rstrip(".") for part in parts if part) + "."


def _sentence(text: str) -> str:
    """With a capital letter in front, where the first word is no name."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() and first != "systemd" else text


__all__ = ("Outcome", "timeline_of")
