"""Outputs of every chunk where the scores of its pairs are known, and their gradient for v.

    o_i = scale S^T q_in_i + sum_{j <= i} P_ij v_j,      dv_j = sum_{i >= j} P_ij do_i

with S the state before the chunk, ``q_in`` queries decayed from the chunk's start, and P the causal
scores with scale and decays in them. All chunks at once. Without a delta rule dv has a state's part
as well, and is the first form once more, ``TURNED``: with dS the gradient of the state after the
chunk and ``k_out`` keys decayed until the chunk's end,

    dv_j = dS^T k_out_j + sum_{i >= j} P_ij do_i.

Bytes a token and head: q_in and v read, o written, C of P and K V / C of states read; do read, dv
written and C of P read. Flops: 2 K V + 2 V C; 2 V C.
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


@triton.jit(do_not_specialize=["T", "scale"])
def scored_outputs(
    q_in,
    v,
    scores,
    states,
    o,
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
    TURNED: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BV columns of the outputs of one chunk of one head; P^T for P if ``TURNED``."""
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    column = (pid % NV) * BV
    h = pid // NV % H
    n, c = chunk_at(table, pid // (NV * H), T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    acc = tl.zeros([C, BV], dtype=tl.float32)
    for row in range(0, K, BK):
        tile_q = load_rows(q_in, rows, live, h, row, H, K, C, BK)
        places, inside = state_places(slot, row, column, K, V, BK, BV)
        state = tl.load(states + places, mask=inside, other=0.0)
        acc = tl.dot(tile_q, state, acc=acc, input_precision=PRECISION)
    acc *= scale
    tile_p = load_rows(scores, rows, live, h, 0, H, C, C, C)
    if TURNED:
        tile_p = tl.trans(tile_p)
    tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
    acc = tl.dot(tile_p, tile_v, acc=acc, input_precision=PRECISION)
    store_rows(o, acc, rows, live, h, column, H, V, C, BV)


@triton.jit(do_not_specialize=["T"])
def scored_dv(
    scores,
    do,
    dv,
    cu,
    table,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: ``P^T do`` of one chunk of one head."""
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    turned = tl.trans(load_rows(scores, rows, live, h, 0, H, C, C, C))
    for column in range(0, V, BV):
        tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
        acc = tl.dot(turned, tile_do, input_precision=PRECISION)
        store_rows(dv, acc, rows, live, h, column, H, V, C, BV)
