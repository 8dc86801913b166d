# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much GPU memory a configuration takes, worked out from the model folders before anything is started. PRIVATE to the collection.

Sizes of tensors come from the headers of the safetensors files (their first bytes; nothing is loaded), or from the sizes
of the files. The rest is arithmetic over ``config.json``. It is an estimate: what it takes for granted is in ``assumptions``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import struct
import typing as t

from ansible_collections.specdec.serving.plugins.module_utils._argument_config import (
    Config,
    context_length_of,
    text_config,
)

__all__ = ("Estimate", "ModelFolder", "Weights", "estimate", "kv_bytes_per_token", "read_model")

GIB: t.Final = 2**30
#: What a rank takes beside weights and pools: CUDA context, NCCL, cuBLAS.
_CONTEXT_GIB: t.Final = 1.5
#: Headers beyond this are not read: 200,000 tensors have 30 MB.
_MOST_HEADER_BYTES: t.Final = 64 * 2**20
#: An estimate that is off by less than this says nothing.
_MARGIN: t.Final = 0.03

_EXPERT = re.compile(r"\.experts\.")
#: Kept whole on every rank: norms, routers, the low-rank projections of latent attention, vision towers.
_WHOLE = re.compile(
    r"norm|\.gate\.|e_score_correction|q_a_proj|kv_a_proj|rotary|vision_tower|visual\.|mm_projector|multi_modal_projector"
)
_ATTENTION = re.compile(r"self_attn\.|\.attention\.")


