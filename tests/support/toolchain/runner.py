# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs steps side by side and sums up what their test runners counted. PRIVATE to this checkout; standard library only.

A step is one command. It starts when the steps that it needs have passed and a slot is free; its output goes to a log
file of its own. A step that writes a JUnit file is counted by that file, any other counts as one test. A step that
cannot run because one that it needs failed counts as failed: nothing is left out without being seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
import typing as t
import xml.etree.ElementTree as ET
from pathlib import Path

#: Exit status of a step that does not run here.
SKIPPED_STATUS = 3
#: Seconds between two lines about what is still running.
HEARTBEAT_S = 60.0
#: Lines of a failed step's log that are shown.
SHOWN_LINES = 150
#: So many first and last lines of what a failed test said are repeated at the end.
SAID_LINES = 8


@dataclasses.dataclass(frozen=True)
class Step:
    """One command.

    ``{junit}`` in ``argv`` and ``environ`` stands for the path of the step's JUnit file; where it occurs, that file is
    demanded. With ``counts_itself`` the command counts as one test more than its file. ``slots`` is how many of the
    runner's slots it takes; ``limit_s`` is when it is stopped and failed. With ``may_skip`` the exit status 3 means that
    it does not run here; it says why in a line that begins with SKIPPED. A ``preparation`` is no test: it counts only when
    it fails.
    """

    name: str
    argv: tuple[str, ...]
    needs: tuple[str, ...] = ()
    environ: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    counts_itself: bool = False
    may_skip: bool = False
    preparation: bool = False
    slots: int = 1
    limit_s: float = 1200.0

    @property
    def writes_junit(self) -> bool:
        return any("{junit}" in word for word in (*self.argv, *self.environ.values()))


