# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The two attention operators of SGLang's ``intel_amx`` backend, in plain torch."""

from __future__ import annotations

import torch

_SCHEMAS = (
    (
        "decode_attention_cpu(Tensor q, Tensor kb, Tensor vb, float ks, float vs, Tensor o, Tensor? k, Tensor? v, Tensor loc,"
        " Tensor logits, Tensor rt, Tensor rp, Tensor sl, float sm, float cap, bool cross, int sw, Tensor? el, Tensor? sinks)"
        " -> ()"
    ),
    (
        "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor o, Tensor kb, Tensor vb, float ks, float vs, Tensor rt,"
        " Tensor rp, Tensor sl, Tensor el, Tensor es, int mx, float sm, float cap, bool cross, int sw, Tensor? enc,"
        " Tensor? sinks, Tensor? tm, bool causal) -> ()"
    ),
)

#: Keeps the operators: they vanish with the object that registered them.
_LIBRARY = torch.library.Library("sgl_kernel", "FRAGMENT")


def _attend(
    q: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    slots: torch.Tensor,
    *,
    scale: float,
    logit_cap: float,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Attend with q (n, heads, dim) to the cache slots (length), where mask (n, length) allows it."""
    groups = q.shape[1] // key_buffer.shape[1]
    keys = key_buffer[slots].float().repeat_interleave(groups, 1)
    values = value_buffer[slots].float().repeat_interleave(groups, 1)
    scores = torch.einsum("nhd,lhd->hnl", q.float(), keys) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores.masked_fill(~mask.unsqueeze(0), float("-inf"))
    return torch.einsum("hnl,lhd->nhd", scores.softmax(-1), values).to(q.dtype)


def _decode(
    q: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key_scale: float,
    value_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """One new token for each request; its key and value are entered into the cache first."""
    if key is not None and value is not None:
        key_buffer[loc] = key.view(loc.numel(), *key_buffer.shape[1:]).to(key_buffer.dtype)
        value_buffer[loc] = value.view(loc.numel(), *value_buffer.shape[1:]).to(value_buffer.dtype)
    for row, (request, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        output[row : row + 1] = _attend(
            q[row : row + 1],
            key_buffer,
            value_buffer,
            req_to_token[request, :length].long(),
            scale=sm_scale,
            logit_cap=logit_cap,
            mask=torch.ones(1, length, dtype=torch.bool),
        )


def _extend(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    o: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Several new tokens for each request, already in the cache: a prompt, or a draft tree to verify."""
    offset = 0
    for request, length, count, start in zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    ):
        if count == 0:
            continue
        mask = torch.ones(count, length, dtype=torch.bool)
        if tree_mask is not None:
            mask[:, length - count :] = tree_mask.view(-1)[offset : offset + count * count].view(count, count).bool()
            offset += count * count
        elif is_causal:
            mask[:, length - count :] = torch.ones(count, count, dtype=torch.bool).tril()
        o[start : start + count] = _attend(
            q[start : start + count],
            key_buffer,
            value_buffer,
            req_to_token[request, :length].long(),
            scale=sm_scale,
            logit_cap=logit_cap,
            mask=mask,
        )


def register() -> None:
    """Define the operators as ``torch.ops.sgl_kernel.*``; once in a process."""
    for schema, operator in zip(_SCHEMAS, (_decode, _extend), strict=True):
        _LIBRARY.define(schema)
        _LIBRARY.impl(schema.split("(", 1)[0], operator, "CompositeExplicitAutograd")