@dataclasses.dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights by how they are split. ``basis``: ``headers``, ``index`` or ``files``."""

    experts: int = 0
    attention: int = 0
    whole: int = 0
    other: int = 0
    basis: str = ""

    @property
    def total(self) -> int:
        """All of them."""
        return self.experts + self.attention + self.whole + self.other


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """What a model folder holds. ``problem`` says what is wrong with it; ``missing`` are shards that the index names."""

    path: str
    config: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    weights: Weights = Weights()
    shards: int = 0
    missing: tuple[str, ...] = ()
    problem: str = ""


@dataclasses.dataclass
class Estimate:
    """GiB per GPU. ``fits``: None = cannot be told. ``kv_tokens`` is how many tokens the KV cache has room for."""

    weights_gib: float = 0.0
    draft_gib: float = 0.0
    card_gib: float = 0.0
    mem_fraction_static: float = 0.0
    static_gib: float = 0.0
    kv_cache_gib: float = 0.0
    kv_bytes_per_token: int = 0
    kv_tokens: int = 0
    wanted_tokens: int = 0
    fits: bool | None = None
    assumptions: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, t.Any]:
        """For a result: rounded."""
        return {
            key: round(value, 3 if key == "mem_fraction_static" else 2) if isinstance(value, float) else value
            for key, value in dataclasses.asdict(self).items()
        }


def _read_json(path: str) -> t.Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class _Truncated(ValueError):
    """A file that is shorter than its own header says."""


def _header(path: str, budget: int) -> tuple[dict[str, int], int]:
    """Bytes by tensor of one safetensors file (the format's header: eight bytes of length, then JSON), and its own length.

    :raises ValueError: when it is none, or longer than ``budget``.
    """
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > budget:
            raise ValueError("the header is larger than what may be read")
        content = json.loads(file.read(length))
        present = os.fstat(file.fileno()).st_size - 8 - length
    found, end = {}, 0
    for name, entry in content.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            found[name], end = last - first, max(end, last)
    if present < end:
        raise _Truncated(f"{os.path.basename(path)!r} holds {present} of {end} bytes of weights")
    return found, length


def _kind(name: str) -> str:
    for kind, pattern in (("experts", _EXPERT), ("whole", _WHOLE), ("attention", _ATTENTION)):
        if pattern.search(name):
            return kind
    return "other"


def _weights(paths: t.Sequence[str], sizes: t.Mapping[str, int], total: int) -> Weights:
    """Sizes from the headers; from the index or the files where the headers do not account for (most of) them.

    :raises _Truncated: for a file that a download or copy did not finish.
    """
    totals = {"experts": 0, "attention": 0, "whole": 0, "other": 0}
    budget = _MOST_HEADER_BYTES
    try:
        for path in paths:
            found, length = _header(path, budget)
            budget -= length
            for name, size in found.items():
                totals[_kind(name)] += size
    except _Truncated:
        raise
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError, struct.error):
        totals = dict.fromkeys(totals, 0)
    if sum(totals.values()) and sum(totals.values()) >= 0.5 * total:
        return Weights(**totals, basis="headers")
    return Weights(other=total, basis="index") if total else Weights(other=sum(sizes.values()), basis="files")


def read_model(path: str) -> ModelFolder:
    """Look into a model folder; nothing is loaded. A model id (no absolute path) gives an empty one."""
    if not path.startswith("/") or not os.path.isdir(path):
        return ModelFolder(path)
    config: t.Any = {}
    try:
        config = _read_json(f"{path}/config.json")
        if not isinstance(config, dict):
            raise ValueError("no JSON object")
    except FileNotFoundError:
        # Other formats (GGUF, Mistral's) have none.
        return ModelFolder(path, problem="has no config.json")
    except (OSError, RecursionError, ValueError) as exc:
        return ModelFolder(path, problem=f"has a config.json that cannot be read: {exc}")
    index = f"{path}/model.safetensors.index.json"
    total = 0
    try:
        content = _read_json(index)
        names = sorted(set(content["weight_map"].values()))
        total = int((content.get("metadata") or {}).get("total_size") or 0)
    except FileNotFoundError:
        names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as exc:
        return ModelFolder(path, config, problem=f"has a model.safetensors.index.json that cannot be read: {exc}")
    sizes: dict[str, int] = {}
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            sizes[name] = os.stat(f"{path}/{name}").st_size
    missing = tuple(name for name in names if not sizes.get(name))
    try:
        weights = _weights([f"{path}/{name}" for name in names], sizes, total) if names and not missing else Weights()
    except _Truncated as exc:
        return ModelFolder(path, config, problem=f"is not complete: {exc}; fetch the file again")
    return ModelFolder(path, config, weights, len(names), missing)


def _share(weights: Weights, c: Config) -> float:
    """Bytes on one GPU."""
    tp, pp = max(c.number("tp_size"), 1), max(c.number("pp_size"), 1)
    attention_tp = max(tp // max(c.attn_dp, 1), 1)
    split = weights.experts / tp + weights.other / tp + weights.attention / attention_tp + weights.whole
    return split / pp


def _integer(config: t.Mapping[str, t.Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _cache_bytes(c: Config, config: t.Mapping[str, t.Any], dtype: t.Any) -> float:
    if str(dtype).startswith(("fp8", "mxfp8")):
        return 1.0
    if dtype in ("nvfp4", "fp4_mx_block16"):
        # Four bits and a scale of eight for every sixteen values.
        return 0.5625
    model = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return 4.0 if model == "float32" and dtype in (None, "auto") and c["dtype"] in (None, "auto") else 2.0


def kv_bytes_per_token(c: Config, config: t.Mapping[str, t.Any], *, draft: bool = False) -> int:
    """Bytes of KV cache on one GPU for one token of one model; 0 = the config does not tell."""
    text = text_config(config)
    layers = _integer(text, "num_hidden_layers", "n_layer")
    dtype = (
        c["speculative_draft_kv_cache_dtype"]
        if draft and c["speculative_draft_kv_cache_dtype"]
        else c["kv_cache_dtype"]
    )
    width = _cache_bytes(c, text, dtype)
    pp = 1 if draft else max(c.number("pp_size"), 1)
    latent = _integer(text, "kv_lora_rank")
    if latent:
        # One latent vector per token and layer, whole on every rank.
        return int((latent + _integer(text, "qk_rope_head_dim")) * layers * width / pp)
    heads = _integer(text, "num_attention_heads", "n_head")
    groups = _integer(text, "num_key_value_heads") or heads
    head_dim = _integer(text, "head_dim") or (_integer(text, "hidden_size", "n_embd") // heads if heads else 0)
    attention_tp = max(max(c.number("tp_size"), 1) // max(c.attn_dp, 1), 1)
    own = max(-(-groups // attention_tp), 1) if groups else 0
    return int(2 * own * head_dim * layers * width / pp)


def _chosen_fraction(c: Config, card_mib: float) -> tuple[float, str]:
    """What SGLang 0.5.23 would choose (arg_groups/memory_hook.py:300-370), and how that was worked out."""
    chunk = c.number("chunked_prefill_size") or (
        16384 if card_mib >= 160 * 1024 else 8192 if card_mib >= 60 * 1024 else 4096
    )
    requests = c.number("max_running_requests") or (48 if c.algorithm else 0)
    tp = c.number("tp_size")
    graphs = c.number("cuda_graph_max_bs_decode") or (512 if card_mib >= 160 * 1024 or tp >= 4 else 256)
    graphs = min(graphs, requests) if requests and c["cuda_graph_max_bs_decode"] is None else graphs
    decode_off = (
        bool(c["disable_cuda_graph"] or c["disable_decode_cuda_graph"]) or c["cuda_graph_backend_decode"] == "disabled"
    )
    reserved = 512 + max(chunk, 2048) * 1.5 + tp * c.number("pp_size") / 8 * 1024
    reserved += 0 if decode_off else graphs * 2
    if c.attn_dp > 1:
        reserved += graphs * c.attn_dp * (4.5 if graphs > 300 else 3)
    if not c.prefill_graph_off:
        reserved += 1.5 * 1024 if c.latent_attention else 64 * 8
    if card_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    fraction = round((card_mib - reserved) / card_mib, 3)
    note = "mem_fraction_static as SGLang 0.5.23 would choose it"
    vision = c.target.get("vision_config")
    if isinstance(vision, t.Mapping) and not c["language_only"] and not c["language_model_only"]:
        # Relative to ViT-L/14 (memory_hook.py, adjust_mem_fraction_for_vlm).
        layers = _integer(vision, "num_hidden_layers") or 24
        hidden = _integer(vision, "hidden_size") or 1024
        ratio = layers * hidden**2 / (24 * 1024**2)
        fraction *= 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))
        note += ", less its reserve for the vision tower"
    return max(fraction, 0.0), note


def estimate(
    c: Config, target: ModelFolder, draft: ModelFolder | None, *, card_mib: float, wanted_tokens: int = 0
) -> Estimate | None:
    """Memory per GPU of one instance, or None where the weights are not known.

    :param card_mib: memory of the smallest of its GPUs; 0 = unknown, then only the weights are told.
    :param wanted_tokens: tokens that must fit at once: requests x (input + output); 0 = one request of the context length.
    """
    if not target.weights.total:
        return None
    found = Estimate(weights_gib=_share(target.weights, c) / GIB)
    notes = found.assumptions
    notes.append(
        "weights: sizes of the tensors, experts and matrices split over tp_size, norms, routers, low-rank projections and vision whole"
        " on every GPU"
        if target.weights.basis == "headers"
        else f"weights: size by the {target.weights.basis}, split evenly over tp_size x pp_size"
    )
    found.kv_bytes_per_token = kv_bytes_per_token(c, target.config)
    if draft is not None and draft.weights.total:
        # The draft shares embeddings and head with the target where its folder has none.
        found.draft_gib = _share(draft.weights, c) * max(c.number("pp_size"), 1) / GIB
        found.kv_bytes_per_token += kv_bytes_per_token(c, draft.config, draft=True)
        notes.append("draft: split like the target; its KV cache has as many tokens as the target's, without a window")
    if card_mib <= 0:
        notes.append("the GPU's memory is not known")
        return found
    found.card_gib = card_mib / 1024
    asked = c["mem_fraction_static"]
    if isinstance(asked, (int, float)) and 0 < asked < 1:
        found.mem_fraction_static = float(asked)
    else:
        found.mem_fraction_static, note = _chosen_fraction(c, card_mib)
        notes.append(note)
    notes.append(f"{_CONTEXT_GIB} GiB per GPU for the CUDA context and NCCL; no other process on the GPU")
    available = found.card_gib - _CONTEXT_GIB
    # mem_cache: the pools get what is left of available x fraction after the weights of both models.
    found.static_gib = available * found.mem_fraction_static
    found.kv_cache_gib = found.static_gib - found.weights_gib - found.draft_gib
    if found.kv_bytes_per_token:
        found.kv_tokens = max(int(found.kv_cache_gib * GIB / found.kv_bytes_per_token), 0)
        limit = c.number("max_total_tokens")
        found.kv_tokens = min(found.kv_tokens, limit) if limit else found.kv_tokens
    context = c.number("context_length") or context_length_of(target.config)
    found.wanted_tokens = wanted_tokens or context
    if not wanted_tokens and context:
        notes.append("wanted: one request of the whole context length")
    if found.kv_cache_gib < -_MARGIN * found.card_gib:
        found.fits = False
    elif found.kv_cache_gib > _MARGIN * found.card_gib:
        found.fits = True
    return found
