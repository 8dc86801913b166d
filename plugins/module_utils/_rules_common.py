# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rule about arguments, and what several rules ask of them. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._argument_config import Config, Number, text_config

__all__ = (
    "DRAFT_BACKENDS",
    "EAGLES",
    "OVERLAP_FORMATS",
    "Rule",
    "asks_for",
    "attention_heads",
    "below_one",
    "card_is_known",
    "graph_sizes",
    "is_dflash",
    "on_cuda",
    "page_is_forced",
    "uses_a2a",
)

EAGLES = ("EAGLE", "EAGLE3", "NEXTN")

#: Draft backends that DFLASH takes as they are (arg_groups/choices.py:103).
DRAFT_BACKENDS = ("flashinfer", "fa3", "fa4", "triton", "ascend", "trtllm_mha", "intel_xpu")

#: Loaders of startup overlap (startup_weight_load.py:346).
OVERLAP_FORMATS = ("auto", "safetensors")

#: arg_groups/overrides.py:1144-1200.
_PAGES: t.Final[t.Mapping[str, tuple[int, ...]]] = {
    "flashmla": (64,),
    "hpc_ops": (64,),
    "cutedsl_mla": (32, 64),
    "trtllm_mla": (32, 64),
    "trtllm_mha": (16, 32, 64, 128),
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """``broken`` says that the rule does not hold. ``message`` and ``remedy`` take the values by name, and ``{c.x}``.

    ``dests`` are the arguments that it is about; the first one that was asked for tells where the fault comes from. ``since`` and ``until``
    bound the releases that have it. ``certain`` rules are arithmetic or as old as what they are about: they are errors
    in every release, while the others are errors in the release that they were read from and warnings elsewhere.
    """

    id: str
    source: str
    dests: tuple[str, ...]
    broken: t.Callable[[Config], t.Any]
    message: str
    remedy: str
    warning: bool = False
    certain: bool = False
    since: Number = (0, 0, 0)
    until: Number = (999, 0, 0)


def below_one(*dests: str) -> t.Callable[[Config], bool]:
    """Whether one of them is below 1, or no number."""
    return lambda c: any(not isinstance(c[dest], int) or c[dest] < 1 for dest in dests)


def uses_a2a(c: Config) -> bool:
    """Whether experts exchange tokens by a backend of their own."""
    return c["moe_a2a_backend"] not in (None, "none")


def is_dflash(c: Config) -> bool:
    """Whether the draft is a DFLASH one."""
    return c.algorithm == "DFLASH"


def on_cuda(c: Config) -> bool:
    """Whether it runs on NVIDIA GPUs."""
    return c.device.startswith("cuda")


def attention_heads(c: Config) -> int:
    """Of the target, 0 when they are not known."""
    value = text_config(c.target).get("num_attention_heads")
    return value if isinstance(value, int) else 0


def card_is_known(c: Config) -> bool:
    """Whether the GPU was seen."""
    return on_cuda(c) and c.compute_capability > 0


def asks_for(c: Config, backend: str) -> bool:
    """Whether an attention backend was asked for, for all or for decoding."""
    return backend in (c["attention_backend"], c["decode_attention_backend"])


def graph_sizes(c: Config) -> list[int]:
    """The batch sizes of CUDA graphs that were asked for."""
    value = c["cuda_graph_bs_decode"]
    return [size for size in value if isinstance(size, int)] if isinstance(value, list) else []


def page_is_forced(c: Config) -> bool:
    """Whether an attention backend takes other page sizes than what was asked for."""
    return any(c["page_size"] not in _PAGES.get(backend, (c["page_size"],)) for backend in c.attention_backends)