@dataclasses.dataclass(frozen=True)
class Count:
    """What a step counted.

    ``reasons`` maps the reason of skips to their number; ``failures`` names what failed, ``said`` maps such names to what was said of them.
    ``again`` names what failed at first and passed when it was run once more.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: t.Mapping[str, int] = dataclasses.field(default_factory=dict)
    failures: tuple[str, ...] = ()
    said: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    again: tuple[str, ...] = ()

    def __add__(self, other: Count) -> Count:
        reasons = dict(self.reasons)
        for reason, number in other.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + number
        return Count(
            passed=self.passed + other.passed,
            failed=self.failed + other.failed,
            skipped=self.skipped + other.skipped,
            reasons=reasons,
            failures=self.failures + other.failures,
            said={**self.said, **other.said},
            again=self.again + other.again,
        )

    def summary(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclasses.dataclass
class Result:
    """How a step ended."""

    step: Step
    count: Count
    status: int | None
    elapsed_s: float
    log: Path
    why: str = ""

    @property
    def skipped(self) -> bool:
        """Whether nothing of the step ran. One that skipped some of its tests has run."""
        return bool(self.count.skipped) and not (self.count.passed or self.count.failed)


class StepsError(ValueError):
    """The steps contradict themselves."""


def count_junit(text: str) -> Count:
    """Count the test cases of a JUnit document.

    Raises ``ET.ParseError`` when it is none.
    """
    total = Count()
    # pytest-rerunfailures writes a case for each attempt; the last one is what counts.
    cases: dict[str, list[ET.Element]] = {}
    for case in ET.fromstring(text).iter("testcase"):
        cases.setdefault("::".join(filter(None, (case.get("classname"), case.get("name")))), []).append(case)
    for name, attempts in cases.items():
        case = attempts[-1]
        skipped = case.find("skipped")
        failures = [*case.findall("failure"), *case.findall("error")]
        if failures:
            said = "\n".join(filter(None, (item.get("message") for item in failures)))
            total += Count(failed=1, failures=(name,), said={name: said} if said else {})
        elif skipped is not None:
            total += Count(skipped=1, reasons={skipped.get("message") or "no reason given": 1})
        else:
            total += Count(passed=1, again=(name,) if len(attempts) > 1 else ())
    return total


def _skip_reason(lines: t.Sequence[str]) -> str:
    """Return what a skipped step said: its last line that begins with SKIPPED, else its last line."""
    said = [line.strip() for line in lines if line.strip()]
    return next(
        (line for line in reversed(said) if line.startswith("SKIPPED")), said[-1] if said else "no reason given"
    )


def _first_attempts(lines: t.Sequence[str]) -> list[str]:
    """What pytest-rerunfailures says of the attempts that failed."""
    start = next((number for number, line in enumerate(lines) if "rerun test summary info" in line), len(lines))
    return list(lines[start + 1 :])


def count_step(*, step: Step, status: int | None, junit: Path, reason: str, limit: str = "") -> tuple[Count, str]:
    """Return what an ended step counts, and what is wrong with it beyond its failed tests.

    ``status`` is None for a step that was stopped at a limit; ``limit`` says at which, "" = its own.
    """
    if step.may_skip and status == SKIPPED_STATUS:
        return Count(skipped=1, reasons={reason: 1}), ""
    why = ""
    if status is None:
        why = f"stopped after {limit or f'its limit of {step.limit_s:.0f} s'}"
    elif status < 0:
        why = f"ended by signal {-status}"
    elif status > 0:
        why = f"exit status {status}"
    count = Count()
    if step.writes_junit:
        try:
            count = count_junit(junit.read_text(encoding="utf-8"))
        except (OSError, ET.ParseError) as exc:
            why = why or f"left no readable result: {exc}"
        else:
            if not (count.passed or count.failed or count.skipped):
                why = why or "ran no test"
    if not step.writes_junit or step.counts_itself:
        count += Count(failed=1, failures=(step.name,)) if why else Count(passed=0 if step.preparation else 1)
    elif why and not count.failed:
        count += Count(failed=1, failures=(f"{step.name}: {why}",))
    return count, why


def check_steps(steps: t.Sequence[Step], *, slots: int) -> None:
    """Raise StepsError for a name used twice, an unknown or circular need, or a step that never fits."""
    known: set[str] = set()
    for step in steps:
        if step.name in known:
            raise StepsError(f"two steps are called {step.name!r}")
        missing = sorted(set(step.needs) - known)
        if missing:  # needs come first, so a circle cannot be written down
            raise StepsError(f"{step.name!r} needs {missing!r}, which no earlier step is called")
        if not 1 <= step.slots <= slots:
            raise StepsError(f"{step.name!r} takes {step.slots} slots of {slots}")
        known.add(step.name)


class _Running(t.NamedTuple):
    step: Step
    process: subprocess.Popen[bytes]
    started: float
    log: Path
    junit: Path


class Runner:
    """Runs steps. ``say`` gets one line at a time; ``monotonic`` and ``sleep`` are the clock.

    After ``limit_s`` seconds what still runs is stopped and what waits is dropped; both count as failed, so that whoever
    ends us from outside does not take away what the others said.
    """

    def __init__(
        self,
        *,
        root: Path,
        logs: Path,
        slots: int,
        environ: t.Mapping[str, str],
        say: t.Callable[[str], None],
        limit_s: float | None = None,
        monotonic: t.Callable[[], float] = time.monotonic,
        sleep: t.Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = root
        self._logs = logs
        self._slots = slots
        self._environ = environ
        self._say = say
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._started = monotonic()

    def run(self, steps: t.Sequence[Step]) -> list[Result]:
        """Run all steps and return their results in the order of their end."""
        check_steps(steps, slots=self._slots)
        self._logs.mkdir(parents=True, exist_ok=True)
        waiting, running, results = list(steps), t.cast("list[_Running]", []), t.cast("list[Result]", [])
        beat = self._monotonic()
        try:
            while waiting or running:
                results += self._drop_late(waiting) if self._late else self._drop_blocked(waiting, results)
                self._start_ready(waiting, running, results)
                for item in list(running):
                    result = self._look_at(item)
                    if result:
                        running.remove(item)
                        results.append(result)
                        beat = self._monotonic()
                if running and self._monotonic() - beat > HEARTBEAT_S:
                    beat = self._monotonic()
                    self._line(
                        "....", ", ".join(f"{item.step.name} since {beat - item.started:.0f} s" for item in running)
                    )
                if running:
                    self._sleep(0.05)
        finally:
            for item in running:
                self._stop(item.process)
        return results

    def _line(self, mark: str, text: str) -> None:
        self._say(f"[{self._monotonic() - self._started:7.1f} s] {mark} {text}")

    def _drop_blocked(self, waiting: list[Step], results: list[Result]) -> list[Result]:
        """Give the steps a result that cannot run: failed because of a failed need, or skipped with a skipped one."""
        failed = {result.step.name for result in results if result.count.failed}
        skipped = {result.step.name for result in results if result.skipped}
        dropped = []
        for step in list(waiting):
            blockers = [name for name in step.needs if name in failed | skipped]
            if not blockers:
                continue
            waiting.remove(step)
            why = f"not run: needs {', '.join(blockers)}"
            if failed.intersection(blockers):
                failed.add(step.name)
                count = Count(failed=1, failures=(f"{step.name}: {why}",))
            else:
                skipped.add(step.name)
                count = Count(skipped=1, reasons={f"{step.name}: {why}": 1})
            dropped.append(self._not_run(step, count, why))
        return dropped

    def _not_run(self, step: Step, count: Count, why: str) -> Result:
        self._line("FAIL" if count.failed else "skip", f"{step.name}: {why}")
        return Result(step=step, count=count, status=None, elapsed_s=0.0, log=self._log(step), why=why)

    @property
    def _late(self) -> str:
        """The limit of all steps that has passed, "" = none."""
        passed = self._limit_s is not None and self._monotonic() - self._started >= self._limit_s
        return f"the limit of {self._limit_s:.0f} s for all steps" if passed else ""

    def _drop_late(self, waiting: list[Step]) -> list[Result]:
        why = f"not run: {self._late} has passed"
        dropped = [self._not_run(step, Count(failed=1, failures=(f"{step.name}: {why}",)), why) for step in waiting]
        waiting.clear()
        return dropped

    def _log(self, step: Step) -> Path:
        return self._logs / f"{step.name.replace(' ', '-').replace('/', '-')}.log"

    def _start_ready(self, waiting: list[Step], running: list[_Running], results: list[Result]) -> None:
        ended = {result.step.name for result in results}
        free = self._slots - sum(item.step.slots for item in running)
        for step in list(waiting):
            if step.slots <= free and ended.issuperset(step.needs):
                waiting.remove(step)
                running.append(self._start(step))
                free -= step.slots

    def _start(self, step: Step) -> _Running:
        log = self._log(step)
        junit = log.with_suffix(".xml")
        junit.unlink(missing_ok=True)
        environ = {**self._environ, **{k: v.replace("{junit}", str(junit)) for k, v in step.environ.items()}}
        self._line("....", step.name)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [word.replace("{junit}", str(junit)) for word in step.argv],
                cwd=self._root,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _Running(step=step, process=process, started=self._monotonic(), log=log, junit=junit)

    def _look_at(self, item: _Running) -> Result | None:
        status = item.process.poll()
        elapsed = self._monotonic() - item.started
        if status is None:
            if elapsed < item.step.limit_s and not self._late:
                return None
            self._stop(item.process)
        lines = item.log.read_text(encoding="utf-8", errors="replace").splitlines()
        count, why = count_step(
            step=item.step, status=status, junit=item.junit, reason=_skip_reason(lines), limit=self._late
        )
        result = Result(step=item.step, count=count, status=status, elapsed_s=elapsed, log=item.log, why=why)
        mark = "FAIL" if count.failed else "skip" if result.skipped else "pass"
        told = f" ({count.summary()})" if item.step.writes_junit else ""
        self._line(mark, f"{item.step.name}: {elapsed:.1f} s{told}{', ' + why if why else ''}")
        if mark == "FAIL":
            self._say(f"---- {item.log}, last {min(len(lines), SHOWN_LINES)} of {len(lines)} lines")
            for line in lines[-SHOWN_LINES:]:
                self._say(f"  | {line}")
            self._say("----")
        elif count.again:
            self._say(f"---- {item.log}, what failed at first")
            for line in _first_attempts(lines)[:SHOWN_LINES]:
                self._say(f"  | {line}")
            self._say("----")
        return result

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """End a step and what it started: asked first, so that a test can remove its hosts, then made to."""
        for number, patience_s in ((signal.SIGINT, 30.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            try:
                process.wait(timeout=patience_s)
            except subprocess.TimeoutExpired:
                continue
            return


def _shortened(lines: t.Sequence[str]) -> list[str]:
    """The first and the last lines of a failure: what was asserted, and what it was told with."""
    if len(lines) <= 2 * SAID_LINES:
        return list(lines)
    return [*lines[:SAID_LINES], f"... {len(lines) - 2 * SAID_LINES} lines ...", *lines[-SAID_LINES:]]


def report(results: t.Sequence[Result], *, say: t.Callable[[str], None], elapsed_s: float, seed: int) -> bool:
    """Print times, reasons of skips and failures, and the closing line. Return whether all is well."""
    total = Count()
    say("")
    say("time per step:")
    for result in sorted(results, key=lambda result: -result.elapsed_s):
        total += result.count
        say(f"  {result.elapsed_s:7.1f} s  {result.step.name}")
    if total.reasons:
        say("skipped:")
        for reason, number in sorted(total.reasons.items()):
            say(f"  {number} x {reason}")
    if total.again:
        say("failed at first, and passed when run once more:")
        for name in total.again:
            say(f"  {name}")
    if total.failures:
        say("failed:")
        for name in total.failures:
            say(f"  {name}")
            for line in _shortened(total.said.get(name, "").splitlines()):
                say(f"    | {line}")
    say(f"seed {seed}, {elapsed_s:.0f} s")
    say(total.summary())
    return not total.failed and total.passed > 0
