# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of SGLang's arguments do not go together, as data. PRIVATE to the collection.

Each row is a rule that SGLang 0.5.23 has in its source, or that running it taught; most of them would end the server
after its weights were asked for, some leave one that starts and is wrong. Sources are relative to ``sglang/srt/`` of the 0.5.23
wheel, ``#N`` is an issue of sgl-project/sglang. What needs a GPU is only judged where the GPU is known.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._server_args import ServerArgsError, parse_release

__all__ = ("RULES", "Broken", "Config", "Rule", "broken_rules", "context_length_of")

_Number = tuple[int, int, int]
#: The release whose source the rules were read from.
READ_FROM: t.Final[_Number] = (0, 5, 23)

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
#: Draft backends that DFLASH takes as they are (arg_groups/choices.py:103).
_DRAFT_BACKENDS = ("flashinfer", "fa3", "fa4", "triton", "ascend", "trtllm_mha", "intel_xpu")
_EAGLES = ("EAGLE", "EAGLE3", "NEXTN")
#: Loaders of startup overlap (startup_weight_load.py:346).
_OVERLAP_FORMATS = ("auto", "safetensors")


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
    def release(self) -> _Number:
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
    since: _Number = (0, 0, 0)
    until: _Number = (999, 0, 0)


@dataclasses.dataclass(frozen=True)
class Broken:
    """A rule that an instance breaks. ``dest`` is the argument to look at, ``text`` what to tell, without the origin."""

    rule: Rule
    dest: str
    text: str
    is_error: bool


def _below_one(*dests: str) -> t.Callable[[Config], bool]:
    return lambda c: any(not isinstance(c[dest], int) or c[dest] < 1 for dest in dests)


def _a2a(c: Config) -> bool:
    return c["moe_a2a_backend"] not in (None, "none")


def _dflash(c: Config) -> bool:
    return c.algorithm == "DFLASH"


def _cuda(c: Config) -> bool:
    return c.device.startswith("cuda")


