"""Outputs of every chunk from the state before it, with one decay a head.

    o_i = scale ( exp(G_i) S^T q_i + sum_{j <= i} exp(G_i - G_j) (q_i . k_j) v_j )

and ``o_i / w_i`` where attention is normalised by a given w. A chunk of C tokens is R = 1 or 2
blocks of BT; one program takes one block and one tile of V. Every exponent is a sum of the gates
between two tokens and never positive. No order between programs.

Bytes a head: q, k, v read and o written, once each, T / C * K * V elements of states.
Flops a token and head: 2 K V + (K + V) BT (R + 1).

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16, where copying reaches 4.27 TB/s:
0.13 ms (forward less states), 59 % of that rate.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: SIM102

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    chunk_at,
    decay,
    first_slot,
    load_rows,
    pair_decays,
    running_gates,
    sequence_at,
    state_places,
    store_rows,
)


@triton.jit(do_not_specialize=["T", "scale"])
def chunk_outputs(
    q,
    k,
    v,
    g,
    gamma,
    states,
    w,
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
    BT: tl.constexpr,
    R: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
    HAS_W: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BT tokens of one head, BV columns of their outputs."""
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    C: tl.constexpr = R * BT
    tl.static_assert(R == 1 or BK >= K)
    GATED: tl.constexpr = HAS_G or HAS_GAMMA
    column = (pid % NV) * BV
    h = pid // NV % H
    block = pid // (NV * H) % R
    n, c = chunk_at(table, pid // (NV * H * R), T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN) + c

    inner = tl.arange(0, BT)
    begin = c * C + block * BT
    if begin >= length:
        return
    live = begin + inner < length
    rows = first + begin + inner
    tile_q = load_rows(q, rows, live, h, 0, H, K, BT, BK)
    tile_k = load_rows(k, rows, live, h, 0, H, K, BT, BK)
    tile_v = load_rows(v, rows, live, h, column, H, V, BT, BV)
    places, inside = state_places(slot * H + h, 0, column, K, V, BK, BV)
    state = tl.load(states + places, mask=inside, other=0.0)

    scores = tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION)
    for row in range(BK, K, BK):
        more_q = load_rows(q, rows, live, h, row, H, K, BT, BK)
        more_k = load_rows(k, rows, live, h, row, H, K, BT, BK)
        scores = tl.dot(more_q, tl.trans(more_k), acc=scores, input_precision=PRECISION)
    scores *= scale
    if GATED:
        since, _, _, whole, rest, unit = running_gates(
            g, gamma, rows, live, h, H, BT, HAS_G, HAS_GAMMA
        )
        scores *= pair_decays(whole, rest, unit, BT)
    else:
        scores = tl.where(inner[:, None] >= inner[None, :], scores, 0.0)
    acc = tl.dot(scores.to(tile_v.dtype), tile_v, input_precision=PRECISION)
    if R == 2:
        if block == 1:
            # The first block of a chunk is full where there is a second.
            other = rows - BT
            full = inner < BT
            tile_k = load_rows(k, other, full, h, 0, H, K, BT, BK)
            tile_v = load_rows(v, other, full, h, column, H, V, BT, BV)
            scores = tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION) * scale
            if GATED:
                _, until, total, _, _, _ = running_gates(
                    g, gamma, other, full, h, H, BT, HAS_G, HAS_GAMMA
                )
                scores *= decay(since[:, None] + until[None, :])
                since += total
            acc = tl.dot(scores.to(tile_v.dtype), tile_v, acc=acc, input_precision=PRECISION)

    carried = tl.dot(tile_q, state, input_precision=PRECISION)
    for row in range(BK, K, BK):
        more_q = load_rows(q, rows, live, h, row, H, K, BT, BK)
        places, inside = state_places(slot * H + h, row, column, K, V, BK, BV)
        more = tl.load(states + places, mask=inside, other=0.0)
        carried = tl.dot(more_q, more, acc=carried, input_precision=PRECISION)
    if GATED:
        carried *= decay(since)[:, None]
    acc += carried * scale
    if HAS_W:
        acc *= (1.0 / tl.load(w + rows * H + h, mask=live, other=1.0))[:, None]
    store_rows(o, acc, rows, live, h, column, H, V, BT, BV)
