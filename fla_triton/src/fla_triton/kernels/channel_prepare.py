"""Scores of every chunk's pairs, and queries and keys as states meet them, under channel decays.

With running log decays G of key channels inside the chunk, and their total G_C,

    P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) for j <= i,
    q_in_i = scale exp(G_i) q_i,   k_out_j = exp(G_C - G_j) k_j,   totals = exp(G_C).

All that decays is done with here: what follows are plain products and a factor of the state. All
chunks at once. Bytes a token and head: q, k and gates read, q_in, k_out and C of P written. Flops:
2 K C log2(C) for the scores (``tree``), and as much or twice that for sums of gates (``spans``).
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import chunk_at, first_slot, load_rows, sequence_at, store_rows
from fla_triton.kernels.spans import behind, decays, load_gates, up_to
from fla_triton.kernels.tree import own_scores, pair_scores


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
    LEVELS: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head."""
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner

    acc = tl.zeros([C, C], dtype=tl.float32)
    own = tl.zeros([C], dtype=tl.float32)
    for row in range(0, K, BK):
        tile_q = load_rows(q, rows, live, h, row, H, K, C, BK)
        tile_k = load_rows(k, rows, live, h, row, H, K, C, BK)
        high, low = load_gates(g, rows, live, h, row, H, K, C, BK, k.dtype.element_ty)
        own += own_scores(tile_q, tile_k)
        acc = pair_scores(acc, tile_q, tile_k, high, low, C, BK, LEVELS, PRECISION)
        since = decays(up_to(C), high, low, PRECISION)
        store_rows(q_in, tile_q * since * scale, rows, live, h, row, H, K, C, BK)
        until = decays(behind(C), high, low, PRECISION)
        store_rows(k_out, tile_k * until, rows, live, h, row, H, K, C, BK)
        channels = row + tl.arange(0, BK)
        total = tl.sum(tl.where((inner == C - 1)[:, None], since, 0.0), 0)
        tl.store(totals + tl.cast(slot, tl.int64) * K + channels, total, mask=channels < K)
    acc += tl.where(inner[:, None] == inner[None, :], own[:, None], 0.0)
    store_rows(scores, acc * scale, rows, live, h, 0, H, C, C, C)
