# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a sweep file: what is tried, how it is judged, when it ends. PRIVATE to the collection.

The file is YAML. Every fault is collected and names its line, so that one run tells them all. Structure is checked by
a JSON Schema (``sweep.schema.json`` beside this file), meaning here. Nothing in this file touches a host.
"""

from __future__ import annotations

import json
import math
import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from ansible_collections.specdec.serving.plugins.module_utils._redact import is_secret_variable
from ansible_collections.specdec.serving.plugins.module_utils._server_args import OWNED_ARGS, canonical_dest
from ansible_collections.specdec.serving.plugins.module_utils._signatures import SIGNATURES
from ansible_collections.specdec.serving.plugins.plugin_utils._instance_values import nearest

try:
    import jsonschema
except ImportError as error:
    _MISSING: ImportError | None = error
else:
    _MISSING = None

__all__ = [
    "ARGUMENT",
    "ENVIRONMENT",
    "METRICS",
    "Budget",
    "Condition",
    "Gates",
    "MonotoneRule",
    "Objective",
    "Parameter",
    "Screen",
    "StopRules",
    "Sweep",
    "SweepFileError",
    "kind_and_name",
    "load_sweep",
]

#: Kinds of parameters: one of SGLang's arguments, or a variable of the unit's environment (written ``env.NAME``).
ARGUMENT: t.Final = "argument"
ENVIRONMENT: t.Final = "environment"
_ENV_PREFIX = "env."

#: What a level of a benchmark record offers to rank by -> the direction that is better.
METRICS: t.Final[Mapping[str, str]] = {
    "acceptance_length": "maximize",
    "e2e_p50_ms": "minimize",
    "e2e_p99_ms": "minimize",
    "output_tok_s": "maximize",
    "tpot_p50_ms": "minimize",
    "tpot_p99_ms": "minimize",
    "ttft_p50_ms": "minimize",
    "ttft_p99_ms": "minimize",
    "user_tok_s": "maximize",
}

_SCHEMA_FILE = Path(__file__).with_name("sweep.schema.json")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: Values of a range that a grid lists; more is a mistake in ``step``.
_MOST_STEPS = 1000
#: Larger whole numbers are not exact as floats, which samplers work with; nor does anybody mean them.
_LARGEST = 2**53
#: A sweep file has some hundred nodes; aliases of aliases make millions of a few lines.
_MOST_NODES = 100_000


class SweepFileError(ValueError):
    """A sweep file that cannot be used; ``errors`` holds every reason, each as ``FILE:LINE: what``."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


def kind_and_name(key: str) -> tuple[str, str]:
    """What a key of the space means: ``env.NAME``, or an argument."""
    if key.startswith(_ENV_PREFIX):
        return ENVIRONMENT, key[len(_ENV_PREFIX) :]
    return ARGUMENT, key


