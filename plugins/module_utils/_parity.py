# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether two servers generate the same tokens greedily, judged against a noise floor. PRIVATE to the collection.

Greedy output is not exact: its numbers depend on batch, backend and prefix cache. At the first difference the two tokens'
log-probabilities on the baseline tell a tie, which noise decides, from a mismatch, which it does not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import typing as t

#: Two tokens whose log-probabilities (nats) are nearer than this are a tie.
TIE_NATS = 0.1
#: The layout of a baseline file.
FORMAT = 1

#: What of /server_info decides the numbers. Baseline and comparison must agree in it.
SAME = (
    "version",
    "model_path",
    "revision",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "device",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "sampling_backend",
    "moe_runner_backend",
    "fp8_gemm_runner_backend",
    "fp4_gemm_runner_backend",
    "tp_size",
    "pp_size",
    "dp_size",
    "ep_size",
)
#: ... and what may differ, and is told.
TOLD = ("page_size", "chunked_prefill_size", "disable_radix_cache", "disable_cuda_graph", "max_running_requests")


class ParityError(Exception):
    """An answer or a file cannot be used."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """The tokens of one answer; ``top``: for each position the likeliest tokens and their log-probabilities, or nothing."""

    ids: tuple[int, ...]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference of two answers to prompt number ``prompt``, at token ``at`` (both from 0).

    ``gap`` (nats): how much likelier the baseline's token was, None when the other token is not among its likeliest.
    ``other`` None: that answer ended there; ``baseline`` None: the baseline did.
    """

    prompt: int
    at: int
    kind: str
    gap: float | None
    baseline: int | None
    other: int | None


def generation(answer: t.Any) -> Generation:
    """The tokens of one answer of ``/generate``. Raises ParityError where the release does not tell them."""
    if not isinstance(answer, dict) or not isinstance(answer.get("output_ids"), list):
        raise ParityError("the answer of /generate has no output_ids: this SGLang release does not tell its tokens")
    try:
        meta = answer.get("meta_info") or {}
        rows = meta.get("output_top_logprobs") or []
        reason = meta.get("finish_reason")
        ids = tuple(int(token) for token in answer["output_ids"])
        # [log-probability, token, text or null] each.
        top = tuple(tuple((int(entry[1]), float(entry[0])) for entry in row or ()) for row in rows)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ParityError(f"the answer of /generate has tokens that are none: {error}") from error
    if not ids or (isinstance(reason, dict) and reason.get("type") == "abort"):
        # Nothing is the same as nothing, so that it would pass for parity.
        raise ParityError(f"the answer of /generate was not finished: {len(ids)} tokens, finish_reason {reason!r}")
    if top and len(top) != len(ids):
        raise ParityError(f"the answer of /generate has {len(ids)} tokens and log-probabilities of {len(top)}")
    return Generation(ids, top)


def difference(number: int, baseline: Generation, other: Generation) -> Difference | None:
    """The first difference, None when there is none. ``baseline`` needs ``top``; without it every difference is a mismatch."""
    length = min(len(baseline.ids), len(other.ids))
    at = next((place for place in range(length) if baseline.ids[place] != other.ids[place]), length)
    if at == len(baseline.ids) == len(other.ids):
        return None
    ours = baseline.ids[at] if at < len(baseline.ids) else None
    theirs = other.ids[at] if at < len(other.ids) else None
    known = dict(baseline.top[at]) if at < len(baseline.top) else {}
    gap = None
    if ours in known and theirs in known:
        found = known[ours] - known[theirs]
        gap = round(found, 6) if math.isfinite(found) else None
    kind = "tie" if gap is not None and abs(gap) < TIE_NATS else "mismatch"
    return Difference(number, at, kind, gap, ours, theirs)


def differences(baseline: t.Sequence[Generation], other: t.Sequence[Generation]) -> list[Difference]:
    """The first difference of each prompt that has one."""
    found = [difference(number, one, two) for number, (one, two) in enumerate(zip(baseline, other))]
    return [item for item in found if item is not None]


def _counts(found: t.Sequence[Difference], prompts: int) -> dict[str, t.Any]:
    ties = sum(one.kind == "tie" for one in found)
    return {
        "prompts": prompts,
        "equal": prompts - len(found),
        "ties": ties,
        "mismatches": len(found) - ties,
        "differences": [dataclasses.asdict(one) for one in found],
    }


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What a server without speculation generated: twice, so that its own noise is known."""

    settings: t.Mapping[str, t.Any]
    prompts: str
    max_new_tokens: int
    generations: tuple[Generation, ...]
    floor: tuple[Difference, ...]
    recorded_at: str = ""
    #: Whether the prefix cache was flushed before each pass.
    flushed: bool = False

    def to_text(self) -> str:
        """The file's text."""
        value = {
            "format": FORMAT,
            "recorded_at": self.recorded_at,
            "settings": dict(self.settings),
            "prompts": self.prompts,
            "max_new_tokens": self.max_new_tokens,
            "flushed": self.flushed,
            "floor": [dataclasses.asdict(one) for one in self.floor],
            "generations": [{"ids": one.ids, "top": one.top} for one in self.generations],
        }
        return json.dumps(value, separators=(",", ":")) + "\n"

    def counts(self) -> dict[str, t.Any]:
        """Equal prompts, ties and mismatches between its two passes."""
        return _counts(self.floor, len(self.generations))


