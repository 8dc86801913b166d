# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stands in for sgl_kernel.speculative: what NGRAM speculation calls."""

from __future__ import annotations

import torch

from . import Missing


def __getattr__(name: str) -> Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing(name)


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    bs: int,
    n: int,
) -> None:
    """Work out positions and first-child / next-sibling links of ``bs`` trees of ``n`` nodes from their masks."""
    masks = tree_mask.view(-1)[: bs * n * n].view(bs, n, n).bool()
    position, index = positions.view(-1), retrieve_index.view(-1)
    child, sibling = retrieve_next_token.view(-1), retrieve_next_sibling.view(-1)
    for row, (mask, length) in enumerate(zip(masks.tolist(), verified_seq_len.tolist()[:bs], strict=True)):
        ancestors = [[other for other in range(node) if sees[other]] for node, sees in enumerate(mask)]
        parent = [max(above) if above else -1 for above in ancestors]
        for node in range(n):
            at = row * n + node
            later = range(node + 1, n)
            position[at] = len(ancestors[node]) + length
            index[at] = at
            child[at] = next((other for other in later if node in ancestors[other]), -1)
            sibling[at] = (
                -1 if parent[node] < 0 else next((other for other in later if parent[other] == parent[node]), -1)
            )
