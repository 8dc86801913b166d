# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of an evaluation: the problems, progress, the record, the table. PRIVATE to the collection."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.specdec.serving.plugins.module_utils import _problems
from ansible_collections.specdec.serving.plugins.module_utils._evaluation_options import ARGUMENT_SPEC, chosen
from ansible_collections.specdec.serving.plugins.module_utils._problems import ProblemsError
from ansible_collections.specdec.serving.plugins.plugin_utils import _given_files, _record
from ansible_collections.specdec.serving.plugins.plugin_utils._charts import duration

#: Options that the module on the target has no use for.
OWN_OPTIONS = ("problems", "limit", "results_dir", "readiness", "claim")
#: The problems of this collection.
SHIPPED = Path(__file__).resolve().parents[2] / "roles/sglang/files/problems/coding.jsonl"
DEFAULT_TIMEOUT = str(ARGUMENT_SPEC["timeout"]["default"])


def content_of(arguments: Mapping[str, t.Any]) -> str:
    """The problems to ask, one a line. Raises ValueError with what is wrong with the file, and where."""
    given = str(arguments.get("problems") or "")
    limit = arguments.get("limit")
    # '' is what a variable that is not set comes to.
    if limit not in (None, "") and not re.fullmatch(r"\s*\d{1,9}\s*", str(limit), re.ASCII):
        raise ValueError(f"limit {limit!r} is no whole number from 0 (all of them) on")
    try:
        path = _given_files.expanded(given) if given else SHIPPED
        content = _given_files.read(path, _problems.MAX_BYTES)
        problems = _problems.parse(_problems.decode(content, name=str(path)), name=str(path))
    except OSError as error:
        raise ValueError(f"problems {given!r} cannot be read on the controller: {error.strerror}") from None
    except ProblemsError as error:
        raise ValueError(f"problems: {error}") from error
    return "\n".join(problem.as_line() for problem in chosen(problems, int(limit or 0))) + "\n"


def progress_line(host: str, arguments: Mapping[str, t.Any], answer: Mapping[str, t.Any], width: int = 0) -> str:
    """One line for people: host, unit, phase, how many are done, how many passed, seconds."""
    total = str(answer.get("total", 0))
    parts = [
        f"{host:<{width}}",
        str(arguments.get("unit", "")),
        str(answer.get("phase", "")),
        f"{answer.get('done', 0):>{len(total)}}/{total}",
    ]
    if answer.get("phase") == "coding":
        parts.append(f"{answer.get('passed', 0)} passed")
    parts.append(f"{float(answer.get('elapsed', 0)):4.0f} s")
    return " | ".join(parts)


def completed(
    answer: Mapping[str, t.Any], arguments: Mapping[str, t.Any], *, host: str, now: float
) -> dict[str, t.Any]:
    """The answer with its table and, where asked for, its record. Raises ValueError when a key would stand in that."""
    found = dict(answer)
    folder = str(arguments.get("results_dir") or "")
    if folder:
        record = _record.make(
            _record.EVALUATION, host=host, parts=answer["parts"], readiness=arguments.get("readiness"), now=now
        )
        keys = [str(arguments.get(name) or "") for name in ("api_key", "admin_api_key")]
        found = _record.keep(found, record, folder, secrets=keys)
    found["table"] = table({**found, "host": host})
    return found


def _share(name: str, row: Mapping[str, t.Any], width: int) -> str:
    return (
        f"  {name:<{width}}  {row['passed']:>4} of {row['problems']:<4} pass@1 {row['pass_at_1']:.3f}"
        f"  95 % interval {row['low']:.3f} to {row['high']:.3f}"
    )


def table(result: Mapping[str, t.Any]) -> str:
    """What an evaluation found, and what it depends on. Several lines of text.

    ``result`` is what ``sglang_evaluate`` returned, with the ``host``.
    """
    parts = result.get("parts") or {}
    server = result.get("server") or {}
    unit = (parts.get("invocation") or {}).get("unit", "")
    lines = [f"{unit} on {result.get('host', '')}: {duration(float(result.get('elapsed', 0)))}"]
    coding = result.get("coding")
    if coding:
        names = [*coding["by_difficulty"], "all"]
        width = max(map(len, names))
        lines += [_share(name, row, width) for name, row in [*coding["by_difficulty"].items(), ("all", coding)]]
        counts = [f"{name} {count}" for name, count in coding["verdicts"].items() if count]
        if coding["loops"]:
            counts.append(f"of these {coding['loops']} end in a repetition")
        lines.append("  verdicts: " + ", ".join(counts or ["none"]))
        others = [one for one in result.get("outcomes") or () if one["verdict"] != "passed"]
        lines += [
            f"    {one['task_id']}: {one['verdict']}{': ' + one['detail'][:100] if one['detail'] else ''}"
            for one in others[:10]
        ]
        if len(others) > 10:
            lines.append(f"    and {len(others) - 10} more")
        lines.append(
            f"  {coding['completion_tokens']} tokens generated; {coding['programs']} programs, {coding['program_s']:.2f} s each with their sandbox"
        )
        lines.append("  This detects breakage, not quality: see the width of the interval.")
    parity = result.get("parity")
    if parity:
        lines.append(f"  {parity['text']}")
        lines += [
            f"    prompt {one['prompt']}, token {one['at']}: {one['kind']}"
            + (f", gap {one['gap']:.4f} nat" if one["gap"] is not None else "")
            for one in (parity.get("differences") or parity["floor"]["differences"])[:10]
        ]
        lines += [f"    differing: {text}" for text in parity.get("differing") or ()]
    lines += [f"  {line}" for line in _depends(result.get("workload"), parity, server, parts)]
    if result.get("record"):
        lines.append(f"  record: {result['record']}")
    return "\n".join(lines)


def _depends(
    workload: Mapping[str, t.Any] | None,
    parity: Mapping[str, t.Any] | None,
    server: Mapping[str, t.Any],
    parts: Mapping[str, t.Any],
) -> list[str]:
    """What the figures depend on."""
    found = []
    if workload:
        thinking = {"auto": "as its template has it"}.get(workload["thinking"], workload["thinking"])
        found.append(
            f"coding depends on: problems {workload['digest']} ({workload['problems']}), {workload['mode']}, thinking {thinking}, "
            f"max_tokens {workload['max_tokens']}, temperature 0, C {workload['concurrency']}"
        )
    if parity:
        found.append(
            f"parity depends on: {parity['floor']['prompts']} prompts, {parity['max_new_tokens']} tokens each, end-of-text disregarded, "
            f"temperature 0, C 1, baseline {parity['baseline']}"
        )
    algorithm = server.get("speculative_algorithm") or "none"
    draft = server.get("speculative_draft_model_path")
    engine = (parts.get("engine") or {}).get("version") or server.get("version")
    found.append(
        f"both: engine {engine}, model {server.get('model')}, speculation {algorithm}{f' with {draft}' if draft else ''}"
    )
    return found


__all__ = ("DEFAULT_TIMEOUT", "OWN_OPTIONS", "SHIPPED", "completed", "content_of", "progress_line", "table")
