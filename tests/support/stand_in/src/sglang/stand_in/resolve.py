# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From parsed arguments to the configuration that runs: argument rules, resolved values, the model's facts."""

from __future__ import annotations

import argparse
import json
import os
import random
from dataclasses import dataclass
from typing import Any

from sglang.stand_in.profile import Profile

# What the stand-in goes by, for releases that do not have it.
_NEEDED: dict[str, Any] = {
    "admin_api_key": None,
    "attn_dp_size": 1,
    "cuda_graph_config": None,
    "enable_mixed_chunk": False,
    "load_format": None,
    "pp_size": 1,
    "preferred_sampling_params": None,
    "reasoning_parser": None,
    "skip_server_warmup": False,
    "speculative_dflash_block_size": None,
    "speculative_draft_attention_backend": None,
    "speculative_draft_window_size": None,
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "ssl_keyfile_password": None,
    "tool_call_parser": None,
    "uvicorn_access_log_exclude_prefixes": [],
    "weight_version": "default",
}

# GPU memory that a rank finds free (GB): an RTX PRO 6000 of the story.
_GPU_MEMORY_GB = 94.0


class HFValidationError(ValueError):
    """Named like huggingface_hub's, for the traceback."""


HFValidationError.__module__ = "huggingface_hub.errors"


@dataclass(frozen=True)
class Model:
    """What the log and the endpoints tell about a model folder."""

    path: str
    architecture: str
    model_type: str
    quantization: str | None
    context_length: int
    size_gb: float
    shards: int
    block_size: int | None
    vision: bool
    latent_attention: bool


def load_model(path: str) -> Model:
    """Read a model folder. Raises OSError with transformers' text when there is none."""
    config_path = os.path.join(path, "config.json")
    if not os.path.isdir(path):
        if path.count("/") > 1 or path.startswith("/"):
            text = (
                f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{path}'."
                " Use `repo_type` argument if needed."
            )
            try:
                raise HFValidationError(text)
            except HFValidationError as error:
                raise OSError(text) from error
        raise OSError(
            f"{path} is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'"
        )
    if not os.path.isfile(config_path):
        raise OSError(
            f"{path} does not appear to have a file named config.json."
            f" Checkout 'https://huggingface.co/{path}/tree/None' for available files."
        )
    with open(config_path, encoding="utf-8") as stream:
        config = json.load(stream)
    text_config = config.get("text_config", config)
    index_path = os.path.join(path, "model.safetensors.index.json")
    shards, size = 1, 0
    if os.path.isfile(index_path):
        with open(index_path, encoding="utf-8") as stream:
            index = json.load(stream)
        shards = len(set(index["weight_map"].values()))
        size = index["metadata"]["total_size"]
    else:
        files = [name for name in os.listdir(path) if name.endswith(".safetensors")]
        shards = max(1, len(files))
        size = sum(os.path.getsize(os.path.join(path, name)) for name in files)
    quantization = (config.get("quantization_config") or text_config.get("quantization_config") or {}).get(
        "quant_method"
    )
    return Model(
        path=path,
        architecture=config.get("architectures", ["UnknownForCausalLM"])[0],
        model_type=config.get("model_type", "unknown"),
        quantization=quantization,
        context_length=int(text_config.get("max_position_embeddings", 4096)),
        size_gb=size / 2**30,
        shards=shards,
        block_size=config.get("block_size"),
        vision="vision_config" in config,
        latent_attention="kv_lora_rank" in text_config,
    )


@dataclass(frozen=True)
class Settings:
    """Everything a start needs."""

    profile: Profile
    resolved: dict[str, Any]
    launch_command: str
    target: Model
    draft: Model | None
    warnings: list[str]

    @property
    def shown(self) -> dict[str, Any]:
        """What this release has of `resolved`, in its order."""
        return {key: self.resolved[key] for key in self.profile.load("resolved.json")["order"]}

    @property
    def draft_last(self) -> bool:
        """Whether the draft is loaded after the target's pools and graphs (up to 0.5.13)."""
        stages = self.profile.rank_stages
        return stages.index("load_draft") > stages.index("load_target") + 1

    @property
    def cuda(self) -> bool:
        return str(self.resolved["device"]).startswith("cuda")

    @property
    def block_size(self) -> int:
        """Tokens of one verify step; 0 without speculation."""
        return int(self.resolved["speculative_num_draft_tokens"] or 0) if self.resolved["speculative_algorithm"] else 0

    @property
    def context_length(self) -> int:
        return int(self.resolved["context_length"] or self.target.context_length)

    @property
    def free_memory_gb(self) -> float:
        return _GPU_MEMORY_GB if self.cuda else 21.6

    @property
    def max_total_tokens(self) -> int:
        return int(self.resolved["max_total_tokens"] or (262144 if self.cuda else 65536))

    @property
    def max_running_requests(self) -> int:
        return int(self.resolved["max_running_requests"] or 2048)

    def graph_enabled(self, phase: str) -> bool:
        return self.cuda and self.resolved["cuda_graph_config"][phase]["backend"] != "disabled"


