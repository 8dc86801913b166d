# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about speculation, see ``_argument_rules``. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._rules_common import (
    DRAFT_BACKENDS,
    EAGLES,
    OVERLAP_FORMATS,
    Rule,
    is_dflash,
    on_cuda,
)

__all__ = ("SPECULATION_RULES",)

SPECULATION_RULES: t.Final[tuple[Rule, ...]] = (
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
        lambda c: c["speculative_adaptive"] and c.algorithm not in EAGLES,
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
                or (c["load_format"] or "auto") not in OVERLAP_FORMATS
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
            and (c.algorithm not in (*EAGLES, "DFLASH", "DSPARK") or not on_cuda(c))
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
            c["speculative_use_rejection_sampling"] and c.algorithm in EAGLES and c.number("speculative_eagle_topk") > 1
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
            and c.algorithm in EAGLES
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
        lambda c: is_dflash(c) and not (on_cuda(c) or c.device in ("npu", "xpu")),
        "DFLASH does not run on device {c.device}",
        "run it on a GPU, or choose NGRAM, EAGLE or STANDALONE",
        certain=True,
    ),
    Rule(
        "dflash-draft",
        "arg_groups/speculative_hook.py:325",
        ("speculative_algorithm", "speculative_draft_model_path"),
        lambda c: is_dflash(c) and not c["speculative_draft_model_path"],
        "DFLASH needs a draft model, but speculative_draft_model_path is not set",
        "set speculative_draft_model_path to the folder of the draft",
        certain=True,
    ),
    Rule(
        "dflash-pipeline",
        "arg_groups/speculative_hook.py:320",
        ("pp_size", "speculative_algorithm"),
        lambda c: is_dflash(c) and c.number("pp_size") != 1,
        "DFLASH needs pp_size 1, not {pp_size}",
        "set pp_size to 1 and split with tp_size",
        certain=True,
    ),
    Rule(
        "dflash-attention-dp-old",
        "[0.5.22] server_args.py",
        ("enable_dp_attention", "attn_dp_size"),
        lambda c: is_dflash(c) and c.attn_dp > 1,
        "DFLASH does not work with attention data parallelism before SGLang 0.5.23",
        "leave attention data parallelism out, or use 0.5.23",
        certain=True,
        until=(0, 5, 22),
    ),
    Rule(
        "dflash-attention-dp-head",
        "arg_groups/speculative_hook.py:308",
        ("attn_dp_size", "enable_dp_attention", "enable_dp_lm_head"),
        lambda c: is_dflash(c) and c.attn_dp > 1 and c.device != "npu" and not c["enable_dp_lm_head"],
        "DFLASH with attention data parallelism of {c.attn_dp} needs enable_dp_lm_head",
        "set enable_dp_lm_head: true",
        since=(0, 5, 23),
    ),
    Rule(
        "dflash-attention-dp-context",
        "arg_groups/speculative_hook.py:310",
        ("attn_cp_size", "attn_dp_size"),
        lambda c: is_dflash(c) and c.attn_dp > 1 and c.device != "npu" and c.number("attn_cp_size") != 1,
        "DFLASH with attention data parallelism needs attn_cp_size 1, not {attn_cp_size}",
        "leave attn_cp_size out",
        since=(0, 5, 23),
    ),
    Rule(
        "dflash-attention-dp-eager",
        "speculative/dflash_worker_v2.py:718",
        ("attn_dp_size", "enable_dp_attention"),
        lambda c: is_dflash(c) and c.attn_dp > 1 and c["enable_dp_lm_head"] and on_cuda(c),
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
            is_dflash(c)
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
            is_dflash(c)
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
        lambda c: is_dflash(c) and c.block_size and 0 < c.number("speculative_draft_window_size") < c.block_size,
        "speculative_draft_window_size {speculative_draft_window_size} is smaller than the block size {c.block_size}",
        "make the window at least as large as the block",
    ),
    Rule(
        "dflash-steps",
        "arg_groups/speculative_hook.py:333",
        ("speculative_num_steps",),
        lambda c: is_dflash(c) and c["speculative_num_steps"] not in (None, 1),
        "speculative_num_steps {speculative_num_steps} is overridden: DFLASH drafts a block in one step",
        "leave it out; speculative_dflash_block_size is what counts",
        warning=True,
    ),
    Rule(
        "dflash-topk",
        "arg_groups/speculative_hook.py:350",
        ("speculative_eagle_topk",),
        lambda c: is_dflash(c) and c["speculative_eagle_topk"] not in (None, 1),
        "speculative_eagle_topk {speculative_eagle_topk} is overridden: DFLASH has one chain",
        "leave it out",
        warning=True,
    ),
    Rule(
        "dflash-block-of-two",
        "Blackwellboy/model-serving-minefield#105",
        ("speculative_num_draft_tokens", "speculative_dflash_block_size"),
        lambda c: is_dflash(c) and c.block_size == 2 and on_cuda(c),
        "a block size of 2 was reported to crash in graph capture, with messages that blame FP4",
        "use 4 or more",
        warning=True,
    ),
    Rule(
        "dflash-block-of-draft",
        "arg_groups/speculative_hook.py:378 (the draft's config.json)",
        ("speculative_dflash_block_size", "speculative_num_draft_tokens"),
        lambda c: (
            is_dflash(c) and isinstance(c.draft.get("block_size"), int) and c.block_size > c.draft["block_size"] > 0
        ),
        "the block size {c.block_size} is above the {c.draft[block_size]} that the draft was made for",
        "use the draft's block size or a smaller one",
        warning=True,
    ),
    Rule(
        "dflash-draft-backend",
        "arg_groups/speculative_hook.py:923",
        ("speculative_draft_attention_backend",),
        lambda c: is_dflash(c) and c["speculative_draft_attention_backend"] not in (None, *DRAFT_BACKENDS),
        "speculative_draft_attention_backend {speculative_draft_attention_backend!r} is none that DFLASH takes; SGLang falls back to another",
        "choose flashinfer, fa3, fa4, triton or trtllm_mha",
        warning=True,
    ),
    Rule(
        "dflash-nvfp4-cache",
        "arg_groups/kv_cache_hook.py:172, #36001",
        ("kv_cache_dtype",),
        lambda c: is_dflash(c) and c["kv_cache_dtype"] == "nvfp4",
        "kv_cache_dtype nvfp4 with DFLASH: refused on SM100, and a crash in graph capture was reported elsewhere",
        "use fp8_e4m3 or auto",
    ),
    Rule(
        "dflash-prefill-graph",
        "#35437",
        ("cuda_graph_backend_prefill", "speculative_algorithm"),
        lambda c: is_dflash(c) and c.compute_capability == 120 and not c.prefill_graph_off and c.release >= (0, 5, 10),
        "DFLASH crashes in the prefill CUDA graph on SM120",
        "set cuda_graph_backend_prefill: disabled (disable_piecewise_cuda_graph: true before 0.5.14), or use the GPU profile rtx_pro_6000",
        warning=True,
    ),
    Rule(
        "dflash-decode-graph-switch",
        "[0.5.15] speculative/dflash_worker_v2.py:284",
        ("cuda_graph_backend_decode", "disable_decode_cuda_graph"),
        lambda c: (
            is_dflash(c)
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
        is_dflash,
        "DFLASH is not in SGLang before 0.5.11",
        "use 0.5.11 or newer",
        certain=True,
        until=(0, 5, 10),
    ),
    Rule(
        "dflash-grammar",
        "[0.5.13] speculative/dflash_utils.py:642",
        ("speculative_algorithm",),
        lambda c: is_dflash(c) and (c["tool_call_parser"] or c["reasoning_parser"]),
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
            c.algorithm in (*EAGLES, "STANDALONE")
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
            c.algorithm in (*EAGLES, "STANDALONE")
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
            c.algorithm in (*EAGLES, "STANDALONE")
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
            c.algorithm in (*EAGLES, "STANDALONE")
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
)
