# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which configurations a sweep tries, in which order, and which need not be tried. PRIVATE to the collection.

A *point* maps parameter keys of the sweep file (``tp_size``, ``env.NAME``) to values; what it leaves out stays as the
instance has it. The empty point is the baseline. Everything here is a function of the sweep and of what finished, so
a sweep that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import typing as t
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.specdec.serving.plugins.plugin_utils._sweep_file import (
    ENVIRONMENT,
    Condition,
    MonotoneRule,
    Parameter,
    Sweep,
    SweepFileError,
    kind_and_name,
)

__all__ = [
    "AGAIN",
    "BASELINE",
    "LEAST_FOR_DRIFT",
    "SCREEN",
    "TIE_MADS",
    "Finished",
    "Point",
    "Step",
    "applied",
    "baseline_again",
    "beaten_by",
    "bound_to",
    "changed_keys",
    "climb",
    "for_screening",
    "grid_points",
    "identity",
    "implied_failure",
    "is_baseline_due",
    "is_baseline_due_when_screening",
    "is_better",
    "point_key",
    "promoted",
    "promotions",
    "reduced",
    "rungs",
    "warm_key",
    "warm_order",
    "without_marks",
]

Point = Mapping[str, t.Any]

BASELINE: t.Final[Point] = {}

#: In a point: the same configuration measured once more, on which host and the how manieth there; another trial for all that.
AGAIN: t.Final = "#again"
#: In a point: measured once on the levels of ``screen``, to see whether it is worth more.
SCREEN: t.Final = "#screen"
#: Baselines are measured again where a sweep is long enough for a host to drift: so many configurations beside the baseline.
LEAST_FOR_DRIFT: t.Final = 3
#: A grid is listed before 'exclude' thins it out. More would take the controller's memory.
_MOST_COMBINATIONS: t.Final = 100_000
#: Configurations of a grid. Each is minutes of a host, and the playbook's loop has all of them before it begins.
_MOST_CONFIGURATIONS: t.Final = 1000
#: A difference within so many MAD (of the noisier of the two) is a tie.
TIE_MADS: t.Final = 2.0


@dataclass(frozen=True)
class Finished:
    """What is known of a trial that ended. ``values``: one for each objective, with their MAD as ``mads``; () when it does not rank."""

    point: Point
    values: tuple[float, ...] = ()
    cause: str = ""
    mads: tuple[float, ...] = ()
    number: int = -1


def point_key(point: Point) -> str:
    """A text by which equal points are known; values keep their types (1, true and "1" differ)."""
    return json.dumps(dict(point), sort_keys=True, separators=(",", ":"), default=str)


def changed_keys(point: Point) -> list[str]:
    """What the point changes of the instance, in order."""
    return [key for key in point if key not in (AGAIN, SCREEN)]


def without_marks(point: Point) -> dict[str, t.Any]:
    """The configuration itself, however often and how thoroughly it is measured."""
    return {key: point[key] for key in changed_keys(point)}


def baseline_again(host: str, count: int) -> dict[str, t.Any]:
    """The baseline once more, for this host only: what another one measures says nothing of it."""
    return {AGAIN: {"host": host, "count": count}}


def bound_to(point: Point) -> str:
    """The host that alone may run the point; empty = any."""
    return str((point.get(AGAIN) or {}).get("host") or "")


def is_baseline_due(*, baselines: int, others: int, planned: int, more: bool) -> bool:
    """Whether a host measures the baseline next: before anything else, in the middle and at its end, so that its drift shows.

    :param baselines: how often it did already.
    :param others: how many other trials it ran.
    :param planned: other trials of the whole sweep; half of them are the longest way from one baseline to the next.
    :param more: whether another trial waits for it.
    """
    if baselines == 0:
        return True
    if planned < LEAST_FOR_DRIFT:
        return False
    every = math.ceil(planned / 2)
    since = others - every * (baselines - 1)
    return since >= every if more else since > 0


