# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of sglang_benchmark: what is run, the line while it runs, the table at the end. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import json
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.specdec.serving.plugins.plugin_utils._workload import (
    FIXED,
    Prompts,
    Workload,
    WorkloadError,
    check_prompts,
)

#: Levels of a baseline are compared under these figures.
_COMPARED = {"output": "output_tok_s", "user": "user_tok_s"}
#: Of a workload these do not change what a level means.
_FREE = ("levels", "repeats", "description", "requests", "warm_up")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the target is told: ``job`` for the client's driver, and the texts of its files of prompts."""

    job: dict[str, t.Any]
    files: dict[str, str]
    reduced: tuple[str, ...]


def plan(workload: Workload, prompts: Prompts | None) -> Plan:
    """The runs of a workload.

    The last prompts of the file warm up unless there is a file for it, the others are measured; every level and repeat begins with
    the first of them, so that they can be compared. Raises WorkloadError when there are too few.
    """
    warm_up = max(map(workload.warm_up, workload.levels))
    files: dict[str, str] = {}
    most = None
    if prompts is not None:
        check_prompts(workload, workload.levels, prompts)
        measured, others = prompts.lines, prompts.warm_up[:warm_up]
        if not prompts.warm_up:
            measured, others = prompts.lines[:-warm_up], prompts.lines[-warm_up:]
        most = len(measured)
        files = {"prompts.jsonl": "\n".join(measured) + "\n", "warm_up.jsonl": "\n".join(others) + "\n"}
    elif workload.kind != FIXED:
        raise WorkloadError(f"workload {workload.name} has no prompts")
    job: dict[str, t.Any] = {
        "kind": workload.kind,
        "input_length": workload.input_length,
        "output_length": workload.output_length,
        "longest": _longest(workload, files),
        "temperature": workload.temperature,
        "template_arguments": workload.template_arguments,
        "seed": workload.seed,
        "repeats": workload.repeats,
        "steady_state_s": workload.requests.steady_state_s,
        "levels": [
            {
                "concurrency": level,
                "requests": workload.requests.least(level),
                "warm_up": workload.warm_up(level),
                "most": most,
            }
            for level in workload.levels
        ],
    }
    return Plan(job=job, files=files, reduced=workload.reduced)


def _longest(workload: Workload, files: Mapping[str, str]) -> int:
    """Tokens of prompt and answer that the greediest request asks for at least; the length of a real prompt is not known here."""
    if workload.output_length:
        return (workload.input_length or 1) + workload.output_length
    lines = [line for text in files.values() for line in text.splitlines()]
    return 1 + max((json.loads(line)["max_tokens"] for line in lines), default=0)


def progress_line(host: str, answer: Mapping[str, t.Any], width: int = 0) -> str:
    """One line for people: host, unit, level and repeat, requests finished, tokens a second and acceptance now."""
    progress = answer.get("progress") or {}
    phase = str(progress.get("phase") or "starting")
    parts = [f"{host:<{width}}", str(answer.get("unit", ""))]
    if progress.get("level"):
        repeat = f" repeat {progress['repeat']}" if progress.get("repeat") else ""
        parts.append(f"C={progress['level']}{repeat}")
    if progress.get("runs"):
        parts.append(f"run {min(progress['runs_done'] + 1, progress['runs'])} of {progress['runs']}")
    parts.append(phase.replace("_", " "))
    if "finished" in progress and progress.get("asked"):
        parts.append(f"{progress['finished']}/{progress['asked']} finished")
        if progress.get("failed"):
            parts.append(f"{progress['failed']} failed")
        parts.append(f"{progress.get('tokens_per_s', 0.0):.0f} tok/s")
        if progress.get("acceptance"):
            parts.append(f"acceptance {progress['acceptance']:.2f}")
        if progress.get("in_flight") and progress.get("still_for", 0) >= 30:
            parts.append(f"nothing has moved for {progress['still_for']:.0f} s")
    parts.append(f"{float(answer.get('elapsed', 0)):.0f} s")
    return " | ".join(parts)


def _same_work(ours: Mapping[str, t.Any], theirs: Mapping[str, t.Any]) -> list[str]:
    keys = sorted({*ours, *theirs} - set(_FREE))
    return [key for key in keys if ours.get(key) != theirs.get(key)]


