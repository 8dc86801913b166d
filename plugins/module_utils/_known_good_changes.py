# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep what was proven ready, tell what is kept, put it back: the work of M(specdec.serving.sglang_known_good). PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import re
import time
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils import _known_good
from ansible_collections.specdec.serving.plugins.module_utils._known_good import Record
from ansible_collections.specdec.serving.plugins.module_utils._manifest import changes, manifest
from ansible_collections.specdec.serving.plugins.module_utils._systemd import Runner, show
from ansible_collections.specdec.serving.plugins.module_utils._unit_files import (
    Layout,
    UnitReport,
    installed,
    missing_for,
    prune,
    put_back,
    read_state,
)

__all__ = ("KnownGoodError", "Proven", "keep_proven", "listed", "put_back_kept")

#: As the role names instances, and one of several by `NAME@NUMBER`.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")


class KnownGoodError(Exception):
    """What was asked cannot be done; nothing was changed."""


@dataclasses.dataclass(frozen=True)
class Proven:
    """What a verdict says of an instance; ``at`` in seconds since the epoch, ``elapsed`` in seconds."""

    name: str
    generation: str
    invocation_id: str
    at: float
    elapsed: float = 0.0
    models: tuple[str, ...] = ()
    check: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


def _checked(names: t.Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    for name in found:
        # It becomes part of a path.
        if not _NAME.fullmatch(name):
            raise KnownGoodError(f"{name!r} is no name of an instance: letters, digits and '_.@-' only")
    return found


def _meant(names: t.Iterable[str], known: t.Sequence[str]) -> list[str]:
    """The instances that names stand for: the name of an entry with an instance per GPU means all of them."""
    found: list[str] = []
    for name in _checked(names):
        several = [one for one in known if one.startswith(f"{name}@")]
        found += several if several and name not in known else [name]
    return list(dict.fromkeys(found))


def _facts(layout: Layout, name: str, records: t.Sequence[Record]) -> dict[str, t.Any]:
    state = read_state(layout.state_dir, name)
    unit = str(state.get("unit") or (records[0].unit if records else f"sglang-{name}.service"))
    now = installed(layout, unit)
    # What somebody wrote by hand since was not put back by us.
    rolled_back_at = float(state.get("rolled_back_at") or 0) if state.get("generation") == now else 0.0
    return {"unit": unit, "installed": now, "asked": str(state.get("asked") or ""), "rolled_back_at": rolled_back_at}


def _described(record: Record, installed_now: str) -> dict[str, t.Any]:
    return {
        "generation": record.generation,
        "at": float(record.verdict.get("at") or 0),
        "elapsed": float(record.verdict.get("elapsed") or 0),
        "engine": record.engine,
        "models": [str(model.get("path")) for model in record.models],
        "port": record.check.get("port"),
        "settings": record.check.get("settings") or {},
        "installed": record.generation == installed_now,
        "problem": missing_for(record),
    }


def listed(layout: Layout, names: t.Sequence[str] = ()) -> dict[str, dict[str, t.Any]]:
    """What is installed and kept, by instance: those that ``names`` stand for, or all that have records."""
    found = {}
    known = _known_good.known_names(layout.state_dir)
    for name in _meant(names, known) or known:
        records = _known_good.load(layout.state_dir, name)
        facts = _facts(layout, name, records)
        generations = [_described(record, facts["installed"]) for record in records]
        found[name] = {**facts, "generations": generations}
    return found


# --- keep -------------------------------------------------------------------------------------------------------------------


def _why_not(one: Proven, facts: t.Mapping[str, t.Any], layout: Layout, runner: Runner) -> str:
    """Why what is installed is not what was proven, '' when it is."""
    if not one.generation or facts["installed"] != one.generation:
        return f"generation {facts['installed'] or '(none)'} is installed, not {one.generation or 'the one that was proven'}"
    state = read_state(layout.state_dir, one.name)
    if state.get("generation") != one.generation:
        return "the host has no record of how its unit was written"
    unit = show(runner, facts["unit"])
    if not one.invocation_id or unit.invocation_id != one.invocation_id:
        return "the unit was started anew since the verdict"
    if state.get("changed_while") == one.invocation_id:
        return "the running server was started before its unit was written"
    return ""


def keep_proven(
    proven: t.Sequence[Proven], layout: Layout, runner: Runner, *, most: int, check_mode: bool = False
) -> dict[str, t.Any]:
    """Keep each instance's installed generation as the one proven last, unless it is not the one that was proven.

    :param most: how many generations stay for each instance, at least this one; 0 = keep none.
    """
    if most < 0:
        raise KnownGoodError(f"keep {most} is below 0: give how many generations stay, or 0 for none")
    instances: dict[str, dict[str, t.Any]] = {}
    for one in proven:
        (name,) = _checked([one.name])
        facts = _facts(layout, name, ())
        reason = _why_not(one, facts, layout, runner) if most else "nothing is kept (keep is 0)"
        instances[name] = {**facts, "kept": not reason, "reason": reason}
        if reason or check_mode:
            continue
        state = read_state(layout.state_dir, name)
        with open(f"{layout.unit_dir}/{facts['unit']}", encoding="utf-8", errors="surrogateescape", newline="") as file:
            content = file.read()
        with open(state["environment_file"], encoding="utf-8", errors="surrogateescape", newline="") as file:
            environment_text = file.read()
        # What was put back and proven again keeps what its record says of it.
        before = next((r for r in _known_good.load(layout.state_dir, name) if r.generation == one.generation), None)
        record = Record(
            name=name,
            unit=facts["unit"],
            generation=one.generation,
            content=content,
            environment_file=state["environment_file"],
            environment_text=environment_text,
            secret_environment_file=state["secret_environment_file"],
            credential=state["credential"],
            engine=state["engine"],
            models=before.models if before and not one.models else tuple(manifest(path) for path in one.models),
            check=dict(before.check if before and not one.check else one.check),
            verdict={"invocation_id": one.invocation_id, "at": one.at, "elapsed": one.elapsed},
        )
        if _known_good.keep(layout.state_dir, record, most=most):
            prune(layout, [name])
    for name, entry in instances.items():
        entry["generations"] = listed(layout, [name])[name]["generations"]
    return {"changed": any(entry["kept"] for entry in instances.values()), "instances": instances}


# --- put back ---------------------------------------------------------------------------------------------------------------


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def _choose(
    records: t.Sequence[Record], now: str, *, name: str, generation: str, only_unproven: bool
) -> tuple[Record | None, str]:
    """The record to put back, or why there is none. Raises KnownGoodError for one that was asked for by name."""
    if generation:
        found = [record for record in records if record.generation.startswith(generation)]
        if len(found) != 1:
            kept = ", ".join(record.generation for record in records) or "none"
            raise KnownGoodError(
                f"{name}: generation {generation!r} {'is not kept' if not found else 'is not clear'}; kept: {kept}"
            )
        problem = missing_for(found[0])
        if problem:
            raise KnownGoodError(f"{name}: generation {found[0].generation} cannot be put back: {problem}")
        return found[0], ""
    if only_unproven and records and records[0].generation == now:
        at = _when(float(records[0].verdict.get("at") or 0))
        return None, f"its configuration is the one that was proven ready last ({at}), so there is nothing to put back"
    others = [record for record in records if record.generation != now]
    problems = []
    for record in others:
        problem = missing_for(record)
        if not problem:
            return record, ""
        problems.append(f"{record.generation}: {problem}")
    if problems:
        return None, f"no kept configuration can be put back ({'; '.join(problems)})"
    return None, "no other configuration of it was proven ready on this host, so there is nothing to put back"


def _check_of(record: Record, report: UnitReport) -> dict[str, t.Any]:
    """How its readiness is proven again: the key of that time is read from its file."""
    check = {**record.check, "unit": record.unit, "replaces": report.invocation_id if report.restart_needed else ""}
    return {**check, "api_key_file": record.credential} if record.credential else check


def put_back_kept(
    names: t.Sequence[str],
    layout: Layout,
    runner: Runner,
    *,
    generation: str = "",
    only_unproven: bool = False,
    kill: t.Sequence[str] = (),
    now: float,
    check_mode: bool = False,
) -> dict[str, t.Any]:
    """Install a kept generation of each instance, all as one change; one without any is left alone and told.

    :param generation: the beginning of one; '' = the last one proven that is not installed and can be.
    :raises KnownGoodError: when a generation was asked for that is not kept, or of which something is gone.
    """
    if generation and not re.fullmatch(r"[0-9a-f]{4,12}", generation):
        raise KnownGoodError(f"generation {generation!r} is none: 4 to 12 hexadecimal digits, as the list shows them")
    found = listed(layout, names)
    if not names:
        # What was removed does not come back unasked.
        found = {name: entry for name, entry in found.items() if entry["installed"]}
        holders = [n for n in found if any(g["generation"].startswith(generation) for g in found[n]["generations"])]
        found = {name: found[name] for name in holders or found} if generation else found
    chosen: dict[str, Record] = {}
    for name, entry in found.items():
        records = _known_good.load(layout.state_dir, name)
        record, entry["reason"] = _choose(
            records, entry["installed"], name=name, generation=generation, only_unproven=only_unproven
        )
        if not records and not entry["installed"]:
            kept = ", ".join(one for one in _known_good.known_names(layout.state_dir) if one != name) or "none"
            entry["reason"] = f"this host has no instance of that name; of these configurations are kept: {kept}"
        entry.update(put_back="", proven_at=0.0, check={}, model_changes=[])
        if record is not None:
            chosen[name] = record
    reports = put_back(list(chosen.values()), layout, runner, now=now, check_mode=check_mode) if chosen else []
    for report, (name, record) in zip(reports, chosen.items()):
        found[name].update(
            put_back=record.generation,
            proven_at=float(record.verdict.get("at") or 0),
            check=_check_of(record, report),
            model_changes=[
                f"{model['path']}: {change}"
                for model in record.models
                for change in changes(model, manifest(str(model["path"])))
            ],
        )
        if not check_mode:
            found[name].update(_facts(layout, name, [record]))
        if name in kill and report.restart_needed and not check_mode:
            # What comes next is a start by the files that were put back, whoever asks for it.
            runner(["systemctl", "kill", "--signal=SIGKILL", "--", record.unit])
    return {
        "changed": any(report.changed for report in reports),
        "instances": found,
        "put_back": list(chosen),
        "restart_needed": [report.name for report in reports if report.restart_needed],
        "diff": [entry for report in reports for entry in report.diff],
    }