def resolve(*, profile: Profile, args: argparse.Namespace, argv: list[str], seed: int) -> Settings:
    """Apply the rules that run before any weight is read (sheet: pipeline.py, speculative_hook.py).

    Raises OSError for a missing model and ValueError for arguments that do not go together; the last line of
    the traceback is the real engine's.
    """
    shape = profile.load("resolved.json")
    values: dict[str, Any] = dict.fromkeys(shape["order"])
    for key, value in _NEEDED.items():
        values.setdefault(key, value)
    values.update(shape["unset"])
    renamed = profile.traits["renamed_arguments"]
    for dest, value in vars(args).items():
        key = renamed.get(dest, dest)
        if key in values and (value is not None or key not in shape["unset"]):
            values[key] = value
    # Arguments with a default that the engine replaces ('auto').
    for key in ("load_balance_method", "boundary_reduction", "encoder_transfer_backend"):
        if key in shape["unset"] and getattr(args, key) == "auto":
            values[key] = shape["unset"][key]
    warnings: list[str] = []

    target = load_model(values["model_path"])
    values["device"] = values["device"] or "cuda"
    cuda = str(values["device"]).startswith("cuda")
    _general_rules(values)
    _resolve_speculation(profile, values, warnings, cuda)
    draft = load_model(values["speculative_draft_model_path"]) if _has_own_draft(values) else None
    if values["speculative_algorithm"] == "DFLASH":
        _resolve_block_size(values, draft, warnings)

    values["tokenizer_path"] = values["tokenizer_path"] or values["model_path"]
    values["served_model_name"] = values["served_model_name"] or values["model_path"]
    if ":" in values["served_model_name"]:
        raise AssertionError(
            "served_model_name cannot contain a colon (':') character. The colon is reserved for the 'model:adapter'"
            " syntax used in LoRA adapter specification. "
            f"Invalid value: '{values['served_model_name']}'"
        )
    if values["random_seed"] is None:
        values["random_seed"] = random.Random(seed).randrange(1 << 30)
    if values["attention_backend"] is None:
        values["attention_backend"] = "triton" if cuda else "torch_native"
    values["sampling_backend"] = values["sampling_backend"] or ("flashinfer" if cuda else "pytorch")
    values["mm_feature_transport"] = values.get("mm_feature_transport") or "cpu"
    values["chunked_prefill_size"] = values["chunked_prefill_size"] or (8192 if cuda else 4096)
    if values["mem_fraction_static"] is None:
        values["mem_fraction_static"] = 0.85 if cuda else 0.716
    if values["speculative_algorithm"] and not cuda:
        values["disable_overlap_schedule"] = True
    values["cuda_graph_config"] = _graph_config(values, cuda)
    return Settings(
        profile=profile,
        resolved=values,
        launch_command=" ".join(argv),
        target=target,
        draft=draft,
        warnings=warnings,
    )


def _general_rules(values: dict[str, Any]) -> None:
    tp, pp, nodes = values["tp_size"], values["pp_size"], values["nnodes"]
    if nodes > 1:
        _rules_of_nodes(values)
    if values["ep_size"] > 1 and tp % values["ep_size"]:
        raise ValueError(f"tp_size ({tp}) must be divisible by ep_size ({values['ep_size']})")
    if min(tp, pp, values["dp_size"]) < 1:
        raise ValueError("tp_size, pp_size and dp_size must be positive")
    if values["speculative_algorithm"] and values["enable_mixed_chunk"] and values["speculative_algorithm"] == "NGRAM":
        raise ValueError(
            f"enable_mixed_chunk is not supported with speculative_algorithm={values['speculative_algorithm']!r}"
        )


def _rules_of_nodes(values: dict[str, Any]) -> None:
    """validation_hook.py:179,199; the stand-in splits tensor parallelism alone."""
    nodes = values["nnodes"]
    if (values["tp_size"] * values["pp_size"]) % nodes:
        raise AssertionError("tp_size must be divisible by number of nodes")
    if values["dp_size"] > 1:
        raise ValueError("multi-node data-parallel replicas are not supported; use attention DP")
    if values["pp_size"] > 1 or values["attn_dp_size"] > 1:
        raise NotImplementedError("the stand-in splits only tensor parallelism over nodes")
    if not 0 <= values["node_rank"] < nodes:
        raise ValueError(f"node_rank ({values['node_rank']}) must be below nnodes ({nodes})")


def _has_own_draft(values: dict[str, Any]) -> bool:
    return bool(values["speculative_algorithm"] and values["speculative_draft_model_path"])