def _check(baseline: Baseline) -> None:
    """Raise ValueError for a baseline that would let a wrong server pass."""
    if not baseline.generations:
        raise ValueError("it holds no answers")
    for number, one in enumerate(baseline.generations):
        if not one.ids or len(one.top) != len(one.ids):
            raise ValueError(f"answer {number} has {len(one.ids)} tokens and log-probabilities of {len(one.top)}")
    differing = [one.prompt for one in baseline.floor]
    if len(set(differing)) != len(differing) or not set(differing) <= set(range(len(baseline.generations))):
        raise ValueError(f"the floor has differences in the prompts {differing}")
    if any(one.kind not in ("tie", "mismatch") for one in baseline.floor):
        raise ValueError("the floor has differences that are neither tie nor mismatch")


def read_baseline(text: str, *, name: str) -> Baseline:
    """A baseline from its file. Raises ParityError naming the file."""
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ParityError(
                f"{name}: a baseline of format {value['format']!r}, and {FORMAT} is read; record it again"
            )
        baseline = Baseline(
            settings=dict(value["settings"]),
            prompts=str(value["prompts"]),
            max_new_tokens=int(value["max_new_tokens"]),
            generations=tuple(
                Generation(
                    tuple(map(int, one["ids"])),
                    tuple(tuple((int(token), float(chance)) for token, chance in row) for row in one["top"]),
                )
                for one in value["generations"]
            ),
            floor=tuple(Difference(**one) for one in value["floor"]),
            recorded_at=str(value["recorded_at"]),
            flushed=bool(value["flushed"]),
        )
        _check(baseline)
        return baseline
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ParityError(
            f"{name}: no baseline of sglang_evaluate ({type(error).__name__}: {error}); record it again"
        ) from error


def prompts_digest(prompts: t.Iterable[str]) -> str:
    """Hash of the prompts, so that answers to others are never compared."""
    return hashlib.sha256(json.dumps(list(prompts)).encode("utf-8")).hexdigest()[:16]


def settings_of(server_info: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What a baseline remembers of ``/server_info``."""
    kept = {name: server_info[name] for name in (*SAME, *TOLD) if name in server_info}
    kept["speculative_algorithm"] = server_info.get("speculative_algorithm")
    return kept


def _differing(names: t.Iterable[str], baseline: t.Mapping[str, t.Any], now: t.Mapping[str, t.Any]) -> list[str]:
    # Releases tell different settings; one release tells the same ones each time.
    same_release = baseline.get("version") == now.get("version")

    def told(name: str) -> bool:
        if name in SAME and (same_release or name == "version"):
            return name in baseline or name in now
        return name in baseline and name in now

    return [
        f"{name}: {baseline.get(name)!r} when the baseline was recorded, {now.get(name)!r} now"
        for name in names
        if told(name) and baseline.get(name) != now.get(name)
    ]


def speculates(settings: t.Mapping[str, t.Any]) -> bool:
    """Whether a server with these settings speculates."""
    return str(settings.get("speculative_algorithm") or "none").lower() != "none"


def recorded(baseline: Baseline) -> dict[str, t.Any]:
    """The result of recording. A baseline whose own passes differ is one with a floor, and no failure."""
    return {"mode": "record", "passed": True, "floor": baseline.counts(), "settings": dict(baseline.settings)}


def compared(
    baseline: Baseline, now: t.Sequence[Generation], settings: t.Mapping[str, t.Any], *, flushed: bool
) -> dict[str, t.Any]:
    """The result of a comparison. ``passed``: like was compared with like, and there are no more mismatches than the floor has."""
    incomparable = _differing(SAME, baseline.settings, settings)
    told = _differing(TOLD, baseline.settings, settings)
    if flushed is not baseline.flushed:
        told.append(
            f"prefix cache: {'flushed' if baseline.flushed else 'not flushed'} when the baseline was recorded, "
            f"{'flushed' if flushed else 'not flushed'} now"
        )
    floor = baseline.counts()
    found = _counts(differences(baseline.generations, now), len(baseline.generations))
    return {
        "mode": "compare",
        **found,
        "floor": floor,
        "passed": not incomparable and found["mismatches"] <= floor["mismatches"],
        "incomparable": incomparable,
        "differing": told,
        "settings": dict(settings),
        "baseline_recorded_at": baseline.recorded_at,
    }


def verdict_text(result: t.Mapping[str, t.Any]) -> str:
    """The result in a line for people."""
    floor = result["floor"]
    noise = f"{floor['mismatches']} mismatches and {floor['ties']} ties between two runs of the baseline"
    if result["mode"] == "record":
        return f"baseline recorded: {floor['prompts']} prompts; floor: {noise}"
    if result["incomparable"]:
        differing = "; ".join(result["incomparable"])
        return f"not comparable: {differing}; record the baseline again with the settings of now"
    text = f"{result['equal']} of {result['prompts']} equal, {result['ties']} ties, {result['mismatches']} mismatches; floor: {noise}"
    return ("parity: " if result["passed"] else "NO parity: ") + text


__all__ = (
    "FORMAT",
    "SAME",
    "TIE_NATS",
    "TOLD",
    "Baseline",
    "Difference",
    "Generation",
    "ParityError",
    "compared",
    "difference",
    "differences",
    "generation",
    "prompts_digest",
    "read_baseline",
    "recorded",
    "settings_of",
    "speculates",
    "verdict_text",
)
