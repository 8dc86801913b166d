# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Twelve configurations of one stand-in, of which four are sound: what is swept, what goes wrong where, and what has to be found.

The faults hang on the arguments and lie in the instance's own environment, so that the sweep file is one that a user could have written.
Nothing here starts anything.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import typing as t

from ansible_collections.specdec.serving.tests.support.stand_in import inventory as stand_in

PORT: t.Final = 31710
NAME: t.Final = "k26-dflash"
UNIT: t.Final = f"sglang-{NAME}.service"
PARITY_BASELINE: t.Final = f"/var/lib/specdec/sglang/parity/{NAME}.json"
#: Seconds of a decode step at every scale: what is compared is how many of them a block size needs.
_DECODE_STEP_S = 0.003

#: As a user would write it.
SWEEP: t.Final[t.Mapping[str, t.Any]] = {
    "instance": NAME,
    "space": {
        "speculative_dflash_block_size": [8, 4],
        "chunked_prefill_size": [2048, 4096, 8192, 16384],
    },
    "include": [
        {"speculative_dflash_block_size": 16, "chunked_prefill_size": 2048},
        {"speculative_dflash_block_size": "8", "chunked_prefill_size": 2048},
        {"speculative_dflash_block_size": 8, "chunked_prefill_size": "lots"},
    ],
    "workloads": ["./short.yml"],
    "levels": [2],
    "repeats": 3,
    # Wide: the machine that runs this is busy with other tests.
    "gates": {"parity": True, "max_cv": 0.3},
    "objective": {"metric": "output_tok_s", "level": 2},
}

WORKLOAD: t.Final[t.Mapping[str, t.Any]] = {
    "name": "short",
    "description": "For tests of sweeps.",
    "kind": "fixed",
    "input_length": 16,
    "output_length": 64,
    "requests": {"per_user": 8, "minimum": 16, "steady_state_s": 0},
    "repeats": 1,
}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One of the twelve. ``verdict``: of its row; ``why``: a part of the reason that the row gives for not having won."""

    changes: t.Mapping[str, t.Any]
    verdict: str
    why: str = ""

    @property
    def is_sound(self) -> bool:
        return self.verdict == "complete"


def _of(block: t.Any, chunk: t.Any, verdict: str, why: str = "") -> Configuration:
    return Configuration({"speculative_dflash_block_size": block, "chunked_prefill_size": chunk}, verdict, why)


#: In the order in which a grid lists them. The largest block is the fastest, and wrong.
CONFIGURATIONS: t.Final = (
    Configuration({}, "complete", "less output_tok_s than trial 1"),
    _of(8, 2048, "complete"),
    _of(8, 4096, "unstable", "the repeats of level 2 of ./short.yml scatter"),
    _of(8, 8192, "illegal_memory_access", "illegal memory access"),
    _of(8, 16384, "gpu_out_of_memory", "memory ran out on TP1"),
    _of(4, 2048, "complete", "than trial 1"),
    _of(4, 4096, "complete", "than trial 1"),
    _of(4, 8192, "wrong_model", "org/model-a"),
    _of(4, 16384, "stalled", "nothing moved"),
    _of(16, 2048, "parity", "NO parity: 0 of 24 equal"),
    _of("8", 2048, "duplicate", "the same as trial 1"),
    _of(8, "lots", "rejected", "'lots'"),
)
WINNER: t.Final = 1


def planned() -> list[tuple[Configuration, bool]]:
    """The trials by number, each with whether it is the baseline once more, which is measured in the middle and at the end."""
    again = (Configuration({}, "complete", "the baseline once more"), True)
    return [*((one, False) for one in CONFIGURATIONS), again, again]


def _with(block: int, chunk: int) -> dict[str, t.Any]:
    return {"with": {"speculative_dflash_block_size": block, "chunked_prefill_size": chunk}}


def _faults() -> list[dict[str, t.Any]]:
    return [
        # After the readiness probe, the warm-up (2) and the first repeat (16), for as long as the second one takes.
        {"on": "/generate", "do": "delay", "seconds": 0.5, "skip": 19, "for_s": 4, **_with(8, 4096)},
        # In a decode step of the first repeat: readiness takes some ten, the warm-up some twenty.
        {"fault": "illegal-memory-access", "at": "decode", "who": "TP0", "skip": 100, **_with(8, 8192)},
        {"fault": "oom-load-target", **_with(8, 16384)},
        {"fault": "wrong-model", **_with(4, 8192)},
        {"fault": "hang-load-target", **_with(4, 16384)},
    ]


def _answers() -> list[dict[str, t.Any]]:
    """What verification with the largest block lets through: another token than the model's own, the fourth of every answer."""
    return [{"match": "", "tokens": {"3": 12}, "with": {"speculative_dflash_block_size": 16}}]


def instance(*, tokenizer_path: str, scale: float) -> dict[str, t.Any]:
    """The entry of ``sglang_instances``: the known-good configuration, with the smallest block. ``scale``: of the story's 210 s."""
    own = stand_in.instance(NAME, PORT)
    return {
        **own,
        "args": {
            **own["args"],
            # The client makes its random tokens with it.
            "tokenizer_path": tokenizer_path,
            "max_running_requests": 8,
            "speculative_dflash_block_size": 2,
        },
        "env": {
            "STAND_IN_SCALE": f"{scale:g}",
            "STAND_IN_TIMES": json.dumps({"decode_step": _DECODE_STEP_S / scale}),
            "STAND_IN_FAULT": json.dumps(_faults()),
            "STAND_IN_ANSWERS": json.dumps(_answers()),
        },
    }


def without_speculation(entry: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The same entry as the server that parity is compared with."""
    kept = {name: value for name, value in entry["args"].items() if not name.startswith("speculative_")}
    return {**entry, "args": kept}


def command_line(changes: t.Mapping[str, t.Any]) -> str:
    """The changes as words of a command line, for those who write units by hand."""
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in changes.items())
    return " ".join(itertools.chain.from_iterable(pairs))


__all__ = (
    "CONFIGURATIONS",
    "NAME",
    "PARITY_BASELINE",
    "PORT",
    "SWEEP",
    "UNIT",
    "WINNER",
    "WORKLOAD",
    "Configuration",
    "command_line",
    "instance",
    "planned",
    "without_speculation",
)