#: In the order in which they are told.
RULES: t.Final[tuple[Rule, ...]] = (
    # --- sizes, nodes, GPUs ---------------------------------------------------------------------------------------------
    Rule(
        "parallel-sizes",
        "arg_groups/fields/parallel.py:43",
        ("tp_size", "pp_size", "dp_size", "ep_size", "attn_dp_size", "nnodes"),
        _below_one("tp_size", "pp_size", "dp_size", "ep_size", "attn_dp_size", "nnodes"),
        "tp_size {tp_size}, pp_size {pp_size}, dp_size {dp_size}, ep_size {ep_size}, attn_dp_size {attn_dp_size} and nnodes {nnodes}"
        " must all be 1 or more",
        "leave it out for 1",
        certain=True,
    ),
    Rule(
        "nodes-divide",
        "arg_groups/validation_hook.py:179",
        ("nnodes", "tp_size", "pp_size"),
        lambda c: c.number("nnodes") > 0 and (c.number("tp_size") * c.number("pp_size")) % c.number("nnodes"),
        "tp_size {tp_size} x pp_size {pp_size} cannot be split over nnodes {nnodes}",
        "choose nnodes so that it divides tp_size x pp_size",
        certain=True,
    ),
    Rule(
        "node-rank",
        "arg_groups/fields/parallel.py:44",
        ("node_rank", "nnodes"),
        lambda c: not 0 <= c.number("node_rank") < max(c.number("nnodes"), 1),
        "node_rank {node_rank} does not exist with nnodes {nnodes}; nodes are counted from 0",
        "give each node its own number below nnodes",
        certain=True,
    ),
    Rule(
        "nodes-need-address",
        "arg_groups/fields/parallel.py:32",
        ("nnodes", "dist_init_addr"),
        lambda c: c.number("nnodes") > 1 and not c["dist_init_addr"],
        "nnodes is {nnodes}, but dist_init_addr is not set: every node would wait on itself",
        "set dist_init_addr to HOST:PORT of node 0 on all nodes",
        certain=True,
    ),
    Rule(
        "replicas-on-one-node",
        "arg_groups/validation_hook.py:199",
        ("dp_size", "nnodes"),
        lambda c: c.replicas > 1 and c.number("nnodes") > 1,
        "dp_size {dp_size} over nnodes {nnodes}: replicas cannot span nodes",
        "use attention data parallelism (attn_dp_size; enable_dp_attention before 0.5.22), or one server per node",
    ),
    Rule(
        "gpu-count",
        "server_args.py (compute_world_size)",
        ("tp_size", "pp_size", "dp_size"),
        lambda c: _cuda(c) and c.gpu_count is not None and c.gpus_needed > c.gpu_count > 0,
        "tp_size {tp_size} x pp_size {pp_size} x {c.replicas} replicas need {c.gpus_needed} GPUs on this host, but the instance may use"
        " {c.gpu_count}",
        "lower them, or give the instance more 'gpus'",
        certain=True,
    ),
    Rule(
        "gpu-offset",
        "arg_groups/validation_hook.py:204",
        ("base_gpu_id", "gpu_id_step"),
        lambda c: c.number("base_gpu_id") < 0 or c.number("gpu_id_step") < 1,
        "base_gpu_id {base_gpu_id} must be 0 or more, and gpu_id_step {gpu_id_step} must be 1 or more",
        "leave them out and choose GPUs with 'gpus'",
        certain=True,
    ),
    Rule(
        "gpu-offset-beyond",
        "arg_groups/fields/device.py:28",
        ("base_gpu_id", "gpu_id_step"),
        lambda c: (
            _cuda(c)
            and c.gpu_count
            and c.gpus_needed <= c.gpu_count
            and c.number("base_gpu_id") + (c.gpus_needed - 1) * max(c.number("gpu_id_step"), 1) >= c.gpu_count
        ),
        "base_gpu_id {base_gpu_id} with gpu_id_step {gpu_id_step} reaches beyond the {c.gpu_count} GPUs of the instance",
        "leave them out and choose GPUs with 'gpus'",
        certain=True,
    ),
    Rule(
        "attention-dp-divides",
        "arg_groups/parallel_hook.py:326",
        ("attn_dp_size", "dp_size", "tp_size"),
        lambda c: c.attn_dp > 1 and c.number("tp_size") % c.attn_dp,
        "attention data parallelism of {c.attn_dp} does not divide tp_size {tp_size}",
        "choose a divisor of tp_size",
        certain=True,
    ),
    Rule(
        "attention-dp-or-replicas",
        "arg_groups/parallel_hook.py:288",
        ("attn_dp_size", "dp_size"),
        lambda c: c.number("attn_dp_size") > 1 and c.number("dp_size") > 1,
        "attn_dp_size {attn_dp_size} and dp_size {dp_size} do not go together",
        "set one of them; dp_size is the number of replicas, each with tp_size GPUs of its own",
    ),
    Rule(
        "context-parallel-divides",
        "arg_groups/parallel_hook.py:159",
        ("attn_cp_size", "tp_size"),
        lambda c: c.number("attn_cp_size") > 1 and c.number("tp_size") % (c.number("attn_cp_size") * max(c.attn_dp, 1)),
        "tp_size {tp_size} is not divisible by attn_cp_size {attn_cp_size} x attention data parallelism {c.attn_dp}",
        "choose sizes whose product divides tp_size",
    ),
    Rule(
        "moe-dp",
        "arg_groups/parallel_hook.py:181",
        ("moe_dp_size", "ep_size", "tp_size"),
        lambda c: (
            c.number("moe_dp_size") > 1
            and (
                c.number("tp_size") % c.number("moe_dp_size")
                or (c.number("ep_size") > 1 and c.number("ep_size") * c.number("moe_dp_size") != c.number("tp_size"))
            )
        ),
        "moe_dp_size {moe_dp_size} must divide tp_size {tp_size}, and ep_size {ep_size} x moe_dp_size must equal tp_size",
        "choose moe_dp_size = tp_size / ep_size",
    ),
    Rule(
        "experts-divide",
        "distributed/parallel_state.py:2858",
        ("ep_size", "tp_size"),
        lambda c: c.number("ep_size") > 1 and c.number("tp_size") > 0 and c.number("tp_size") % c.number("ep_size"),
        "ep_size {ep_size} does not divide tp_size {tp_size}: experts are split over the ranks of tensor parallelism",
        "choose a divisor of tp_size, as a rule tp_size itself",
        certain=True,
    ),
    Rule(
        "experts-of-flashinfer",
        "arg_groups/moe_hook.py:89",
        ("ep_size", "moe_runner_backend"),
        lambda c: (
            c["moe_runner_backend"] in ("flashinfer_cutlass", "flashinfer_cutedsl")
            and c.number("ep_size") not in (1, c.number("tp_size"))
        ),
        "moe_runner_backend {moe_runner_backend} needs an ep_size of 1 or of tp_size {tp_size}, not {ep_size}",
        "set ep_size to one of them, or choose another moe_runner_backend",
    ),
    Rule(
        "experts-of-all-to-all",
        "arg_groups/moe_hook.py (a2a)",
        ("ep_size", "moe_a2a_backend"),
        lambda c: "ep_size" in c.asked and _a2a(c) and c.number("ep_size") != c.number("tp_size"),
        "moe_a2a_backend {moe_a2a_backend} sets ep_size to tp_size {tp_size}; the {ep_size} that was asked for is not used",
        "set ep_size to tp_size, or leave it out",
        warning=True,
    ),
    Rule(
        "eplb-needs-experts",
        "arg_groups/parallel_hook.py:791",
        ("enable_eplb", "ep_size"),
        lambda c: c["enable_eplb"] and c.number("ep_size") <= 1 and not _a2a(c),
        "enable_eplb needs an ep_size above 1",
        "set ep_size, or leave enable_eplb out",
    ),
    Rule(
        "dense-tp",
        "arg_groups/validation_hook.py:207",
        ("moe_dense_tp_size", "tp_size"),
        lambda c: c["moe_dense_tp_size"] not in (None, 1, c["tp_size"]),
        "moe_dense_tp_size {moe_dense_tp_size} must be 1 or tp_size {tp_size}",
        "set it to one of them, or leave it out",
    ),
    Rule(
        "heads-divide",
        "models (attention heads over the ranks of attention)",
        ("tp_size", "attn_dp_size"),
        lambda c: (
            _heads(c) and c.number("tp_size") > 0 and _heads(c) % max(c.number("tp_size") // max(c.attn_dp, 1), 1)
        ),
        "the target's attention heads cannot be split over tp_size {tp_size} / attention data parallelism {c.attn_dp}",
        "choose a tp_size that divides num_attention_heads of the target's config.json",
        warning=True,
    ),
    # --- pipeline ----------------------------------------------------------------------------------------------------------
    Rule(
        "pipeline-speculation",
        "arg_groups/validation_hook.py:133",
        ("pp_size", "speculative_algorithm"),
        lambda c: (
            c.number("pp_size") > 1
            and c.algorithm
            and not _dflash(c)
            and (c.algorithm not in ("EAGLE", "NEXTN", "DSPARK") or c["disaggregation_mode"] != "prefill")
            and c.environment.get("SGLANG_ENABLE_PP_SPEC", "0").lower() not in ("1", "true")
        ),
        "pp_size {pp_size} with speculative_algorithm {speculative_algorithm}: only EAGLE on prefill nodes does that",
        "set pp_size to 1 and split with tp_size",
    ),
    Rule(
        "pipeline-free-slots",
        "arg_groups/validation_hook.py:165",
        ("min_free_slots_delay", "pp_size"),
        lambda c: c.number("pp_size") > 1 and c["min_free_slots_delay"] is not None,
        "min_free_slots_delay does not work with pp_size {pp_size}",
        "leave it out",
    ),
    # --- speculation in general -----------------------------------------------------------------------------------------
    Rule(
        "algorithm-known",
        "speculative/spec_info.py:65",
        ("speculative_algorithm",),
        lambda c: c.algorithm and c.algorithms and c.algorithm not in c.algorithms,
        "speculative_algorithm {speculative_algorithm!r} is none that this engine knows",
        "choose one of {c.algorithms}",
        certain=True,
    ),
    Rule(
        "draft-without-algorithm",
        "arg_groups/fields/spec.py:31",
        (
            "speculative_draft_model_path",
            "speculative_num_draft_tokens",
            "speculative_dflash_block_size",
            "speculative_num_steps",
        ),
        lambda c: (
            not c.algorithm
            and any(
                dest in c.asked
                for dest in (
                    "speculative_draft_model_path",
                    "speculative_num_draft_tokens",
                    "speculative_dflash_block_size",
                    "speculative_num_steps",
                )
            )
        ),
        "speculative_algorithm is not set, so the other speculative arguments do nothing",
        "set speculative_algorithm, or take them out",
        warning=True,
        certain=True,
    ),
    Rule(
        "thresholds-lossy",
        "arg_groups/fields/spec.py:109",
        ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"),
        lambda c: (
            c.algorithm
            and (c["speculative_accept_threshold_single"] != 1.0 or c["speculative_accept_threshold_acc"] != 1.0)
        ),
        "acceptance thresholds of {speculative_accept_threshold_single} and {speculative_accept_threshold_acc} accept tokens that the target would"
        " not have chosen: the output differs from the target's",
        "leave them at 1.0 where quality counts",
        warning=True,
    ),
    Rule(
        "adaptive-eagle",
        "arg_groups/speculative_hook.py:1374",
        ("speculative_adaptive", "speculative_algorithm"),
        lambda c: c["speculative_adaptive"] and c.algorithm not in _EAGLES,
        "speculative_adaptive works with EAGLE only and is switched off for {speculative_algorithm}",
        "leave it out",
        warning=True,
    ),
    Rule(
        "overlap-load",
        "model_executor/model_runner_components/startup_weight_load.py:352",
        ("startup_weight_load_mode", "speculative_algorithm", "tp_size"),
        lambda c: (
            c["startup_weight_load_mode"] == "overlap"
            and (
                c.algorithm
                or c.number("tp_size") > 2
                or c.number("pp_size") > 1
                or c.number("dp_size") > 1
                or c.attn_dp > 1
                or (c["load_format"] or "auto") not in _OVERLAP_FORMATS
            )
        ),
        "startup_weight_load_mode overlap works only without speculation, with tp_size 1 or 2 and without pipeline or data parallelism",
        "leave startup_weight_load_mode out",
    ),
    Rule(
        "weight-cache-speculation",
        "weight_cache (client)",
        ("weight_cache_mode", "speculative_algorithm"),
        lambda c: c["weight_cache_mode"] == "client" and c.algorithm,
        "weight_cache_mode client does not work with speculation",
        "leave weight_cache_mode out",
    ),
    Rule(
        "window-positive",
        "arg_groups/speculative_hook.py:205",
        ("speculative_draft_window_size",),
        lambda c: c["speculative_draft_window_size"] is not None and c.number("speculative_draft_window_size") <= 0,
        "speculative_draft_window_size {speculative_draft_window_size} must be above 0",
        "leave it out for no window",
    ),
    Rule(
        "sink-needs-window",
        "arg_groups/speculative_hook.py:228",
        ("speculative_draft_sink_size",),
        lambda c: (
            c["speculative_draft_sink_size"] is not None
            and (c.number("speculative_draft_sink_size") < 0 or c["speculative_draft_window_size"] is None)
        ),
        "speculative_draft_sink_size {speculative_draft_sink_size} must be 0 or more and needs speculative_draft_window_size",
        "set both, or none",
    ),
    Rule(
        "block-verification",
        "arg_groups/speculative_hook.py:177",
        ("speculative_use_block_verification", "speculative_algorithm"),
        lambda c: (
            c["speculative_use_block_verification"]
            and (c.algorithm not in (*_EAGLES, "DFLASH", "DSPARK") or not _cuda(c))
        ),
        "speculative_use_block_verification works with EAGLE, EAGLE3, NEXTN, DFLASH and DSPARK on CUDA only, not with"
        " {c.algorithm} on {c.device}",
        "leave it out",
    ),
    Rule(
        "rejection-sampling-algorithm",
        "arg_groups/speculative_hook.py:1216",
        ("speculative_use_rejection_sampling", "speculative_algorithm"),
        # Only the handlers of these look at it; UNO refuses it by itself, the others pass over it.
        lambda c: c["speculative_use_rejection_sampling"] and c.algorithm in ("STANDALONE", "FROZEN_KV_MTP", "UNO"),
        "speculative_use_rejection_sampling works with EAGLE, EAGLE3 and NEXTN only, not with {speculative_algorithm}",
        "leave it out",
    ),
    Rule(
        "rejection-sampling-ignored",
        "arg_groups/speculative_hook.py:1210",
        ("speculative_use_rejection_sampling", "speculative_algorithm"),
        lambda c: c["speculative_use_rejection_sampling"] and c.algorithm in ("", "DFLASH", "DSPARK", "NGRAM"),
        "speculative_use_rejection_sampling does nothing with speculative_algorithm {speculative_algorithm}",
        "leave it out",
        warning=True,
    ),
    Rule(
        "rejection-sampling-chain",
        "arg_groups/speculative_hook.py:1221",
        ("speculative_use_rejection_sampling", "speculative_eagle_topk"),
        lambda c: (
            c["speculative_use_rejection_sampling"]
            and c.algorithm in _EAGLES
            and c.number("speculative_eagle_topk") > 1
        ),
        "speculative_use_rejection_sampling needs speculative_eagle_topk 1, not {speculative_eagle_topk}",
        "set speculative_eagle_topk to 1",
    ),
    Rule(
        "rejection-sampling-thresholds",
        "arg_groups/speculative_hook.py:1231",
        ("speculative_use_rejection_sampling", "speculative_accept_threshold_single"),
        lambda c: (
            c["speculative_use_rejection_sampling"]
            and c.algorithm in _EAGLES
            and (c["speculative_accept_threshold_single"] != 1.0 or c["speculative_accept_threshold_acc"] != 1.0)
        ),
        "speculative_use_rejection_sampling and acceptance thresholds other than 1.0 do not go together",
        "leave the thresholds out",
    ),
    Rule(
        "prefill-coordination",
        "arg_groups/speculative_hook.py:229",
        ("speculative_algorithm",),
        lambda c: (
            c.environment.get("SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION", "0").lower() in ("1", "true", "yes")
            and c.algorithm not in ("EAGLE", "EAGLE3", "NEXTN", "DSPARK")
        ),
        "the variable SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION needs EAGLE, EAGLE3 or DSPARK, not {speculative_algorithm}",
        "take the variable out of env",
    ),
    # --- DFLASH ---------------------------------------------------------------------------------------------------------
    Rule(
        "dflash-device",
        "arg_groups/speculative_hook.py:298",
        ("speculative_algorithm", "device"),
        lambda c: _dflash(c) and not (_cuda(c) or c.device in ("npu", "xpu")),
        "DFLASH does not run on device {c.device}",
        "run it on a GPU, or choose NGRAM, EAGLE or STANDALONE",
        certain=True,
    ),
    Rule(
        "dflash-draft",
        "arg_groups/speculative_hook.py:325",
        ("speculative_algorithm", "speculative_draft_model_path"),
        lambda c: _dflash(c) and not c["speculative_draft_model_path"],
        "DFLASH needs a draft model, but speculative_draft_model_path is not set",
        "set speculative_draft_model_path to the folder of the draft",
        certain=True,
    ),
    Rule(
        "dflash-pipeline",
        "arg_groups/speculative_hook.py:320",
        ("pp_size", "speculative_algorithm"),
        lambda c: _dflash(c) and c.number("pp_size") != 1,
        "DFLASH needs pp_size 1, not {pp_size}",
        "set pp_size to 1 and split with tp_size",
        certain=True,
    ),
    Rule(
        "dflash-attention-dp-old",
        "[0.5.22] server_args.py",
        ("enable_dp_attention", "attn_dp_size"),
        lambda c: _dflash(c) and c.attn_dp > 1,
        "DFLASH does not work with attention data parallelism before SGLang 0.5.23",
        "leave attention data parallelism out, or use 0.5.23",
        certain=True,
        until=(0, 5, 22),
    ),
    Rule(
        "dflash-attention-dp-head",
        "arg_groups/speculative_hook.py:308",
        ("attn_dp_size", "enable_dp_attention", "enable_dp_lm_head"),
        lambda c: _dflash(c) and c.attn_dp > 1 and c.device != "npu" and not c["enable_dp_lm_head"],
        "DFLASH with attention data parallelism of {c.attn_dp} needs enable_dp_lm_head",
        "set enable_dp_lm_head: true",
        since=(0, 5, 23),
    ),
    Rule(
        "dflash-attention-dp-context",
        "arg_groups/speculative_hook.py:310",
        ("attn_cp_size", "attn_dp_size"),
        lambda c: _dflash(c) and c.attn_dp > 1 and c.device != "npu" and c.number("attn_cp_size") != 1,
        "DFLASH with attention data parallelism needs attn_cp_size 1, not {attn_cp_size}",
        "leave attn_cp_size out",
        since=(0, 5, 23),
    ),
    Rule(
        "dflash-attention-dp-eager",
        "speculative/dflash_worker_v2.py:718",
        ("attn_dp_size", "enable_dp_attention"),
        lambda c: _dflash(c) and c.attn_dp > 1 and c["enable_dp_lm_head"] and _cuda(c),
        "with attention data parallelism DFLASH runs its draft without CUDA graphs, which is slower",
        "compare with tensor parallelism alone",
        warning=True,
        since=(0, 5, 23),
    ),
    Rule(
        "dflash-block-positive",
        "arg_groups/speculative_hook.py:370",
        ("speculative_dflash_block_size",),
        lambda c: (
            _dflash(c)
            and c["speculative_dflash_block_size"] is not None
            and c.number("speculative_dflash_block_size") <= 0
        ),
        "speculative_dflash_block_size {speculative_dflash_block_size} must be above 0",
        "set it to what the draft was trained for, or leave it out to take the draft's own",
        certain=True,
    ),
    Rule(
        "dflash-block-differs",
        "arg_groups/speculative_hook.py:377",
        ("speculative_num_draft_tokens", "speculative_dflash_block_size"),
        lambda c: (
            _dflash(c)
            and c["speculative_dflash_block_size"] is not None
            and c["speculative_num_draft_tokens"] is not None
            and c["speculative_num_draft_tokens"] != c["speculative_dflash_block_size"]
        ),
        "speculative_num_draft_tokens {speculative_num_draft_tokens} and speculative_dflash_block_size {speculative_dflash_block_size} are the same"
        " thing for DFLASH and must be equal",
        "keep one of them",
        certain=True,
    ),
    Rule(
        "dflash-window",
        "arg_groups/speculative_hook.py:430",
        ("speculative_draft_window_size", "speculative_dflash_block_size"),
        lambda c: _dflash(c) and c.block_size and 0 < c.number("speculative_draft_window_size") < c.block_size,
        "speculative_draft_window_size {speculative_draft_window_size} is smaller than the block size {c.block_size}",
        "make the window at least as large as the block",
    ),
    Rule(
        "dflash-steps",
        "arg_groups/speculative_hook.py:333",
        ("speculative_num_steps",),
        lambda c: _dflash(c) and c["speculative_num_steps"] not in (None, 1),
        "speculative_num_steps {speculative_num_steps} is overridden: DFLASH drafts a block in one step",
        "leave it out; speculative_dflash_block_size is what counts",
        warning=True,
    ),
    Rule(
        "dflash-topk",
        "arg_groups/speculative_hook.py:350",
        ("speculative_eagle_topk",),
        lambda c: _dflash(c) and c["speculative_eagle_topk"] not in (None, 1),
        "speculative_eagle_topk {speculative_eagle_topk} is overridden: DFLASH has one chain",
        "leave it out",
        warning=True,
    ),
    Rule(
        "dflash-block-of-two",
        "Blackwellboy/model-serving-minefield#105",
        ("speculative_num_draft_tokens", "speculative_dflash_block_size"),
        lambda c: _dflash(c) and c.block_size == 2 and _cuda(c),
        "a block size of 2 was reported to crash in graph capture, with messages that blame FP4",
        "use 4 or more",
        warning=True,
    ),
    Rule(
        "dflash-block-of-draft",
        "arg_groups/speculative_hook.py:378 (the draft's config.json)",
        ("speculative_dflash_block_size", "speculative_num_draft_tokens"),
        lambda c: (
            _dflash(c) and isinstance(c.draft.get("block_size"), int) and c.block_size > c.draft["block_size"] > 0
        ),
        "the block size {c.block_size} is above the {c.draft[block_size]} that the draft was made for",
        "use the draft's block size or a smaller one",
        warning=True,
    ),
    Rule(
        "dflash-draft-backend",
        "arg_groups/speculative_hook.py:923",
        ("speculative_draft_attention_backend",),
        lambda c: _dflash(c) and c["speculative_draft_attention_backend"] not in (None, *_DRAFT_BACKENDS),
        "speculative_draft_attention_backend {speculative_draft_attention_backend!r} is none that DFLASH takes; SGLang falls back to another",
        "choose flashinfer, fa3, fa4, triton or trtllm_mha",
        warning=True,
    ),
    Rule(
        "dflash-nvfp4-cache",
        "arg_groups/kv_cache_hook.py:172, #36001",
        ("kv_cache_dtype",),
        lambda c: _dflash(c) and c["kv_cache_dtype"] == "nvfp4",
        "kv_cache_dtype nvfp4 with DFLASH: refused on SM100, and a crash in graph capture was reported elsewhere",
        "use fp8_e4m3 or auto",
    ),
    Rule(
        "dflash-prefill-graph",
        "#35437",
        ("cuda_graph_backend_prefill", "speculative_algorithm"),
        lambda c: _dflash(c) and c.compute_capability == 120 and not c.prefill_graph_off and c.release >= (0, 5, 10),
        "DFLASH crashes in the prefill CUDA graph on SM120",
        "set cuda_graph_backend_prefill: disabled (disable_piecewise_cuda_graph: true before 0.5.14), or use the GPU profile rtx_pro_6000",
        warning=True,
    ),
    Rule(
        "dflash-decode-graph-switch",
        "[0.5.15] speculative/dflash_worker_v2.py:284",
        ("cuda_graph_backend_decode", "disable_decode_cuda_graph"),
        lambda c: (
            _dflash(c)
            and not c["disable_cuda_graph"]
            and (c["cuda_graph_backend_decode"] == "disabled" or c["disable_decode_cuda_graph"])
        ),
        "in 0.5.14 and 0.5.15 DFLASH's worker heeds only disable_cuda_graph",
        "set disable_cuda_graph: true",
        warning=True,
        since=(0, 5, 14),
        until=(0, 5, 15),
    ),
    Rule(
        "dflash-release",
        "PyPI: first in 0.5.11",
        ("speculative_algorithm",),
        _dflash,
        "DFLASH is not in SGLang before 0.5.11",
        "use 0.5.11 or newer",
        certain=True,
        until=(0, 5, 10),
    ),
    Rule(
        "dflash-grammar",
        "[0.5.13] speculative/dflash_utils.py:642",
        ("speculative_algorithm",),
        lambda c: _dflash(c) and (c["tool_call_parser"] or c["reasoning_parser"]),
        "DFLASH rejects requests with a grammar (structured output, strict tools) before 0.5.17, and with log-probabilities before 0.5.18",
        "use 0.5.18 or newer where clients need them",
        warning=True,
        since=(0, 5, 11),
        until=(0, 5, 17),
    ),
    # --- EAGLE and NGRAM -------------------------------------------------------------------------------------------------
    Rule(
        "eagle-three-numbers",
        "arg_groups/speculative_hook.py:1162",
        ("speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_num_steps"),
        lambda c: (
            c.algorithm in (*_EAGLES, "STANDALONE")
            and not c["speculative_adaptive"]
            and c["speculative_num_steps"] is None
            and (c["speculative_eagle_topk"] is not None or c["speculative_num_draft_tokens"] is not None)
        ),
        "speculative_eagle_topk or speculative_num_draft_tokens is set, but speculative_num_steps is not",
        "set all three of them, or none",
    ),
    Rule(
        "eagle-chain",
        "arg_groups/speculative_hook.py:1256",
        ("speculative_num_draft_tokens", "speculative_num_steps"),
        lambda c: (
            c.algorithm in (*_EAGLES, "STANDALONE")
            and c["speculative_eagle_topk"] == 1
            and c["speculative_num_steps"] is not None
            and c["speculative_num_draft_tokens"] not in (None, c.number("speculative_num_steps") + 1)
        ),
        "with speculative_eagle_topk 1, speculative_num_draft_tokens {speculative_num_draft_tokens} becomes speculative_num_steps"
        " {speculative_num_steps} + 1",
        "set speculative_num_draft_tokens to that",
        warning=True,
    ),
    Rule(
        "eagle-tree-pages",
        "arg_groups/speculative_hook.py:1278",
        ("page_size", "speculative_eagle_topk"),
        lambda c: (
            c.algorithm in (*_EAGLES, "STANDALONE")
            and c.number("speculative_eagle_topk") > 1
            and c.number("page_size") > 1
            and c["attention_backend"] not in (None, "flashinfer", "fa3", "triton")
        ),
        "speculative_eagle_topk {speculative_eagle_topk} with page_size {page_size} works with flashinfer, fa3 and triton only, not with"
        " {attention_backend}",
        "set page_size to 1, or choose one of them as attention_backend",
    ),
    Rule(
        "eagle-trtllm",
        "arg_groups/speculative_hook.py:1176",
        ("speculative_eagle_topk", "attention_backend"),
        lambda c: (
            c.algorithm in (*_EAGLES, "STANDALONE")
            and c.number("speculative_eagle_topk") > 1
            and "trtllm_mha" in c.attention_backends
        ),
        "attention backend trtllm_mha needs speculative_eagle_topk 1, not {speculative_eagle_topk}",
        "set speculative_eagle_topk to 1",
    ),
    Rule(
        "standalone-attention-dp",
        "arg_groups/speculative_hook.py:1082",
        ("attn_dp_size", "enable_dp_attention", "speculative_algorithm"),
        lambda c: c.algorithm == "STANDALONE" and c.attn_dp > 1,
        "STANDALONE does not work with attention data parallelism of {c.attn_dp}",
        "leave attention data parallelism out",
    ),
    Rule(
        "standalone-draft",
        "speculative/standalone_worker_v2.py",
        ("speculative_algorithm", "speculative_draft_model_path"),
        lambda c: c.algorithm in ("STANDALONE", "EAGLE3") and not c["speculative_draft_model_path"],
        "{speculative_algorithm} needs a draft model, but speculative_draft_model_path is not set",
        "set speculative_draft_model_path to the folder of the draft",
        warning=True,
    ),
    Rule(
        "ngram-attention-dp",
        "arg_groups/speculative_hook.py:1369",
        ("attn_dp_size", "enable_dp_attention", "speculative_algorithm"),
        lambda c: c.algorithm == "NGRAM" and c.attn_dp > 1,
        "NGRAM does not work with attention data parallelism of {c.attn_dp}",
        "leave attention data parallelism out",
    ),
    Rule(
        "ngram-device",
        "arg_groups/speculative_hook.py:1287",
        ("device", "speculative_algorithm"),
        lambda c: c.algorithm == "NGRAM" and c.device not in ("cuda", "cpu", "xpu"),
        "NGRAM does not run on device {c.device}",
        "run it on cuda, cpu or xpu",
    ),
    Rule(
        "ngram-pages",
        "arg_groups/speculative_hook.py:1356",
        ("page_size", "speculative_ngram_max_bfs_breadth"),
        lambda c: (
            c.algorithm == "NGRAM"
            and c.number("speculative_ngram_max_bfs_breadth") > 1
            and c.number("page_size") > 1
            and c["attention_backend"] not in (None, "flashinfer")
        ),
        "NGRAM with speculative_ngram_max_bfs_breadth {speculative_ngram_max_bfs_breadth} and page_size {page_size} gives wrong results with"
        " attention_backend {attention_backend}",
        "set page_size to 1, or use flashinfer",
    ),
    Rule(
        "ngram-corpus",
        "arg_groups/speculative_hook.py:1331",
        ("speculative_ngram_external_sam_budget", "speculative_ngram_external_corpus_path"),
        lambda c: (
            c.algorithm == "NGRAM"
            and c["speculative_ngram_external_corpus_path"]
            and (
                c.number("speculative_ngram_external_sam_budget") <= 0
                or c.number("speculative_ngram_external_sam_budget")
                > (c.number("speculative_num_draft_tokens") or 12) - 1
            )
        ),
        "speculative_ngram_external_sam_budget {speculative_ngram_external_sam_budget} must lie between 1 and speculative_num_draft_tokens - 1",
        "set it to a number in between",
    ),
    Rule(
        "mixed-chunk",
        "speculative/spec_info.py:147",
        ("enable_mixed_chunk", "speculative_algorithm"),
        lambda c: c["enable_mixed_chunk"] and c.algorithm in ("FROZEN_KV_MTP", "NGRAM", "STANDALONE", "UNO"),
        "enable_mixed_chunk is switched off for {speculative_algorithm}",
        "leave it out",
        warning=True,
    ),
    # --- memory and scheduling -------------------------------------------------------------------------------------------
    Rule(
        "memory-fraction",
        "arg_groups/fields/schedule.py:27",
        ("mem_fraction_static",),
        lambda c: c["mem_fraction_static"] is not None and not 0 < c["mem_fraction_static"] < 1,
        "mem_fraction_static {mem_fraction_static} must lie between 0 and 1; it is the share of GPU memory for weights and KV cache",
        "leave it out to let SGLang choose, or set it to 0.8 or so",
        certain=True,
    ),
    Rule(
        "memory-fraction-high",
        "public reports for Kimi-K2.6 on RTX PRO 6000",
        ("mem_fraction_static",),
        lambda c: (
            _cuda(c)
            and c.algorithm
            and isinstance(c["mem_fraction_static"], float)
            and 0.85 < c["mem_fraction_static"] < 1
            and c.compute_capability == 120
        ),
        "mem_fraction_static {mem_fraction_static} leaves little for the draft's CUDA graphs: above 0.85 starts were reported to run out of memory",
        "begin with 0.85 or less",
        warning=True,
    ),
    Rule(
        "chunk-of-pages",
        "arg_groups/validation_hook.py:244",
        ("chunked_prefill_size", "page_size"),
        lambda c: (
            c.number("chunked_prefill_size") > 0
            and c.number("page_size") > 0
            and c["disaggregation_mode"] != "decode"
            and c.number("chunked_prefill_size") % c.number("page_size")
        ),
        "chunked_prefill_size {chunked_prefill_size} is not divisible by page_size {page_size}",
        "choose a multiple of page_size",
    ),
    Rule(
        "page-positive",
        "arg_groups/fields/schedule.py:143",
        ("page_size",),
        lambda c: c["page_size"] is not None and c.number("page_size") < 1,
        "page_size {page_size} must be 1 or more",
        "leave it out to let SGLang choose",
        certain=True,
    ),
    Rule(
        "page-forced",
        "arg_groups/overrides.py:1144",
        ("page_size", "attention_backend"),
        lambda c: c["page_size"] is not None and _forced_page(c),
        "page_size {page_size} is changed by attention backend {c.attention_backends}",
        "set the page_size that the backend has: flashmla and hpc_ops 64; trtllm_mla 32 or 64; trtllm_mha 16, 32, 64 or 128",
        warning=True,
    ),
    Rule(
        "context-above-model",
        "configs/model_config.py:1314",
        ("context_length",),
        lambda c: (
            context_length_of(c.target)
            and c.number("context_length") > context_length_of(c.target)
            and c.environment.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "0").lower()
            not in ("1", "true", "yes", "y")
        ),
        "context_length {context_length} is above what the model has ({c.model_context})",
        'lower it, or set the variable SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN to "1" in env if you know that the model can',
        certain=True,
    ),
    Rule(
        "context-positive",
        "arg_groups/fields/model.py:110",
        ("context_length",),
        lambda c: c["context_length"] is not None and c.number("context_length") < 1,
        "context_length {context_length} must be 1 or more",
        "leave it out for the model's own",
        certain=True,
    ),
    Rule(
        "requests-positive",
        "arg_groups/fields/schedule.py:31",
        ("max_running_requests",),
        lambda c: c["max_running_requests"] is not None and c.number("max_running_requests") < 1,
        "max_running_requests {max_running_requests} must be 1 or more",
        "leave it out to let SGLang choose",
        certain=True,
    ),
    Rule(
        "conservativeness",
        "arg_groups/validation_hook.py:314",
        ("schedule_conservativeness",),
        lambda c: isinstance(c["schedule_conservativeness"], (int, float)) and c["schedule_conservativeness"] < 0,
        "schedule_conservativeness {schedule_conservativeness} must be 0 or more",
        "leave it out for 1.0",
    ),
    Rule(
        "priority-policy",
        "arg_groups/validation_hook.py:282",
        ("schedule_policy", "enable_priority_scheduling"),
        lambda c: c["enable_priority_scheduling"] and c["schedule_policy"] not in ("fcfs", "lof"),
        "enable_priority_scheduling needs the schedule_policy fcfs or lof, not {schedule_policy}",
        "set schedule_policy to one of them",
    ),
    Rule(
        "hierarchical-without-radix",
        "arg_groups/kv_cache_hook.py:394",
        ("disable_radix_cache", "enable_hierarchical_cache"),
        lambda c: c["disable_radix_cache"] and c["enable_hierarchical_cache"],
        "enable_hierarchical_cache and disable_radix_cache do not go together",
        "keep one of them",
    ),
    # --- attention, cache types, quantization ------------------------------------------------------------------------------
    Rule(
        "mha-backend-on-mla",
        "layers/attention/attention_registry.py:280",
        ("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
        lambda c: "trtllm_mha" in c.attention_backends and c.latent_attention,
        "attention backend trtllm_mha does not work with this model: it has latent attention (MLA)",
        "leave it out, or choose trtllm_mla, triton or flashinfer",
        certain=True,
    ),
    Rule(
        "trtllm-mla-card",
        "arg_groups/overrides.py:1210",
        ("attention_backend", "decode_attention_backend"),
        lambda c: _asks(c, "trtllm_mla") and _known_card(c) and c.compute_capability not in (100, 103, 110, 120, 121),
        "attention backend trtllm_mla needs a Blackwell GPU, but this host has {c.card_architecture}",
        "leave it out",
    ),
    Rule(
        "trtllm-mla-no-card",
        "arg_groups/overrides.py:1211",
        ("attention_backend", "decode_attention_backend"),
        lambda c: _asks(c, "trtllm_mla") and not _cuda(c),
        "attention backend trtllm_mla needs a Blackwell GPU, but the device is {c.device}",
        "leave it out",
    ),
    Rule(
        "trtllm-mla-cache",
        "arg_groups/overrides.py:1214",
        ("kv_cache_dtype", "attention_backend"),
        lambda c: _asks(c, "trtllm_mla") and _cuda(c) and c["kv_cache_dtype"] not in ("fp8_e4m3", "bf16", "auto"),
        "attention backend trtllm_mla takes the kv_cache_dtype fp8_e4m3, bf16 or auto, not {kv_cache_dtype}",
        "choose one of them",
    ),
    Rule(
        "cutedsl-mla-card",
        "arg_groups/overrides.py:1244",
        ("attention_backend", "decode_attention_backend", "prefill_attention_backend"),
        lambda c: (
            "cutedsl_mla" in c.attention_backends
            and (not _cuda(c) or (_known_card(c) and c.compute_capability not in (100, 103)))
        ),
        "attention backend cutedsl_mla needs SM100 or SM103 (B200, B300), but this host has {c.card_or_device}",
        "leave it out",
    ),
    Rule(
        "fa3-card",
        "layers/attention/attention_registry.py:244",
        ("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
        lambda c: "fa3" in c.attention_backends and _known_card(c) and not 80 <= c.compute_capability <= 90,
        "attention backend fa3 needs SM80 to SM90, but this host has {c.card_architecture}",
        "leave it out, or choose triton or flashinfer",
    ),
    Rule(
        "nvfp4-cache-card",
        "arg_groups/kv_cache_hook.py:125",
        ("kv_cache_dtype",),
        lambda c: (
            c["kv_cache_dtype"] == "nvfp4" and _known_card(c) and c.compute_capability not in (100, 103, 120, 121)
        ),
        "kv_cache_dtype nvfp4 needs SM100 or SM120, but this host has {c.card_architecture}",
        "use fp8_e4m3 or auto",
    ),
    Rule(
        "mxfp8-cache-card",
        "arg_groups/kv_cache_hook.py:106",
        ("kv_cache_dtype",),
        lambda c: c["kv_cache_dtype"] == "mxfp8" and (not _cuda(c) or (_known_card(c) and c.compute_capability < 100)),
        "kv_cache_dtype mxfp8 needs a Blackwell GPU, but this host has {c.card_or_device}",
        "use fp8_e4m3 or auto",
    ),
    Rule(
        "fp8-cache-sm120",
        "rtx6kpro: 16 tok/s",
        ("kv_cache_dtype",),
        lambda c: str(c["kv_cache_dtype"]).startswith("fp8") and c.compute_capability == 120 and c.latent_attention,
        "an fp8 KV cache was measured to be several times slower for int4 Kimi models on SM120",
        "compare with auto",
        warning=True,
    ),
    Rule(
        "draft-quantization",
        "arg_groups/fields/spec.py:216",
        ("speculative_draft_model_quantization", "quantization"),
        lambda c: (
            c.algorithm in ("DFLASH", "EAGLE3")
            and c["quantization"]
            and not c["speculative_draft_model_quantization"]
            and c.draft
            and not c.draft.get("quantization_config")
        ),
        "quantization {quantization} also counts for the draft, whose weights are not quantised",
        "set speculative_draft_model_quantization: unquant",
        warning=True,
        since=(0, 5, 9),
    ),
    Rule(
        "remote-code",
        "utils/hf_transformers/tokenizer.py:205",
        ("trust_remote_code",),
        lambda c: not c["trust_remote_code"] and (c.target.get("auto_map") or c.draft.get("auto_map")),
        "the config.json of the model or the draft names code of its own (auto_map), but trust_remote_code is not set",
        "set trust_remote_code: true if you trust it; Kimi models need it",
        warning=True,
    ),
    # --- CUDA graphs -----------------------------------------------------------------------------------------------------
    Rule(
        "graph-sizes",
        "arg_groups/memory_hook.py:202",
        ("cuda_graph_bs_decode", "cuda_graph_max_bs_decode"),
        lambda c: (
            _sizes(c) and c["cuda_graph_max_bs_decode"] is not None and c["cuda_graph_max_bs_decode"] != max(_sizes(c))
        ),
        "cuda_graph_max_bs_decode {cuda_graph_max_bs_decode} is not the largest of cuda_graph_bs_decode {cuda_graph_bs_decode}, which wins",
        "make them agree",
        warning=True,
    ),
    Rule(
        "graph-sizes-positive",
        "arg_groups/cuda_graph_hook.py:500",
        ("cuda_graph_bs_decode", "cuda_graph_bs_prefill", "cuda_graph_max_bs_decode"),
        lambda c: (
            any(size < 1 for size in _sizes(c))
            or (c["cuda_graph_max_bs_decode"] is not None and c.number("cuda_graph_max_bs_decode") < 1)
        ),
        "CUDA graphs cannot be captured for {cuda_graph_bs_decode} requests (cuda_graph_max_bs_decode {cuda_graph_max_bs_decode})",
        "use sizes of 1 and above; to have no graph set cuda_graph_backend_decode: disabled",
        certain=True,
    ),
    Rule(
        "graph-switch-overruled",
        "arg_groups/cuda_graph_hook.py:54",
        ("disable_cuda_graph", "disable_decode_cuda_graph", "disable_prefill_cuda_graph"),
        lambda c: (
            (
                (c["disable_cuda_graph"] or c["disable_decode_cuda_graph"])
                and c["cuda_graph_backend_decode"] not in (None, "disabled")
            )
            or (
                (c["disable_cuda_graph"] or c["disable_prefill_cuda_graph"])
                and c["cuda_graph_backend_prefill"] not in (None, "disabled")
            )
        ),
        "CUDA graphs are switched off and a backend is chosen for them; the backend wins",
        "keep one of them",
        warning=True,
    ),
    Rule(
        "padding-compile",
        "arg_groups/validation_hook.py:188",
        ("disable_cuda_graph_padding", "enable_torch_compile"),
        lambda c: c["disable_cuda_graph_padding"] and c["enable_torch_compile"],
        "disable_cuda_graph_padding and enable_torch_compile do not go together",
        "keep one of them",
    ),
    # --- HTTP and observation ---------------------------------------------------------------------------------------------
    Rule(
        "keys-need-one-tokenizer",
        "utils/auth.py:67",
        ("tokenizer_worker_num",),
        lambda c: c.has_key and c.number("tokenizer_worker_num") > 1,
        "tokenizer_worker_num {tokenizer_worker_num}: SGLang checks keys only with 1 worker, so everybody could use the server without its key",
        "leave tokenizer_worker_num out, or put a proxy that checks the key before the server and take api_key away",
        certain=True,
    ),
    Rule(
        "workers-positive",
        "arg_groups/validation_hook.py:273",
        ("tokenizer_worker_num", "detokenizer_worker_num"),
        lambda c: c.number("tokenizer_worker_num") < 1 or c.number("detokenizer_worker_num") < 1,
        "tokenizer_worker_num {tokenizer_worker_num} and detokenizer_worker_num {detokenizer_worker_num} must be 1 or more",
        "leave them out for 1",
    ),
    Rule(
        "tls-pair",
        "arg_groups/serving_hook.py:51",
        ("ssl_keyfile", "ssl_certfile"),
        lambda c: bool(c["ssl_keyfile"]) != bool(c["ssl_certfile"]),
        "ssl_keyfile and ssl_certfile go together, but only one is set",
        "set both, or none",
    ),
    Rule(
        "grpc-port",
        "arg_groups/validation_hook.py:360",
        ("grpc_port",),
        lambda c: (
            c["grpc_port"] is not None and c["grpc_port"] == c["port"] and not (c["grpc_mode"] or c["smg_grpc_mode"])
        ),
        "grpc_port {grpc_port} is the port of the HTTP server",
        "choose another one",
    ),
    Rule(
        "metrics-folder",
        "arg_groups/validation_hook.py:341",
        ("export_metrics_to_file",),
        lambda c: c["export_metrics_to_file"] and c["export_metrics_to_file_dir"] is None,
        "export_metrics_to_file needs export_metrics_to_file_dir",
        "set export_metrics_to_file_dir",
    ),
    Rule(
        "name-with-colon",
        "arg_groups/validation_hook.py:215",
        ("served_model_name",),
        lambda c: ":" in str(c["served_model_name"] or ""),
        "served_model_name {served_model_name!r} must not contain ':', which separates a LoRA adapter",
        "choose another name",
    ),
    Rule(
        "markers-silent",
        "model_executor/model_runner.py:1371",
        ("log_level",),
        lambda c: str(c["log_level"] or "info").lower() in ("warning", "error", "critical"),
        "log_level {log_level} hides the lines by which the start is followed and explained",
        "leave log_level out and silence the access log with log_level_http",
        warning=True,
    ),
)


def _heads(c: Config) -> int:
    value = text_config(c.target).get("num_attention_heads")
    return value if isinstance(value, int) else 0


def _known_card(c: Config) -> bool:
    return _cuda(c) and c.compute_capability > 0


def _asks(c: Config, backend: str) -> bool:
    return backend in (c["attention_backend"], c["decode_attention_backend"])


def _sizes(c: Config) -> list[int]:
    value = c["cuda_graph_bs_decode"]
    return [size for size in value if isinstance(size, int)] if isinstance(value, list) else []


#: arg_groups/overrides.py:1144-1200.
_PAGES: t.Final[t.Mapping[str, tuple[int, ...]]] = {
    "flashmla": (64,),
    "hpc_ops": (64,),
    "cutedsl_mla": (32, 64),
    "trtllm_mla": (32, 64),
    "trtllm_mha": (16, 32, 64, 128),
}


def _forced_page(c: Config) -> bool:
    return any(c["page_size"] not in _PAGES.get(backend, (c["page_size"],)) for backend in c.attention_backends)


class _Values(t.Mapping[str, t.Any]):
    """What a message may name: every argument, and the config itself as ``c``."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __getitem__(self, name: str) -> t.Any:
        if name == "c":
            return _Shown(self._config)
        value = self._config[name]
        return "not set" if value is None else value

    def __iter__(self) -> t.Iterator[str]:
        return iter(self._config.values)

    def __len__(self) -> int:
        return len(self._config.values)


class _Shown:
    """The config's properties for a message: tuples become lists of words."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __getattr__(self, name: str) -> t.Any:
        if name == "model_context":
            return context_length_of(self._config.target)
        if name == "card_or_device":
            known = self._config.compute_capability
            return self._config.card_architecture if known else f"the device {self._config.device}"
        value = getattr(self._config, name)
        return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def broken_rules(config: Config, rules: t.Iterable[Rule] = RULES) -> list[Broken]:
    """The rules that the arguments of one instance break, in the order of the table."""
    found = []
    for rule in rules:
        if not rule.since <= config.release <= rule.until:
            continue
        try:
            broken = rule.broken(config)
        except (TypeError, ValueError, ZeroDivisionError):
            # A value of another type than the rule is about; the parser's own check tells that.
            continue
        if not broken:
            continue
        values = _Values(config)
        elsewhere = not rule.certain and config.release != READ_FROM and not rule.since > (0, 0, 0)
        note = "" if not elsewhere or rule.warning else " (so in SGLang 0.5.23)"
        text = f"{rule.message.format_map(values)}{note}; {rule.remedy.format_map(values)} [{rule.id}]"
        dest = next((dest for dest in rule.dests if dest in config.asked), rule.dests[0])
        found.append(Broken(rule, dest, re.sub(r"\s+", " ", text), not rule.warning and not elsewhere))
    return found
