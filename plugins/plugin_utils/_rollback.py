# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between a wait and what is done about it: what to keep as known-good, and how an outcome is told. PRIVATE to the collection."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.specdec.serving.plugins.module_utils._readiness import FOLLOWER
from ansible_collections.specdec.serving.plugins.plugin_utils._charts import duration, moment, start_seconds, text_table

__all__ = ["generations_table", "outcome", "proven", "put_back_outcome", "unready"]

Result: t.TypeAlias = Mapping[str, t.Any]

#: Options of the wait that prove a configuration again as they proved it first.
_KEPT_OPTIONS = ("generation_tokens", "stable_for", "stall_timeout", "spin_timeout", "max_restarts", "timeout")
#: Below 0 these are left to the module.
_MAY_BE_LEFT = ("generation_tokens", "stall_timeout", "spin_timeout")


def unready(results: Iterable[Result], *, check_mode: bool = False) -> list[str]:
    """The items whose wait did not end well. In check mode a state is no failure, and only a module that could not look is.

    :param results: results of ``sglang_ready`` in a loop over instance names, registered with ``failed_when: false``.
    """
    return [
        str(result["item"])
        for result in results
        if not result.get("state") or (not check_mode and not result.get("ready") and result["state"] != FOLLOWER)
    ]


def proven(
    results: Iterable[Result],
    *,
    units: Mapping[str, Result],
    resolved: Iterable[Result] = (),
    wait: Result | None = None,
) -> list[dict[str, t.Any]]:
    """The option ``instances`` of ``sglang_known_good`` for what is ready and was not the last one proven already.

    :param results: as for :func:`unready`.
    :param units: ``units`` of the result of ``sglang_unit``, or ``instances`` of that of ``sglang_known_good`` for what was put back.
    :param resolved: resolved instances; what was put back is proven as its record says.
    :param wait: options of the wait, as the role's variables have them.
    """
    known = {str(item["name"]): item for item in resolved}
    found = []
    for result in results:
        name = str(result["item"])
        unit = units.get(name) or {}
        generation = unit.get("put_back") or unit.get("generation")
        if not result.get("ready") or not generation or unit.get("known_good"):
            continue
        entry = {
            "name": name,
            "generation": generation,
            "invocation_id": result["invocation_id"],
            "at": result["detected_at"],
            "elapsed": start_seconds(result),
        }
        if name in known:
            item = known[name]
            entry["models"] = [path for path in (item["model_path"], item["draft_model_path"]) if path]
            entry["check"] = _check(item, wait or {})
        found.append(entry)
    return found


def _check(item: Result, wait: Result) -> dict[str, t.Any]:
    """Options of the wait that prove an instance again. No key is among them."""
    options = {
        key: wait[key] for key in _KEPT_OPTIONS if key in wait and not (key in _MAY_BE_LEFT and float(wait[key]) < 0)
    }
    taken = {key: item[key] for key in ("host", "port", "scheme", "model_path", "settings", "leader")}
    return {**options, **taken, "model": item["served_model_name"]}


def _verdict(result: Result) -> str:
    """``crashed (gpu_out_of_memory)``; what a result without a verdict says."""
    state = str(result.get("state") or "")
    cause = str((result.get("diagnosis") or {}).get("cause") or "")
    return f"{state} ({cause})" if cause and cause != state else state


def _evidence(result: Result) -> str:
    if not result.get("evidence"):
        return ""
    return f" Evidence is on the host: {result['evidence']}; `ansible-playbook specdec.serving.collect` fetches it."


def _what_became(entry: Result | None, back: Result | None, *, stopped: bool, rollback: bool) -> str:
    """What was done about one that did not become ready."""
    left = " The unit is stopped." if stopped else " The unit was left as it is."
    if not rollback:
        return f"Nothing was put back, since sglang_rollback is false.{left}"
    if entry is None or not entry.get("put_back"):
        why = str((entry or {}).get("reason") or "no other configuration of it was proven ready on this host")
        return f"Not rolled back: {why}.{left}"
    what = f"generation {entry['put_back']}, proven ready {moment(float(entry.get('proven_at') or 0))}, was put back"
    changes = entry.get("model_changes") or ()
    changed = f" Its model is not what it was then: {'; '.join(changes)}." if changes else ""
    if back is not None and back.get("ready"):
        return f"Rolled back: {what} and is ready again, its start took {duration(start_seconds(back))}.{changed}"
    if back is not None and back.get("state") == FOLLOWER:
        return f"Rolled back: {what} and runs; its leader tells whether it is ready.{changed}"
    told = str((back or {}).get("msg") or "its readiness was not proven")
    return f"ROLLBACK FAILED: {what} and is not ready either.{changed} {told}{left if stopped else ''}"


