"""Gradients of queries, keys and gates in every chunk, with a decay for each key channel.

With S the state before the chunk, dS the gradient of the state after it, running log decays G and
dP_ij = scale (do_i . v_j) for j <= i,

    dq_i = scale exp(G_i) S do_i + sum_{j <= i} dP_ij exp(G_i - G_j) k_j
    dk_j = exp(G_C - G_j) dS v_j + sum_{i >= j} dP_ij exp(G_i - G_j) q_i

channel by channel. A gate of channel d decays every pair (j, i) with j < t <= i, where j may lie in
the state before the chunk and i behind it, and its gradient is the sum of what these pairs add to
``sum o . do`` in that channel. Those sums are formed as they stand: pairs inside the chunk by the
tree; from the state to queries as a sum over queries from t on; from keys to the state as a sum
over keys before t; and exp(G_C) <S, dS> over the whole chunk. As the running sum of
``q . dq - k . dk``, which is the same, a gradient that a hard gate makes small would be a
difference of large numbers.

One program takes a chunk of C tokens of one head. Bytes a head: q, k, v, do, gates read and dq,
dk, dg written once, S and dS of each chunk. Flops a token and head: 4 K V + 2 C V + 2 C K for each
of log2(C) levels two or three times, and sums of gates (``tree``, ``spans``).
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    chunk_at,
    first_slot,
    load_rows,
    sequence_at,
    state_places,
    store_rows,
)
from fla_triton.kernels.spans import behind, decays, load_gates, up_to
from fla_triton.kernels.tree import both_ways, pair_gradients, sums


@triton.jit(do_not_specialize=["T", "scale"])
def channel_gradients(
    q,
    k,
    v,
    g,
    do,
    states,
    dstates,
    start,
    dlast,
    dq,
    dk,
    dg,
    cu,
    table,
    T,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
    WITH_GATES: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head, K and V in tiles."""
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    head = n * H + h
    begins = c == 0
    ends = (c + 1) * C >= length
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    dtype: tl.constexpr = k.dtype.element_ty

    pulls = tl.zeros([C, C], dtype=tl.float32)
    for column in range(0, V, BV):
        tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
        tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
        pulls = tl.dot(tile_do, tl.trans(tile_v), acc=pulls, input_precision=PRECISION)
    own = tl.sum(tl.where(inner[:, None] == inner[None, :], pulls, 0.0), 1) * scale
    pairs = both_ways(pulls * scale, dtype)

    for row in range(0, K, BK):
        acc_q = tl.zeros([C, BK], dtype=tl.float32)
        acc_k = tl.zeros([C, BK], dtype=tl.float32)
        across = tl.zeros([BK], dtype=tl.float32)
        for column in range(0, V, BV):
            places, inside = state_places(slot, row, column, K, V, BK, BV)
            state = tl.load(states + places, mask=inside, other=0.0)
            dstate = tl.load(dstates + places, mask=inside, other=0.0)
            tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
            tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
            acc_q = tl.dot(tile_do, tl.trans(state), acc=acc_q, input_precision=PRECISION)
            acc_k = tl.dot(tile_v, tl.trans(dstate), acc=acc_k, input_precision=PRECISION)
            if WITH_GATES:
                # At the ends of a sequence states are the caller's own, in float32, and are not
                # rounded: of one token's gate they may be all there is.
                outer, _ = state_places(head, row, column, K, V, BK, BV)
                wide = state.to(tl.float32)
                dwide = dstate.to(tl.float32)
                if HAS_START:
                    given = tl.load(start + outer, mask=inside & begins, other=0.0)
                    wide = tl.where(begins, given, wide)
                if HAS_DLAST:
                    given = tl.load(dlast + outer, mask=inside & ends, other=0.0)
                    dwide = tl.where(ends, given, dwide)
                across += tl.sum(wide * dwide, 1)

        tile_q = load_rows(q, rows, live, h, row, H, K, C, BK)
        tile_k = load_rows(k, rows, live, h, row, H, K, C, BK)
        high, low = load_gates(g, rows, live, h, row, H, K, C, BK, dtype)
        since = decays(up_to(C), high, low, PRECISION)
        acc_q *= since * scale
        acc_k *= decays(behind(C), high, low, PRECISION)
        acc_g = tl.zeros([C, BK], dtype=tl.float32)
        if WITH_GATES:
            acc_g += sums(inner[:, None] <= inner[None, :], tile_q * acc_q, dtype, PRECISION)
            acc_g += sums(inner[:, None] > inner[None, :], tile_k * acc_k, dtype, PRECISION)
            total = tl.sum(tl.where((inner == C - 1)[:, None], since, 0.0), 0)
            acc_g += (across * total)[None, :]
        acc_q += own[:, None] * tile_k
        acc_k += own[:, None] * tile_q
        acc_q, acc_k, acc_g = pair_gradients(
            acc_q,
            acc_k,
            acc_g,
            pairs,
            tile_q,
            tile_k,
            high,
            low,
            C,
            BK,
            LEVELS,
            WITH_GATES,
            PRECISION,
        )
        if WITH_GATES:
            store_rows(dg, acc_g, rows, live, h, row, H, K, C, BK)
        store_rows(dq, acc_q, rows, live, h, row, H, K, C, BK)
        store_rows(dk, acc_k, rows, live, h, row, H, K, C, BK)
