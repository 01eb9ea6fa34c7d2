"""Decay and decayed scores inside a chunk.

Decay is carried as a *product* of factors ``exp(g) <= 1``, never as a difference of cumulative
sums: after a hard reset (a gate of -1e4) a float32 difference loses every gate smaller than 1e-3,
whereas each factor of a product costs one rounding of its own result. No positive exponent is
ever taken, and nothing is divided, so finite inputs give finite outputs and gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

#: Tokens of the blocks whose scores are written out pair by pair. Four take 0.7 of the time that
#: merging from single tokens takes, gradients included; eight save at most as much again on long
#: inputs, but need 36 products where four need 10, which short inputs pay for.
SMALLEST = 4


class HeadDecay(NamedTuple):
    """Decay inside chunks of C tokens, one gate a head."""

    #: ``[..., C, C]``: exp of the gates of tokens j + 1 to i at (i, j), zero above the diagonal.
    matrix: Tensor
    #: ``[..., C]``: from the chunk's start to token i, inclusive.
    since_start: Tensor
    #: ``[..., C]``: from token i, exclusive, to the chunk's end.
    until_end: Tensor
    #: ``[...]``: of the whole chunk.
    total: Tensor


class ChannelScores(NamedTuple):
    """Scores and decayed operands of chunks of C tokens, one gate a channel."""

    #: One ``[..., C, C]`` for each kind of row: sum_d row_id col_jd decay_d(j + 1 .. i), i >= j.
    scores: tuple[Tensor, ...]
    #: The rows ``[..., C, K]``, decayed from the chunk's start to their token, inclusive.
    rows: tuple[Tensor, ...]
    #: The columns ``[..., C, K]``, decayed from their token, exclusive, to the chunk's end.
    columns: Tensor
    #: ``[..., K]``: decay of the whole chunk.
    total: Tensor


def head_decay(g: Tensor) -> HeadDecay:
    """Decay inside chunks from log gates ``g [..., C]``.

    Row by row, ``row_i = [row_{i-1} exp(g_i), 1]``, over the C + 1 points between tokens. Half the
    time of merging halves, there being no channels to fill the arithmetic units with.
    """
    points = torch.eye(g.shape[-1] + 1, dtype=g.dtype, device=g.device).unbind()
    row = points[0].expand(*g.shape[:-1], -1)
    rows = []
    for decay, point in zip(g.exp()[..., None].unbind(-2), points[1:], strict=True):
        row = torch.addcmul(point, row, decay)
        rows.append(row)
    # [..., C + 1, C + 1] without its first row: decay from point j to point i.
    between = torch.stack(rows, -2)
    since_start, matrix = between.split_with_sizes((1, g.shape[-1]), -1)
    return HeadDecay(matrix, since_start[..., 0], row[..., 1:], row[..., 0])


def channel_scores(rows: Sequence[Tensor], columns: Tensor, g: Tensor) -> ChannelScores:
    """Scores of rows against columns under a decay per channel.

    ``scores[i, j] = sum_d rows[i, d] columns[j, d] exp(g[j + 1, d] + ... + g[i, d])`` for i >= j.
    A block of tokens is the merger of its halves: the off-diagonal score of the right half's rows
    with the left half's columns factors at the point between them, where both carry a decay of at
    most one; blocks of all chunks at one level are multiplied at once.

    Args:
        rows: one or more ``[..., C, K]`` (q; for a delta rule q and k), C a power of two.
        columns: ``[..., C, K]``.
        g: log gates ``[..., C, K]``.
    """
    lead, (size, width) = g.shape[:-2], g.shape[-2:]
    scores, left, right, total = _smallest_blocks(rows, columns, g.exp(), min(size, SMALLEST))
    while right.shape[-3] > 1:
        scores, left, right, total = _merge(scores, left, right, total)
    blocks = scores.reshape(*lead, len(rows), size, size).unbind(-3)
    decayed = left.reshape(*lead, len(rows), size, width).unbind(-3)
    return ChannelScores(
        blocks, decayed, right.reshape(*lead, size, width), total.reshape(*lead, width)
    )


def _smallest_blocks(
    rows: Sequence[Tensor], columns: Tensor, decay: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Blocks of s tokens: scores ``[..., C/s, kinds, s, s]``, rows ``[..., C/s, kinds, s, K]``,
    columns ``[..., C/s, s, K]`` and total decay ``[..., C/s, K]``."""

    def by_place(x: Tensor) -> tuple[Tensor, ...]:
        return torch.unflatten(x, -2, (-1, size)).unbind(-2)

    kinds = [by_place(x) for x in rows]
    decays = by_place(decay)
    since_start = list(accumulate(decays, torch.mul))
    carried: list[Tensor] = []
    scores: list[list[Tensor]] = [[] for _ in kinds]
    for i, (column, step) in enumerate(zip(by_place(columns), decays, strict=True)):
        carried = [*(x * step for x in carried), column]
        for kind, line in zip(kinds, scores, strict=True):
            line.extend((kind[i] * x).sum(-1) for x in carried)
            line.extend([torch.zeros_like(line[0])] * (size - 1 - i))
    square = torch.stack([torch.stack(line, -1) for line in scores], -2)
    decayed = [
        torch.stack([x * d for x, d in zip(kind, since_start, strict=True)], -2) for kind in kinds
    ]
    return (
        torch.unflatten(square, -1, (size, size)),
        torch.stack(decayed, -3),
        torch.stack(carried, -2),
        since_start[-1],
    )


def _merge(
    scores: Tensor, rows: Tensor, columns: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size = columns.shape[-2]
    rows_a, rows_b = halves(rows, -4)
    columns_a, columns_b = halves(columns, -3)
    total_a, total_b = halves(total, -2)
    scores_a, scores_b = halves(scores, -4)

    across = rows_b.flatten(-3, -2) @ columns_a.mT
    lower = torch.cat([torch.unflatten(across, -2, (-1, size)), scores_b], -1)
    scores = torch.cat([F.pad(scores_a, (0, size)), lower], -2)
    rows = torch.cat([rows_a, rows_b * total_a[..., None, None, :]], -2)
    columns = torch.cat([columns_a * total_b[..., None, :], columns_b], -2)
    return scores, rows, columns, total_a * total_b


def halves(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Even and odd entries along ``dim``: the left and right halves of blocks to be merged."""
    return torch.unflatten(x, dim, (-1, 2)).unbind(dim)
