# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The trials of a sweep in an Optuna study: planned, claimed, finished, each exactly once. PRIVATE to the collection.

Several controllers share a study, and any of them may be killed at any moment. So every method is one transaction under
one lock (see ``_study_storage``), and everything that must outlive a process is in the study:
``lease:N`` says who works on trial N and until when, ``result:N`` how it ended. Results are written before Optuna is
told; who finds a result that was not told, tells it. Optuna's own heartbeat does nothing with ask and tell, and two
processes on SQLite were seen to claim the same trial (Optuna 5.0): SQLite is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import time
import typing as t
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.module_utils._lease import Owner
from ansible_collections.specdec.serving.plugins.plugin_utils._lease_holder import has_ended, is_seen
from ansible_collections.specdec.serving.plugins.plugin_utils._study_storage import StorageError, Store
from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import Sweep
from ansible_collections.specdec.serving.plugins.plugin_utils._trial_plan import (
    AGAIN,
    BASELINE,
    LEAST_FOR_DRIFT,
    SCREEN,
    Finished,
    Point,
    baseline_again,
    bound_to,
    changed_keys,
    climb,
    is_baseline_due,
    is_baseline_due_when_screening,
    point_key,
    promoted,
    reduced,
)

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    # Store says so.
    pass

__all__ = [
    "COMPLETE",
    "DUPLICATE",
    "FAILED",
    "IMPLIED",
    "Claim",
    "Outcome",
    "Row",
    "StudyError",
    "StudyUnavailableError",
    "TrialStudy",
]

#: How a trial ends: measured (ranked if it passed the gates), failed, or the same as an earlier one.
COMPLETE: t.Final = "complete"
FAILED: t.Final = "failed"
DUPLICATE: t.Final = "duplicate"
#: Cause of a failed trial that never ran, since a rule of the sweep file made it needless.
IMPLIED: t.Final = "implied"

#: A claim that its owner did not renew for so long may be taken by another controller; see ``lease_s``.
LEASE_S: t.Final = 900.0
#: A sampler that proposes only what ran already has nothing new to say.
_MOST_REPEATS = 50


class StudyError(Exception):
    """The study cannot be used, or the trial is no longer ours."""


class StudyUnavailableError(StudyError):
    """The storage cannot be used, now; it may come back."""


@dataclass(frozen=True)
class Claim:
    """A trial to run. ``attempt`` counts from 1; more than 1: an earlier attempt did not end."""

    number: int
    point: Point
    identity: str
    attempt: int = 1