@dataclass(frozen=True)
class Parameter:
    """One dimension of the space. Either ``choices``, or ``low`` to ``high`` (inclusive), in steps where ``step`` is given.

    ``name`` is the argument as 0.5.23 calls it (``tp_size``), or the variable without ``env.``. A choice of None leaves
    the argument out.
    """

    name: str
    kind: str
    choices: tuple[t.Any, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False

    @property
    def key(self) -> str:
        """The name as the sweep file has it."""
        return f"{_ENV_PREFIX}{self.name}" if self.kind == ENVIRONMENT else self.name

    @property
    def is_range(self) -> bool:
        return self.low is not None

    def values(self) -> tuple[t.Any, ...]:
        """All values of a list, or of a range with steps.

        :raises ValueError: for a range without steps, which has no end of values.
        """
        if self.low is None or self.high is None:
            return self.choices
        if not self.step:
            raise ValueError(f"{self.key} is a range without 'step'")
        whole = all(float(bound).is_integer() for bound in (self.low, self.step))
        # Not by adding up, so that 0.1 + 0.1 + 0.1 is 0.3.
        count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        found = [round(self.low + index * self.step, 12) for index in range(count)]
        return tuple(int(value) if whole else value for value in found)


@dataclass(frozen=True)
class Condition:
    """``names`` are tried only where every parameter of ``when`` has one of its values; elsewhere they are left out."""

    when: Mapping[str, tuple[t.Any, ...]]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Gates:
    """What a trial must pass to be ranked. ``min_pass_at_1``: 0 to 1; None = not asked.

    ``max_cv``: of the repeats of each level, as a share; only of levels with two repeats and more.
    """

    valid: bool = True
    max_cv: float | None = 0.1
    min_pass_at_1: float | None = None
    parity: bool = False
    min_acceptance_length: float | None = None


@dataclass(frozen=True)
class Objective:
    """What is ranked: a metric of METRICS at one level (requests in flight) of one workload."""

    metric: str
    level: int
    direction: str
    workload: str


@dataclass(frozen=True)
class Budget:
    """Most trials and hours; None = no limit."""

    trials: int | None = None
    hours: float | None = None


@dataclass(frozen=True)
class StopRules:
    """``patience``: so many ranked trials in a row without a better one; ``failures``: so many failed ones in a row."""

    patience: int | None = None
    failures: int | None = None


@dataclass(frozen=True)
class MonotoneRule:
    """A trial that failed for ``cause`` makes every one that is as large or larger in ``parameter`` fail, all else equal.

    ``rising`` False: as small or smaller.
    """

    cause: str
    parameter: str
    rising: bool = True


@dataclass(frozen=True)
class Screen:
    """Everything is measured once on these ``levels`` first; the best ``share`` of what ranks there is measured in full."""

    levels: tuple[int, ...]
    share: float = 1 / 3


@dataclass(frozen=True)
class Sweep:
    """A sweep file, checked. ``min_total_tokens``: None = worked out from the workloads, 0 = any KV cache will do."""

    path: str
    instance: str
    space: tuple[Parameter, ...]
    workloads: tuple[str, ...]
    levels: tuple[int, ...]
    objectives: tuple[Objective, ...]
    include: tuple[Mapping[str, t.Any], ...] = ()
    exclude: tuple[Mapping[str, t.Any], ...] = ()
    conditions: tuple[Condition, ...] = ()
    repeats: int = 1
    gates: Gates = Gates()
    sampler: str = "grid"
    seed: int | None = None
    budget: Budget = Budget()
    stop: StopRules = StopRules()
    monotone: tuple[MonotoneRule, ...] = ()
    screen: Screen | None = None
    min_total_tokens: int | None = None

    def parameter(self, key: str) -> Parameter:
        """The parameter that the file calls ``key``."""
        return next(parameter for parameter in self.space if parameter.key == key)


class _Lines:
    """Line numbers of a YAML text by path, such as ``("space", "tp_size", 0)``."""

    def __init__(self, node: yaml.Node | None) -> None:
        self._lines: dict[tuple[t.Any, ...], int] = {}
        self._nodes = 0
        self.duplicates: list[tuple[int, str]] = []
        if node is not None:
            self._walk(node, ())

    def _walk(self, node: yaml.Node, path: tuple[t.Any, ...]) -> None:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise yaml.MarkedYAMLError(
                problem=f"its aliases make more than {_MOST_NODES} values of it", problem_mark=node.start_mark
            )
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(
                        problem="a key is a list or a mapping; give a name", problem_mark=key.start_mark
                    )
                if key.value in seen:
                    # PyYAML would silently take the last one.
                    self.duplicates.append((key.start_mark.line + 1, key.value))
                seen.add(key.value)
                self._lines[(*path, key.value)] = key.start_mark.line + 1
                self._walk(value, (*path, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._walk(item, (*path, index))

    def of(self, path: Sequence[t.Any]) -> int:
        """The line of a path, or of the nearest one above it."""
        for length in range(len(path), -1, -1):
            line = self._lines.get(tuple(path[:length]))
            if line is not None:
                return line
        return 1


class _Reader:
    def __init__(self, path: str, lines: _Lines) -> None:
        self._path = path
        self._lines = lines
        self.errors: list[str] = []

    def fault(self, where: Sequence[t.Any], text: str) -> None:
        self.errors.append(f"{self._path}:{self._lines.of(where)}: {text}")

    # -- the space ----------------------------------------------------------------------------------------------

    def space(self, raw: Mapping[str, t.Any]) -> tuple[Parameter, ...]:
        found: dict[str, Parameter] = {}
        for name, values in raw.items():
            where = ("space", name)
            parameter = self._parameter(str(name), values, where)
            if parameter is None:
                continue
            if parameter.key in found:
                self.fault(where, f"{name!r} is the argument {parameter.key!r} once more; keep one of them")
            found[parameter.key] = parameter
        return tuple(found.values())

    def _parameter(self, name: str, values: t.Any, where: Sequence[t.Any]) -> Parameter | None:
        if name.startswith(_ENV_PREFIX):
            kind, own = ENVIRONMENT, name[len(_ENV_PREFIX) :]
            if not _VARIABLE.match(own):
                self.fault(where, f"{own!r} is no name of an environment variable")
                return None
            if is_secret_variable(own):
                self.fault(where, f"{own!r} looks like a secret by its name, and what is swept is shown and recorded")
                return None
        else:
            kind, own = ARGUMENT, canonical_dest(name)
            if own in OWNED_ARGS:
                self.fault(where, f"{name!r} cannot be swept: it belongs to the role ({OWNED_ARGS[own]})")
                return None
        if isinstance(values, Mapping):
            return self._range(kind, own, values, where)
        self._check_choices(name, values, where)
        return Parameter(own, kind, choices=tuple(values))

    def _check_choices(self, name: str, values: Sequence[t.Any], where: Sequence[t.Any]) -> None:
        seen: list[str] = []
        for index, value in enumerate(values):
            # True is 1 for Python, and not for SGLang.
            text = json.dumps(value, sort_keys=True, default=str)
            if text in seen:
                self.fault((*where, index), f"{name}: {value!r} is listed twice")
            seen.append(text)

    def _range(self, kind: str, name: str, raw: Mapping[str, t.Any], where: Sequence[t.Any]) -> Parameter | None:
        low, high, step = raw["low"], raw["high"], raw.get("step")
        before = len(self.errors)
        if low >= high:
            self.fault(where, f"{name}: low {low!r} is not below high {high!r}")
        if step is not None and (high - low) / step > _MOST_STEPS:
            self.fault(where, f"{name}: {low!r} to {high!r} in steps of {step!r} are more than {_MOST_STEPS} values")
        if raw.get("log") and (step is not None or low <= 0):
            self.fault(where, f"{name}: 'log' wants low above 0 and no 'step'")
        if len(self.errors) > before:
            return None
        return Parameter(name, kind, low=low, high=high, step=step, log=bool(raw.get("log")))

    def key(self, name: t.Any, space: Sequence[Parameter], where: Sequence[t.Any]) -> str:
        """The key of a parameter that another part of the file names; '' after a fault."""
        text = str(name)
        wanted = text if text.startswith(_ENV_PREFIX) else canonical_dest(text)
        known = [parameter.key for parameter in space]
        if wanted in known:
            return wanted
        self.fault(where, f"{text!r} is not in 'space'{nearest(wanted, known)}")
        return ""

    def points(self, part: str, raw: Sequence[Mapping[str, t.Any]], space: Sequence[Parameter]) -> tuple[t.Any, ...]:
        """Points of ``include`` or ``exclude``, by the keys of the space. Included ones may have other values."""
        found = []
        for index, raw_point in enumerate(raw):
            point = {self.key(name, space, (part, index, name)): value for name, value in raw_point.items()}
            if len(point) < len(raw_point) and "" not in point:
                self.fault((part, index), f"{list(raw_point)} name the same parameter; keep one of them")
            for key, value in point.items():
                parameter = next((one for one in space if one.key == key), None)
                if part == "exclude" and parameter and not _can_be(parameter, value):
                    hint = "; give a line for each value" if isinstance(value, list) else ""
                    self.fault((part, index, key), f"{key} is never {value!r}, so this excludes nothing{hint}")
            found.append(point)
        return tuple(found)

    def conditions(self, raw: Sequence[Mapping[str, t.Any]], space: Sequence[Parameter]) -> tuple[Condition, ...]:
        found = []
        for index, one in enumerate(raw):
            where = ("conditions", index)
            when = {}
            for name, values in one["when"].items():
                key = self.key(name, space, (*where, "when", name))
                wanted = tuple(values) if isinstance(values, list) else (values,)
                if not wanted:
                    self.fault((*where, "when", name), f"{key} has no values here, so the condition never holds")
                when[key] = wanted
                parameter = next((item for item in space if item.key == key), None)
                for value in wanted:
                    if parameter and not _can_be(parameter, value):
                        self.fault((*where, "when", name), f"{key} is never {value!r}, so the condition never holds")
            names = tuple(self.key(name, space, (*where, "only")) for name in one["only"])
            both = sorted(set(names) & set(when) - {""})
            if both:
                self.fault(where, f"{both[0]!r} cannot depend on itself")
            found.append(Condition(when, names))
        return tuple(found)

    # -- what is measured ---------------------------------------------------------------------------------------

    def objectives(
        self, raw: Sequence[Mapping[str, t.Any]], workloads: Sequence[str], levels: Sequence[int]
    ) -> tuple[Objective, ...]:
        found: list[Objective] = []
        for index, one in enumerate(raw):
            where = ("objective", index) if len(raw) > 1 else ("objective",)
            level = one.get("level", max(levels))
            workload = one.get("workload", workloads[0])
            if level not in levels:
                self.fault((*where, "level"), f"level {level!r} is not among 'levels' {list(levels)}")
            if workload not in workloads:
                self.fault((*where, "workload"), f"workload {workload!r} is not among 'workloads' {list(workloads)}")
            direction = one.get("direction", METRICS[one["metric"]])
            if any((one["metric"], level, workload) == (it.metric, it.level, it.workload) for it in found):
                self.fault(where, f"{one['metric']} at level {level} of {workload} is an objective already")
            found.append(Objective(one["metric"], level, direction, workload))
        return tuple(found)

    def monotone(self, raw: Sequence[Mapping[str, t.Any]], space: Sequence[Parameter]) -> tuple[MonotoneRule, ...]:
        found = []
        causes = {signature.cause for signature in SIGNATURES}
        for index, one in enumerate(raw):
            key = self.key(one["parameter"], space, ("monotone", index, "parameter"))
            parameter = next((item for item in space if item.key == key), None)
            numbers = parameter and (parameter.is_range or all(_is_number(value) for value in parameter.choices))
            if parameter and not numbers:
                self.fault(("monotone", index), f"{key} has values that are no numbers, so none of them is larger")
            # Not all causes are in that table: only what is nearly the same as one of it is taken for a slip.
            hint = "" if one["cause"] in causes else nearest(one["cause"], causes, cutoff=0.8)
            if hint:
                self.fault(("monotone", index, "cause"), f"no failure has the cause {one['cause']!r}{hint}")
            found.append(MonotoneRule(one["cause"], key, one.get("direction", "rising") == "rising"))
        return tuple(found)

    def screen(self, raw: t.Any, levels: Sequence[int], objectives: Sequence[Objective], sampler: str) -> Screen | None:
        if not raw:
            return None
        if sampler != "grid":
            text = f"'screen' is for sampler 'grid', which measures everything; {sampler!r} chooses what it measures"
            self.fault(("screen",), text)
        given = raw if isinstance(raw, Mapping) else {}
        ranked = {objective.level for objective in objectives}
        chosen = given.get("levels")
        if chosen is None:
            chosen = sorted(ranked)
            # Two levels tell more than one: what ranks, and the other end.
            for other in (max(levels), min(levels)):
                if len(chosen) < 2 and other not in chosen:
                    chosen.append(other)
        for level in chosen:
            if level not in levels:
                self.fault(("screen", "levels"), f"level {level!r} is not among 'levels' {list(levels)}")
        if not ranked <= set(chosen):
            missing = ", ".join(str(level) for level in sorted(ranked - set(chosen)))
            self.fault(("screen", "levels"), f"the objective is ranked at level {missing}, which is not screened")
        return Screen(tuple(sorted(chosen)), given.get("share", Screen.share))

    def sampler(self, name: str, space: Sequence[Parameter], objectives: Sequence[Objective], budget: Budget) -> None:
        if name in ("grid", "ladder"):
            for parameter in space:
                if parameter.is_range and not parameter.step:
                    self.fault(("space", parameter.key), f"{parameter.key}: sampler {name!r} needs 'step' for a range")
        elif budget.trials is None and budget.hours is None:
            self.fault(("sampler",), f"sampler {name!r} never ends by itself: give 'budget' trials or hours")
        if len(objectives) > 1 and name in ("ladder", "tpe"):
            self.fault(
                ("objective",), f"sampler {name!r} takes one objective; use 'grid' or 'nsga2' for {len(objectives)}"
            )
        if name == "nsga2" and len(objectives) == 1:
            self.fault(("objective",), "sampler 'nsga2' is for two objectives; use 'tpe' for one")


def _is_number(value: t.Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unusable(value: t.Any, path: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[tuple[t.Any, ...], str]]:
    """What YAML can say, and neither the engine nor a study can hold: where it is, and why."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if not isinstance(key, str):
                yield (*path, str(key)), f"the key {key!r} is no text; put it in quotes"
            yield from _unusable(one, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            yield from _unusable(one, (*path, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield path, f"{value!r} is no number that can be tried or compared"
    elif _is_number(value) and abs(value) > _LARGEST:
        yield path, f"{f'{value:.3e}' if isinstance(value, float) else 'a whole number'} is beyond {_LARGEST}"
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        yield path, f"{value!r:.60} is a {type(value).__name__} to YAML; put it in quotes if a text is meant"


def _can_be(parameter: Parameter, value: t.Any) -> bool:
    if parameter.low is None or parameter.high is None:
        return any(type(value) is type(choice) and value == choice for choice in parameter.choices)
    return _is_number(value) and parameter.low <= value <= parameter.high


def _unknown_key(error: jsonschema.ValidationError) -> tuple[str, list[str]]:
    """The first key that the schema does not know, and those that it knows there."""
    schema, instance = t.cast("Mapping[str, t.Any]", error.schema), t.cast("Mapping[str, t.Any]", error.instance)
    known = sorted(schema.get("properties", ()))
    return min(str(key) for key in instance if key not in known), known


def _validator() -> t.Any:
    """Draft 2020-12, but 3.0 is no whole number: numpy refuses it as a seed, and the client as a level."""
    base = jsonschema.Draft202012Validator
    whole = base.TYPE_CHECKER.redefine(
        "integer", lambda _checker, value: isinstance(value, int) and not isinstance(value, bool)
    )
    return jsonschema.validators.extend(base, type_checker=whole)


def _innermost(error: jsonschema.ValidationError) -> jsonschema.ValidationError:
    """Of what may have several forms: the fault in the one that was meant, by its type; the error itself where none was."""
    if error.validator != "oneOf":
        return error
    other_form = {one.schema_path[0] for one in error.context if one.validator == "type" and not one.path}
    found = [one for one in error.context if one.schema_path[0] not in other_form and one.path]
    return found[0] if found else error


def _plain_message(error: jsonschema.ValidationError) -> str:
    name = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties":
        extra, known = _unknown_key(error)
        hint = nearest(extra, known) or f"; known: {', '.join(known)}"
        return f"unknown key {extra!r}{f' in {name}' if name else ''}{hint}"
    # The schema says it in words where its own rule reads badly.
    said = t.cast("Mapping[str, t.Any]", error.schema).get("description") if error.validator == "oneOf" else None
    text = f"{error.instance!r} is not {said}" if said else error.message
    return f"{name}: {text}" if name else text


def _where(error: jsonschema.ValidationError) -> tuple[t.Any, ...]:
    path = tuple(error.absolute_path)
    return (*path, _unknown_key(error)[0]) if error.validator == "additionalProperties" else path


def load_sweep(text: str, *, path: str) -> Sweep:
    """Read the text of a sweep file.

    :param path: the file's name, for the errors.
    :raises SweepFileError: with every fault of the first kind that was found: YAML, structure, meaning.
    """
    if _MISSING is not None:
        raise SweepFileError(
            [f"the controller lacks jsonschema, which checks sweep files: {_MISSING}; pip install jsonschema"]
        )
    try:
        lines = _Lines(yaml.compose(text, Loader=yaml.SafeLoader))
        raw = yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise SweepFileError([f"{path}:{line}: this is no YAML: {exc.problem or exc}"]) from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise SweepFileError([f"{path}:{line}: this is no YAML: the character {chr(exc.character)!r}"]) from exc
    except RecursionError:
        raise SweepFileError(
            [f"{path}:1: this is nested without end; does an alias stand inside its anchor?"]
        ) from None
    except ValueError as exc:
        # Of a date that does not exist, or a tag whose value is none: PyYAML forgets where it was.
        raise SweepFileError([f"{path}:1: a value cannot be read ({exc}); put it in quotes"]) from exc
    if not isinstance(raw, Mapping):
        raise SweepFileError([f"{path}:1: a sweep file is a mapping with 'instance', 'space', ..., not {raw!r:.60}"])
    reader = _Reader(path, lines)
    for line, key in lines.duplicates:
        reader.errors.append(f"{path}:{line}: {key!r} stands here a second time; keep one of them")
    for where, fault in _unusable(raw):
        reader.fault(where, f"{'.'.join(map(str, where))}: {fault}")
    if reader.errors:
        raise SweepFileError(reader.errors)
    schema = json.loads(_SCHEMA_FILE.read_text(encoding="utf-8"))
    found = sorted(map(_innermost, _validator()(schema).iter_errors(raw)), key=lambda error: lines.of(_where(error)))
    for error in found:
        reader.fault(_where(error), _plain_message(error))
    if reader.errors:
        raise SweepFileError(reader.errors)

    space = reader.space(raw["space"])
    workloads, levels = tuple(raw["workloads"]), tuple(raw["levels"])
    objective = raw.get("objective", {"metric": "output_tok_s"})
    objectives = reader.objectives(objective if isinstance(objective, list) else [objective], workloads, levels)
    budget = Budget(**raw.get("budget", {}))
    sampler = raw.get("sampler", "grid")
    reader.sampler(sampler, space, objectives, budget)
    sweep = Sweep(
        path=path,
        instance=raw["instance"],
        space=space,
        workloads=workloads,
        levels=levels,
        objectives=objectives,
        include=reader.points("include", raw.get("include", []), space),
        exclude=reader.points("exclude", raw.get("exclude", []), space),
        conditions=reader.conditions(raw.get("conditions", []), space),
        repeats=raw.get("repeats", 1),
        gates=Gates(**raw.get("gates", {})),
        sampler=sampler,
        seed=raw.get("seed"),
        budget=budget,
        stop=StopRules(**raw.get("stop", {})),
        monotone=reader.monotone(raw.get("monotone", []), space),
        screen=reader.screen(raw.get("screen"), levels, objectives, sampler),
        min_total_tokens=raw.get("min_total_tokens"),
    )
    if reader.errors:
        raise SweepFileError(reader.errors)
    return sweep
