# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures and verdicts from the runs of the benchmark client. PRIVATE to specdec.serving.

In goes what `_bench_driver` wrote of each run; out come plain JSON mappings, a level at a time. Times are in milliseconds where a name ends
in ``_ms``, else in seconds. A rule that a run breaks makes its level invalid: it keeps its figures and its reasons, and never ranks.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import typing as t

__all__ = (
    "FLAGS",
    "RULES",
    "Context",
    "acceptance",
    "figures",
    "kind_of_error",
    "level_result",
    "median_mad_cv",
    "percentile",
    "steady_window",
)

#: The client's tokens and the server's may differ by this share.
TOKEN_TOLERANCE = 0.005
#: The first repeat counts as slowed by compilation when the others are faster by this share.
JIT_SHARE = 0.10
#: Fewer requests that tell their drafts, or two ways of counting that differ more, make the acceptance length doubtful.
_TOLD_SHARE, _LENGTH_TOLERANCE = 0.95, 0.02
_JIT_TTFT_FACTOR, _JIT_TTFT_MS = 5.0, 2000.0
#: nvidia-smi, clocks_throttle_reasons.active: slowed by heat or by the power supply. A power limit that is reached (0x4) is usual.
THROTTLE_BITS = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}

_Row = t.Mapping[str, t.Any]
_Run = t.Mapping[str, t.Any]

#: In order; the first that stands in an error names its kind.
_ERRORS = (
    ("unfinished", "unfinished"),
    ("ClientConnectorError", "connection refused"),
    ("ServerDisconnectedError", "connection lost"),
    ("ConnectionResetError", "connection lost"),
    ("ClientOSError", "connection lost"),
    ("ClientPayloadError", "answer cut off"),
    ("TransferEncodingError", "answer cut off"),
    ("TimeoutError", "timeout"),
    ("Unauthorized", "unauthorized"),
    ("Service Unavailable", "service unavailable"),
    ("Internal Server Error", "internal server error"),
    ("Bad Gateway", "bad gateway"),
    ("Too Many Requests", "too many requests"),
    ("context length", "too long"),
    ("Bad Request", "bad request"),
    ("Not Found", "not found"),
    ("JSONDecodeError", "not JSON"),
)


def kind_of_error(text: str) -> str:
    """A word or two for an error of the client's, which is a traceback or an HTTP reason with the answer."""
    return next((kind for sign, kind in _ERRORS if sign in text), "other")


def percentile(values: t.Sequence[float], percent: float) -> float | None:
    """Linear between the closest ranks, as numpy's default and so the client; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(values: t.Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles in milliseconds of values in seconds."""
    if not values:
        return None
    found = {"mean": statistics.fmean(values) * 1000}
    for percent in (50, 90, 99):
        found[f"p{percent}"] = (percentile(values, percent) or 0.0) * 1000
    return {name: round(value, 3) for name, value in found.items()}


def steady_window(rows: t.Sequence[_Row], concurrency: int) -> tuple[float, float] | None:
    """When all ``concurrency`` requests were in flight: from the start of the last of the first ones to the first end after which none
    took its place. None when that never was.
    """
    if len(rows) < concurrency:
        return None
    begin = sorted(row["start"] for row in rows)[concurrency - 1]
    # Each end is followed by a start as long as there are requests left: all but the last `concurrency` of them.
    end = sorted(row["start"] + row["latency"] for row in rows)[len(rows) - concurrency]
    return (begin, end) if end > begin else None


def _tokens_within(row: _Row, begin: float, end: float) -> float:
    """Tokens of a request in a window: the first when it came, the others evenly until its end."""
    first, last, count = row["start"] + row["ttft"], row["start"] + row["latency"], row["output_tokens"]
    if count <= 0:
        return 0.0
    found = 1.0 if begin <= first <= end else 0.0
    if count > 1 and last > first:
        found += (count - 1) * max(min(last, end) - max(first, begin), 0.0) / (last - first)
    return found