@dataclass(frozen=True)
class Outcome:
    """How a trial ended. ``values``: one per objective, only where it may be ranked; the rest is shown to people."""

    state: str
    values: tuple[float, ...] | None = None
    cause: str = ""
    details: Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A trial as it is known: ``state`` is waiting, running, or how it ended."""

    number: int
    point: Point
    identity: str
    state: str
    outcome: Outcome | None = None
    host: str = ""
    attempt: int = 0

    def finished(self) -> Finished:
        """As a plan wants it; of a trial that ended."""
        outcome = self.outcome or Outcome(self.state)
        told = f"the same as trial {outcome.details.get('of')}" if outcome.state == DUPLICATE else outcome.cause
        # Values of a duplicate are there for samplers; it is no other configuration.
        values = () if outcome.state == DUPLICATE else outcome.values or ()
        mads = tuple(float(one["mad"]) for one in outcome.details.get("objectives") or ())
        return Finished(self.point, values, told, mads, self.number)


def _distribution(parameter: t.Any) -> BaseDistribution:
    if not parameter.is_range:
        # As JSON, since Optuna takes neither lists nor mappings, and 1 equals true for it.
        return CategoricalDistribution([json.dumps(choice, sort_keys=True) for choice in parameter.choices])
    whole = all(float(bound).is_integer() for bound in (parameter.low, parameter.high, parameter.step or 1))
    if whole and not any(isinstance(bound, float) for bound in (parameter.low, parameter.high)):
        return IntDistribution(
            int(parameter.low), int(parameter.high), step=int(parameter.step or 1), log=parameter.log
        )
    return FloatDistribution(parameter.low, parameter.high, step=parameter.step, log=parameter.log)


def _sampler(sweep: Sweep, asked: int) -> optuna.samplers.BaseSampler:
    # Each claim is another process: with the same seed each would begin with the same proposal.
    seed = None if sweep.seed is None else sweep.seed + asked
    if sweep.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(3, 2 * len(sweep.space))))
    if sweep.sampler == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


class TrialStudy:
    """One study. ``identify`` gives the identity of what would run for a point.

    :param storage: a path (Optuna's JournalStorage) or a ``postgresql://`` URL.
    :param fingerprint: what all trials of the study share, such as instance, workloads and host class, in words.
    :param lease_s: how long a claim lasts that is not renewed; longer than any step of a trial.
    :param wall: seconds since 1970; leases of other controllers end by it.
    :raises StudyError: from every method when the storage cannot be used.
    """

    def __init__(
        self,
        storage: str,
        name: str,
        sweep: Sweep,
        *,
        fingerprint: Mapping[str, t.Any],
        identify: Callable[[Point], str],
        lease_s: float = LEASE_S,
        wall: Callable[[], float] = time.time,
    ) -> None:
        try:
            self._store = Store(storage)
        except StorageError as exc:
            raise StudyError(str(exc)) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._name, self._sweep, self._identify, self._wall = name, sweep, identify, wall
        self._lease_s = lease_s
        self._fingerprint = dict(fingerprint)

    # -- transactions -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self) -> Iterator[optuna.Study]:
        try:
            with self._store.opened() as storage:
                yield self._study(storage)
        except StorageError as exc:
            raise StudyUnavailableError(str(exc)) from None

    def _study(self, storage: optuna.storages.BaseStorage) -> optuna.Study:
        known = {study.study_name for study in storage.get_all_studies()}
        study = optuna.create_study(
            storage=storage,
            study_name=self._name,
            directions=[StudyDirection[objective.direction.upper()] for objective in self._sweep.objectives],
            load_if_exists=True,
        )
        if self._name not in known:
            study.set_user_attr("fingerprint", self._fingerprint)
        self._compare("fingerprint", study, self._fingerprint)
        study.sampler = _sampler(self._sweep, len(study.get_trials(deepcopy=False)))
        return study

    def _compare(self, kind: str, study: optuna.Study, ours: Mapping[str, t.Any]) -> None:
        theirs = study.user_attrs.get(kind) or {}
        differing = sorted(key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key))
        if differing:
            told = "; ".join(_difference(key, theirs.get(key), ours.get(key)) for key in differing)
            raise StudyError(f"the study {self._name!r} is of another sweep ({told}); give this one another name")

    # -- what people see ----------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """All trials, by number."""
        with self._opened() as study:
            self._tell_what_ended(study)
            return self._rows(study)

    def _rows(self, study: optuna.Study) -> list[Row]:
        attrs = study.user_attrs
        return [self._row(trial, attrs) for trial in study.get_trials(deepcopy=False)]

    def _row(self, trial: FrozenTrial, attrs: Mapping[str, t.Any]) -> Row:
        meta = self._meta(trial, attrs)
        result = attrs.get(f"result:{trial.number}") or trial.user_attrs.get("result")
        lease = attrs.get(f"lease:{trial.number}") or {}
        outcome = _outcome(result) if result else None
        # One that was given back, or that nobody took yet, waits, whatever Optuna calls it.
        state = outcome.state if outcome else "running" if lease.get("owner") else "waiting"
        return Row(
            number=trial.number,
            point=meta["point"],
            identity=meta["identity"],
            state=state,
            outcome=outcome,
            host=str(lease.get("host") or ""),
            attempt=int(lease.get("attempt") or 0),
        )

    @staticmethod
    def _meta(trial: FrozenTrial, attrs: Mapping[str, t.Any]) -> dict[str, t.Any]:
        """Point and identity: of a planned trial with the trial, of a proposed one with the study."""
        return (
            trial.user_attrs
            if "point" in trial.user_attrs
            else attrs.get(f"meta:{trial.number}")
            or {
                "point": {},
                "identity": "",
            }
        )

    # -- planning -----------------------------------------------------------------------------------------------

    def plan_for(self, baseline: Mapping[str, t.Any]) -> None:
        """Hold the instance as it is on this host against the one that the study began with: only equal ones can be compared.

        :param baseline: what the instance runs and by what, in words; no secrets.
        :raises StudyError: when it differs.
        """
        with self._opened() as study:
            if "baseline" not in study.user_attrs:
                study.set_user_attr("baseline", dict(baseline))
            # As the study keeps it.
            self._compare("baseline", study, json.loads(json.dumps(dict(baseline), default=str)))

    def plan(self, points: Sequence[Point], *, again: Callable[[Row], bool] = lambda _row: False) -> list[Row]:
        """Queue points that are not in the study yet; those that would run the same as an earlier one become duplicates.

        :param again: finished trials for which this is true are queued once more.
        """
        with self._opened() as study:
            self._tell_what_ended(study)
            rows = [row for row in self._rows(study) if not (row.outcome and again(row))]
            alive = {row.identity: row for row in rows if row.state != DUPLICATE}
            points_known = {(point_key(row.point), row.identity) for row in rows}
            for point in points:
                identity = self._identify(point)
                if (point_key(point), identity) in points_known:
                    continue
                points_known.add((point_key(point), identity))
                self._queue(study, point, identity, alive)
            return self._rows(study)

    def _queue(self, study: optuna.Study, point: Point, identity: str, alive: dict[str, Row]) -> None:
        twin = alive.get(identity)
        if twin is not None:
            self._add_duplicate(study, point, identity, twin)
            return
        study.enqueue_trial({}, user_attrs={"point": dict(point), "identity": identity})
        alive[identity] = Row(study.get_trials(deepcopy=False)[-1].number, point, identity, "waiting")

    @staticmethod
    def _add_duplicate(study: optuna.Study, point: Point, identity: str, twin: Row) -> None:
        values = twin.outcome.values if twin.outcome else None
        result = dataclasses.asdict(Outcome(DUPLICATE, values, "duplicate", {"of": twin.number}))
        attrs = {"point": dict(point), "identity": identity, "result": result}
        # Whole at once: it never runs, so it needs no claim.
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.FAIL if values is None else TrialState.COMPLETE, values=values, user_attrs=attrs
            )
        )

    # -- claiming -----------------------------------------------------------------------------------------------

    def claim(self, owner: Owner, *, host: str) -> Claim | None:
        """The next trial for a host, or None when nothing is left that this one could run now.

        First what an owner that is gone left behind, then the host's own baseline where it is due, then the queue, then
        what the sampler proposes.
        """
        with self._opened() as study:
            self._tell_what_ended(study)
            left = self._left_behind(study, host)
            if left is not None:
                return self._lease(study, left, owner, host)
            waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            again = self._due_baseline(self._rows(study), host)
            if again is not None:
                return self._begin(study, again, owner, host)
            if waiting:
                return self._lease(study, study.ask().number, owner, host)
            return self._propose(study, owner, host)

    def _begin(self, study: optuna.Study, point: Point, owner: Owner, host: str) -> Claim:
        """A new trial, under way at once, so that no other host meets it in the queue."""
        attrs = {"point": dict(point), "identity": self._identify(point)}
        study.add_trial(optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs=attrs))
        return self._lease(study, study.get_trials(deepcopy=False)[-1].number, owner, host)

    def _left_behind(self, study: optuna.Study, host: str) -> int | None:
        attrs, now = study.user_attrs, self._wall()
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            lease = attrs.get(f"lease:{trial.number}")
            bound = bound_to(self._meta(trial, attrs)["point"])
            if bound in ("", host) and (lease is None or not self._lives(lease, now)):
                return trial.number
        return None

    def _due_baseline(self, rows: Sequence[Row], host: str) -> dict[str, t.Any] | None:
        """The baseline for this host; the first one of all is in the queue. A ladder goes from one baseline on one host."""
        first = next((row for row in rows if point_key(row.point) == point_key(BASELINE)), None)
        if first is None or not (first.host or first.outcome) or self._sweep.sampler == "ladder":
            return None
        here = [row for row in rows if row.host == host and row.state != DUPLICATE]
        baselines = sum(not changed_keys(row.point) for row in here)
        more = any(row.state == "waiting" and bound_to(row.point) in ("", host) for row in rows)
        if self._sweep.screen:
            full = [row for row in rows if changed_keys(row.point) and SCREEN not in row.point]
            is_long = sum(SCREEN in row.point and row.state != DUPLICATE for row in rows) >= LEAST_FOR_DRIFT
            due = is_baseline_due_when_screening(
                baselines=baselines,
                full=sum(row.host == host for row in full),
                promoted_any=is_long and bool(full),
                more=more,
            )
            return baseline_again(host, baselines) if due else None
        due = is_baseline_due(
            baselines=baselines,
            others=sum(bool(changed_keys(row.point)) and not _is_implied(row) for row in here),
            planned=sum(bool(changed_keys(row.point)) and row.state != DUPLICATE for row in rows)
            if self._sweep.sampler == "grid"
            else 0,
            more=more,
        )
        return baseline_again(host, baselines) if due else None

    @staticmethod
    def _lives(lease: Mapping[str, t.Any], now: float) -> bool:
        owner = lease["owner"]
        if is_seen(owner):
            # Of our own machine we know; a clock that jumped, or a long measurement, does not matter.
            return not has_ended(owner)
        return bool(now < lease["until"])

    def _propose(self, study: optuna.Study, owner: Owner, host: str) -> Claim | None:
        rows = self._rows(study)
        if self._sweep.sampler == "grid":
            return self._promote(study, rows, owner, host)
        if self._sweep.sampler == "ladder":
            return self._climb(study, rows, owner, host)
        most = self._sweep.budget.trials
        distributions = {parameter.key: _distribution(parameter) for parameter in self._sweep.space}
        for _try in range(_MOST_REPEATS):
            if most is not None and sum(row.state != DUPLICATE for row in rows) >= most:
                return None
            try:
                trial = study.ask(distributions)
            except ValueError as exc:
                # Optuna says so of a parameter whose list of values, or kind, is another than before.
                raise StudyError(
                    f"the study {self._name!r} began with other values of 'space' ({exc}); sampler {self._sweep.sampler!r} needs the same ones in"
                    " all of a study: put them back, or give this one another name"
                ) from exc
            point = reduced(self._sweep, self._decoded(trial.params))
            identity = self._identify(point)
            study.set_user_attr(f"meta:{trial.number}", {"point": point, "identity": identity})
            twin = next((row for row in rows if row.identity == identity and row.state != DUPLICATE), None)
            if twin is None:
                return self._lease(study, trial.number, owner, host)
            # The sampler learns from it all the same.
            values = twin.outcome.values if twin.outcome else None
            self._end(study, trial.number, Outcome(DUPLICATE, values, "duplicate", {"of": twin.number}))
            rows = self._rows(study)
        return None

    def _decoded(self, params: Mapping[str, t.Any]) -> dict[str, t.Any]:
        return {
            key: value if self._sweep.parameter(key).is_range else json.loads(value) for key, value in params.items()
        }

    def _promote(self, study: optuna.Study, rows: Sequence[Row], owner: Owner, host: str) -> Claim | None:
        """After everything was screened: the best of it, to be measured in full, beside the baseline once more."""
        if self._sweep.screen is None or any(row.outcome is None for row in rows):
            return None
        chosen: Sequence[Point] = promoted(self._sweep, [row.finished() for row in rows])
        known = {(point_key(row.point), row.identity) for row in rows}
        alive = {row.identity: row for row in rows if row.state != DUPLICATE}
        for point in chosen:
            identity = self._identify(point)
            if (point_key(point), identity) not in known:
                self._queue(study, point, identity, alive)
        if not any(trial.state == TrialState.WAITING for trial in study.get_trials(deepcopy=False)):
            return None
        again = self._due_baseline(self._rows(study), host)
        if again is not None:
            return self._begin(study, again, owner, host)
        return self._lease(study, study.ask().number, owner, host)

    def _climb(self, study: optuna.Study, rows: Sequence[Row], owner: Owner, host: str) -> Claim | None:
        finished = [row.finished() for row in rows if row.outcome]
        try:
            steps, point = climb(self._sweep, finished)
        except ValueError as exc:
            raise StudyError(str(exc)) from exc
        if point is None and len(steps) > LEAST_FOR_DRIFT and not any(AGAIN in row.point for row in rows):
            # Whether the host is what it was at the bottom.
            point = baseline_again(host, 1)
        running = {point_key(row.point) for row in rows if row.outcome is None}
        if point is None or point_key(point) in running:
            return None
        alive = {row.identity: row for row in rows if row.state != DUPLICATE}
        identity = self._identify(point)
        twin = alive.get(identity)
        if twin is not None and twin.outcome is None:
            return None
        if twin is not None:
            self._add_duplicate(study, point, identity, twin)
            return self._climb(study, self._rows(study), owner, host)
        study.enqueue_trial({}, user_attrs={"point": dict(point), "identity": identity})
        return self._lease(study, study.ask().number, owner, host)

    def _lease(self, study: optuna.Study, number: int, owner: Owner, host: str) -> Claim:
        attrs = study.user_attrs
        attempt = int((attrs.get(f"lease:{number}") or {}).get("attempt") or 0) + 1
        lease = {
            "owner": dataclasses.asdict(owner),
            "host": host,
            "until": self._wall() + self._lease_s,
            "attempt": attempt,
        }
        study.set_user_attr(f"lease:{number}", lease)
        trial = study.get_trials(deepcopy=False)[number]
        meta = self._meta(trial, study.user_attrs)
        return Claim(number, meta["point"], meta["identity"], attempt)

    def _check_ours(self, study: optuna.Study, number: int, owner: Owner) -> dict[str, t.Any]:
        lease = study.user_attrs.get(f"lease:{number}")
        if lease is None or lease["owner"].get("id") != owner.id:
            holder = Owner(**lease["owner"]).describe() if lease and lease["owner"] else "nobody"
            raise StudyError(f"trial {number} belongs to {holder} now; what this playbook measured is not recorded")
        return dict(lease)

    def renew(self, number: int, owner: Owner) -> None:
        """Keep a claim. Renewed at each step of a trial, so that only a dead controller loses it.

        :raises StudyError: when another one has taken the trial over.
        """
        with self._opened() as study:
            lease = self._check_ours(study, number, owner)
            study.set_user_attr(f"lease:{number}", {**lease, "until": self._wall() + self._lease_s})

    def release(self, number: int, owner: Owner) -> None:
        """Give a claimed trial back, unmeasured: the host broke, not the configuration."""
        with self._opened() as study:
            lease = self._check_ours(study, number, owner)
            study.set_user_attr(f"lease:{number}", {**lease, "owner": {}, "until": 0.0})

    # -- ending -------------------------------------------------------------------------------------------------

    def finish(self, number: int, owner: Owner, outcome: Outcome) -> Row:
        """End a claimed trial, once. A second time with the same outcome changes nothing.

        :raises StudyError: when it is not ours, or ended otherwise.
        """
        with self._opened() as study:
            known = study.user_attrs.get(f"result:{number}")
            if known is not None:
                if _outcome(known) != outcome:
                    raise StudyError(
                        f"trial {number} has ended already as {known['state']!r} ({known['cause'] or 'measured'})"
                    )
            else:
                self._check_ours(study, number, owner)
                self._end(study, number, outcome)
            self._tell_what_ended(study)
            return self._rows(study)[number]

    def _end(self, study: optuna.Study, number: int, outcome: Outcome) -> None:
        # First the result, then Optuna: whoever comes after a kill in between finds the result and tells it.
        study.set_user_attr(f"result:{number}", dataclasses.asdict(outcome))
        self._tell_what_ended(study)

    @staticmethod
    def _tell_what_ended(study: optuna.Study) -> None:
        attrs = study.user_attrs
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            result = attrs.get(f"result:{trial.number}")
            if result is None:
                continue
            if result["values"] is None:
                study.tell(trial.number, state=TrialState.FAIL)
            else:
                study.tell(trial.number, list(result["values"]))


def _difference(key: str, theirs: t.Any, ours: t.Any) -> str:
    """Of two command lines only the words that are not in both."""
    one, other = (list(itertools.chain(*value)) if _is_argv(value) else None for value in (theirs, ours))
    if one is None or other is None:
        return f"{key}: {theirs!r} there, {ours!r} asked"
    only, new = ([str(word) for word in mine if word not in others] for mine, others in ((one, other), (other, one)))
    return f"{key}: {' '.join(only) or '-'} there, {' '.join(new) or '-'} asked"


def _is_argv(value: t.Any) -> bool:
    return isinstance(value, list) and all(isinstance(words, list) for words in value)


def _is_implied(row: Row) -> bool:
    return bool(row.outcome and row.outcome.cause == IMPLIED)


def _outcome(raw: Mapping[str, t.Any]) -> Outcome:
    values = raw["values"]
    return Outcome(raw["state"], None if values is None else tuple(values), raw["cause"], raw["details"])