def _baseline_median(figure: t.Any) -> float | None:
    if figure is None:
        return None
    median = float(figure["median"])
    if not 0 <= median < float("inf"):
        raise ValueError(f"median {median}")
    return median


def _other_server(parts: Mapping[str, t.Any], baseline: Mapping[str, t.Any]) -> list[str]:
    """In words, what else than speculation differs between a run and its baseline; nothing of what one of both does not tell."""

    def told(of: Mapping[str, t.Any]) -> dict[str, t.Any]:
        arguments, host = of.get("arguments") or {}, of.get("host") or {}
        target: Mapping[str, t.Any] = next((one for one in of.get("models") or () if one.get("role") == "target"), {})
        gpus = [gpu.get("name") for gpu in host.get("gpus") or ()]
        return {
            # By its content where that is known: it may lie elsewhere on another host.
            "model": target.get("index_sha256") or target.get("config_sha256") or arguments.get("model_path"),
            "SGLang": (of.get("engine") or {}).get("version"),
            "hardware": gpus or (host.get("cpu") or {}).get("model"),
            **{f"{name}_size": arguments.get(f"{name}_size") for name in ("tp", "pp", "dp", "ep")},
        }

    try:
        ours, theirs = told(parts), told(baseline)
    except (AttributeError, TypeError):
        return ["of what the baseline was measured is not known: its record is damaged"]
    differ = [name for name in ours if ours[name] and theirs[name] and ours[name] != theirs[name]]
    return [
        f"the baseline was measured with another {name} ({theirs[name]!r}, here {ours[name]!r}): the speed-up is not that of speculation alone"
        for name in differ
    ]


def add_speedups(results: dict[str, t.Any], workload: Mapping[str, t.Any], baseline: Mapping[str, t.Any]) -> list[str]:
    """Give each valid level its ``speedup`` over the same level of a baseline's record; return what kept others from it.

    Raises WorkloadError when the baseline ran something else, or is damaged.
    """
    if not isinstance(baseline["results"].get("levels"), list):
        raise WorkloadError(
            f"the baseline holds no levels, since it is the record of a run of kind {baseline.get('kind')!r}; give that of a benchmark"
        )
    differ = _same_work(workload, baseline["workload"])
    if differ:
        raise WorkloadError(
            f"the baseline ran another workload ({', '.join(differ)} differ): {baseline['workload'].get('name')!r}; measure"
            " the baseline with the same one"
        )
    theirs = {}
    for number, level in enumerate(baseline["results"]["levels"]):
        try:
            figures = {name: _baseline_median(level["summary"][figure]) for name, figure in _COMPARED.items()}
            theirs[int(level["concurrency"])] = figures if level["valid"] else None
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise WorkloadError(
                f"the baseline is damaged: level {number + 1} ({type(error).__name__}: {error}); take another record"
            ) from None
    said = _other_server(results.get("parts") or {}, baseline)
    if baseline["results"].get("speculative"):
        said.append("the baseline was measured with speculation, too")
    for level in results["levels"]:
        other = theirs.get(level["concurrency"])
        if other is None or not level["valid"]:
            why = "or this run is not valid there" if level["concurrency"] in theirs else "has no such level"
            said.append(f"no speed-up for {level['concurrency']} in flight: the baseline {why}")
            continue
        found = {}
        for name, figure in _COMPARED.items():
            before, now = other[name], level["summary"][figure]
            if before and now:
                found[name] = round(now["median"] / before, 4)
        level["speedup"] = found
    return said


# --- the table -----------------------------------------------------------------------------------------------------------------


def _median(level: Mapping[str, t.Any], name: str) -> float | None:
    value = (level["summary"].get(name) or {}).get("median")
    return None if value is None else float(value)


def _cell(level: Mapping[str, t.Any], name: str, form: str) -> str:
    value = _median(level, name)
    return "-" if value is None else format(value, form)


def _both(level: Mapping[str, t.Any], what: str, form: str) -> str:
    return " / ".join(_cell(level, f"{what}_{percent}_ms", form) for percent in ("p50", "p99"))