def is_baseline_due_when_screening(*, baselines: int, full: int, promoted_any: bool, more: bool) -> bool:
    """The same for a sweep that screens: before anything else, between the screening and what is measured in full, at the end.

    :param full: how many promoted trials the host ran.
    :param promoted_any: whether the screening is over, and was long enough for a host to drift.
    """
    if baselines == 0:
        return True
    return promoted_any and (baselines == 1 if more else full > 0 and baselines <= 2)


def _matches(point: Point, pattern: Point) -> bool:
    return all(key in point and point_key({"": point[key]}) == point_key({"": pattern[key]}) for key in pattern)


def _holds(condition: Condition, point: Point) -> bool:
    return all(any(_matches(point, {key: value}) for value in values) for key, values in condition.when.items())


def reduced(sweep: Sweep, point: Point) -> dict[str, t.Any]:
    """The point without what its conditions forbid. Repeated, since one parameter may hang on another that hangs on a third."""
    left = dict(point)
    while True:
        gone = {
            name for condition in sweep.conditions if not _holds(condition, left) for name in condition.names
        } & set(left)
        if not gone:
            return left
        left = {key: value for key, value in left.items() if key not in gone}


def grid_points(sweep: Sweep) -> tuple[dict[str, t.Any], ...]:
    """The baseline, then the product of all lists less ``exclude``, then ``include``; each configuration once.

    The last parameter of the space changes fastest. So put first what a start is slow to change.

    :raises SweepFileError: when nothing but the baseline is left, or more than the budget allows.
    """
    keys = [parameter.key for parameter in sweep.space]
    product = math.prod(len(parameter.values()) for parameter in sweep.space)
    if product > _MOST_COMBINATIONS:
        text = f"the space has {product} combinations; narrow it, or use sampler 'tpe' with a budget"
        raise SweepFileError([f"{sweep.path}:1: {text}"])
    found: dict[str, dict[str, t.Any]] = {point_key(BASELINE): dict(BASELINE)}
    for values in itertools.product(*(parameter.values() for parameter in sweep.space)):
        point = dict(zip(keys, values, strict=True))
        # Before the reduction: what is excluded is meant as written.
        if any(_matches(point, pattern) for pattern in sweep.exclude):
            continue
        point = reduced(sweep, point)
        found.setdefault(point_key(point), point)
    for extra in sweep.include:
        point = reduced(sweep, extra)
        found.setdefault(point_key(point), point)
    points = tuple(found.values())
    if len(points) == 1:
        raise SweepFileError(
            [f"{sweep.path}:1: 'exclude' and 'conditions' leave nothing of the space but the baseline"]
        )
    if len(points) > _MOST_CONFIGURATIONS:
        text = f"the grid has {len(points)} configurations, at most {_MOST_CONFIGURATIONS} can be run"
        raise SweepFileError([f"{sweep.path}:1: {text}; narrow 'space', or use sampler 'tpe' with a budget"])
    twice = promotions(sweep, len(points) - 1)
    if sweep.budget.trials is not None and len(points) + twice > sweep.budget.trials:
        more = f", {twice} of them measured in full after the screening" if twice else ""
        text = (
            f"{sweep.path}:1: the grid has {len(points)} configurations with the baseline{more}, and the budget is"
            f" {sweep.budget.trials} trials; raise 'budget', narrow 'space', or use another sampler"
        )
        raise SweepFileError([text])
    return points


def applied(
    point: Point, *, args: Mapping[str, t.Any], env: Mapping[str, t.Any]
) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """Arguments and environment of the instance with the point's values in their place.

    ``args`` must have SGLang's names of 0.5.23 as keys (see ``canonical_dest``). A value of None takes one away. By the point alone:
    a study may hold trials of parameters that the sweep file has no more.
    """
    new_args, new_env = dict(args), dict(env)
    for key in changed_keys(point):
        kind, name = kind_and_name(key)
        value = point[key]
        if kind == ENVIRONMENT and value is not None and not isinstance(value, str):
            # YAML reads 1 and true; a variable is text.
            value = json.dumps(value)
        (new_env if kind == ENVIRONMENT else new_args)[name] = value
    return new_args, new_env


