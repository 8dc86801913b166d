# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of ``sglang_ready`` as text for a terminal: the start-up as a bar chart, instances as a table. PRIVATE to the collection."""

from __future__ import annotations

import re
import time
import typing as t

from ansible_collections.specdec.serving.plugins.plugin_utils._drift import drift_lines, drift_word

_BLOCKS = " ▏▎▍▌▋▊▉█"
# The last phase of a start that goes on ends now, as the uptime does.
_SAME_S = 0.05
_GATE_SIGNS = {True: "✔", False: "✘", None: "·"}


def duration(seconds: float) -> str:
    """``41.3 s``, ``3 min 30 s``, ``5 h 2 min``, ``3 d 4 h``."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, part, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {name}"
    return f"{whole} s"


def moment(at: float) -> str:
    """Seconds since the epoch as ``2026-07-01 10:15 UTC``."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def bar(start: float, length: float, total: float, width: int) -> str:  # pylint: disable=disallowed-name  # of a chart
    """A bar of ``length`` that begins at ``start`` on a scale of ``total`` drawn on ``width`` signs; never invisible."""
    if total <= 0:
        return ""
    left = min(int(start / total * width), width - 1)
    eighths = max(1, round(length / total * width * 8))
    full, rest = divmod(min(eighths, (width - left) * 8), 8)
    return (" " * left + "█" * full + (_BLOCKS[rest] if rest else "")).rstrip()


def _fails_clients(result: t.Mapping[str, t.Any]) -> bool:
    """The server itself passed its gates, and its clients do not get to it."""
    return (result.get("client") or {}).get("ok") is False


def _shown_state(result: t.Mapping[str, t.Any]) -> str:
    """The state for people: a server that is up, and is another one than asked for or not where clients look, does not load any more."""
    if result.get("state") == "loading" and _fails_clients(result):
        return "not at client_url"
    gates = {gate["name"]: gate.get("passed") for gate in result.get("gates") or ()}
    if result.get("state") == "loading" and gates.get("identity") is False:
        return "not as asked"
    return str(result.get("state") or "unknown")


def _lasted(result: t.Mapping[str, t.Any], total: float) -> str:
    """How long the start took, or how long it has been going on, to follow the state."""
    if not total:
        return ""
    uptime = float(result.get("uptime") or 0)
    if result.get("state") == "ready" or _fails_clients(result):
        return f", start took {duration(total)}"
    if uptime and total > uptime - _SAME_S:
        return f", {duration(total)} so far"
    # It may have been up for days after that.
    return f", start lasted {duration(total)}"


def start_seconds(result: t.Mapping[str, t.Any]) -> float:
    """How long the start took, or has taken so far, by its timeline; 0 without one."""
    return max((phase["start"] + phase["duration"] for phase in result.get("timeline") or ()), default=0.0)


def startup_chart(result: t.Mapping[str, t.Any], host: str = "", width: int = 48) -> str:
    """The verdict, each phase of the start as a bar on one time scale, the weights, the gates. Several lines of text.

    ``result`` is what ``sglang_ready`` returned.
    """
    where = f"{result.get('unit', '')}" + (f" on {host}" if host else "")
    timeline = [
        phase for phase in result.get("timeline") or () if phase["duration"] > 0 or phase["phase"] != "starting"
    ]
    total = start_seconds(result)
    verdict = _shown_state(result).upper()
    lines = [f"{where}: {verdict}{_lasted(result, total)}"]
    labels = [phase["phase"] + (f" ({phase['model']})" if phase.get("model") else "") for phase in timeline]
    names = max((len(label) for label in labels), default=0)
    for phase, label in zip(timeline, labels, strict=True):
        start, length = phase["start"], phase["duration"]
        lines.append(f"  {label:<{names}} {start:7.1f} +{length:6.1f} s |{bar(start, length, total, width)}")
    lines += ["  " + _weights_line(model) for model in result.get("weights") or ()]
    lines += [
        f"  {_GATE_SIGNS[gate.get('passed')]} {gate['name']}: {gate['detail']}" for gate in result.get("gates") or ()
    ]
    diagnosis = result.get("diagnosis") or {}
    lines += [f"  {name}: {diagnosis[name]}" for name in ("cause", "summary", "exit", "remedy") if diagnosis.get(name)]
    lines += [f"  > {line}" for line in diagnosis.get("evidence") or ()]
    return "\n".join(lines)


def _weights_line(model: t.Mapping[str, t.Any]) -> str:
    ranks = model.get("ranks")
    parts = [f"weights {model.get('type')}: {ranks} {'rank' if ranks == 1 else 'ranks'}"]
    if model.get("elapsed_s") is not None:
        parts.append(f"{model['elapsed_s']:.2f} s")
    if model.get("quant"):
        parts.append(str(model["quant"]))
    if model.get("mem_usage_gb") is not None:
        parts.append(f"{model['mem_usage_gb']:.2f} GB used a rank")
    if model.get("avail_mem_gb") is not None:
        parts.append(f"{model['avail_mem_gb']:.2f} GB left")
    return ", ".join(parts)


# sglang_ready's archives: TIME-LABEL-INVOCATION.tar.gz; the label is the state or, of one that still loaded, the cause.
_ARCHIVE = re.compile(r"/(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)\d\dZ-(?P<label>\w+)-(?P<invocation>[0-9a-f]{32})\.tar\.gz\Z")
_COLUMNS = ("HOST", "INSTANCE", "STATE", "MODEL", "PORT", "UPTIME", "PHASE OR VERDICT", "WEIGHTS", "MEMORY A RANK")


