# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table of rules. What can be asked of a real engine is held against it in the integration tests; here is what needs a GPU."""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils._argument_config import Config, context_length_of
from ansible_collections.specdec.serving.plugins.module_utils._argument_rules import RULES, broken_rules
from ansible_collections.specdec.serving.plugins.module_utils._server_args import canonical_dest

PROFILES = Path(__file__).resolve().parents[3] / "support/stand_in/src/sglang/stand_in/profiles"
KIMI = {"text_config": {"kv_lora_rank": 512, "num_attention_heads": 64, "max_position_embeddings": 262144}}
QWEN = {"num_attention_heads": 32, "max_position_embeddings": 32768}
DFLASH = {
    "speculative_algorithm": "DFLASH",
    "speculative_draft_model_path": "/models/draft",
    "speculative_dflash_block_size": 8,
}
EAGLE = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}
NGRAM = {"speculative_algorithm": "NGRAM"}


def config(values: dict[str, t.Any], **options: t.Any) -> Config:
    return Config(values=values, asked=set(values), version=options.pop("version", "0.5.23"), **options)


def broken(values: dict[str, t.Any], **options: t.Any) -> dict[str, bool]:
    """Rule to whether it is an error."""
    return {found.rule.id: found.is_error for found in broken_rules(config(values, **options))}


def test_ids_are_unique_and_every_row_is_whole() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert [rule.id for rule in RULES if not (rule.source and rule.dests and rule.message and rule.remedy)] == []


def test_rules_are_about_arguments_that_there_are() -> None:
    known = {
        canonical_dest(entry["dest"])
        for release in ("0.5.12", "0.5.23")
        for entry in json.loads((PROFILES / release / "arguments.json").read_text())
    }
    named = {dest for rule in RULES for dest in rule.dests}
    named |= {name for rule in RULES for name in re.findall(r"\{(\w+)[}!]", rule.message + rule.remedy)}
    assert named - known == set()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_message_can_be_told(rule: t.Any) -> None:
    subject = config({"tp_size": 2}, draft={"block_size": 8}, target=KIMI, gpu_count=8)
    (told,) = broken_rules(
        subject, [dataclasses.replace(rule, broken=lambda _config: True, since=(0, 0, 0), until=subject.release)]
    )
    text = told.text
    assert "{" not in text
    assert "None" not in text


def test_nothing_asked_breaks_nothing() -> None:
    assert broken({}) == {}
    assert broken({}, version="0.4.6") == {}


#: The story's configuration, on its card with the profile's switch.
STORY = {
    **DFLASH,
    "tp_size": 8,
    "ep_size": 8,
    "trust_remote_code": True,
    "disable_cuda_graph": True,
}


@pytest.mark.parametrize("release", ["0.5.12", "0.5.19", "0.5.23"])
def test_the_story_fits(release: str) -> None:
    options = {"compute_capability": 120, "gpu_count": 8, "target": KIMI, "draft": {"block_size": 8}}
    assert [rule for rule, error in broken(STORY, version=release, **options).items() if error] == []