def _resolve_speculation(profile: Profile, values: dict[str, Any], warnings: list[str], cuda: bool) -> None:
    algorithm = values["speculative_algorithm"]
    if algorithm is None:
        return
    algorithm = values["speculative_algorithm"] = algorithm.upper()
    if algorithm == "DFLASH":
        if not cuda and profile.says("dflash_device"):
            raise ValueError(profile.message("dflash_device", device=values["device"]))
        if profile.says("dflash_overlap"):
            values["disable_overlap_schedule"] = True
            warnings.append(profile.message("dflash_overlap"))
        if values["pp_size"] != 1:
            raise ValueError("Currently DFLASH speculative decoding only supports pp_size == 1.")
        if values["speculative_draft_model_path"] is None:
            raise ValueError("DFLASH speculative decoding requires setting --speculative-draft-model-path.")
        for key in ("speculative_num_steps", "speculative_eagle_topk"):
            if values[key] not in (None, 1):
                warnings.append(f"DFLASH only supports {key} == 1; overriding {key}={values[key]} to 1.")
            values[key] = 1
    if values["speculative_draft_model_path"] and not values.get("speculative_draft_model_revision"):
        values["speculative_draft_model_revision"] = "main"
    if algorithm != "DFLASH" and values["speculative_num_draft_tokens"] is None:
        values["speculative_num_draft_tokens"] = 4
    if values["max_running_requests"] is None:
        values["max_running_requests"] = 48
        warnings.append(
            "Max running requests is reset to 48 for speculative decoding."
            " You can override this by explicitly setting --max-running-requests."
        )


def _resolve_block_size(values: dict[str, Any], draft: Model | None, warnings: list[str]) -> None:
    block, tokens = values["speculative_dflash_block_size"], values["speculative_num_draft_tokens"]
    if block is not None:
        if block <= 0:
            raise ValueError(f"DFLASH requires --speculative-dflash-block-size to be positive, got {block}.")
        if tokens is not None and tokens != block:
            raise ValueError(
                "Both --speculative-num-draft-tokens and --speculative-dflash-block-size are set but they differ."
                " For DFLASH they must match."
                f" speculative_num_draft_tokens={tokens}, speculative_dflash_block_size={block}."
            )
        tokens = block
    if tokens is None and draft is not None:
        tokens = draft.block_size
    if tokens is None:
        tokens = 16
        warnings.append("speculative_num_draft_tokens is not set; defaulting to 16 for DFLASH.")
    values["speculative_num_draft_tokens"] = tokens
    window = values["speculative_draft_window_size"]
    if window is not None and window < tokens:
        raise ValueError(
            "--speculative-draft-window-size must be >= --speculative-num-draft-tokens (block_size)."
            f" window_size={window}, block_size={tokens}."
        )


def _graph_config(values: dict[str, Any], cuda: bool) -> dict[str, Any]:
    """Sizes and backends of graph capture (sheet 1.7; cuda_graph_hook.py:36-140, 480-545)."""
    if cuda:
        limit = min(512 if values["tp_size"] >= 4 else 256, int(values["max_running_requests"] or 512))
    else:
        limit = 32
    decode: dict[str, Any] = {"backend": "full", "max_bs": limit, "bs": None}
    prefill: dict[str, Any] = {
        "backend": "breakable" if cuda else "disabled",
        "max_bs": values["chunked_prefill_size"],
        "bs": None,
    }
    phases = {"decode": decode, "prefill": prefill}
    for phase in phases.values():
        phase.update(
            tc_compiler="eager",
            max_context_size=None,
            full_prefill_max_req=None,
            full_prefill_prefix_chunk_tokens=None,
            max_seq_len=None,
        )
    for name, phase in phases.items():
        if values["disable_cuda_graph"] or values.get(f"disable_{name}_cuda_graph"):
            phase["backend"] = "disabled"
        for key in ("backend", "max_bs", "bs"):
            # Up to 0.5.13 there is one option for the graphs of decoding.
            older = values.get(f"cuda_graph_{key}") if name == "decode" else None
            asked = values.get(f"cuda_graph_{key}_{name}")
            if (asked if asked is not None else older) is not None:
                phase[key] = asked if asked is not None else older
        phase.update((values["cuda_graph_config"] or {}).get(name, {}))
    if decode["bs"] is None:
        decode["bs"] = _decode_sizes(decode["max_bs"], bool(values["speculative_algorithm"]), cuda)
    if prefill["bs"] is None:
        sizes = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64)]
        sizes += [*range(1280, 4097, 256), *range(4608, prefill["max_bs"] + 1, 512)]
        prefill["bs"] = [size for size in sizes if size <= prefill["max_bs"]]
    return phases


def _decode_sizes(limit: int, speculative: bool, cuda: bool) -> list[int]:
    if not cuda:
        sizes = sorted({*range(1, 17), *range(18, 31, 2), *range(32, 81, 4), limit})
    elif speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, limit + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, limit + 1, 32)]
    sizes = [size for size in sizes if size <= limit]
    return sizes if limit in sizes else [*sizes, limit]
