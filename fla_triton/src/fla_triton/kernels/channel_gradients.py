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

Two kernels: ``channel_pulls`` leaves the dP of every chunk in memory, mirrored at the diagonal, and
``channel_gradients`` takes a tile of channels of one chunk and head. Bytes a head: v and do read, C
of dP a token written; q, k, v, do, gates and dP read and dq, dk, dg written, S and dS of each chunk
read. Flops a token and head: 2 C V; 4 K V + 2 C K log2(C), twice that for gates, and sums of gates
(``tree``, ``spans``).
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
from fla_triton.kernels.spans import behind, decays, load_gates, ones, up_to
from fla_triton.kernels.tree import both_ways, pair_gradients, sums


@triton.jit(do_not_specialize=["T", "scale"])
def channel_pulls(
    v,
    do,
    pulls,
    cu,
    table,
    T,
    scale,
    H: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: ``dP`` of one chunk of one head, in both triangles."""
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    acc = tl.zeros([C, C], dtype=tl.float32)
    for column in range(0, V, BV):
        tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
        tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
        acc = tl.dot(tile_do, tl.trans(tile_v), acc=acc, input_precision=PRECISION)
    acc *= scale
    dtype: tl.constexpr = pulls.dtype.element_ty
    own = tl.where(inner[:, None] == inner[None, :], acc, 0.0).to(dtype)
    store_rows(pulls, both_ways(acc, dtype) + own, rows, live, h, 0, H, C, C, C)


@triton.jit(do_not_specialize=["T", "scale"])
def channel_gradients(
    q,
    k,
    v,
    g,
    do,
    pulls,
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
    """One program: BK channels of one chunk of one head, V in tiles."""
    pid = tl.program_id(0)
    NK: tl.constexpr = (K + BK - 1) // BK
    row = pid % NK * BK
    h = pid // NK % H
    n, c = chunk_at(table, pid // (NK * H), T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    head = n * H + h
    begins = c == 0
    ends = (c + 1) * C >= length
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    dtype: tl.constexpr = k.dtype.element_ty

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

    high, low = load_gates(g, rows, live, h, row, H, K, C, BK, dtype)
    own = tl.load(pulls + (rows * H + h) * C + inner, mask=live, other=0.0)[:, None]
    acc_g = tl.zeros([C, BK], dtype=tl.float32)
    # Keys first, then queries: both at once do not fit into registers.
    span = ones(behind(C), dtype)
    acc_k *= decays(span, high, low, PRECISION)
    if WITH_GATES:
        tile = load_rows(k, rows, live, h, row, H, K, C, BK)
        acc_g += sums(tl.trans(span), tile * acc_k, dtype, PRECISION)
    tile = load_rows(q, rows, live, h, row, H, K, C, BK)
    acc_k += own.to(tl.float32) * tile
    span = ones(up_to(C), dtype)
    since = decays(span, high, low, PRECISION)
    acc_q *= since * scale
    if WITH_GATES:
        total = tl.sum(tl.where((inner == C - 1)[:, None], since, 0.0), 0)
        acc_g += sums(tl.trans(span), tile * acc_q, dtype, PRECISION) + (across * total)[None, :]
    tile = load_rows(k, rows, live, h, row, H, K, C, BK)
    acc_q += own.to(tl.float32) * tile
    acc_q, acc_k, acc_g = pair_gradients(
        acc_q,
        acc_k,
        acc_g,
        pulls,
        q,
        k,
        high,
        low,
        rows,
        live,
        h,
        row,
        H,
        K,
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
