# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of the wait: slices, progress lines, reconnects. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._progress import still_for
from ansible_collections.specdec.serving.plugins.module_utils._readiness import PHASES
from ansible_collections.specdec.serving.plugins.module_utils._starts import LEAST_AUTO_S, parse_timeout

#: The first slice is short, so that a wrong configuration shows soon.
FIRST_SLICE_S = 15.0
SLICE_S = 60.0
#: What has not moved for this long when a slice ends stands still; then slices are shorter.
STILL_S = 10.0
STILL_SLICE_S = 30.0
#: ... and this long is worth telling.
STILL_TOLD_S = 30.0
DEFAULT_TIMEOUT = "1350"
# The module itself ends the wait at its timeout; the controller gives it this long to say so over a poor connection.
GRACE_S = 30.0
# A host that never answered once is more likely misspelt than restarting.
NEVER_REACHED_S = 60.0
RETRY_S = 1.0
#: What notices within 20 s that a host no longer answers. Without them ssh waits for as long as TCP does: for ever.
KEEPALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
# The options of an ssh that shares a connection are those of the one that opened it.
_OWN_CONNECTION = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
# What Ansible passes on when ssh loses a connection that it had; otherwise "ssh: connect to host ...", for example.
_WAS_CONNECTED = re.compile(
    r"not responding|closed by remote host|[Cc]onnection reset|[Bb]roken pipe|[Cc]onnection to \S+ closed"
    # Nothing: a shared connection ended under it.
    r"|(?:via|over) ssh:\s*$"
)
# Processes are sampled every two seconds while it is this start that is awaited; older clocks say nothing.
_SAMPLED_S = 5.0
# Less of a difference between the wait's time and the start's is not worth a word.
_APART_S = 2.0
_PHASE_WIDTH = max(map(len, PHASES))


def plain(value: t.Any) -> t.Any:
    """A deep copy in plain JSON types: since ansible-core 2.19 values from a playbook are tagged subclasses."""
    return json.loads(json.dumps(value, default=str))


def truth(value: t.Any) -> bool:
    """An option of type bool as Ansible reads it."""
    return str(value).strip().lower() not in ("false", "no", "off", "0", "n", "f")


def progress_line(host: str, answer: t.Mapping[str, t.Any], width: int = 0) -> str:
    """One line for people: host, unit, phase, ranks done, seconds of the wait, age of the start where that differs, memory, estimate, what stands still.

    ``width``: of the longest host's name.
    """
    phase = str(answer.get("phase") or answer.get("state", ""))
    if answer.get("state") == "stopping":
        left = answer.get("draining")
        phase = "stopping" if left is None else f"stopping, {left} requests left"
    parts = [f"{host:<{width}}", str(answer.get("unit", "")), f"{phase:<{_PHASE_WIDTH}}"]
    markers = answer.get("markers") or {}
    if markers.get("expected"):
        expected = str(markers["expected"])
        parts.append(f"ranks {markers.get('seen', 0):>{len(expected)}}/{expected}")
    elapsed, uptime = float(answer.get("elapsed", 0)), float(answer.get("uptime") or 0)
    parts.append(f"{elapsed:4.0f} s")
    if uptime and abs(uptime - elapsed) >= _APART_S:
        # The estimate is about the start, which is older than this wait or began in it.
        parts.append(f"started {uptime:.0f} s ago")
    memory = [
        model.get("mem_usage_gb") for model in answer.get("weights") or () if model.get("mem_usage_gb") is not None
    ]
    if memory:
        parts.append(f"weights {sum(memory):.1f} GB a rank")
    if answer.get("estimate"):
        parts.append(_estimate_text(answer["estimate"]))
    still, quiet = stood_still(answer)
    if still >= STILL_TOLD_S:
        parts.append(f"nothing has moved for {still:.0f} s")
    elif quiet >= STILL_TOLD_S:
        parts.append(f"only the CPU has moved for {quiet:.0f} s")
    return " | ".join(parts)


def stood_still(answer: t.Mapping[str, t.Any]) -> tuple[float, float]:
    """Seconds since anything of the start moved, and since anything but its CPU did; 0 where nobody looks."""
    progress = ((answer.get("resume") or {}).get("stalls") or {}).get("progress") or {}
    now = float(answer.get("detected_at_monotonic") or 0)
    if answer.get("state") != "loading" or now - progress.get("at", float("-inf")) > _SAMPLED_S:
        return 0.0, 0.0
    return still_for(progress["moved"], now)


