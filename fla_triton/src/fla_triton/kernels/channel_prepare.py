"""Scores of every chunk's pairs, and queries and keys as states meet them, under channel decays.

With running log decays G of key channels inside the chunk, and their total G_C,

    P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) for j <= i,
    q_in_i = scale exp(G_i) q_i,   k_out_j = exp(G_C - G_j) k_j,   totals = exp(G_C).

All that decays is done with here: what follows are plain products and a factor of the state. All
chunks at once.

Bytes a token and head: q, k and gates read, q_in, k_out and C of P written. Flops: 2 K C
log2(C / 16) between blocks, 160 K inside them.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import chunk_at, first_slot, sequence_at, step_decay, store_rows
from fla_triton.kernels.pairs import no_scores, pair_scores, store_scores
from fla_triton.kernels.tokens import BLOCK, as_rows, load_tokens


@triton.jit
def load_decays(
    g, first, live, h, column, H: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr
):
    """``exp`` of gates as 16 tiles; one outside."""
    tiles = load_tokens(g, first, live, h, column, H, K, C, BK)
    found = ()
    for token in tl.static_range(BLOCK):
        found += (step_decay(tiles[token].to(tl.float32)),)
    return found


@triton.jit
def store_totals(totals, total, slot, column, K: tl.constexpr, BK: tl.constexpr):
    """Write a tile of a chunk's decay, which every row of ``total [C / 16, BK]`` holds."""
    channels = column + tl.arange(0, BK)
    row = tl.arange(0, total.shape[0])[:, None]
    places = tl.cast(slot, tl.int64) * K + channels[None, :] + 0 * row
    tl.store(totals + places, total, mask=(row == 0) & (channels < K)[None, :])


@triton.jit(do_not_specialize=["T", "scale"])
def channel_prepare(
    q,
    k,
    g,
    q_in,
    k_out,
    scores,
    totals,
    cu,
    table,
    T,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    FLAT: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head."""
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    begin, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(begin, n, T, C, VARLEN) + c) * H + h
    first = begin + c * C
    left = length - c * C
    rows = first + tl.arange(0, C)
    live = tl.arange(0, C) < left
    dtype: tl.constexpr = k.dtype.element_ty

    near, far = no_scores(C)
    for row in range(0, K, BK):
        queries = load_tokens(q, first, left, h, row, H, K, C, BK)
        near, far, _, _, entering, _, leaving, total = pair_scores(
            near,
            far,
            near,
            far,
            queries,
            queries,
            load_tokens(k, first, left, h, row, H, K, C, BK),
            load_decays(g, first, left, h, row, H, K, C, BK),
            scale,
            dtype,
            BK,
            False,
            FLAT,
            PRECISION,
        )
        entering = as_rows(entering, dtype, C, BK)
        store_rows(q_in, entering, rows, live, h, row, H, K, C, BK)
        leaving = as_rows(leaving, dtype, C, BK)
        store_rows(k_out, leaving, rows, live, h, row, H, K, C, BK)
        store_totals(totals, total, slot, row, K, BK)
    store_scores(scores, near * scale, far * scale, first, left, h, H, C, FLAT)
