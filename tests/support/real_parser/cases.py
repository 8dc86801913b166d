# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Configurations to hold the preflight against a real SGLang with: bad ones, each with its fault, and good ones."""

from __future__ import annotations

import dataclasses
import typing as t
from collections.abc import Mapping

#: A model of 2048 tokens context, and one with the same tokenizer.
TARGET = "tiny"
DRAFT = "tiny-draft"


@dataclasses.dataclass(frozen=True)
class Case:
    """One instance of the role's `sglang_instances`.

    `refused` is where the real SGLang refuses it: `parse` (argparse, status 2), `resolve` (its rules, status 1), `later`
    (only after weights were asked for, or never: it would start and be wrong), `` = nowhere. `says` is part of our message.
    """

    id: str
    args: Mapping[str, t.Any]
    refused: str
    says: str
    changes: Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


def _dflash(**changes: t.Any) -> dict[str, t.Any]:
    return {
        "device": "cuda",
        "speculative_algorithm": "DFLASH",
        "speculative_draft_model_path": DRAFT,
        "speculative_dflash_block_size": 8,
        **changes,
    }


def _standalone(**changes: t.Any) -> dict[str, t.Any]:
    return {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": DRAFT, **changes}


BAD: t.Final[tuple[Case, ...]] = (
    # --- what the parser refuses -----------------------------------------------------------------------------------------
    Case("typo", {"speculative_dflash_blocksize": 8}, "parse", "did you mean 'speculative_dflash_block_size'?"),
    Case("typo-2", {"mem_fraction": 0.8, "mem_fraction_statik": 0.8}, "parse", "did you mean 'mem_fraction_static'?"),
    Case(
        "renamed-graph-max-bs",
        {"cuda_graph_max_bs": 16},
        "parse",
        "it exists up to 0.5.19; use cuda_graph_max_bs_decode",
    ),
    Case("renamed-graph-bs", {"cuda_graph_bs": [1, 8]}, "parse", "it exists up to 0.5.19; use cuda_graph_bs_decode"),
    Case(
        "renamed-piecewise",
        {"disable_piecewise_cuda_graph": True},
        "parse",
        "it exists from 0.5.10 to 0.5.19; use cuda_graph_backend_prefill: disabled",
    ),
    Case(
        "renamed-window",
        {"speculative_dflash_draft_window_size": 512},
        "parse",
        "it exists from 0.5.11 to 0.5.19; use speculative_draft_window_size",
    ),
    Case("gone-ep-moe", {"enable_ep_moe": True}, "parse", "it is gone in 0.5.9; use ep_size"),
    Case("gone-flashmla", {"enable_flashmla": True}, "parse", "it is gone in 0.5.9; use attention_backend: flashmla"),
    Case("gone-strategy", {"mamba_scheduler_strategy": "auto"}, "parse", "use mamba_radix_cache_strategy"),
    Case("gone-stream-output", {"stream_output": True}, "parse", "'stream_output' is no argument of SGLang 0.5.23"),
    Case("not-an-int", {"tp_size": "eight"}, "parse", "'tp_size' must be a whole number, not 'eight'"),
    Case("not-an-int-but-float", {"random_seed": 1.5}, "parse", "'random_seed' must be a whole number, not '1.5'"),
    Case("not-a-float", {"mem_fraction_static": "80%"}, "parse", "'mem_fraction_static' must be a number, not '80%'"),
    Case(
        "not-a-size", {"context_length": "32K"}, "parse", "'context_length' must be a whole number, as 2048, 2k (2000)"
    ),
    Case("decimal-iec", {"max_total_tokens": "1.5Ki"}, "parse", "'max_total_tokens' must be a whole number"),
    Case(
        "choice-quantization", {"quantization": "fp4"}, "parse", "'quantization' is 'fp4', but must be one of awq, fp8"
    ),
    Case("choice-attention", {"attention_backend": "cutlass_mla"}, "parse", "did you mean 'cutedsl_mla'?"),
    Case("choice-cache", {"kv_cache_dtype": "fp8"}, "parse", "'kv_cache_dtype' is 'fp8', but must be one of auto"),
    Case("choice-moe", {"moe_runner_backend": "triton_kernels"}, "parse", "did you mean 'triton_kernel'?"),
    Case("choice-loader", {"load_format": "safetensor"}, "parse", "did you mean 'safetensors'?"),
    Case("choice-dtype", {"dtype": "fp16"}, "parse", "'dtype' is 'fp16', but must be one of auto, half"),
    Case("choice-policy", {"schedule_policy": "sjf"}, "parse", "'schedule_policy' is 'sjf', but must be one of lpm"),
    Case(
        "choice-level", {"log_requests_level": 7}, "parse", "'log_requests_level' is 7, but must be one of 0, 1, 2, 3"
    ),
    Case("choice-reasoning", {"reasoning_parser": "kimi-k2"}, "parse", "did you mean 'kimi_k2'?"),
    Case("choice-draft-mode", {"speculative_attention_mode": "both"}, "parse", "must be one of prefill, decode"),
    Case("choice-prefill-graph", {"cuda_graph_backend_prefill": "tc_piecewise"}, "parse", "tc_piecewise was removed"),
    Case("flag-with-value", {"trust_remote_code": "yes"}, "parse", "'trust_remote_code' takes no value, but got 'yes'"),
    Case("value-missing", {"tp_size": True}, "parse", "'tp_size' needs one value, but got none"),
    Case("too-many-values", {"page_size": [16, 32]}, "parse", "'page_size' needs one value, but got 2: '16', '32'"),
    Case(
        "list-of-words",
        {"cuda_graph_bs_decode": ["one"]},
        "parse",
        "'cuda_graph_bs_decode' must be a whole number, not 'one'",
    ),
    Case("graph-phase", {"cuda_graph_config": {"decod": {}}}, "parse", "unknown phase 'decod'"),
    Case("graph-key", {"cuda_graph_config": {"decode": {"max_batch": 8}}}, "parse", "'decode' has no key 'max_batch'"),
    Case("graph-no-json", {"cuda_graph_config": "off"}, "parse", "'cuda_graph_config' must be a mapping"),
    Case("ambiguous", {"speculative_draft": "x"}, "parse", "as an abbreviation it could be speculative_draft_"),
    # --- what its rules refuse -------------------------------------------------------------------------------------------
    Case("dflash-on-cpu", _dflash(device="cpu"), "resolve", "[dflash-device]"),
    Case("dflash-no-draft", _dflash(speculative_draft_model_path=None), "resolve", "[dflash-draft]"),
    Case("dflash-pipeline", _dflash(pp_size=2), "resolve", "[dflash-pipeline]"),
    Case("dflash-block-0", _dflash(speculative_dflash_block_size=0), "resolve", "[dflash-block-positive]"),
    Case("dflash-block-differs", _dflash(speculative_num_draft_tokens=16), "resolve", "[dflash-block-differs]"),
    Case("dflash-window", _dflash(speculative_draft_window_size=4), "resolve", "[dflash-window]"),
    Case("dflash-dp-head", _dflash(tp_size=2, attn_dp_size=2), "resolve", "[dflash-attention-dp-head]"),
    Case(
        "dflash-dp-context",
        _dflash(tp_size=4, attn_dp_size=2, attn_cp_size=2, enable_dp_lm_head=True),
        "resolve",
        "[dflash-attention-dp-context]",
    ),
    Case("window-0", _standalone(speculative_draft_window_size=0), "resolve", "[window-positive]"),
    Case("sink-alone", _standalone(speculative_draft_sink_size=4), "resolve", "[sink-needs-window]"),
    Case("unknown-algorithm", {"speculative_algorithm": "DFLASH9"}, "resolve", "[algorithm-known]"),
    Case(
        "block-verification",
        {"speculative_algorithm": "NGRAM", "speculative_use_block_verification": True},
        "resolve",
        "[block-verification]",
    ),
    Case(
        "rejection-standalone",
        _standalone(speculative_use_rejection_sampling=True),
        "resolve",
        "[rejection-sampling-algorithm]",
    ),
    Case("eagle-numbers", _standalone(speculative_eagle_topk=1), "resolve", "[eagle-three-numbers]"),
    Case("standalone-dp", _standalone(tp_size=2, attn_dp_size=2), "resolve", "[standalone-attention-dp]"),
    Case(
        "ngram-dp",
        {"speculative_algorithm": "NGRAM", "tp_size": 2, "attn_dp_size": 2},
        "resolve",
        "[ngram-attention-dp]",
    ),
    Case("ngram-pipeline", {"speculative_algorithm": "NGRAM", "pp_size": 2}, "resolve", "[pipeline-speculation]"),
    Case("nodes", {"tp_size": 4, "nnodes": 3, "dist_init_addr": "127.0.0.1:5000"}, "resolve", "[nodes-divide]"),
    Case(
        "replicas-on-nodes",
        {"dp_size": 2, "tp_size": 2, "nnodes": 2, "dist_init_addr": "127.0.0.1:5000"},
        "resolve",
        "[replicas-on-one-node]",
    ),
    Case("attention-dp", {"tp_size": 4, "attn_dp_size": 3}, "resolve", "[attention-dp-divides]"),
    Case(
        "attention-dp-old",
        {"tp_size": 4, "dp_size": 3, "enable_dp_attention": True},
        "resolve",
        "[attention-dp-divides]",
    ),
    Case(
        "attention-dp-and-replicas",
        {"tp_size": 2, "attn_dp_size": 2, "dp_size": 2},
        "resolve",
        "[attention-dp-or-replicas]",
    ),
    Case("context-parallel", {"tp_size": 4, "attn_cp_size": 3}, "resolve", "[context-parallel-divides]"),
    Case("moe-dp", {"tp_size": 8, "ep_size": 2, "moe_dp_size": 2}, "resolve", "[moe-dp]"),
    Case(
        "experts-of-flashinfer",
        {"tp_size": 4, "ep_size": 2, "moe_runner_backend": "flashinfer_cutlass"},
        "resolve",
        "[experts-of-flashinfer]",
    ),
    Case("eplb", {"enable_eplb": True}, "resolve", "[eplb-needs-experts]"),
    Case("dense-tp", {"tp_size": 4, "moe_dense_tp_size": 2}, "resolve", "[dense-tp]"),
    Case("chunk-of-pages", {"chunked_prefill_size": 1000, "page_size": 64}, "resolve", "[chunk-of-pages]"),
    Case("free-slots", {"pp_size": 2, "min_free_slots_delay": 4}, "resolve", "[pipeline-free-slots]"),
    Case(
        "hierarchical",
        {"enable_hierarchical_cache": True, "disable_radix_cache": True},
        "resolve",
        "[hierarchical-without-radix]",
    ),
    Case(
        "padding-compile",
        {"disable_cuda_graph_padding": True, "enable_torch_compile": True},
        "resolve",
        "[padding-compile]",
    ),
    Case("context-above-model", {"context_length": "32k"}, "resolve", "[context-above-model]"),
    Case("tls-alone", {"ssl_keyfile": "/etc/hostname"}, "resolve", "[tls-pair]"),
    Case("grpc-port", {"grpc_port": 30001}, "resolve", "[grpc-port]"),
    Case("metrics-folder", {"export_metrics_to_file": True}, "resolve", "[metrics-folder]"),
    Case("no-tokenizer", {"tokenizer_worker_num": 0}, "resolve", "[workers-positive]"),
    Case("priority", {"enable_priority_scheduling": True, "schedule_policy": "lpm"}, "resolve", "[priority-policy]"),
    Case("conservativeness", {"schedule_conservativeness": -1}, "resolve", "[conservativeness]"),
    Case("gpu-offset", {"base_gpu_id": -1}, "resolve", "[gpu-offset]"),
    Case("gpu-step", {"gpu_id_step": 0}, "resolve", "[gpu-offset]"),
    Case("trtllm-on-cpu", {"attention_backend": "trtllm_mla"}, "resolve", "[trtllm-mla-no-card]"),
    Case("mxfp8-on-cpu", {"kv_cache_dtype": "mxfp8"}, "resolve", "[mxfp8-cache-card]"),
    # --- what nothing refuses before the weights, or at all ------------------------------------------------------------------
    Case("experts-divide", {"tp_size": 8, "ep_size": 3}, "later", "[experts-divide]"),
    Case("memory-fraction", {"mem_fraction_static": 1.5}, "later", "[memory-fraction]"),
    Case(
        "node-rank",
        {"tp_size": 2, "nnodes": 2, "node_rank": 2, "dist_init_addr": "127.0.0.1:5000"},
        "later",
        "[node-rank]",
    ),
    Case("no-address", {"tp_size": 2, "nnodes": 2}, "later", "[nodes-need-address]"),
    Case("context-0", {"context_length": 0}, "later", "[context-positive]"),
    Case("requests-0", {"max_running_requests": 0}, "later", "[requests-positive]"),
    Case("overlap-load", _standalone(startup_weight_load_mode="overlap"), "later", "[overlap-load]"),
    Case(
        "keys-unchecked",
        {"tokenizer_worker_num": 2},
        "later",
        "[keys-need-one-tokenizer]",
        {"api_key": "a-key-that-is-long-enough"},
    ),
)

GOOD: t.Final[tuple[Case, ...]] = (
    Case("plain", {}, "", ""),
    Case("standalone", _standalone(), "", ""),
    Case(
        "standalone-numbers",
        _standalone(speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4),
        "",
        "",
    ),
    Case("ngram", {"speculative_algorithm": "NGRAM"}, "", ""),
    Case("dflash", _dflash(tp_size=8, ep_size=8, trust_remote_code=True, disable_cuda_graph=True), "", ""),
    Case("dflash-equal", _dflash(speculative_num_draft_tokens=8, speculative_draft_window_size=64), "", ""),
    Case("dflash-dp", _dflash(tp_size=2, attn_dp_size=2, enable_dp_lm_head=True), "", ""),
    Case(
        "graphs",
        _dflash(cuda_graph_bs_decode=[1, 8, 32], cuda_graph_max_bs_decode=32, cuda_graph_backend_prefill="disabled"),
        "",
        "",
    ),
    Case("graph-config", {"cuda_graph_config": {"decode": {"backend": "disabled"}}}, "", ""),
    Case("sizes", {"max_total_tokens": "4k", "context_length": "1Ki", "chunked_prefill_size": -1}, "", ""),
    Case("abbreviations", {"tp": 2, "dp": 1}, "", ""),
    Case(
        "lists",
        {"uvicorn_access_log_exclude_prefixes": ["/health", "/metrics"], "prompt_tokens_buckets": ["default"]},
        "",
        "",
    ),
    Case(
        "json",
        {"preferred_sampling_params": {"temperature": 0.2}, "model_loader_extra_config": {"num_threads": 2}},
        "",
        "",
    ),
    Case("two-nodes", {"tp_size": 4, "nnodes": 2, "dist_init_addr": "127.0.0.1:5000", "node_rank": 1}, "", ""),
    Case("pages", {"chunked_prefill_size": 1024, "page_size": 64}, "", ""),
    Case(
        "longer-context", {"context_length": "32k"}, "", "", {"env": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}}
    ),
)
