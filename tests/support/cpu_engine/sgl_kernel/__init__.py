# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stands in for sgl_kernel on a CPU: the few functions that SGLang 0.5.23 calls there, in plain torch.

PyPI has no CPU build of sgl_kernel. This one is written from SGLang's call sites, for tests: it is slow, and whatever
it lacks raises when called (never when imported, since SGLang imports far more names than a CPU uses). Tensors that
a function fills in are its results, as in the kernels it stands in for; one request is one row of ``bs``.

``CPUSHIM_AMX_ATTN=1`` in the environment makes SGLang take the CPU for one with AMX, so that it accepts
``--attention-backend intel_amx``, the only one with which it speculates on a CPU.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, NoReturn

import torch

from . import _attention

__version__ = "0.0.0"


class Missing:
    """A kernel that is not here: it can be imported and compared, and raises when called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"the CPU stand-in for sgl_kernel has no {self.__name__}")


def __getattr__(name: str) -> Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing(name)


# ---- moving KV cache slots ---------------------------------------------------------------------------------------


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy cache slots ``src_loc`` to ``tgt_loc`` in each buffer, given by address and bytes per slot."""
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        # All are read before any is written: the two sets of slots may overlap.
        rows = [ctypes.string_at(base + slot * stride, stride) for slot in sources]
        for slot, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + slot * stride, row, stride)


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Enter ``out_cache_loc``, all requests' slots in a row, at each request's positions [start, end)."""
    offset = 0
    for request, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        count = end - start
        req_to_token[request, start:end] = out_cache_loc[offset : offset + count].to(req_to_token.dtype)
        offset += count


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Fill ``out_cache_loc`` with the slots of each request's positions [start, end), one request after the other."""
    offset = 0
    for request, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        count = end - start
        out_cache_loc[offset : offset + count] = req_to_token[request, start:end].to(out_cache_loc.dtype)
        offset += count


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Fill ``out_cache_loc`` (bs, topk * num_steps) with the slots that follow each request's sequence."""
    count = topk * num_steps
    flat = out_cache_loc.view(-1)
    for row, (request, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[request, length : length + count]
        flat[row * count : (row + 1) * count] = slots.to(flat.dtype)


# ---- drafting and verifying --------------------------------------------------------------------------------------


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Fill ``bonus_tokens`` (bs) with the last accepted token of each row of ``accept_tokens``."""
    rows = torch.arange(accept_lens.numel())
    last = rows * accept_stride + accept_lens.long().view(-1) - 1
    bonus_tokens.view(-1)[: last.numel()] = accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Fill ``accept_out_cache_loc`` with the slots of the accepted tokens (``accept_index`` > -1), in order."""
    accepted = accept_index.reshape(-1)
    accepted = accepted[accepted > -1].long()
    accept_out_cache_loc.view(-1)[: accepted.numel()] = out_cache_loc[accepted].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's ids left by one and put its next token at the end, or at ``select_index``."""
    following = topk_index.reshape(-1)
    for row, (start, count) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        if count <= 0:
            continue
        input_ids[start : start + count - 1] = input_ids[start + 1 : start + count].clone()
        position = int(select_index[row]) if select_index is not None else start + count - 1
        input_ids[position] = following[row]


def _tree_parents(selected: list[int], parents: list[int], *, topk: int, nodes: int) -> list[int | None]:
    """Return each tree node's parent among the nodes; node 0 is the root, None is no parent in the tree."""
    found: list[int | None] = [None] * nodes
    for node in range(nodes - 1, 0, -1):
        beam = selected[node - 1] // topk
        if beam == 0:
            found[node] = 0
        elif parents[beam] in selected[: nodes - 1]:
            found[node] = selected.index(parents[beam]) + 1
    return found


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int = 1,
) -> None:
    """Lay out the draft tree of each request: mask, positions and first-child / next-sibling links.

    ``tree_mask_mode`` 0 is the full mask, sequence included; otherwise the mask is of the tree's nodes alone.
    """
    nodes, bs = draft_token_num, verified_seq_len.numel()
    selected = selected_index.view(bs, -1).tolist()
    parents = parent_list.view(bs, -1).tolist() if parent_list.numel() else [[]] * bs
    mask, position = tree_mask.view(-1), positions.view(-1)
    index, child, sibling = retrieve_index.view(-1), retrieve_next_token.view(-1), retrieve_next_sibling.view(-1)
    before = 0
    for row, length in enumerate(verified_seq_len.tolist()):
        first = row * nodes
        full_mask_start = nodes * first + before * nodes
        before += length
        parent_of = _tree_parents(selected[row], parents[row], topk=topk, nodes=nodes)
        for node in range(nodes - 1, 0, -1):
            index[first + node] = first + node
            parent = parent_of[node]
            if parent is None:
                continue
            previous = int(child[first + parent])
            child[first + parent] = node
            if previous != -1:
                sibling[first + node] = previous
        index[first] = first
        for node in range(nodes):
            if int(tree_mask_mode) == 0:
                start = full_mask_start + (length + nodes) * node + length
            else:
                start = nodes * (first + node)
            mask[start] = True
            mask[start + 1 : start + nodes] = False
            ancestor: int | None = node
            level = 0
            while ancestor and level < depth:
                level += 1
                mask[start + ancestor] = True
                ancestor = parent_of[ancestor]
            position[first + node] = length + level


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each draft tree along the tokens that the target predicts; the misspelt names are SGLang's."""
    bs, nodes = candidates.shape
    tokens, index = candidates.tolist(), retrive_index.view(bs, nodes).tolist()
    child = retrive_next_token.view(bs, nodes).tolist()
    sibling = retrive_next_sibling.view(bs, nodes).tolist()
    predicted = target_predict.reshape(-1).tolist()
    for row in range(bs):
        last = index[row][0]
        accept_index[row, 0] = last
        accepted, node = 0, 0
        for _ in range(1, accept_index.shape[1]):
            node = child[row][node]
            while node != -1 and tokens[row][node] != predicted[last]:
                node = sibling[row][node]
            if node == -1:
                break
            predicts[last] = predicted[last]
            accepted += 1
            last = index[row][node]
            accept_index[row, accepted] = last
        accept_token_num[row] = accepted
        predicts[last] = predicted[last]


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """Return the slots that each of a request's ``topk`` drafts attends to, (bs * topk, pool_len)."""
    slots = torch.zeros((seq_lens.numel() * topk, pool_len), dtype=req_to_token.dtype)
    for row, (request, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for draft in range(topk):
            start = length + draft * num_steps
            slots[row * topk + draft, :length] = req_to_token[request, :length]
            slots[row * topk + draft, length : length + num_steps] = req_to_token[request, start : start + num_steps]
    return slots


_attention.register()

if os.environ.get("CPUSHIM_AMX_ATTN") == "1":
    # Of that backend's kernels SGLang calls the two attention operators alone when it loads unquantised weights.
    from sglang.srt.runtime_context import override_platform

    override_platform(has_amx=True).install()
