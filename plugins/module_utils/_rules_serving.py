# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about memory, scheduling, attention, CUDA graphs and HTTP, see ``_argument_rules``. PRIVATE to the collection."""

from __future__ import annotations

import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._argument_config import context_length_of
from ansible_collections.specdec.serving.plugins.module_utils._rules_common import (
    Rule,
    asks_for,
    card_is_known,
    graph_sizes,
    on_cuda,
    page_is_forced,
)

__all__ = ("SERVING_RULES",)

SERVING_RULES: t.Final[tuple[Rule, ...]] = (
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
            on_cuda(c)
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
        lambda c: c["page_size"] is not None and page_is_forced(c),
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
        lambda c: (
            asks_for(c, "trtllm_mla") and card_is_known(c) and c.compute_capability not in (100, 103, 110, 120, 121)
        ),
        "attention backend trtllm_mla needs a Blackwell GPU, but this host has {c.card_architecture}",
        "leave it out",
    ),
    Rule(
        "trtllm-mla-no-card",
        "arg_groups/overrides.py:1211",
        ("attention_backend", "decode_attention_backend"),
        lambda c: asks_for(c, "trtllm_mla") and not on_cuda(c),
        "attention backend trtllm_mla needs a Blackwell GPU, but the device is {c.device}",
        "leave it out",
    ),
    Rule(
        "trtllm-mla-cache",
        "arg_groups/overrides.py:1214",
        ("kv_cache_dtype", "attention_backend"),
        lambda c: asks_for(c, "trtllm_mla") and on_cuda(c) and c["kv_cache_dtype"] not in ("fp8_e4m3", "bf16", "auto"),
        "attention backend trtllm_mla takes the kv_cache_dtype fp8_e4m3, bf16 or auto, not {kv_cache_dtype}",
        "choose one of them",
    ),
    Rule(
        "cutedsl-mla-card",
        "arg_groups/overrides.py:1244",
        ("attention_backend", "decode_attention_backend", "prefill_attention_backend"),
        lambda c: (
            "cutedsl_mla" in c.attention_backends
            and (not on_cuda(c) or (card_is_known(c) and c.compute_capability not in (100, 103)))
        ),
        "attention backend cutedsl_mla needs SM100 or SM103 (B200, B300), but this host has {c.card_or_device}",
        "leave it out",
    ),
    Rule(
        "fa3-card",
        "layers/attention/attention_registry.py:244",
        ("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
        lambda c: "fa3" in c.attention_backends and card_is_known(c) and not 80 <= c.compute_capability <= 90,
        "attention backend fa3 needs SM80 to SM90, but this host has {c.card_architecture}",
        "leave it out, or choose triton or flashinfer",
    ),
    Rule(
        "nvfp4-cache-card",
        "arg_groups/kv_cache_hook.py:125",
        ("kv_cache_dtype",),
        lambda c: (
            c["kv_cache_dtype"] == "nvfp4" and card_is_known(c) and c.compute_capability not in (100, 103, 120, 121)
        ),
        "kv_cache_dtype nvfp4 needs SM100 or SM120, but this host has {c.card_architecture}",
        "use fp8_e4m3 or auto",
    ),
    Rule(
        "mxfp8-cache-card",
        "arg_groups/kv_cache_hook.py:106",
        ("kv_cache_dtype",),
        lambda c: (
            c["kv_cache_dtype"] == "mxfp8" and (not on_cuda(c) or (card_is_known(c) and c.compute_capability < 100))
        ),
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
            graph_sizes(c)
            and c["cuda_graph_max_bs_decode"] is not None
            and c["cuda_graph_max_bs_decode"] != max(graph_sizes(c))
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
            any(size < 1 for size in graph_sizes(c))
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
