"""Scores of every chunk's pairs, and queries and keys as states meet them, under channel decays.

With running log decays G of key channels inside the chunk, and their total G_C,

    P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) for j <= i,
    q_in_i = scale exp(G_i) q_i,   k_out_j = exp(G_C - G_j) k_j,   totals = exp(G_C).

All that decays is done with here: what follows are plain products and a factor of the state. All
chunks at once. Columns of P are in the order of ``tree_tokens``.

Bytes a token and head: q, k and gates read, q_in, k_out and C of P written. Flops: 2 K C
(log2(C) + 1).
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    chunk_at,
    first_slot,
    load_rows,
    sequence_at,
    step_decay,
    store_rows,
)
from fla_triton.kernels.pairs import pair_scores, tree_tokens


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
    LOW: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head."""
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    inner = tree_tokens(C)
    live = c * C + inner < length
    rows = first + c * C + inner

    acc = tl.zeros([C, C], dtype=tl.float32)
    for row in range(0, K, BK):
        tile_q = load_rows(q, rows, live, h, row, H, K, C, BK)
        tile_k = load_rows(k, rows, live, h, row, H, K, C, BK)
        decays = step_decay(load_rows(g, rows, live, h, row, H, K, C, BK).to(tl.float32))
        found, entering, leaving, total = pair_scores(
            tile_q.to(tl.float32),
            tile_k.to(tl.float32),
            decays,
            k.dtype.element_ty,
            C,
            BK,
            LOW,
            PRECISION,
        )
        acc += found
        store_rows(q_in, entering * scale, rows, live, h, row, H, K, C, BK)
        store_rows(k_out, leaving, rows, live, h, row, H, K, C, BK)
        channels = row + tl.arange(0, BK)
        places = totals + tl.cast(slot, tl.int64) * K + channels
        tl.store(places, tl.reshape(total, [BK]), mask=channels < K)
    acc = tl.where(inner[:, None] >= inner[None, :], acc, 0.0)
    store_rows(scores, acc * scale, rows, live, h, 0, H, C, C, C)