def _noise(level: Mapping[str, t.Any]) -> str:
    cv = (level["summary"].get("output_tok_s") or {}).get("cv")
    return "-" if cv is None else f"{100 * cv:.1f} %"


def table(record: Mapping[str, t.Any]) -> str:
    """A record of a benchmark for a terminal: a row for each level, what is wrong with it, and what the figures depend on."""
    results, workload, arguments = record["results"], record["workload"], record["arguments"]
    levels = results["levels"]
    faster = any(level.get("speedup") for level in levels)
    head = ["C", "in flight", "tok/s", "steady", "cv", "user tok/s", "TTFT p50 / p99 ms", "TPOT p50 / p99 ms", "AL"]
    head += ["speed-up", "valid"] if faster else ["valid"]
    rows = [head]
    for level in levels:
        row = [
            str(level["concurrency"]),
            _cell(level, "concurrency", ".2f"),
            _cell(level, "output_tok_s", ".1f"),
            _cell(level, "steady_output_tok_s", ".1f"),
            _noise(level),
            _cell(level, "user_tok_s", ".1f"),
            _both(level, "ttft", ".0f"),
            _both(level, "tpot", ".2f"),
            _cell(level, "acceptance_length", ".3f"),
        ]
        if faster:
            ratio = (level.get("speedup") or {}).get("output")
            row.append("-" if ratio is None else f"{ratio:.2f}x")
        rows.append([*row, "yes" if level["valid"] else "NO"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    unit = record["invocation"].get("unit", "")
    return "\n".join(
        [
            f"{unit} on {record['host']['name']}: {workload['name']}",
            *lines,
            *_remarks(levels),
            *_conditions(record, workload, arguments),
        ]
    )


def _remarks(levels: Sequence[Mapping[str, t.Any]]) -> list[str]:
    lines = []
    for level in levels:
        for reason in level["reasons"]:
            repeat = f" (repeat {reason['repeat']})" if reason.get("repeat") else ""
            lines.append(f"✘ C={level['concurrency']} {reason['rule']}{repeat}: {reason['detail']}")
        lines += [f"! C={level['concurrency']} {flag['flag']}: {flag['detail']}" for flag in level["flags"]]
    return lines


def _conditions(
    record: Mapping[str, t.Any], workload: Mapping[str, t.Any], arguments: Mapping[str, t.Any]
) -> list[str]:
    """What every figure depends on."""
    natural = workload["kind"] != FIXED
    if natural:
        limit = (
            f"at most {workload['output_length']} tokens"
            if workload.get("output_length")
            else "each with its own limit"
        )
        lengths = f"real prompts ({workload['dataset']}), {limit}, end-of-text respected"
        thinking = {None: "as the chat template does by itself", True: "on", False: "off"}[workload.get("thinking")]
    else:
        lengths = f"{workload['input_length']} random tokens in, {workload['output_length']} out, end-of-text ignored"
        thinking = "none, no chat template"
    algorithm = arguments.get("speculative_algorithm")
    size = arguments.get("speculative_num_draft_tokens")
    draft = arguments.get("speculative_draft_model_path")
    speculation = f"{algorithm}, {size} draft tokens, draft {draft or 'none'}" if algorithm else "none"
    cache = "off" if arguments.get("disable_radix_cache") else "flushed before each run"
    gpus = [gpu["name"] for gpu in record["host"]["gpus"]]
    hardware = f"{len(gpus)} x {gpus[0]}" if gpus else record["host"]["cpu"]["model"] or "unknown CPU"
    repeats = max((len(level["repeats"]) for level in record["results"]["levels"]), default=0)
    repeats = max((len(level["repeats"]) for level in record["results"]["levels"]), default=0)
    return [
        f"holds for: {lengths};",
        f"  temperature {workload['temperature']:g}; thinking {thinking}; prefix cache {cache};",
        f"  SGLang {record['engine']['version']}; {arguments.get('model_path')}; speculation {speculation}; {hardware}",
        f"  AL = 1 + correct drafts / verify steps; user tok/s = 1 / median TPOT; median of {repeats} repeats",
    ]


__all__ = ("Plan", "add_speedups", "plan", "progress_line", "table")
