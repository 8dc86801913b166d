# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Another configuration of a unit for a while, which goes away by itself. PRIVATE to the collection.

A trial never touches the unit's own files. It is a drop-in below ``/run`` (systemd.unit(5)), so a reboot ends it, and a
transient timer (systemd-run(1)) that ends it when its controller vanished. The timer is armed before anything else is
written, and a later one before an earlier one is stopped, so that there is no moment without one. When it fires, it looks at the
lease of the host first: a run that still renews that one, as each slice of a wait or a measurement does, keeps its trial.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shlex
import sys
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._bench_job import job_unit
from ansible_collections.specdec.serving.plugins.module_utils._drop_ins import TRIAL
from ansible_collections.specdec.serving.plugins.module_utils._files import write_file
from ansible_collections.specdec.serving.plugins.module_utils._lease import PATH as LEASE
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, show

__all__ = ("RUN_DIR", "Trial", "TrialError", "TrialReport", "begin", "end", "observe", "renew")

#: Environment files and records of trials.
RUN_DIR = "/run/specdec/trials"
_UNIT_DIR = "/run/systemd/system"
#: Below this a slow host could not renew in time.
LEAST_HOLD_S = 10.0
_TIMER = re.compile(r"^\s*(specdec-trial-\S+\.timer)\s", re.MULTILINE)
#: Runs on the host when a timer fires: prints for how many seconds the trial is held still, by the lease of the run that began it.
_LEFT = """\
import json, sys, time
path, token, hold = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    lease = json.load(file)
ours = lease["held"] and token == "%s.%s" % (lease["owner"]["id"], lease["generation"])
left = float(hold) - (time.clock_gettime(time.CLOCK_BOOTTIME) - lease["renewed"])
print(int(left) + 1 if ours and left > 0 else 0)
"""
_SECRET_FILE = re.compile(r"^EnvironmentFile=(\S+\.secret\.env)\s*$", re.MULTILINE)


class TrialError(Exception):
    """The trial cannot begin or go on; the message says why."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a unit is to run for a while. ``label`` is for people; ``exec_start`` is quoted for a unit file already.

    ``hold_s``: seconds after which the unit goes back to its own configuration unless the trial, or the lease with the token
    ``lease``, is renewed. ``stop_timeout_s``: of the trial's server, whose requests are only ours.
    """

    unit: str
    label: str
    exec_start: str
    environment_text: str
    hold_s: float
    stop_timeout_s: int = 60
    lease: str = ""