def _estimate_text(estimate: t.Mapping[str, t.Any]) -> str:
    if not estimate["longer"]:
        return f"about {estimate['left_s']:.0f} s left"
    earlier = "the earlier start" if estimate["from"] == 1 else f"each of {estimate['from']} earlier starts"
    return f"longer than {earlier} ({estimate['slowest_s']:.0f} s at most)"


def remaining(answer: t.Mapping[str, t.Any]) -> float:
    """Seconds of the wait that are left after an answer of the module."""
    return max(float(answer["timeout"]) - float(answer["elapsed"]), 0.0)


def keepalive_arguments(arguments: str) -> str:
    """What to add to ssh's arguments so that a host that stops answering is noticed; '' when they see to it themselves."""
    words = arguments.lower()
    return "" if "serveraliveinterval" in words else " ".join((*KEEPALIVE, *_OWN_CONNECTION))


def keep_alive(connection: t.Any) -> None:
    """Let the ssh of an action plugin's connection notice a host that no longer answers, unless it was told how."""
    if getattr(connection, "transport", "") != "ssh":
        return
    given = [str(connection.get_option(name) or "") for name in ("ssh_args", "ssh_common_args", "ssh_extra_args")]
    added = keepalive_arguments(" ".join(given))
    if added:
        connection.set_option("ssh_common_args", f"{given[1]} {added}".strip())


def forks_warning(hosts: int, forks: int) -> str:
    """'' when all hosts of the batch can be waited for at once."""
    if forks >= hosts:
        return ""
    return (
        f"sglang_ready waits on {hosts} hosts, and Ansible looks after {forks} at a time (forks): the others are first "
        f"looked at when a wait ends. Run with --forks {hosts}, or set forks in ansible.cfg."
    )


@dataclasses.dataclass
class SliceLoop:
    """Calls the module until it has a verdict.

    ``execute`` runs one slice with extra arguments and may raise ``lost`` for a dropped connection; ``abandoned``
    tells whether ansible-playbook is gone; ``keep`` is called before each slice. Raises ``lost`` when the
    host stays away until the deadline, or for ``patience`` seconds (None = no such limit), and ValueError for a timeout that
    is none.
    """

    arguments: dict[str, t.Any]
    check_mode: bool
    execute: t.Callable[[dict[str, t.Any]], dict[str, t.Any]]
    lost: type[Exception]
    report: t.Callable[[dict[str, t.Any]], None]
    complain: t.Callable[[str], None]
    monotonic: t.Callable[[], float]
    sleep: t.Callable[[float], None]
    abandoned: t.Callable[[], bool]
    keep: t.Callable[[], None] = lambda: None
    patience: float | None = None

    def run(self) -> dict[str, t.Any]:
        """The module's last answer."""
        asked = self.arguments.get("timeout")
        given = parse_timeout(DEFAULT_TIMEOUT if asked is None else asked)
        # The host knows its earlier starts; until it has told, the least.
        limit = LEAST_AUTO_S if given is None else given
        if self.check_mode or not truth(self.arguments.get("wait", True)):
            return self.execute({})
        started = self.monotonic()
        reached = False
        answered = started
        extra: dict[str, t.Any] = {"slice": FIRST_SLICE_S}
        while True:
            if self.abandoned():
                raise ValueError("ansible-playbook is gone; the wait ends with it")
            self.keep()
            try:
                answer = self.execute(extra)
            except self.lost as error:
                reached = reached or _WAS_CONNECTED.search(str(error)) is not None
                allowed = limit + GRACE_S if reached else min(NEVER_REACHED_S, limit)
                silent = self.monotonic() - answered
                if self.monotonic() - started >= allowed or (self.patience is not None and silent >= self.patience):
                    raise
                told = str(error).strip().splitlines()[-1].removesuffix(" Make sure this host can be reached over ssh:")
                self.complain(f"connection lost, trying again: {told}")
                self.sleep(RETRY_S)
                continue
            reached, answered = True, self.monotonic()
            if answer.get("failed") or answer.get("finished", True) or answer.get("skipped"):
                return answer
            if given is None:
                limit = float(answer["timeout"])
            self.report(answer)
            stands = stood_still(answer)[1] >= STILL_S
            extra = {"slice": STILL_SLICE_S if stands else SLICE_S, "resume": answer["resume"]}


__all__ = (
    "FIRST_SLICE_S",
    "GRACE_S",
    "KEEPALIVE",
    "NEVER_REACHED_S",
    "RETRY_S",
    "SLICE_S",
    "STILL_S",
    "STILL_SLICE_S",
    "STILL_TOLD_S",
    "SliceLoop",
    "forks_warning",
    "keep_alive",
    "keepalive_arguments",
    "plain",
    "progress_line",
    "remaining",
    "stood_still",
    "truth",
)
