"""What a chunk's errors and outputs are made of, where every key channel has its own decay.

What a delta rule erases with (``left``) and writes (``value``) is k and v times strengths: beta of
a head, or b of key channels and w of value channels. With running log decays G inside the chunk,

    A_ij = sum_d left_id k_jd exp(G_id - G_jd) for j < i,   X = (I + A)^-1,
    w_i = sum_j X_ij exp(G_j) left_j,   u_i = sum_j X_ij value_j,   v_new = u - w S,
    P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) for j <= i.

The pairs of q come along with those of left: they have the decays in common, which are dearer than
the products (``tree``). Writes too what the passes over time read in place of q and k, ``q_in`` =
exp(G) q and ``k_out`` = exp(G_C - G) k, and ``totals`` exp(G_C); and X, if asked for.

All chunks at once. Bytes a token and head: q, k, v, gates and strengths read, w, u, q_in, k_out and
C of P written, C of X. Flops: 4 K C log2(C) + 2 (K + V) C + 8 C^2.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import chunk_at, first_slot, load_rows, sequence_at, store_rows
from fla_triton.kernels.spans import (
    behind,
    decays,
    load_gates,
    ones,
    to_middle,
    tokens_at,
    up_to,
)
from fla_triton.kernels.triangular import unit_lower_inverse


@triton.jit
def load_strengths(
    strengths,
    rows,
    live,
    h,
    column,
    H: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Strengths of a tile in float32: of channels ``[rows, H, D]``, or of heads as a column."""
    if CHANNELS:
        found = load_rows(strengths, rows, live, h, column, H, D, BT, BD)
    else:
        found = tl.load(strengths + rows * H + h, mask=live, other=0.0)[:, None]
    return found.to(tl.float32)


@triton.jit
def both_scores(
    q,
    k,
    erase,
    gates,
    rows,
    live,
    h,
    H: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Pairs of left (less a head's beta) with k for ``j < i``, and of q with k for ``j <= i``.

    ``gates``: of ``load_gates``, those of each tile of channels, which stay in shared memory. q and
    k are read again on every level: there are no registers for all of them.
    """
    dtype: tl.constexpr = k.dtype.element_ty
    erased = tl.zeros([C, C], dtype=tl.float32)
    read = tl.zeros([C, C], dtype=tl.float32)
    for tile in tl.static_range((K + BK - 1) // BK):
        # Of this only the diagonal stays: a pair of a token with itself does not decay.
        tile_q = load_rows(q, rows, live, h, tile * BK, H, K, C, BK)
        tile_k = load_rows(k, rows, live, h, tile * BK, H, K, C, BK)
        read = tl.dot(tile_q, tl.trans(tile_k), acc=read, input_precision=PRECISION)
    for level in range(LEVELS):
        # Zero, which only the device knows: what does not depend on the level leaves the loop.
        here = rows + (level >> 8)
        between = ones(to_middle(level, C), dtype)
        found = tl.zeros([C, C], dtype=tl.float32)
        asked = tl.zeros([C, C], dtype=tl.float32)
        for tile in tl.static_range((K + BK - 1) // BK):
            row = tile * BK
            factor = decays(between, gates[2 * tile], gates[2 * tile + 1], PRECISION)
            wide = load_rows(k, here, live, h, row, H, K, C, BK) * factor
            turned = tl.trans(wide.to(dtype))
            if CHANNELS:
                wide *= load_strengths(erase, here, live, h, row, H, K, C, BK, CHANNELS)
            found = tl.dot(wide.to(dtype), turned, acc=found, input_precision=PRECISION)
            wide = load_rows(q, here, live, h, row, H, K, C, BK) * factor
            asked = tl.dot(wide.to(dtype), turned, acc=asked, input_precision=PRECISION)
        # Pairs of higher levels are written, too, and written over when their turn comes.
        tokens = tokens_at(level, C)
        reached = (tokens[:, None] ^ tokens[None, :]) >= (1 << level)
        erased = tl.where(reached, found, erased)
        read = tl.where(reached, asked, read)
    inner = tl.arange(0, C)
    erased = tl.where(inner[:, None] > inner[None, :], erased, 0.0)
    return erased, tl.where(inner[:, None] >= inner[None, :], read, 0.0)


@triton.jit(do_not_specialize=["T", "scale"])
def delta_channel_prepare(
    q,
    k,
    v,
    g,
    erase,
    write,
    w,
    u,
    q_in,
    k_out,
    scores,
    inverse,
    totals,
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
    CHANNELS: tl.constexpr,
    WITH_INVERSE: tl.constexpr,
    FLAT: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head; ``erase`` and ``write`` are b and w, or beta twice."""
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    gates = ()
    for tile in tl.static_range((K + BK - 1) // BK):
        gates += load_gates(g, rows, live, h, tile * BK, H, K, C, BK, k.dtype.element_ty)
    erased, read = both_scores(
        q, k, erase, gates, rows, live, h, H, K, BK, C, LEVELS, CHANNELS, PRECISION
    )
    for tile in tl.static_range((K + BK - 1) // BK):
        row = tile * BK
        until = decays(behind(C), gates[2 * tile], gates[2 * tile + 1], PRECISION)
        tile_k = load_rows(k, rows, live, h, row, H, K, C, BK)
        store_rows(k_out, tile_k * until, rows, live, h, row, H, K, C, BK)
    store_rows(scores, read * scale, rows, live, h, 0, H, C, C, C)

    if not CHANNELS:
        strength = load_strengths(erase, rows, live, h, 0, H, K, C, BK, CHANNELS)
        erased *= strength
    solved = unit_lower_inverse(erased, C, PRECISION, FLAT)
    if WITH_INVERSE:
        store_rows(inverse, solved, rows, live, h, 0, H, C, C, C)
    if not CHANNELS:
        solved *= tl.trans(strength)
    solved = solved.to(k.dtype.element_ty)
    for tile in tl.static_range((K + BK - 1) // BK):
        row = tile * BK
        since = decays(up_to(C), gates[2 * tile], gates[2 * tile + 1], PRECISION)
        channels = row + tl.arange(0, BK)
        place = tl.cast(slot, tl.int64) * K + channels[None, :]
        last = (inner == C - 1)[:, None] & (channels < K)[None, :]
        tl.store(totals + place + 0 * inner[:, None], since, mask=last)
        tile_q = load_rows(q, rows, live, h, row, H, K, C, BK)
        store_rows(q_in, tile_q * since, rows, live, h, row, H, K, C, BK)
        left = load_rows(k, rows, live, h, row, H, K, C, BK) * since
        if CHANNELS:
            left *= load_strengths(erase, rows, live, h, row, H, K, C, BK, CHANNELS)
        tile_w = tl.dot(solved, left.to(k.dtype.element_ty), input_precision=PRECISION)
        store_rows(w, tile_w, rows, live, h, row, H, K, C, BK)
    for column in range(0, V, BV):
        value = load_rows(v, rows, live, h, column, H, V, C, BV)
        if CHANNELS:
            strength = load_strengths(write, rows, live, h, column, H, V, C, BV, CHANNELS)
            value = (value * strength).to(value.dtype)
        tile_u = tl.dot(solved, value, input_precision=PRECISION)
        store_rows(u, tile_u, rows, live, h, column, H, V, C, BV)
