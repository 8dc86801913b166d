# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sglang_trial does: a sweep file, a study and an instance of the inventory brought together. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import json
import statistics
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils._lease import Owner
from ansible_collections.specdec.serving.plugins.module_utils._server_args import canonical_dest
from ansible_collections.specdec.serving.plugins.plugin_utils import _given_files, _workload
from ansible_collections.specdec.serving.plugins.plugin_utils._charts import duration
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import InstancesError
from ansible_collections.specdec.serving.plugins.plugin_utils._instances import resolve_instances
from ansible_collections.specdec.serving.plugins.plugin_utils._ranking import (
    DRIFT,
    doubted,
    drift,
    host_gap,
    judge,
    point_text,
    ranking,
    sweep_table,
    time_spent,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._savings import durations, savings, starts
from ansible_collections.specdec.serving.plugins.plugin_utils._study import (
    DUPLICATE,
    FAILED,
    IMPLIED,
    Claim,
    Outcome,
    Row,
    StudyError,
    StudyUnavailableError,
    TrialStudy,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import (
    ENVIRONMENT,
    Sweep,
    SweepFileError,
    kind_and_name,
    load_sweep,
)
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_entry import without_keys
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import (
    AGAIN,
    BASELINE,
    SCREEN,
    Point,
    applied,
    changed_keys,
    climb,
    for_screening,
    grid_points,
    identity,
    implied_failure,
    is_better,
    promotions,
    rungs,
    warm_key,
    warm_order,
)

__all__ = ["Options", "Trials", "options_from", "patiently", "trial_headline"]

#: A trial that took an hour is not given up for a database that restarts: how long it is waited for, and how often it is tried.
_PATIENCE_S = 180.0
_PATIENCE_POLL_S = 5.0

#: Default of sglang_trial_hold, and how much longer a claim lasts than the host keeps its trial.
HOLD_S: t.Final = 1800.0
_HOLD_MARGIN_S = 60.0
_SWEEP_BYTES = 1 << 20
#: Of a sweep whose only limit is its hours.
_MOST_TRIALS = 1000
#: Most baselines of one host in one run: the first, one in the middle, the last, and as many for trials that others gave back.
_MOST_BASELINES = 6


@dataclass(frozen=True)
class Options:
    """Of sglang_trial, checked.

    ``entry``: of ``sglang_instances``, without its keys. ``resolve``: the other parameters of ``resolve_instances``.
    ``platform``: what all trials of the study share, in words. ``engine``: what is part of each trial's identity.
    ``began``: seconds since 1970 from which the budget's hours count. ``hold``: seconds after which a host gives an unrenewed trial up.
    """

    sweep: Sweep
    storage: str
    study: str
    entry: Mapping[str, t.Any]
    resolve: Mapping[str, t.Any]
    platform: Mapping[str, t.Any]
    engine: Mapping[str, t.Any]
    began: float
    again: tuple[str, ...] = ()
    hold: float = HOLD_S


def trial_headline(claim: Mapping[str, t.Any]) -> str:
    """The claimed trial for the name of a task, which Ansible's main process works out.

    Workers are forked from that process, and need not import what it has: half a second of each task that touches a study.
    """
    return str((claim.get("trial") or {}).get("label") or claim.get("over") or "")


def patiently(
    call: t.Callable[[], dict[str, t.Any]],
    *,
    say: t.Callable[[str], None],
    monotonic: t.Callable[[], float],
    sleep: t.Callable[[float], None],
) -> dict[str, t.Any]:
    """Do something with the study that may be done twice; where its storage cannot be used just now, again for a while.

    :raises StudyError: with what it said last.
    """
    deadline = monotonic() + _PATIENCE_S
    told = False
    while True:
        try:
            return call()
        except StudyUnavailableError as exc:
            if monotonic() >= deadline:
                raise
            if not told:
                say(f"{exc}; it is tried again for {_PATIENCE_S:.0f} s")
            told = True
            sleep(_PATIENCE_POLL_S)


def options_from(raw: Mapping[str, t.Any], *, now: float) -> Options:
    """Read the sweep file and check the rest.

    :raises ValueError: with every fault of the sweep file, or the first other one.
    """
    given = raw.get("sweep") or ""
    if not given:
        raise ValueError("sweep is required: the path of a sweep file on the controller, or what would stand in one")
    if isinstance(given, Mapping):
        path, text = "sweep", json.dumps(given)
    else:
        path = str(given)
        try:
            text = _given_files.read(_given_files.expanded(path), _SWEEP_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ValueError(f"the sweep file {path!r} cannot be read: {exc}") from exc
    sweep = load_sweep(text, path=path)
    entries = {str(entry.get("name")): entry for entry in raw.get("instances") or ()}
    entry = entries.get(sweep.instance)
    if entry is None:
        names = ", ".join(entries) or "none"
        raise ValueError(f"{path}: there is no instance {sweep.instance!r} on this host; its instances: {names}")
    storage = str(raw.get("storage") or "")
    if not storage:
        raise ValueError("storage is required: a path on the controller, or a postgresql:// URL")
    if "://" not in storage:
        try:
            storage = str(_given_files.expanded(storage))
        except OSError as exc:
            raise ValueError(f"the storage {storage!r} cannot be used: {exc}") from exc
    return Options(
        sweep=sweep,
        storage=storage,
        study=str(raw.get("study") or Path(path).stem),
        entry=without_keys(entry),
        resolve=dict(raw.get("resolve") or {}),
        platform=dict(raw.get("platform") or {}),
        engine=dict(raw.get("engine") or {}),
        began=float(raw.get("began") or now),
        again=tuple(raw.get("again") or ()),
        hold=float(raw.get("hold") or HOLD_S),
    )


class Trials:
    """One host's view of a study."""

    def __init__(self, options: Options, *, owner: Owner, host: str, wall: t.Callable[[], float]) -> None:
        self._options, self._owner, self._host, self._wall = options, owner, host, wall
        self._sweep = options.sweep
        self._known: dict[str, str] = {}
        self._study = TrialStudy(
            options.storage,
            options.study,
            options.sweep,
            fingerprint=self._fingerprint(),
            identify=self._identify,
            # By then the host has given the trial up, if nobody renewed it.
            lease_s=options.hold + _HOLD_MARGIN_S,
            wall=wall,
        )

    def _fingerprint(self) -> dict[str, t.Any]:
        return {
            "instance": self._sweep.instance,
            "workloads": {name: identity(content.as_dict()) for name, content in self._workloads().items()},
            "levels": list(self._sweep.levels),
            "objective": [dataclasses.asdict(one) for one in self._sweep.objectives],
            **self._options.platform,
        }

    def _workloads(self) -> dict[str, _workload.Workload]:
        return {name: _workload.load(name, base=self._base())[0] for name in self._sweep.workloads}

    # -- what a point means for the instance ---------------------------------------------------------------------

    def _applied(self, point: Point) -> dict[str, t.Any]:
        """The entry with the point's values."""
        args = {canonical_dest(str(name)): value for name, value in (self._options.entry.get("args") or {}).items()}
        changed_args, changed_env = applied(point, args=args, env=dict(self._options.entry.get("env") or {}))
        return {**self._options.entry, "args": changed_args, "env": changed_env}

    def _changed(self, point: Point) -> dict[str, t.Any]:
        """For :func:`with_trial`: all arguments, and of the environment, which may hold secrets, only what the point sets."""
        entry = self._applied(point)
        names = [name for kind, name in map(kind_and_name, changed_keys(point)) if kind == ENVIRONMENT]
        return {"args": entry["args"], "env": {name: entry["env"][name] for name in names}}

    def _identify(self, point: Point) -> str:
        parts = {**self._would_run_as(point), "again": point.get(AGAIN)}
        found = identity(parts)
        if SCREEN not in point or found == self._identify(BASELINE):
            # What is screened and the baseline's twin is measured already, and in full.
            return found
        return identity({**parts, "screen": True})

    def _would_run_as(self, point: Point) -> dict[str, t.Any]:
        """What a host would run for a point, without what tells one host from another of its kind."""
        # The address is not what is measured.
        entry = {**self._applied(point), "host": "127.0.0.1"}
        environment: t.Any = entry["env"]
        try:
            resolved = resolve_instances([entry], **self._options.resolve)
        except InstancesError:
            # It will be rejected, with the reason; until then it is what was asked.
            arguments: t.Any = entry["args"]
        else:
            arguments = [item["argv"] for item in resolved]
            environment = [self._without_uuids(item["environment_text"]) for item in resolved]
        # The environment may hold secrets.
        return {"arguments": arguments, "environment": identity({"": environment}), **self._options.engine}

    def _without_uuids(self, text: str) -> str:
        """GPUs by their places in the text: each card has a UUID of its own."""
        facts = self._options.resolve.get("facts") or {}
        uuids = [str(gpu["uuid"]) for gpu in facts.get("gpus") or () if gpu.get("uuid") and str(gpu["uuid"]) in text]
        for place, uuid in enumerate(sorted(uuids, key=text.index)):
            text = text.replace(uuid, f"GPU {place}")
        return text

    def _faults(self, point: Point) -> list[str]:
        try:
            resolve_instances([self._applied(point)], **self._options.resolve)
        except InstancesError as exc:
            return list(exc.errors)
        return []

    # -- the states of the module --------------------------------------------------------------------------------

    def planned(self, *, check_mode: bool) -> dict[str, t.Any]:
        """Put the trials into the study, or only list them.

        :raises ValueError: when the sweep file allows no trial.
        """
        points: Sequence[Point] = [dict(BASELINE)]
        if self._sweep.sampler == "grid":
            points = warm_order(grid_points(self._sweep), self._warm_key)
            if self._sweep.screen:
                points = for_screening(points)
        elif self._sweep.sampler == "ladder":
            # What it changes first, one at a time; what it builds on them is known later.
            points = [dict(BASELINE), *rungs(self._sweep)] if check_mode else []
        self._check_entry()
        if check_mode:
            rows = self._would_run(points)
        else:
            self._study.plan_for(self._would_run_as(BASELINE))
            rows = self._study.plan(points, again=self._is_asked_again)
        waiting = [row for row in rows if row.outcome is None]
        return {
            "trials": [
                {**self._shown(row), "entry": self._changed(row.point), "faults": self._faults(row.point)}
                for row in rows
            ],
            "waiting": len(waiting),
            "most": self._most(len(waiting)),
            "instance": self._sweep.instance,
            "study": self._options.study,
            "workloads": [{"name": name, "workload": self._workload_name(name)} for name in self._sweep.workloads],
            "gates": dataclasses.asdict(self._sweep.gates),
            "text": self._plan_text(rows, () if check_mode else waiting, check_mode=check_mode),
            "warnings": [] if check_mode else self._asked_in_vain(rows),
        }

    def _most(self, waiting: int) -> int:
        """How many trials there can be in this run: a playbook's loop needs an end."""
        if self._sweep.sampler == "grid":
            # And once more, to hear that it was the last. What is promoted is known later.
            return waiting + promotions(self._sweep, waiting) + _MOST_BASELINES + 1
        if self._sweep.sampler == "ladder":
            return waiting + 3 + sum(len(parameter.values()) for parameter in self._sweep.space)
        return waiting + 1 + (self._sweep.budget.trials or _MOST_TRIALS)

    def _workload_name(self, name: str) -> str:
        """As sglang_benchmark takes it: a path of a sweep file is relative to that file."""
        path = self._base() / Path(name).expanduser()
        return str(path) if path.is_file() else name

    def _base(self) -> Path:
        return Path(self._sweep.path).expanduser().resolve().parent

    def _would_run(self, points: Sequence[Point]) -> list[Row]:
        rows: list[Row] = []
        seen: dict[str, int] = {}
        for number, point in enumerate(points):
            mark = self._identify(point)
            outcome = Outcome("duplicate", details={"of": seen[mark]}) if mark in seen else None
            seen.setdefault(mark, number)
            rows.append(Row(number, point, mark, "duplicate" if outcome else "waiting", outcome))
        return rows

    def _check_entry(self) -> None:
        faults = self._faults(BASELINE)
        if faults:
            raise SweepFileError([f"the instance {self._sweep.instance!r} itself cannot be deployed:", *faults])

    def _is_asked_again(self, row: Row) -> bool:
        outcome = row.outcome
        if outcome is None or (outcome.state != FAILED and outcome.values is not None):
            return False
        return bool({"failed", str(row.number), outcome.cause} & set(self._options.again))

    def _asked_in_vain(self, rows: Sequence[Row]) -> list[str]:
        """What ``sweep_again`` names and no trial of the study is."""
        causes = sorted({row.outcome.cause for row in rows if row.outcome and row.outcome.state == FAILED})
        known = {"failed", *(str(row.number) for row in rows), *causes}
        told = f"its causes: {', '.join(causes)}" if causes else "none of its trials failed"
        return [
            f"sweep_again={word}: no trial of {self._options.study} has this number or cause; {told}"
            for word in self._options.again
            if word not in known
        ]

    def _plan_text(self, rows: Sequence[Row], listed: Sequence[Row], *, check_mode: bool = False) -> str:
        done = sum(row.outcome is not None for row in rows)
        waiting = len(rows) - done
        name = f"sweep {self._options.study} of {self._sweep.instance}"
        known = "check mode does not look at what the study has already" if check_mode else f"{done} known already"
        lines = [f"{name}: {waiting} trial{'s' * (waiting != 1)} to run, {known}"]
        lines += [f"  {row.number:>3}  {point_text(row.point)}" for row in listed]
        screened = sum(SCREEN in row.point and row.state != DUPLICATE for row in rows)
        if self._sweep.screen:
            most = promotions(self._sweep, screened)
            lines.append(f"  then the best of what was screened in full: {most} at most")
        elif self._sweep.sampler != "grid":
            lines.append(f"  then what {self._sweep.sampler} proposes")
        return "\n".join(lines)

    def claimed(self) -> dict[str, t.Any]:
        """The next trial, or why there is none."""
        while True:
            rows = self._study.rows()
            over = self._over(rows)
            if over:
                return self._no_trial(over, rows)
            claim = self._study.claim(self._owner, host=self._host)
            if claim is None:
                running = [row for row in self._study.rows() if row.state == "running"]
                over = "the last trials run on other hosts" if running else "all trials have ended"
                # What another host gives up can be claimed later.
                return self._no_trial(over, self._study.rows(), final=not running)
            twin = implied_failure(self._sweep, claim.point, [row.finished() for row in rows if row.outcome])
            if twin is not None:
                summary = f"a rule of the sweep file says so: {point_text(twin.point)} failed for {twin.cause}"
                self._study.finish(
                    claim.number, self._owner, Outcome(FAILED, cause=IMPLIED, details={"summary": summary})
                )
                continue
            return self._trial(claim)

    def _over(self, rows: Sequence[Row]) -> str:
        """Why no further trial is begun; '' = go on."""
        budget, stop = self._sweep.budget, self._sweep.stop
        # Baselines that were measured again are no configurations, and their numbers do not tell when they ran.
        ended = [
            row
            for row in rows
            if row.outcome and row.state != DUPLICATE and row.outcome.cause != IMPLIED and AGAIN not in row.point
        ]
        if budget.hours is not None and self._wall() - self._options.began >= budget.hours * 3600:
            return f"the budget of {budget.hours:g} h is used up"
        if budget.trials is not None and len(ended) >= budget.trials:
            return f"the budget of {budget.trials} trials is used up"
        failed = 0
        for row in reversed(ended):
            if not row.outcome or row.outcome.state != FAILED:
                break
            failed += 1
        if stop.failures is not None and failed >= stop.failures:
            return f"failed trials in a row: {failed}"
        if stop.patience is not None:
            without = self._without_a_better_one([row for row in ended if SCREEN not in row.point])
            if without >= stop.patience:
                return f"trials in a row that brought nothing better: {without}"
        return ""

    def _without_a_better_one(self, ended: Sequence[Row]) -> int:
        best, since = None, 0
        for row in ended:
            since += 1
            if row.outcome and row.outcome.values:
                value = row.outcome.values[0]
                if best is None or is_better(self._sweep.objectives[0].direction, value, best):
                    best, since = value, 0
        return since

    def _no_trial(self, over: str, rows: Sequence[Row], *, final: bool = True) -> dict[str, t.Any]:
        waiting = sum(row.outcome is None for row in rows)
        return {"trial": {}, "over": over, "final": final, "text": over, "waiting": waiting}

    def _trial(self, claim: Claim) -> dict[str, t.Any]:
        rows = self._study.rows()
        # What would run the same is no step of the way.
        single = [row for row in rows if row.state != DUPLICATE]
        known = sum(row.outcome is not None for row in single)
        best = next((one for one in ranking(self._sweep, rows) if one.winner), None)
        lines = [f"trial {claim.number} ({known + 1} of {len(single)}): {point_text(claim.point)}"]
        if claim.attempt > 1:
            lines.append(f"attempt {claim.attempt}: an earlier one did not end")
        if best is not None:
            lines.append(f"best so far: trial {best.row.number}, {self._figures(best.row)}")
        left = self._time_left(rows)
        if left is not None:
            lines.append(f"about {duration(left)} left")
        return {
            "trial": {
                "number": claim.number,
                "since": self._since(rows),
                "attempt": claim.attempt,
                "point": dict(claim.point),
                "identity": claim.identity,
                "label": f"trial {claim.number} of {self._options.study}: {point_text(claim.point)}",
                "entry": self._changed(claim.point),
                "faults": self._faults(claim.point),
                "cold": self._is_cold(claim, rows),
                **self._asked(claim.point),
                "claimed_at": self._wall(),
            },
            "over": "",
            "final": False,
            "waiting": sum(row.outcome is None for row in rows),
            "text": "\n".join(lines),
        }

    def _asked(self, point: Point) -> dict[str, t.Any]:
        """What is measured of a trial."""
        sweep = self._as_judged(point)
        return {
            "levels": list(sweep.levels),
            "repeats": sweep.repeats,
            "evaluated": sweep.gates.min_pass_at_1 is not None or sweep.gates.parity,
            "min_total_tokens": self._tokens_needed(sweep),
        }

    def _as_judged(self, point: Point) -> Sweep:
        """The sweep as it holds for this point: what is screened is measured once, on fewer levels, and not evaluated."""
        if SCREEN not in point or self._sweep.screen is None:
            return self._sweep
        gates = dataclasses.replace(self._sweep.gates, min_pass_at_1=None, parity=False)
        return dataclasses.replace(self._sweep, levels=self._sweep.screen.levels, repeats=1, gates=gates)

    def _tokens_needed(self, sweep: Sweep) -> int:
        """Room in the KV cache for all that is in flight at the largest level.

        Of workloads with exact lengths only: real prompts differ, share prefixes, and end when they like.
        """
        if sweep.min_total_tokens is not None:
            return sweep.min_total_tokens
        each = [
            (one.input_length or 0) + (one.output_length or 0)
            for one in self._workloads().values()
            if one.kind == _workload.FIXED
        ]
        return max(sweep.levels) * max(each, default=0)

    def _warm_key(self, point: Point) -> str:
        return warm_key(self._applied(point)["args"])

    def _is_cold(self, claim: Claim, rows: Sequence[Row]) -> bool:
        """Whether it is the first start on this host that needs these weights and kernels."""
        mine = self._warm_key(claim.point)
        return not any(
            row.host == self._host and row.number != claim.number and self._warm_key(row.point) == mine for row in rows
        )

    def _own(self, rows: Sequence[Row]) -> list[Mapping[str, t.Any]]:
        """Details of the trials that ended on this host in this run."""
        own = (row.outcome.details for row in rows if row.outcome and row.host == self._host)
        return [details for details in own if float(details.get("ended_at") or 0) >= self._options.began]

    def _since(self, rows: Sequence[Row]) -> float:
        """When the trial before ended, or the run began: from then on a trial's time counts."""
        return max([self._options.began, *(float(details["ended_at"]) for details in self._own(rows))])

    def _figures(self, row: Row) -> str:
        shown = (row.outcome.details.get("objectives") or ()) if row.outcome else ()
        return ", ".join(f"{one['metric']} {one['median']:g} at level {one['level']}" for one in shown)

    def _time_left(self, rows: Sequence[Row]) -> float | None:
        """Trials to come times the median of those of their kind that were measured, shared by the hosts that measured them."""
        left, known = 0.0, False
        for screened in (True, False):
            kind = [row for row in rows if (SCREEN in row.point) is screened]
            took = durations(kind)
            count = sum(row.outcome is None for row in kind)
            if not screened and self._sweep.screen and any(row.outcome is None and SCREEN in row.point for row in rows):
                count += promotions(self._sweep, sum(SCREEN in row.point for row in rows))
            known = known or bool(took)
            left += statistics.median(took) * count if took else 0.0
        hosts = len({row.host for row in rows if row.host}) or 1
        return left / hosts if known else None

    def renewed(self, number: int) -> dict[str, t.Any]:
        self._study.renew(number, self._owner)
        return {}

    def released(self, number: int) -> dict[str, t.Any]:
        self._study.release(number, self._owner)
        return {}

    def finished(
        self,
        number: int,
        *,
        benchmarks: Mapping[str, Mapping[str, t.Any]],
        evaluation: Mapping[str, t.Any],
        failure: Mapping[str, t.Any],
        details: Mapping[str, t.Any],
    ) -> dict[str, t.Any]:
        """End a trial: as failed where ``failure`` has a ``cause``, else by what was measured."""
        details = {**details, "ended_at": self._wall()}
        if failure:
            shown = {key: failure[key] for key in ("summary", "remedy", "evidence") if failure.get(key)}
            outcome = Outcome(FAILED, cause=str(failure.get("cause") or "failed"), details={**shown, **details})
        else:
            row = next((one for one in self._study.rows() if one.number == number), None)
            if row is None:
                raise StudyError(
                    f"the study {self._options.study!r} in the storage has no trial {number} any more; somebody removed or replaced it, so"
                    " what was measured stands in the records alone"
                )
            outcome = judge(self._as_judged(row.point), benchmarks=benchmarks, evaluation=evaluation, details=details)
        row = self._study.finish(number, self._owner, outcome)
        place = next(one for one in ranking(self._sweep, self._study.rows()) if one.row.number == number)
        verdict = outcome.cause or "ranked"
        why = place.reason if place.place is None or not place.winner else "best so far"
        text = f"trial {number}: {verdict}; {'; '.join(filter(None, [self._figures(row), why]))}"
        return {"row": self._shown(row), "text": text}

    def shown(self) -> dict[str, t.Any]:
        """Everything that is known, with the winner."""
        rows = self._study.rows()
        ranked = ranking(self._sweep, rows)
        winner = next((one.row for one in ranked if one.winner), None)
        apart = drift(rows)
        notices = [
            f"the baselines of {host} lie {share * 100:.1f} % apart (more than {DRIFT * 100:.0f} %):"
            " the host changed meanwhile, so small differences mean nothing"
            for host, share in sorted(apart.items())
            if share > DRIFT
        ]
        gap = host_gap(rows)
        if gap is not None and gap > DRIFT:
            notices.append(
                f"the baselines of the hosts lie {gap * 100:.1f} % apart (more than {DRIFT * 100:.0f} %):"
                " each trial is ranked by what it brought against that of its own host"
            )
        doubt = doubted(self._sweep, rows)
        if doubt:
            notices.append(doubt)
        if winner and changed_keys(winner.point) and self._sweep.repeats == 1 and winner.host not in apart:
            notices.append(
                f"trial {winner.number} and the baseline of {winner.host} were measured once, so how much of their difference is noise is"
                " not known; 'repeats: 3' in the sweep file tells it"
            )
        return {
            "trials": [self._shown(row) for row in rows],
            "table": sweep_table(self._sweep, rows),
            "winner": {
                "number": winner.number,
                "point": dict(winner.point),
                "certain": not doubt,
                **self._changed(winner.point),
            }
            if winner
            else {},
            "drift": max(apart.values(), default=None),
            "times": time_spent(rows),
            "starts": starts(rows),
            "savings": savings(rows),
            "steps": self._steps(rows),
            "run_s": sum(sum((details.get("times") or {}).values()) for details in self._own(rows)),
            "notices": notices,
            "waiting": sum(row.outcome is None for row in rows),
        }

    def _steps(self, rows: Sequence[Row]) -> list[dict[str, t.Any]]:
        """Of a ladder: each change, and whether it was kept."""
        if self._sweep.sampler != "ladder":
            return []
        try:
            steps, _next = climb(self._sweep, [row.finished() for row in rows if row.outcome])
        except ValueError as exc:
            return [
                {
                    "number": 0,
                    "configuration": point_text(BASELINE),
                    "verdict": "dropped",
                    "reason": str(exc),
                    "values": [],
                }
            ]
        return [
            {
                "number": step.trial.number,
                "configuration": point_text(step.trial.point),
                "verdict": step.verdict,
                "reason": step.reason,
                "values": list(step.trial.values),
            }
            for step in steps
        ]

    def _shown(self, row: Row) -> dict[str, t.Any]:
        outcome = row.outcome
        return {
            "number": row.number,
            "point": dict(row.point),
            "configuration": point_text(row.point),
            "state": row.state,
            "cause": outcome.cause if outcome else "",
            "values": list(outcome.values) if outcome and outcome.values else [],
            "details": dict(outcome.details) if outcome else {},
            "host": row.host,
            "attempt": row.attempt,
        }