def _judged_before(result: t.Mapping[str, t.Any]) -> str:
    """What an earlier wait found of this very start, from the name of the evidence that it left; '' without any."""
    for archive in sorted(map(str, result.get("archives") or ()), reverse=True):
        found = _ARCHIVE.search(archive)
        if found and found["invocation"] == result.get("invocation_id"):
            what = "was hung" if found["label"] == "hung" else found["label"]
            return "; {} at {}-{}-{} {}:{} UTC".format(what, *found.groups())
    return ""


def _row(host: str, result: t.Mapping[str, t.Any]) -> tuple[str, ...]:
    unit = str(result.get("unit", ""))
    state = _shown_state(result)
    weights = result.get("weights") or ()
    diagnosis = result.get("diagnosis") or {}
    note = str((result.get("phase") if state == "loading" else diagnosis.get("summary")) or "")
    if state == "loading":
        note += _judged_before(result)
    if state in {"crashed", "crash_loop"} and diagnosis.get("cause"):
        note = f"{diagnosis['cause']}: {note}"  # first, for the rest may be cut
    if state == "ready":
        note = "all gates passed"
    since = (result.get("rolled_back") or {}).get(result.get("item"))
    if since:
        note = f"rolled back {moment(since)}; {note}".removesuffix("; ")
    if result.get("failed") and not result.get("state"):
        note = str(result.get("msg", "failed"))
    uptime = float(result.get("uptime") or 0)
    used = [model["mem_usage_gb"] for model in weights if model.get("mem_usage_gb") is not None]
    left = [model["avail_mem_gb"] for model in weights if model.get("avail_mem_gb") is not None]
    # SGLang counts free memory before and after: less than nothing may be used by a tiny model.
    memory = f"{max(sum(used), 0.0):.1f} GB used, {min(left):.1f} left" if used and left and uptime else ""
    name = unit.removeprefix("sglang-").removesuffix(".service")
    asked = (result.get("expected_models") or {}).get(result.get("item"))
    return (
        host,
        name,
        state,
        str((result.get("server") or {}).get("model") or asked or ""),
        str(result.get("port") or ""),
        duration(uptime) if uptime else "",
        note if len(note) <= 60 else note[:57] + "...",
        ", ".join(f"{model.get('type')} x{model.get('ranks')}" for model in weights),
        memory,
    )


def status_table(results: t.Iterable[t.Mapping[str, t.Any]], host: str = "") -> str:
    """One row per instance: state, model, port, uptime, phase or verdict, weights, memory, and whether it is as asked.

    Several lines of text; below the table one line for each value that is not as asked.

    ``results`` are results of ``sglang_ready``; an item may bring its own ``host``, and what the role knows beside them:
    ``expected_models`` (``item`` to model, for a server that does not tell it yet), ``archives`` (paths of evidence), ``rolled_back``
    (``item`` to the time at which another configuration than the asked one was put back; 0 = it was not) and ``drift`` (of
    ``sglang_drift``; None where that could not compare).
    """
    shown = list(results)
    rows = [_COLUMNS] + [_row(str(result.get("host") or host), result) for result in shown]
    if any("drift" in result for result in shown):
        words = ["CONFIGURATION", *map(drift_word, shown)]
        rows = [(*row, word) for row, word in zip(rows, words, strict=True)]
    differences = drift_lines(shown, host)
    return text_table(rows) + (f"\n\n{text_table(differences)}" if differences else "")


def work_text(hosts: t.Iterable[t.Mapping[str, t.Any]]) -> str:
    """Who works on each host, and which trials are in force. Several lines of text.

    ``hosts``: mappings with ``host``, ``lease`` (result of ``sglang_lease`` with ``state: shown``) and ``trials`` (results of
    ``sglang_trial_unit`` with ``state: observed``, each with the name of its instance as ``item``).
    """
    return "\n".join(
        f"{one['host']}: {line}" for one in hosts for line in (_lease_line(one["lease"]), *_trial_lines(one))
    )


def _lease_line(lease: t.Mapping[str, t.Any]) -> str:
    if "holder" not in lease:
        return f"who works here cannot be told: {lease.get('msg') or 'sglang_lease gave no answer'}"
    if not lease["holder"]:
        return "nobody holds the lease of the host"
    ended = "; its ansible-playbook has ended, so the next run takes it" if lease.get("ended") else ""
    return f"held by {lease['holder']}{ended}"


def _trial_lines(one: t.Mapping[str, t.Any]) -> list[str]:
    trials = [trial for trial in one["trials"] if trial.get("active")]
    if not trials:
        return ["no trial is in force"]
    lines = []
    for trial in trials:
        left = float(trial.get("restore_in") or 0)
        back = (
            f"its own configuration comes back in {duration(left)} unless the trial is renewed"
            if left > 0
            else "no timer ends it: stop or deploy it once nobody works here, or restart the host"
        )
        lines.append(f"{trial['item']} runs a trial, {trial.get('label') or 'without a name'}; {back}")
    return lines


def text_table(rows: t.Sequence[t.Sequence[str]]) -> str:
    """Rows in columns as wide as they have to be. Several lines of text."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


__all__ = ("bar", "duration", "moment", "start_seconds", "startup_chart", "status_table", "text_table", "work_text")