def _steady(rows: t.Sequence[_Row], concurrency: int) -> dict[str, t.Any] | None:
    window = steady_window(rows, concurrency)
    if window is None:
        return None
    begin, end = window
    span = end - begin
    busy = sum(max(min(row["start"] + row["latency"], end) - max(row["start"], begin), 0.0) for row in rows)
    return {
        "seconds": round(span, 3),
        "output_tok_s": round(sum(_tokens_within(row, begin, end) for row in rows) / span, 3),
        "concurrency": round(busy / span, 3),
    }


def acceptance(rows: t.Sequence[_Row]) -> dict[str, t.Any] | None:
    """Acceptance length as papers count it, 1 + correct drafts / verify steps, over requests that tell both; None when none does.

    ``per_position[i]`` is the share of verify steps in which at least ``i + 1`` drafts were right, from the histograms;
    ``length_from_histogram`` must equal ``length`` where every request has one.
    """
    told = [row for row in rows if row["ok"] and row["verify"] and row["correct"] is not None]
    if not told:
        return None
    verify = sum(row["verify"] for row in told)
    found: dict[str, t.Any] = {
        "length": round(1 + sum(row["correct"] for row in told) / verify, 5),
        "verify_steps": verify,
        "requests": len(told),
        "of_requests": sum(1 for row in rows if row["ok"] and row["output_tokens"] > 1),
        "per_position": None,
        "length_from_histogram": None,
    }
    with_histogram = [row["histogram"] for row in told if row["histogram"]]
    if with_histogram:
        size = max(map(len, with_histogram))
        counts = [sum(int(one[index]) for one in with_histogram if index < len(one)) for index in range(size)]
        steps = sum(counts)
        if steps:
            found["per_position"] = [round(sum(counts[index:]) / steps, 5) for index in range(1, size)]
            found["length_from_histogram"] = round(1 + sum(k * count for k, count in enumerate(counts)) / steps, 5)
    return found


def _delta(run: _Run, name: str) -> float | None:
    before, after = run.get("before") or {}, run.get("after") or {}
    if name not in after:
        return None
    # A labelled counter appears with its first increment.
    known = "problem" not in before
    found = float(after[name]) - float(before.get(name, 0.0)) if known else -1.0
    # Counters only grow: see `_unverified` for those that went back.
    return found if 0 <= found < math.inf else None


def _server_counts(run: _Run) -> dict[str, t.Any]:
    found = {
        name: _delta(run, counter)
        for name, counter in (
            ("requests", "num_requests_total"),
            ("generation_tokens", "generation_tokens_total"),
            ("prompt_tokens", "prompt_tokens_total"),
            ("cached_tokens", "cached_tokens_total"),
            ("verify_steps", "spec_verify_calls_total"),
            ("aborted", "num_aborted_requests_total"),
        )
    }
    return {name: None if value is None else round(value) for name, value in found.items()}