def identity(parts: Mapping[str, t.Any]) -> str:
    """16 hex digits by which equal trials are known: of arguments, environment, engine, models, host class and workload."""
    return hashlib.sha256(point_key(parts).encode("utf-8")).hexdigest()[:16]


# -- what need not be tried -------------------------------------------------------------------------------------------


def _number(value: t.Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _beyond(rule: MonotoneRule, point: Point, failed: Point) -> bool:
    """Whether the point is as bad as the failed one or worse in the rule's parameter, and equal in all others."""
    mine, theirs = _number(point.get(rule.parameter)), _number(failed.get(rule.parameter))
    if mine is None or theirs is None:
        return False
    worse = mine >= theirs if rule.rising else mine <= theirs
    rest, others = ({key: one[key] for key in one if key != rule.parameter} for one in (point, failed))
    return worse and point_key(rest) == point_key(others)


def implied_failure(sweep: Sweep, point: Point, finished: Sequence[Finished]) -> Finished | None:
    """The finished trial that, by a rule of the sweep file, tells how this point would end; None when none does."""
    for trial in finished:
        for rule in sweep.monotone:
            if trial.cause == rule.cause and _beyond(rule, point, trial.point):
                return trial
    return None


# -- screening --------------------------------------------------------------------------------------------------------


def for_screening(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points of a grid with all but the baseline to be screened: what is compared with it in the end is measured as it is."""
    return tuple({**point, SCREEN: True} if changed_keys(point) else point for point in points)


def promotions(sweep: Sweep, count: int) -> int:
    """How many of so many screened trials that rank are measured in full."""
    return math.ceil(sweep.screen.share * count - 1e-9) if sweep.screen else 0


def beaten_by(sweep: Sweep, values: Sequence[float], others: Sequence[Sequence[float]]) -> int:
    """How many of the others are better in every objective."""
    return sum(
        all(
            is_better(one.direction, theirs, mine)
            for one, theirs, mine in zip(sweep.objectives, other, values, strict=True)
        )
        for other in others
    )


def promoted(sweep: Sweep, finished: Sequence[Finished]) -> tuple[dict[str, t.Any], ...]:
    """The best of what was screened, in the order in which it was: fewer others are better in every objective."""
    screened = [trial for trial in finished if SCREEN in trial.point and trial.values]
    all_values = [trial.values for trial in screened]
    by_rank = sorted(screened, key=lambda trial: beaten_by(sweep, trial.values, all_values))
    best = by_rank[: promotions(sweep, len(screened))]
    return tuple(without_marks(trial.point) for trial in screened if trial in best)


# -- what a start finds in its caches ----------------------------------------------------------------------------------

#: Arguments that decide which weights a start reads and which kernels it has compiled. The others change neither.
_OF_CACHES: t.Final = (
    *("model_path", "speculative_draft_model_path", "quantization", "dtype", "kv_cache_dtype", "load_format"),
    *("tp_size", "pp_size", "ep_size", "dp_size", "attn_dp_size"),
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "sampling_backend"),
    *("moe_runner_backend", "moe_a2a_backend", "fp8_gemm_runner_backend", "fp4_gemm_runner_backend"),
    *("speculative_algorithm", "speculative_draft_attention_backend", "enable_torch_compile"),
)


def warm_key(args: Mapping[str, t.Any]) -> str:
    """A text that equals that of every configuration whose start finds its weights and kernels in the same caches."""
    return point_key({name: args[name] for name in _OF_CACHES if args.get(name) not in (None, False)})


def warm_order(points: Sequence[Point], key: t.Callable[[Point], str]) -> tuple[Point, ...]:
    """The same points, those that share their caches one after the other; otherwise in order."""
    keys = [key(point) for point in points]
    first = {one: keys.index(one) for one in keys}
    return tuple(
        point
        for _first, point in sorted(zip((first[one] for one in keys), points, strict=True), key=lambda item: item[0])
    )


# -- the ladder -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A trial of a ladder and what became of its change: ``start``, ``kept`` or ``dropped``, with the reason."""

    trial: Finished
    verdict: str
    reason: str


def is_better(direction: str, one: float, other: float, noise: float = 0.0) -> bool:
    """Whether ``one`` is better than ``other`` by more than ``noise``."""
    return (one - other if direction == "maximize" else other - one) > noise


def _noise(*trials: Finished) -> float:
    return TIE_MADS * max([*(trial.mads[0] for trial in trials if trial.mads), 0.0])


def _compared(sweep: Sweep, trial: Finished, with_: Finished) -> str:
    share = abs(trial.values[0] - with_.values[0]) / abs(with_.values[0]) * 100 if with_.values[0] else 0.0
    direction = sweep.objectives[0].direction
    word = "better" if is_better(direction, trial.values[0], with_.values[0]) else "worse"
    return f"{share:.1f} % {word} than trial {with_.number}"


def _rungs(sweep: Sweep, base: Point, parameter: Parameter) -> Iterator[dict[str, t.Any]]:
    """The base with each value of the parameter that may be tried."""
    for value in parameter.values():
        point = reduced(sweep, {**base, parameter.key: value})
        # A condition may take the parameter away here.
        if point_key(point) != point_key(base) and not any(_matches(point, pattern) for pattern in sweep.exclude):
            yield point


def rungs(sweep: Sweep) -> tuple[dict[str, t.Any], ...]:
    """Each value of each parameter alone: what a ladder tries of it where nothing else was kept before."""
    return tuple(point for parameter in sweep.space for point in _rungs(sweep, BASELINE, parameter))


def climb(sweep: Sweep, finished: Sequence[Finished]) -> tuple[list[Step], dict[str, t.Any] | None]:
    """What a ladder has done so far, and its next point, or None at its end.

    From the baseline on one parameter at a time is changed, in the order of the space and of its values; the best value
    of a parameter is kept, if it ranks and is better than without it by more than noise, before the next parameter is tried.

    :raises ValueError: when the baseline ended without a score: there is nothing to be better than.
    """
    known = {point_key(trial.point): trial for trial in finished}
    best = known.get(point_key(BASELINE))
    if best is None:
        return [], dict(BASELINE)
    if not best.values:
        raise ValueError(
            f"the baseline did not pass ({best.cause or 'not ranked'}), and a ladder begins at one that does: see to what kept it from that (a quiet"
            " host, or another gate in the sweep file) and begin anew under a name of its own, -e study=NAME"
        )
    steps = [Step(best, "start", "the instance as it is")]
    for parameter in sweep.space:
        tried: list[Finished] = []
        for point in _rungs(sweep, best.point, parameter):
            trial = known.get(point_key(point))
            if trial is None:
                return [*steps, *_judged(sweep, best, tried)], point
            tried.append(trial)
        judged = _judged(sweep, best, tried)
        steps += judged
        best = next((step.trial for step in judged if step.verdict == "kept"), best)
    return steps, None


def _judged(sweep: Sweep, before: Finished, tried: Sequence[Finished]) -> list[Step]:
    """The values of one parameter: at most one of them is kept."""
    direction = sweep.objectives[0].direction
    kept = before
    for trial in tried:
        if trial.values and is_better(direction, trial.values[0], kept.values[0], _noise(trial, kept)):
            kept = trial
    steps = []
    for trial in tried:
        if trial is kept:
            steps.append(Step(trial, "kept", _compared(sweep, trial, before)))
        elif not trial.values:
            steps.append(Step(trial, "dropped", trial.cause or "not ranked"))
        elif is_better(direction, trial.values[0], before.values[0], _noise(trial, before)):
            # So another value of the parameter was kept.
            steps.append(
                Step(trial, "dropped", f"{_compared(sweep, trial, before)}, and trial {kept.number} is better yet")
            )
        elif is_better(direction, before.values[0], trial.values[0], _noise(trial, before)):
            steps.append(Step(trial, "dropped", _compared(sweep, trial, before)))
        else:
            steps.append(Step(trial, "dropped", f"no different from trial {before.number} beyond noise"))
    return steps
