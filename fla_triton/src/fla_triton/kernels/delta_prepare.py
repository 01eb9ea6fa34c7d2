"""What a chunk's errors are made of, before the state it starts from is known: w and u.

The errors of one chunk solve a triangular system. With running log decays G,

    A_ij = beta_i (k_i . k_j) exp(G_i - G_j) for j < i,   X = (I + A)^-1,
    w_i = sum_j X_ij beta_j exp(G_j) k_j,   u_i = sum_j X_ij beta_j v_j,   v_new = u - w S.

All chunks at once. Writes too what the passes over time multiply by: ``since`` exp(G_i), ``into``
exp(G_C - G_i), both ``[slots, H, C]``, and ``totals`` exp(G_C). If asked for, X, or X beta in its
place (``FOLD``), and the causal scores ``P_ij = scale (q_i . k_j) exp(G_i - G_j)``; both are
``[.., H, C]``. Without w and u (``WITH_ERRORS``) v is not read.

Bytes a token and head: k, v read and w, u written, C elements for each of X and P, q read for P.
Flops: 2 K C for each of A and P, 2 (K + V) C for w and u, 8 C^2.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    decay,
    first_slot,
    load_rows,
    pair_decays,
    program_at,
    running_gates,
    store_rows,
)
from fla_triton.kernels.triangular import unit_lower_inverse, wide_product


@triton.jit(do_not_specialize=["T", "scale"])
def delta_prepare(
    q,
    k,
    v,
    g,
    beta,
    w,
    u,
    inverse,
    scores,
    since,
    into,
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
    HAS_G: tl.constexpr,
    WITH_ERRORS: tl.constexpr,
    WITH_INVERSE: tl.constexpr,
    WITH_SCORES: tl.constexpr,
    FOLD: tl.constexpr,
    FLAT: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head."""
    NV: tl.constexpr = (V + BV - 1) // BV
    n, h, c, first, length = program_at(cu, table, T, H, C, VARLEN)
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    steps = rows * H + h

    tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
    strength = tl.load(beta + steps, mask=live, other=0.0).to(tl.float32)
    system = tl.dot(tile_k, tl.trans(tile_k), input_precision=PRECISION) * strength[:, None]
    if WITH_SCORES:
        tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
        attend = tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION) * scale
    reading = strength
    place = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    if HAS_G:
        running, until, total, whole, rest, unit = running_gates(
            g, g, rows, live, h, H, C, HAS_G, False
        )
        pairs = pair_decays(whole, rest, unit, C)
        system *= pairs
        if WITH_SCORES:
            attend *= pairs
        arriving = decay(running)
        reading *= arriving
        tl.store(since + place * C + inner, arriving)
        tl.store(into + place * C + inner, decay(until))
        tl.store(totals + place, decay(total))
    if WITH_SCORES:
        attend = tl.where(inner[:, None] >= inner[None, :], attend, 0.0)
        store_rows(scores, attend, rows, live, h, 0, H, C, C, C)
    system = tl.where(inner[:, None] > inner[None, :], system, 0.0)
    solved = unit_lower_inverse(system, C, PRECISION, FLAT)
    writing = solved * strength[None, :]
    if WITH_INVERSE:
        store_rows(inverse, writing if FOLD else solved, rows, live, h, 0, H, C, C, C)
    if WITH_ERRORS:
        tile_w = wide_product(solved * reading[None, :], tile_k, PRECISION)
        store_rows(w, tile_w, rows, live, h, 0, H, K, C, BK)
        for tile in range(NV):
            tile_v = load_rows(v, rows, live, h, tile * BV, H, V, C, BV)
            tile_u = wide_product(writing, tile_v, PRECISION)
            store_rows(u, tile_u, rows, live, h, tile * BV, H, V, C, BV)