def _finite(value: t.Any) -> float | None:
    """A figure of the client's own, which may be NaN where nothing was measured."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _outcomes(rows: t.Sequence[_Row]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        name = (row["finish"] or "ended") if row["ok"] else kind_of_error(row["error"])
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def figures(run: _Run) -> dict[str, t.Any]:
    """The figures of one run."""
    rows = run["rows"]
    good = [row for row in rows if row["ok"]]
    first = min((row["start"] for row in good), default=0.0)
    span = max((row["start"] + row["latency"] for row in good), default=0.0) - first
    tokens = sum(row["output_tokens"] for row in good)
    tpot = [(row["latency"] - row["ttft"]) / (row["output_tokens"] - 1) for row in good if row["output_tokens"] > 1]
    median_tpot = percentile(tpot, 50)
    gaps = [gap for row in good for gap in row["gaps"]]
    server = _server_counts(run)
    steps, generated = server["verify_steps"], server["generation_tokens"]
    client = run.get("client") or {}
    gap = percentile(gaps, 99)
    return {
        "repeat": run["repeat"],
        "requests": run["asked"],
        "completed": len(good),
        "outcomes": _outcomes(rows),
        "seconds": round(span, 3),
        "input_tokens": sum(row["prompt_tokens"] for row in good),
        "output_tokens": tokens,
        "output_tok_s": round(tokens / span, 3) if span > 0 else None,
        "requests_per_s": round(len(good) / span, 4) if span > 0 else None,
        "concurrency": round(sum(row["latency"] for row in good) / span, 3) if span > 0 else None,
        "user_tok_s": round(1 / median_tpot, 3) if median_tpot else None,
        "ttft_ms": _spread([row["ttft"] for row in good]),
        "tpot_ms": _spread(tpot),
        "e2e_ms": _spread([row["latency"] for row in good]),
        "chunk_gap_p99_ms": None if gap is None else round(gap * 1000, 3),
        "steady": _steady(good, run["concurrency"]),
        "acceptance": acceptance(rows),
        "tokens_per_step": round(generated / steps, 5) if steps and generated else None,
        "server": server,
        "client": {
            "output_tok_s": _finite(client.get("output_throughput")),
            "seconds": _finite(client.get("duration")),
        },
        "flush": run.get("flush"),
        "began_at": run.get("began_at"),
    }


@dataclasses.dataclass(frozen=True)
class Context:
    """What judges a level beside its runs.

    ``observed`` is what was seen of the host while it ran: rule to detail. ``fixed_length`` is the number of tokens that every
    request has to bring, None = end-of-text is respected. ``most_running`` is the server's limit, 0 = unknown.
    """

    speculative: bool = False
    fixed_length: int | None = None
    most_running: int = 0
    steady_s: float = 60.0
    reduced: t.Sequence[str] = ()
    first: bool = False
    observed: t.Mapping[str, str] = dataclasses.field(default_factory=dict)


# --- rules: each tells what is broken, or '' -----------------------------------------------------------------------------------


def _not_completed(run: _Run, figure: _Row, context: Context) -> str:
    rows = run["rows"]
    short = [
        row
        for row in rows
        if row["ok"] and context.fixed_length is not None and row["output_tokens"] != context.fixed_length
    ]
    if figure["completed"] != run["asked"]:
        kinds = ", ".join(
            f"{count} {kind}" for kind, count in figure["outcomes"].items() if kind not in ("length", "stop", "ended")
        )
        text = f"{figure['completed']} of {run['asked']} requests completed"
        return f"{text} ({kinds or run.get('problem') or run.get('ended') or 'the others were never sent'})"
    if short:
        return f"{len(short)} requests brought another number of tokens than {context.fixed_length}"
    return ""


def _aborted(run: _Run, _figure: _Row, _context: Context) -> str:
    count = sum(1 for row in run["rows"] if row["ok"] and row["finish"] == "abort")
    return f"the server aborted {count} requests" if count else ""


def _stalled(run: _Run, _figure: _Row, _context: Context) -> str:
    return "no request moved any more" if run.get("ended") == "stalled" else ""


def _cut_short(run: _Run, _figure: _Row, _context: Context) -> str:
    ended = run.get("ended")
    if ended and ended != "stalled":
        return f"the run was ended before its time ({ended})"
    return str(run.get("problem") or "")


def _foreign(run: _Run, figure: _Row, _context: Context) -> str:
    served = figure["server"]["requests"]
    if served is not None and served > len(run["rows"]):
        return f"the server finished {served} requests, and {len(run['rows'])} were ours"
    if (run.get("idle") or {}).get("status") == 400:
        return "requests of others were running when it ended"
    return ""


def _unverified(run: _Run, figure: _Row, _context: Context) -> str:
    if run.get("ended") or run.get("problem"):
        return ""
    before, after = run.get("before") or {}, run.get("after") or {}
    problem = before.get("problem") or after.get("problem")
    back = [] if problem else [name for name in sorted(before) if after.get(name, math.inf) < before[name]]
    if back:
        return (
            f"the server's own counts went back ({back[0]} from {before[back[0]]:.0f} to {after[back[0]]:.0f}):"
            " it, or one of its processes, was started again meanwhile"
        )
    if problem or figure["server"]["generation_tokens"] is None:
        return f"the server's own counts cannot be read ({problem or 'no generation_tokens_total'}); set enable_metrics"
    return ""


def _tokens_differ(run: _Run, figure: _Row, _context: Context) -> str:
    server = figure["server"]["generation_tokens"]
    if server is None:
        return ""
    ours = sum(row["output_tokens"] for row in run["rows"])
    if abs(ours - server) > TOKEN_TOLERANCE * max(server, 1):
        return f"the client counted {ours} generated tokens, the server {server}"
    return ""


def _unreported(run: _Run, _figure: _Row, _context: Context) -> str:
    count = sum(1 for row in run["rows"] if row["ok"] and not row["reported"])
    return f"{count} answers did not tell how many tokens they have" if count else ""


def _not_flushed(run: _Run, _figure: _Row, _context: Context) -> str:
    flush = run.get("flush") or {}
    if flush.get("status") == 200:
        return ""
    return f"the prefix cache could not be flushed (status {flush.get('status')}: {flush.get('answer')})"


#: What makes a run, and with it its level, invalid.
RULES: t.Mapping[str, t.Callable[[_Run, _Row, Context], str]] = {
    "completed": _not_completed,
    "aborted": _aborted,
    "stalled": _stalled,
    "cut_short": _cut_short,
    "foreign_requests": _foreign,
    "unverified": _unverified,
    "token_counts": _tokens_differ,
    "token_counts_unreported": _unreported,
    "cache_not_flushed": _not_flushed,
}
#: The same, of what the host is seen to do: see `Context.observed`.
OBSERVED = ("died", "invocation_changed", "throttled")


# --- flags: a level stays valid with them --------------------------------------------------------------------------------------


def _inactive(figures_: t.Sequence[_Row], context: Context) -> str:
    if not context.speculative:
        return ""
    lengths = [one["acceptance"]["length"] for one in figures_ if one["acceptance"]]
    if lengths and max(lengths) <= 1.0:
        return "the server is told to speculate, and no draft was ever accepted"
    told = any(one["tokens_per_step"] for one in figures_)
    if not lengths and not told:
        return "the server is told to speculate, and no verify step was seen"
    return ""


def _no_acceptance(figures_: t.Sequence[_Row], context: Context) -> str:
    if context.speculative and not any(one["acceptance"] for one in figures_):
        return "no request told how many drafts were accepted; tokens_per_step is another figure"
    return ""


def _doubtful(figures_: t.Sequence[_Row], context: Context) -> str:
    for one in figures_:
        told = one["acceptance"]
        if not told or not context.speculative:
            continue
        if told["requests"] < _TOLD_SHARE * told["of_requests"]:
            return f"{told['requests']} of {told['of_requests']} requests told how many drafts were accepted"
        other = told["length_from_histogram"]
        if other is not None and abs(other - told["length"]) > _LENGTH_TOLERANCE * told["length"]:
            return f"the server's counts give an acceptance length of {told['length']:.3f}, its histograms one of {other:.3f}"
    return ""


def _above_limit(figures_: t.Sequence[_Row], context: Context, concurrency: int) -> str:
    del figures_
    if context.most_running and concurrency > context.most_running:
        return (
            f"{concurrency} requests in flight, and the server runs {context.most_running} at a time"
            " (max_running_requests): the others queue, and TTFT shows it"
        )
    return ""


def _short(figures_: t.Sequence[_Row], context: Context) -> str:
    seconds = min((one["steady"]["seconds"] if one["steady"] else 0.0 for one in figures_), default=0.0)
    # The number of requests is an estimate; a twentieth less changes no figure.
    if seconds < 0.95 * context.steady_s:
        return f"steady for {seconds:.1f} s, {context.steady_s:g} s are asked for"
    return ""


def _compiling(figures_: t.Sequence[_Row], context: Context) -> str:
    speeds = [one["output_tok_s"] for one in figures_ if one["output_tok_s"]]
    if len(speeds) >= 2 and speeds[0] < (1 - JIT_SHARE) * statistics.median(speeds[1:]):
        return f"the first repeat brought {speeds[0]:.1f} tok/s, the others {statistics.median(speeds[1:]):.1f}"
    if context.first and len(figures_) == 1 and figures_[0]["ttft_ms"]:
        ttft = figures_[0]["ttft_ms"]
        if ttft["p99"] > max(_JIT_TTFT_FACTOR * ttft["p50"], _JIT_TTFT_MS):
            return f"the slowest first token took {ttft['p99']:.0f} ms, half of them at most {ttft['p50']:.0f} ms"
    return ""


FLAGS = (
    "speculation_inactive",
    "acceptance_unknown",
    "acceptance_doubtful",
    "above_max_running_requests",
    "short_steady_state",
    "jit_suspected",
    "reduced",
)


def _flags(figures_: t.Sequence[_Row], context: Context, concurrency: int) -> list[dict[str, str]]:
    found = {
        "speculation_inactive": _inactive(figures_, context),
        "acceptance_unknown": _no_acceptance(figures_, context),
        "acceptance_doubtful": _doubtful(figures_, context),
        "above_max_running_requests": _above_limit(figures_, context, concurrency),
        "short_steady_state": _short(figures_, context),
        "jit_suspected": _compiling(figures_, context),
        "reduced": "; ".join(context.reduced),
    }
    return [{"flag": name, "detail": found[name]} for name in FLAGS if found[name]]


# --- a level -------------------------------------------------------------------------------------------------------------------


def median_mad_cv(values: t.Sequence[float]) -> dict[str, float | None] | None:
    """Median, median absolute deviation, and coefficient of variation (of the sample; None of a single value)."""
    if not values:
        return None
    middle = statistics.median(values)
    mean = statistics.fmean(values)
    varies = len(values) > 1 and mean
    return {
        "median": round(middle, 4),
        "mad": round(statistics.median(abs(value - middle) for value in values), 4),
        "cv": round(statistics.stdev(values) / mean, 5) if varies else None,
    }


#: Figures that a level sums up over its repeats, and where they stand in those of a run.
SUMMARY: t.Mapping[str, tuple[str, ...]] = {
    "output_tok_s": ("output_tok_s",),
    "steady_output_tok_s": ("steady", "output_tok_s"),
    "user_tok_s": ("user_tok_s",),
    "concurrency": ("concurrency",),
    "steady_concurrency": ("steady", "concurrency"),
    "ttft_p50_ms": ("ttft_ms", "p50"),
    "ttft_p99_ms": ("ttft_ms", "p99"),
    "tpot_p50_ms": ("tpot_ms", "p50"),
    "tpot_p99_ms": ("tpot_ms", "p99"),
    "e2e_p50_ms": ("e2e_ms", "p50"),
    "e2e_p99_ms": ("e2e_ms", "p99"),
    "chunk_gap_p99_ms": ("chunk_gap_p99_ms",),
    "acceptance_length": ("acceptance", "length"),
    "tokens_per_step": ("tokens_per_step",),
}


def _at(value: t.Any, path: t.Sequence[str]) -> t.Any:
    for name in path:
        value = None if value is None else value[name]
    return value


def level_result(concurrency: int, runs: t.Sequence[_Run], repeats: int, context: Context) -> dict[str, t.Any]:
    """One level: its repeats, their summary, whether it is valid and why not.

    :param runs: its measured runs, of which some may be missing.
    """
    found = [figures(run) for run in runs]
    reasons = []
    for run, figure in zip(runs, found):
        broken = {name: rule(run, figure, context) for name, rule in RULES.items()}
        figure["reasons"] = [{"rule": name, "detail": detail} for name, detail in broken.items() if detail]
        figure["valid"] = not figure["reasons"]
        reasons += [{**reason, "repeat": run["repeat"]} for reason in figure["reasons"]]
    reasons += [{"rule": name, "detail": context.observed[name]} for name in OBSERVED if context.observed.get(name)]
    if len(runs) < repeats:
        reasons.append({"rule": "not_measured", "detail": f"{len(runs)} of {repeats} repeats were measured"})
    chosen = [figure for figure in found if figure["valid"]] or found
    summary = {}
    for name, path in SUMMARY.items():
        values = [value for value in (_at(figure, path) for figure in chosen) if value is not None]
        summary[name] = median_mad_cv(values)
    return {
        "concurrency": concurrency,
        "valid": not reasons,
        "reasons": reasons,
        "flags": _flags(found, context, concurrency) if found else [],
        "summary": summary,
        "repeats": found,
    }