@pytest.mark.parametrize(
    ("rule", "error", "values", "options"),
    [
        ("gpu-count", True, {"tp_size": 8}, {"gpu_count": 4}),
        ("gpu-count", True, {"tp_size": 4, "dp_size": 2}, {"gpu_count": 4}),
        ("replicas-meet", True, {"dp_size": 2, "nccl_port": 31000}, {}),
        ("gpu-offset-beyond", True, {"tp_size": 4, "base_gpu_id": 2}, {"gpu_count": 4}),
        ("gpu-offset-beyond", True, {"tp_size": 4, "gpu_id_step": 2}, {"gpu_count": 4}),
        ("mha-backend-on-mla", True, {"attention_backend": "trtllm_mha"}, {"target": KIMI}),
        ("mha-backend-on-mla", True, {"decode_attention_backend": "trtllm_mha"}, {"target": KIMI}),
        ("trtllm-mla-card", True, {"attention_backend": "trtllm_mla"}, {"compute_capability": 90}),
        ("trtllm-mla-cache", True, {"attention_backend": "trtllm_mla", "kv_cache_dtype": "fp8_e5m2"}, {"compute_capability": 100}),
        ("cutedsl-mla-card", True, {"attention_backend": "cutedsl_mla"}, {"compute_capability": 120}),
        ("fa3-card", True, {"attention_backend": "fa3"}, {"compute_capability": 120}),
        ("nvfp4-cache-card", True, {"kv_cache_dtype": "nvfp4"}, {"compute_capability": 90}),
        ("mxfp8-cache-card", True, {"kv_cache_dtype": "mxfp8"}, {"compute_capability": 90}),
        ("dflash-nvfp4-cache", True, {**DFLASH, "kv_cache_dtype": "nvfp4"}, {"compute_capability": 120}),
        ("dflash-prefill-graph", False, DFLASH, {"compute_capability": 120}),
        ("fp8-cache-sm120", False, {"kv_cache_dtype": "fp8_e4m3"}, {"compute_capability": 120, "target": KIMI}),
        ("memory-fraction-high", False, {**DFLASH, "mem_fraction_static": 0.9}, {"compute_capability": 120}),
        ("context-above-model", True, {"context_length": 40000}, {"target": QWEN}),
        ("heads-divide", False, {"tp_size": 3}, {"target": QWEN}),
        ("page-forced", False, {"attention_backend": "trtllm_mla", "page_size": 16}, {"compute_capability": 100}),
        ("dflash-block-of-two", False, {**DFLASH, "speculative_dflash_block_size": 2}, {}),
        ("dflash-block-of-draft", False, {**DFLASH, "speculative_dflash_block_size": 16}, {"draft": {"block_size": 8}}),
        ("dflash-window", True, {**DFLASH, "speculative_dflash_block_size": None, "speculative_draft_window_size": 4}, {"draft": {"block_size": 8}}),
        ("dflash-attention-dp-eager", False, {**DFLASH, "tp_size": 2, "attn_dp_size": 2, "enable_dp_lm_head": True}, {}),
        ("dflash-steps", False, {**DFLASH, "speculative_num_steps": 3}, {}),
        ("dflash-topk", False, {**DFLASH, "speculative_eagle_topk": 4}, {}),
        ("dflash-draft-backend", False, {**DFLASH, "speculative_draft_attention_backend": "flashmla"}, {}),
        ("draft-quantization", False, {**DFLASH, "quantization": "modelopt_fp4"}, {"draft": {"block_size": 8}}),
        ("remote-code", False, DFLASH, {"draft": {"auto_map": {"AutoModel": "x.y"}}}),
        ("thresholds-lossy", False, {**DFLASH, "speculative_accept_threshold_single": 0.8}, {}),
        ("draft-without-algorithm", False, {"speculative_draft_model_path": "/models/draft"}, {}),
        ("adaptive-eagle", False, {**DFLASH, "speculative_adaptive": True}, {}),
        ("weight-cache-speculation", True, {**DFLASH, "weight_cache_mode": "client"}, {}),
        ("eagle-tree-pages", True, {**EAGLE, "speculative_eagle_topk": 4, "page_size": 64, "attention_backend": "flashmla"}, {}),
        ("eagle-trtllm", True, {**EAGLE, "speculative_eagle_topk": 4, "attention_backend": "trtllm_mha"}, {}),
        ("eagle-chain", False, {**EAGLE, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 8}, {}),
        ("ngram-pages", True, {**NGRAM, "speculative_ngram_max_bfs_breadth": 4, "page_size": 64, "attention_backend": "triton"}, {}),
        ("ngram-corpus", True, {**NGRAM, "speculative_ngram_external_corpus_path": "/x", "speculative_ngram_external_sam_budget": 12}, {}),
        ("standalone-draft", False, {"speculative_algorithm": "STANDALONE"}, {}),
        ("mixed-chunk", False, {**NGRAM, "enable_mixed_chunk": True}, {}),
        ("prefill-coordination", True, DFLASH, {"environment": {"SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": "1"}}),
        ("rejection-sampling-chain", True, {**EAGLE, "speculative_eagle_topk": 4, "speculative_use_rejection_sampling": True}, {}),
        ("rejection-sampling-ignored", False, {**DFLASH, "speculative_use_rejection_sampling": True}, {}),
        ("graph-sizes", False, {"cuda_graph_bs_decode": [1, 8], "cuda_graph_max_bs_decode": 32}, {}),
        ("graph-sizes-positive", True, {"cuda_graph_bs_decode": [0, 8]}, {}),
        ("graph-switch-overruled", False, {"disable_cuda_graph": True, "cuda_graph_backend_decode": "full"}, {}),
        ("experts-of-all-to-all", False, {"tp_size": 8, "ep_size": 4, "moe_a2a_backend": "deepep"}, {}),
        ("markers-silent", False, {"log_level": "warning"}, {}),
        ("name-with-colon", True, {"served_model_name": "a:b"}, {}),
    ],
)  # fmt: skip
def test_broken(rule: str, error: bool, values: dict[str, t.Any], options: dict[str, t.Any]) -> None:
    assert broken(values, **options).get(rule) is error


