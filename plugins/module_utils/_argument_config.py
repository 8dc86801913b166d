# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments of one instance, as rules and estimates look at them. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._server_args import ServerArgsError, parse_release

__all__ = (
    "Config",
    "Number",
    "context_length_of",
    "text_config",
)

Number = tuple[int, int, int]

#: What SGLang takes where nothing was asked and no parser told its default (0.5.23, the same in the releases before).
_DEFAULTS: t.Final[t.Mapping[str, t.Any]] = {
    "attn_cp_size": 1,
    "attn_dp_size": 1,
    "base_gpu_id": 0,
    "detokenizer_worker_num": 1,
    "disaggregation_mode": "null",
    "dp_size": 1,
    "ep_size": 1,
    "gpu_id_step": 1,
    "kv_cache_dtype": "auto",
    "moe_a2a_backend": "none",
    "moe_dp_size": 1,
    "moe_runner_backend": "auto",
    "nnodes": 1,
    "node_rank": 0,
    "pp_size": 1,
    "schedule_conservativeness": 1.0,
    "schedule_policy": "fcfs",
    "speculative_accept_threshold_acc": 1.0,
    "speculative_accept_threshold_single": 1.0,
    "startup_weight_load_mode": "serial",
    "tokenizer_worker_num": 1,
    "tp_size": 1,
}

#: utils/hf_transformers/common.py (CONTEXT_LENGTH_KEYS), in its order.
_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)


def text_config(config: t.Mapping[str, t.Any]) -> t.Mapping[str, t.Any]:
    """The language model's part of a ``config.json``."""
    inner = config.get("text_config")
    return inner if isinstance(inner, t.Mapping) else config


def context_length_of(config: t.Mapping[str, t.Any]) -> int:
    """The context length that SGLang derives (utils/hf_transformers/common.py:677); 0 = the config does not tell."""
    text = text_config(config)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor: t.Any = 1
    if not isinstance(scaling, t.Mapping) or "original_max_position_embeddings" in scaling:
        scaling = {}
    if scaling.get("rope_type") != "llama3":
        factor = scaling.get("factor") or 1
    for key in _CONTEXT_KEYS:
        value = text.get(key)
        if isinstance(value, int) and isinstance(factor, (int, float)):
            return int(factor * value)
    return 0


@dataclasses.dataclass(frozen=True)
class Config:
    """One instance as the rules see it.

    :param values: dest to value, defaults included where a parser told them; ``asked`` are the dests that were given.
    :param compute_capability: of the GPUs times ten, as 120 for 12.0; 0 = unknown or no GPU.
    :param target: content of the target's ``config.json``, {} = not known; ``draft`` likewise.
    :param gpu_count: GPUs that the instance may use; None = unknown.
    :param algorithms: names that the engine knows for ``speculative_algorithm``; () = unknown.
    """

    values: t.Mapping[str, t.Any]
    asked: t.Collection[str]
    version: str
    device: str = "cuda"
    compute_capability: int = 0
    target: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    draft: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    gpu_count: int | None = None
    algorithms: tuple[str, ...] = ()
    has_key: bool = False

    def __getitem__(self, dest: str) -> t.Any:
        value = self.values.get(dest)
        return _DEFAULTS.get(dest) if value is None else value

    def number(self, dest: str) -> int:
        """A whole number; 0 where there is none."""
        value = self[dest]
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    @property
    def release(self) -> Number:
        try:
            return parse_release(self.version)
        except ServerArgsError:
            return (999, 0, 0)

    @property
    def algorithm(self) -> str:
        """In capitals, as SGLang turns it; '' = no speculation."""
        value = self["speculative_algorithm"]
        return str(value).upper() if value else ""

    @property
    def block_size(self) -> int:
        """DFLASH's block size as far as it is known; 0 = unknown."""
        asked = self.number("speculative_dflash_block_size") or self.number("speculative_num_draft_tokens")
        if asked:
            return asked
        own = self.draft.get("block_size")
        return own if isinstance(own, int) else 0

    @property
    def attn_dp(self) -> int:
        """Width of attention data parallelism, also by its old spelling (arg_groups/parallel_hook.py:39)."""
        if self["enable_dp_attention"] and self.number("attn_dp_size") == 1:
            return self.number("dp_size")
        return self.number("attn_dp_size")

    @property
    def replicas(self) -> int:
        """Data-parallel replicas, each with GPUs of its own."""
        return 1 if self["enable_dp_attention"] and self.number("attn_dp_size") == 1 else self.number("dp_size")

    @property
    def attention_backends(self) -> tuple[str, ...]:
        """What was asked for, for both phases."""
        names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
        return tuple(str(self[name]) for name in names if self[name])

    @property
    def latent_attention(self) -> bool | None:
        """Whether the target has multi-head latent attention (DeepSeek, Kimi); None = unknown."""
        return "kv_lora_rank" in text_config(self.target) if self.target else None

    @property
    def gpus_needed(self) -> int:
        """On this host."""
        return self.number("tp_size") * self.number("pp_size") * self.replicas // max(self.number("nnodes"), 1)

    @property
    def prefill_graph_off(self) -> bool:
        """Whether the arguments switch the prefill graph off, as far as they tell."""
        backend = self["cuda_graph_backend_prefill"]
        own = self["cuda_graph_config"]
        if isinstance(own, t.Mapping) and isinstance(own.get("prefill"), t.Mapping):
            backend = own["prefill"].get("backend", backend)
        if backend is not None:
            return bool(backend == "disabled")
        switches = ("disable_cuda_graph", "disable_prefill_cuda_graph", "disable_piecewise_cuda_graph")
        return any(self[name] for name in switches)

    @property
    def card_architecture(self) -> str:
        """As SGLang names it: SM120."""
        return f"SM{self.compute_capability}"