@dataclasses.dataclass(frozen=True)
class TrialReport:
    """``active``: a trial's drop-in is there; ``was_active``: it was before. ``expired``: the last one was ended by its timer.
    ``restore_at``: seconds since 1970, at the earliest; 0 = no timer is known."""

    unit: str
    active: bool
    changed: bool
    label: str = ""
    restore_at: float = 0.0
    was_active: bool = False
    expired: bool = False
    diff: tuple[dict[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class _Paths:
    drop_in: str
    environment: str
    record: str
    script: str
    expired: str

    @property
    def all(self) -> tuple[str, ...]:
        # The drop-in first: without it the rest means nothing.
        return self.drop_in, self.environment, self.record


def _paths(unit: str, root: str) -> _Paths:
    stem = unit[: -len(".service")]
    return _Paths(
        drop_in=f"{root}{_UNIT_DIR}/{unit}.d/{TRIAL}",
        environment=f"{root}{RUN_DIR}/{stem}.env",
        record=f"{root}{RUN_DIR}/{stem}.json",
        script=f"{root}{RUN_DIR}/{stem}.restore",
        expired=f"{root}{RUN_DIR}/{stem}.expired",
    )


def _prefix(unit: str) -> str:
    """Of the timers of a unit; unit names may be long and hold characters that mean something to systemd-run."""
    return f"specdec-trial-{hashlib.sha256(unit.encode()).hexdigest()[:12]}"


def _must(runner: Runner, argv: t.Sequence[str]) -> str:
    code, stdout, stderr = runner(argv)
    if code != 0:
        raise TrialError(
            f"{' '.join(argv[:4])} ... failed with {code}: {stderr.strip() or stdout.strip() or 'no output'}"
        )
    return stdout


def _drop_in(trial: Trial, own: str, environment: str) -> str:
    """The settings that differ; an empty assignment clears what the unit's own file lists."""
    lines = [
        "# Written by specdec.serving for a trial; it goes away with it, and with the next boot.",
        "[Service]",
        "ExecStart=",
        f"ExecStart={trial.exec_start}",
        "EnvironmentFile=",
        f"EnvironmentFile={environment}",
        *(f"EnvironmentFile={path}" for path in _SECRET_FILE.findall(own)),
        # After a crash the next thing is another configuration; and one stuck request must not cost a long stop.
        "Restart=no",
        f"TimeoutStopSec={trial.stop_timeout_s}",
        "Environment=SGL_FORCE_SHUTDOWN=1",
    ]
    return "\n".join(lines) + "\n"


def _write_script(unit: str, paths: _Paths, hold_s: float, lease: str, *, restarted: bool) -> None:
    """What the timer runs. A file, since systemd 252 garbles a ';' in a transient unit's words at the next daemon-reload.

    :param restarted: the unit was restarted with its own files already; only where that failed it is started once more.
    """
    name = shlex.quote(unit)
    # --no-block: the timer's own unit must not wait for minutes of loading.
    if restarted:
        lines = [
            f"systemctl is-failed --quiet {name} || exit",
            f"systemctl reset-failed {name}",
            f"systemctl start --no-block {name}",
        ]
    else:
        lines = [
            *(_hold_on(unit, paths, hold_s, lease) if lease else ()),
            f"rm -f {' '.join(shlex.quote(path) for path in paths.all)}",
            f"date +%s >{shlex.quote(paths.expired)}",
            # A measurement that nobody waits for any more is not to be production's traffic.
            f"systemctl stop --no-block {shlex.quote(job_unit(unit))} 2>/dev/null",
            "systemctl daemon-reload",
            f"systemctl reset-failed {name}",
            f"systemctl restart --no-block {name}",
        ]
    write_file(paths.script, "\n".join(lines) + "\n", mode=0o644)


def _hold_on(unit: str, paths: _Paths, hold_s: float, lease: str) -> list[str]:
    """Ends the script where the trial is held still. Whatever fails here lets it go on: the way back needs nothing but systemd."""
    left = [sys.executable or "python3", "-c", _LEFT, LEASE, lease, f"{hold_s:.3f}"]
    argv = _timer_command(unit, paths, f"{_prefix(unit)}-$(date +%s)-$$", "${left}s")
    words = [f'"{word}"' if "$" in word else shlex.quote(word) for word in argv]
    return [
        f"left=$({' '.join(map(shlex.quote, left))} 2>/dev/null)",
        f'if [ "$left" -gt 0 ] 2>/dev/null && {" ".join(words)}; then exit; fi',
    ]


def _timer_command(unit: str, paths: _Paths, name: str, after: str) -> list[str]:
    return [
        *("systemd-run", "--quiet", "--collect", f"--unit={name}", f"--on-active={after}"),
        "--timer-property=AccuracySec=100ms",
        f"--description=End the trial of {unit} when nobody renews it",
        *("/bin/sh", paths.script),
    ]


def _timers(runner: Runner, unit: str) -> list[str]:
    listing = _must(runner, ["systemctl", "list-units", "--all", "--plain", "--no-legend", f"{_prefix(unit)}-*.timer"])
    return _TIMER.findall(listing)


def _arm(runner: Runner, unit: str, paths: _Paths, hold_s: float, lease: str, *, restarted: bool = False) -> list[str]:
    """Arm a new timer; return the earlier ones, which the caller stops when the rest is done."""
    earlier = _timers(runner, unit)
    _write_script(unit, paths, hold_s, lease, restarted=restarted)
    _must(runner, _timer_command(unit, paths, f"{_prefix(unit)}-{time.monotonic_ns()}", f"{hold_s:.3f}s"))
    return earlier


def _stop_timers(runner: Runner, timers: t.Sequence[str]) -> None:
    if timers:
        _must(runner, ["systemctl", "stop", "--", *timers])


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _check_hold(hold_s: float) -> None:
    if hold_s < LEAST_HOLD_S:
        raise TrialError(f"hold is {hold_s:g} s; a trial is held for at least {LEAST_HOLD_S:g} s at a time")


def _record_of(paths: _Paths) -> dict[str, t.Any]:
    with contextlib.suppress(ValueError):
        record = json.loads(_read(paths.record) or "{}")
        if isinstance(record, dict):
            return record
    return {}


def _write_record(paths: _Paths, label: str, restore_at: float) -> None:
    write_file(paths.record, json.dumps({"label": label, "restore_at": restore_at}) + "\n", mode=0o644)


def observe(unit: str, *, root: str = "") -> TrialReport:
    """Whether a trial of the unit is under way. ``root``: a folder in place of ``/``, for tests."""
    paths = _paths(unit, root)
    record = _record_of(paths)
    return TrialReport(
        unit,
        active=os.path.exists(paths.drop_in),
        changed=False,
        label=str(record.get("label", "")),
        restore_at=float(record.get("restore_at", 0.0)),
        expired=os.path.exists(paths.expired),
    )


def begin(
    trial: Trial, runner: Runner, *, wall: t.Callable[[], float] = time.time, check_mode: bool = False, root: str = ""
) -> TrialReport:
    """Write the trial's drop-in over that of an earlier trial, if any. Nothing is started or stopped.

    :raises TrialError: when the unit has no file of its own to go back to, or systemd refuses; what was written is gone
        then, and an earlier trial's timer ends it as before.
    """
    _check_hold(trial.hold_s)
    state = show(runner, trial.unit)
    if not state.fragment_path or state.load_state != "loaded":
        raise TrialError(
            f"{trial.unit} is {state.load_state} on this host, so a trial would have nothing to go back to; deploy it first"
        )
    paths = _paths(trial.unit, root)
    own = _read(f"{root}{state.fragment_path}")
    content = _drop_in(trial, own, paths.environment)
    before = {path: _read(path) for path in (paths.drop_in, paths.environment)}
    after = {paths.drop_in: content, paths.environment: trial.environment_text}
    diff = tuple(
        {
            "before": before[path],
            "after": after[path],
            "before_header": path if before[path] else "(new)",
            "after_header": path,
        }
        for path in after
        if before[path] != after[path]
    )
    restore_at = wall() + trial.hold_s
    report = TrialReport(
        trial.unit, active=True, changed=bool(diff), label=trial.label, restore_at=restore_at, diff=diff
    )
    if check_mode:
        return dataclasses.replace(report, active=bool(before[paths.drop_in]))
    os.makedirs(os.path.dirname(paths.environment), mode=0o755, exist_ok=True)
    os.makedirs(os.path.dirname(paths.drop_in), mode=0o755, exist_ok=True)
    earlier = _arm(runner, trial.unit, paths, trial.hold_s, trial.lease)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(paths.expired)
        _write_record(paths, trial.label, restore_at)
        write_file(paths.environment, trial.environment_text, mode=0o644)
        write_file(paths.drop_in, content, mode=0o644)
        _must(runner, ["systemctl", "daemon-reload"])
    except (OSError, TrialError):
        for path in paths.all:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        # The timer stays: should the unit run an earlier trial, it is restarted with its own files.
        runner(["systemctl", "daemon-reload"])
        raise
    _stop_timers(runner, earlier)
    return report


def renew(
    unit: str,
    hold_s: float,
    runner: Runner,
    *,
    lease: str = "",
    wall: t.Callable[[], float] = time.time,
    root: str = "",
) -> TrialReport:
    """Hold the trial for ``hold_s`` from now on.

    :raises TrialError: when there is none any more: its timer ended it, or the host was booted.
    """
    _check_hold(hold_s)
    paths = _paths(unit, root)
    if not os.path.exists(paths.drop_in):
        raise TrialError(
            f"the trial of {unit} is over: it was not renewed in time, or the host was booted; the unit has its own configuration again"
        )
    record = _record_of(paths)
    earlier = _arm(runner, unit, paths, hold_s, lease)
    # The earlier timer may have fired before it was stopped.
    _stop_timers(runner, earlier)
    if not os.path.exists(paths.drop_in):
        _stop_timers(runner, _timers(runner, unit))
        raise TrialError(f"the trial of {unit} ended just now, since it was not renewed in time")
    restore_at = wall() + hold_s
    _write_record(paths, str(record.get("label", "")), restore_at)
    return TrialReport(unit, active=True, changed=True, label=str(record.get("label", "")), restore_at=restore_at)


def end(
    unit: str, runner: Runner, *, restart_hold_s: float = 0.0, check_mode: bool = False, root: str = ""
) -> TrialReport:
    """Take the trial away, if there is one. ``changed`` tells whether there was one.

    :param restart_hold_s: restart the unit where there was one. There, and where its timer came first, arm a timer that starts it
        once more after so many seconds should it have failed by then; another ``end`` stops that timer. 0 = the unit is left as it is.
    """
    if restart_hold_s:
        _check_hold(restart_hold_s)
    paths = _paths(unit, root)
    there = [path for path in paths.all if os.path.lexists(path)]
    expired = os.path.exists(paths.expired)
    # Also where somebody removed the drop-in alone: what runs is the trial's until it is restarted.
    was_active = paths.drop_in in there or (bool(there) and not expired)
    diff = tuple(
        {"before": _read(path), "after": "", "before_header": path, "after_header": "(removed)"}
        for path in there
        if path != paths.record
    )
    if check_mode or not (there or os.path.exists(paths.script)):
        return TrialReport(
            unit, active=was_active, changed=bool(there), was_active=was_active, expired=expired, diff=diff
        )
    for path in there:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    if there:
        with contextlib.suppress(OSError):
            # Somebody else's drop-ins may lie in it.
            os.rmdir(os.path.dirname(paths.drop_in))
        _must(runner, ["systemctl", "daemon-reload"])
        # A measurement that was interrupted with the trial: its requests are not for what runs next. Most often there is none.
        runner(["systemctl", "stop", "--", job_unit(unit)])
    # Last: until all is done, it is the timer that would end the trial if we were killed here.
    if (was_active or expired) and restart_hold_s:
        if was_active:
            runner(["systemctl", "reset-failed", "--", unit])
            _must(runner, ["systemctl", "restart", "--no-block", "--", unit])
        _stop_timers(runner, _arm(runner, unit, paths, restart_hold_s, "", restarted=True))
    else:
        _stop_timers(runner, _timers(runner, unit))
        for path in (paths.script, paths.expired):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    return TrialReport(unit, active=False, changed=bool(there), was_active=was_active, expired=expired, diff=diff)