@pytest.mark.parametrize(
    ("rule", "values", "options"),
    [
        ("gpu-count", {"tp_size": 8}, {"gpu_count": None}),
        ("gpu-count", {"tp_size": 16, "nnodes": 2, "dist_init_addr": "h:1"}, {"gpu_count": 8}),
        ("gpu-count", {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, {"gpu_count": 8}),
        ("gpu-count", {"tp_size": 8, "device": "cpu"}, {"gpu_count": 4, "device": "cpu"}),
        ("trtllm-mla-card", {"attention_backend": "trtllm_mla"}, {"compute_capability": 120}),
        ("trtllm-mla-card", {"attention_backend": "trtllm_mla"}, {"compute_capability": 0}),
        ("mha-backend-on-mla", {"attention_backend": "trtllm_mha"}, {"target": QWEN}),
        ("mha-backend-on-mla", {"attention_backend": "trtllm_mha"}, {}),
        ("fa3-card", {"attention_backend": "fa3"}, {"compute_capability": 90}),
        ("dflash-prefill-graph", DFLASH, {"compute_capability": 103}),
        ("dflash-prefill-graph", {**DFLASH, "cuda_graph_backend_prefill": "disabled"}, {"compute_capability": 120}),
        ("dflash-prefill-graph", {**DFLASH, "disable_cuda_graph": True}, {"compute_capability": 120}),
        ("dflash-prefill-graph", {**DFLASH, "cuda_graph_config": {"prefill": {"backend": "disabled"}}}, {"compute_capability": 120}),
        ("context-above-model", {"context_length": 40000}, {"target": {}}),
        ("context-above-model", {"context_length": 40000}, {"target": QWEN, "environment": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}}),
        ("heads-divide", {"tp_size": 8, "attn_dp_size": 8}, {"target": {"num_attention_heads": 4}}),
        ("pipeline-speculation", {"speculative_algorithm": "EAGLE", "pp_size": 2, "disaggregation_mode": "prefill"}, {}),
        ("keys-need-one-tokenizer", {"tokenizer_worker_num": 2}, {"has_key": False}),
    ],
)  # fmt: skip
def test_not_broken(rule: str, values: dict[str, t.Any], options: dict[str, t.Any]) -> None:
    assert rule not in broken(values, **options)


@pytest.mark.parametrize(
    ("version", "rule", "error", "values"),
    [
        # Arithmetic holds in every release.
        ("0.4.6", "nodes-divide", True, {"tp_size": 4, "nnodes": 3, "dist_init_addr": "h:1"}),
        # What was read from one release only is a warning elsewhere.
        ("0.5.9", "chunk-of-pages", False, {"chunked_prefill_size": 100, "page_size": 64}),
        ("0.5.24", "chunk-of-pages", False, {"chunked_prefill_size": 100, "page_size": 64}),
        ("0.5.10", "dflash-release", True, DFLASH),
        ("0.5.11", "dflash-release", None, DFLASH),
        ("0.5.22", "dflash-attention-dp-old", True, {**DFLASH, "tp_size": 2, "attn_dp_size": 2}),
        ("0.5.23", "dflash-attention-dp-old", None, {**DFLASH, "tp_size": 2, "attn_dp_size": 2}),
        ("0.5.23", "dflash-attention-dp-head", True, {**DFLASH, "tp_size": 2, "attn_dp_size": 2}),
        ("0.5.15", "dflash-decode-graph-switch", False, {**DFLASH, "cuda_graph_backend_decode": "disabled"}),
        ("0.5.16", "dflash-decode-graph-switch", None, {**DFLASH, "cuda_graph_backend_decode": "disabled"}),
        ("0.5.16", "dflash-grammar", False, {**DFLASH, "tool_call_parser": "kimi_k2"}),
        ("0.5.18", "dflash-grammar", None, {**DFLASH, "tool_call_parser": "kimi_k2"}),
    ],
)
def test_by_release(version: str, rule: str, error: bool | None, values: dict[str, t.Any]) -> None:
    assert broken(values, version=version).get(rule) is error


def test_a_rule_of_another_release_says_so() -> None:
    (found,) = broken_rules(config({"chunked_prefill_size": 100, "page_size": 64}, version="0.5.9"))
    assert "(so in SGLang 0.5.23)" in found.text


def test_values_of_the_wrong_type_are_left_to_the_parser() -> None:
    values = dict.fromkeys(("tp_size", "mem_fraction_static", "cuda_graph_bs_decode", "page_size"), "eight")
    assert "memory-fraction" not in broken(values)


def test_the_argument_that_was_asked_for_is_the_one_to_look_at() -> None:
    found = broken_rules(config({"dp_size": 3, "tp_size": 4, "enable_dp_attention": True}))
    assert [(item.rule.id, item.dest) for item in found] == [("attention-dp-divides", "dp_size")]


@pytest.mark.parametrize(
    ("model", "length"),
    [
        (KIMI, 262144),
        ({"max_position_embeddings": 4096, "rope_scaling": {"factor": 4.0, "rope_type": "yarn"}}, 16384),
        ({"max_position_embeddings": 131072, "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}}, 131072),
        ({"max_position_embeddings": 65536, "rope_scaling": {"factor": 16.0, "original_max_position_embeddings": 4096}}, 65536),
        ({"seq_length": 8192, "max_position_embeddings": 1}, 8192),
        ({}, 0),
    ],
)  # fmt: skip
def test_context_length(model: dict[str, t.Any], length: int) -> None:
    assert context_length_of(model) == length
