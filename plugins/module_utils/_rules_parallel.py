# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about sizes, nodes, GPUs and the pipeline, see ``_argument_rules``. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._rules_common import (
    Rule,
    attention_heads,
    below_one,
    is_dflash,
    on_cuda,
    uses_a2a,
)

__all__ = ("PARALLEL_RULES",)

PARALLEL_RULES: t.Final[tuple[Rule, ...]] = (
    # --- sizes, nodes, GPUs ---------------------------------------------------------------------------------------------
    Rule(
        "parallel-sizes",
        "arg_groups/fields/parallel.py:43",
        ("tp_size", "pp_size", "dp_size", "ep_size", "attn_dp_size", "nnodes"),
        below_one("tp_size", "pp_size", "dp_size", "ep_size", "attn_dp_size", "nnodes"),
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
        "replicas-meet",
        "managers/data_parallel_controller.py:434",
        ("nccl_port", "dp_size"),
        lambda c: c["nccl_port"] and c.replicas > 1,
        "nccl_port {nccl_port} would be the meeting point of each of the {c.replicas} replicas (dp_size {dp_size}), and only one can have it",
        "leave it out: SGLang draws one for each",
        certain=True,
        since=(0, 5, 9),
    ),
    Rule(
        "gpu-count",
        "server_args.py (compute_world_size)",
        ("tp_size", "pp_size", "dp_size"),
        lambda c: on_cuda(c) and c.gpu_count is not None and c.gpus_needed > c.gpu_count > 0,
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
            on_cuda(c)
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
        lambda c: "ep_size" in c.asked and uses_a2a(c) and c.number("ep_size") != c.number("tp_size"),
        "moe_a2a_backend {moe_a2a_backend} sets ep_size to tp_size {tp_size}; the {ep_size} that was asked for is not used",
        "set ep_size to tp_size, or leave it out",
        warning=True,
    ),
    Rule(
        "eplb-needs-experts",
        "arg_groups/parallel_hook.py:791",
        ("enable_eplb", "ep_size"),
        lambda c: c["enable_eplb"] and c.number("ep_size") <= 1 and not uses_a2a(c),
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
            attention_heads(c)
            and c.number("tp_size") > 0
            and attention_heads(c) % max(c.number("tp_size") // max(c.attn_dp, 1), 1)
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
            and not is_dflash(c)
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
)