def outcome(
    results: Iterable[Result],
    *,
    put_back: Result | None = None,
    back: Iterable[Result] = (),
    stopped: Sequence[str] = (),
    rollback: bool = True,
) -> str:
    """Why a deployment failed, and what the host runs now: a paragraph for each instance that did not become ready.

    The diagnosis is told by the chart of the same result, and not again here.

    :param results: of the first wait, as for :func:`unready`.
    :param put_back: ``instances`` of the result of ``sglang_known_good``.
    :param back: results of the wait for what was put back.
    :param stopped: names of the instances that were stopped.
    """
    results = list(results)
    bad = unready(results)
    waits = {str(result["item"]): result for result in back}
    paragraphs = []
    for result in results:
        name = str(result["item"])
        if name not in bad:
            continue
        unit = str(result.get("unit") or name)
        if not result.get("state"):
            # The module itself could not look, so nothing is known of the configuration.
            paragraphs.append(f"{unit}: {result.get('msg') or 'there is no verdict'}")
            continue
        became = _what_became((put_back or {}).get(name), waits.get(name), stopped=name in stopped, rollback=rollback)
        paragraphs.append(f"{unit} did not become ready: {_verdict(result)}.{_evidence(result)} {became}")
    return "\n".join(paragraphs)


def put_back_outcome(
    instances: Mapping[str, Result], *, back: Iterable[Result] = (), check_mode: bool = False
) -> dict[str, t.Any]:
    """Whether a rollback that was asked for did what it should (``ok``), and what it did (``text``, a line for each instance).

    :param instances: of the result of ``sglang_known_good``.
    :param back: results of the wait for what was put back.
    """
    waits = {str(result["item"]): result for result in back}
    lines, good = [], bool(instances)
    for name, entry in instances.items():
        wait = waits.get(name) or {}
        if not entry.get("put_back"):
            good = False
            lines.append(f"{name}: not rolled back: {entry.get('reason')}.")
            continue
        what = f"generation {entry['put_back']}, proven ready {moment(float(entry.get('proven_at') or 0))}"
        if check_mode:
            lines.append(f"{name}: {what}, would be put back.")
            continue
        done = bool(wait.get("ready")) or wait.get("state") == FOLLOWER
        good = good and done
        lines.append(
            f"{name}: {what}, {'is put back and ' + str(wait['state']) if done else 'was put back, and is not ready'}."
        )
        lines += [f"{name}: its model is not what it was then: {change}" for change in entry.get("model_changes") or ()]
        if not done:
            lines.append(f"{name}: {wait.get('msg') or 'its readiness was not proven'}")
    return {
        "ok": good,
        "text": "\n".join(lines)
        or "No configuration has been proven ready on this host, so there is nothing to put back.",
    }


_COLUMNS = (
    "HOST",
    "INSTANCE",
    "GENERATION",
    "PROVEN READY",
    "START TOOK",
    "ENGINE",
    "MODEL",
    "PORT",
    "OTHER ARGUMENTS",
    "NOW",
)
#: As many differences fit into a cell.
_MOST_OTHERS = 4


def _word(value: t.Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "unset" if value is None else str(value)


def _others(generation: Result, now: Result | None) -> str:
    """The arguments that would change by going back, as they would be then."""
    if now is None or generation is now:
        return ""
    ours, theirs = (one.get("settings") or {} for one in (now, generation))
    found = [
        f"{name} {_word(theirs.get(name))}" for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)
    ]
    more = [f"{len(found) - _MOST_OTHERS} more"] if len(found) > _MOST_OTHERS else []
    return ", ".join(found[:_MOST_OTHERS] + more) or "none"


def _now(entry: Result, generation: Result) -> str:
    if generation.get("problem"):
        return str(generation["problem"])
    if not generation.get("installed"):
        return ""
    since = entry.get("rolled_back_at")
    return "installed" + (f", rolled back {moment(since)}" if since else "")


def generations_table(listings: Iterable[Result]) -> str:
    """One row for each configuration that is kept, those of an instance from the newest to the oldest. Several lines of text.

    :param listings: ``instances`` of results of ``sglang_known_good``, each with its ``host``.
    """
    rows = [_COLUMNS]
    for listing in listings:
        for name, entry in sorted((listing.get("instances") or {}).items()):
            generations = entry.get("generations") or ()
            now = next((one for one in generations if one.get("installed")), None)
            for one in generations:
                took = float(one.get("elapsed") or 0)
                rows.append(
                    (
                        str(listing.get("host") or ""),
                        str(name),
                        str(one["generation"]),
                        moment(float(one.get("at") or 0)),
                        duration(took) if took else "",
                        str(one.get("engine") or "").rpartition("/")[2],
                        ", ".join(str(path).rstrip("/").rpartition("/")[2] for path in one.get("models") or ()),
                        str(one.get("port") or ""),
                        _others(one, now),
                        _now(entry, one),
                    )
                )
    return text_table(rows) if len(rows) > 1 else "No configuration has been proven ready yet."
