"""What a chunk's errors and outputs are made of, where every key channel has its own decay.

What a delta rule erases with (``left``) and writes (``value``) is k and v times strengths: beta of
a head, or b of key channels and w of value channels. With running log decays G inside the chunk,

    A_ij = sum_d left_id k_jd exp(G_id - G_jd) for j < i,   X = (I + A)^-1,
    w_i = sum_j X_ij exp(G_j) left_j,   u_i = sum_j X_ij value_j,   v_new = u - w S,
    P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) for j <= i.

The pairs of q come along with those of left: they have the decays and keys in common (``pairs``).
Writes too what the passes over time read in place of q and k, ``q_in`` = exp(G) q and ``k_out`` =
exp(G_C - G) k, and ``totals`` exp(G_C); and X, if asked for.

All chunks at once. Bytes a token and head: q, k, v, gates and strengths read, w, u, q_in, k_out and
C of P written, C of X. Flops: 4 K C log2(C / 16) between blocks, 288 K inside them, 2 (K + V) C and
8 C^2.
"""

import triton
import triton.language as tl

from fla_triton.kernels.channel_prepare import load_decays, store_totals
from fla_triton.kernels.common import chunk_at, first_slot, load_rows, sequence_at, store_rows
from fla_triton.kernels.pairs import (
    no_scores,
    pair_scores,
    store_scores,
    times,
    whole,
    widened,
)
from fla_triton.kernels.tokens import as_rows, load_tokens
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
    first += c * C
    remaining = length - c * C
    inner = tl.arange(0, C)
    live = inner < remaining
    rows = first + inner
    dtype: tl.constexpr = k.dtype.element_ty

    near, far = no_scores(C)
    wrong_near, wrong_far = no_scores(C)
    for row in range(0, K, BK):
        queries = load_tokens(q, first, remaining, h, row, H, K, C, BK)
        keys = load_tokens(k, first, remaining, h, row, H, K, C, BK)
        erasing = keys
        if CHANNELS:
            strengths = load_tokens(erase, first, remaining, h, row, H, K, C, BK)
            erasing = times(widened(keys), widened(strengths))
        near, far, wrong_near, wrong_far, entering, erasing, leaving, total = pair_scores(
            near,
            far,
            wrong_near,
            wrong_far,
            queries,
            erasing,
            keys,
            load_decays(g, first, remaining, h, row, H, K, C, BK),
            1.0,
            dtype,
            BK,
            True,
            FLAT,
            PRECISION,
        )
        store_rows(q_in, as_rows(entering, dtype, C, BK), rows, live, h, row, H, K, C, BK)
        store_rows(k_out, as_rows(leaving, dtype, C, BK), rows, live, h, row, H, K, C, BK)
        # Read again below, when it is known what it is multiplied with.
        store_rows(w, as_rows(erasing, dtype, C, BK), rows, live, h, row, H, K, C, BK)
        store_totals(totals, total, slot, row, K, BK)
    store_scores(scores, near * scale, far * scale, first, remaining, h, H, C, FLAT)

    erased = tl.where(inner[:, None] > inner[None, :], whole(wrong_near, wrong_far, FLAT), 0.0)
    if not CHANNELS:
        strength = load_strengths(erase, rows, live, h, 0, H, K, C, BK, CHANNELS)
        erased *= strength
    solved = unit_lower_inverse(erased, C, PRECISION, FLAT)
    if WITH_INVERSE:
        store_rows(inverse, solved, rows, live, h, 0, H, C, C, C)
    if not CHANNELS:
        solved *= tl.trans(strength)
    solved = solved.to(k.dtype.element_ty)
    tl.debug_barrier()
    for column in range(0, K, BV):
        left = load_rows(w, rows, live, h, column, H, K, C, BV)
        tile_w = tl.dot(solved, left, input_precision=PRECISION)
        # All threads have read what is now written over.
        tl.debug_barrier()
        store_rows(w, tile_w, rows, live, h, column, H, K, C, BV)
    for column in range(0, V, BV):
        value = load_rows(v, rows, live, h, column, H, V, C, BV)
        if CHANNELS:
            strength = load_strengths(write, rows, live, h, column, H, V, C, BV, CHANNELS)
            value = (value * strength).to(value.dtype)
        tile_u = tl.dot(solved, value, input_precision=PRECISION)
        store_rows(u, tile_u, rows, live, h, column, H, V, C, BV)
