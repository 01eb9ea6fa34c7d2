"""Gradients that the delta rule adds to those of linear attention on its errors.

With ``v_new`` for v, outputs and states are those of linear attention, and so are their gradients
(``chunk_gradients``). What that leaves is ``dv_new``, the gradient of the errors, to be taken back
through the chunk's triangular system: with X its inverse, S the state before the chunk and
D_ij = exp(G_i - G_j),

    y = X^T dv_new,   dB_ij = -D_ij (y_i . v_new_j) for j < i,   r_i = -exp(G_i) S y_i,
    dv_i = beta_i y_i
    dk_i += beta_i (r_i + sum_{j < i} dB_ij k_j) + sum_{t > i} beta_t dB_ti k_t
    dbeta_i = y_i . v_i + r_i . k_i + sum_{j < i} dB_ij (k_i . k_j) = y_i . v_new_i / beta_i
    dg_t += sum_{j < t <= i} beta_i dB_ij (k_i . k_j) + sum_{i >= t} beta_i r_i . k_i

The system's right-hand side is an output of linear attention that reads with keys in place of
queries, and y the gradient of what it reads; hence the same sums over pairs for the gates, formed
as they stand for the reason that ``chunk_gradients`` gives.

``local_dv`` is the part of dv_new that comes from the outputs of the same chunk.

Bytes a head: k, v, v_new, dv_new and dk read, dv and dk written once, X and S of each chunk.
Flops a token and head: 2 K V + 4 V C + 4 K C.
"""

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
def local_dv(
    q,
    k,
    g,
    do,
    dv,
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
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: ``dv_j = sum_{i >= j} scale D_ij (q_i . k_j) do_i`` of one chunk of one head."""
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
    tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
    scores = tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION) * scale
    if HAS_G:
        _, _, _, whole, rest, unit = running_gates(g, g, rows, live, h, H, C, HAS_G, False)
        scores *= pair_decays(whole, rest, unit, C)
    else:
        scores = tl.where(inner[:, None] >= inner[None, :], scores, 0.0)
    scores = tl.trans(scores.to(tile_q.dtype))
    for tile in range(NV):
        tile_do = load_rows(do, rows, live, h, tile * BV, H, V, C, BV)
        acc = tl.dot(scores, tile_do, input_precision=PRECISION)
        store_rows(dv, acc, rows, live, h, tile * BV, H, V, C, BV)


@triton.jit(do_not_specialize=["T"])
def delta_gradients(
    k,
    v,
    g,
    beta,
    inverse,
    states,
    v_new,
    dv_new,
    steps,
    spans,
    dk,
    dv,
    dbeta,
    dg,
    cu,
    table,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    HAS_G: tl.constexpr,
    WITH_G: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head; adds to dk, and writes dv (which may be dv_new)."""
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    h = pid % H
    i = pid // H
    n, c = chunk_at(table, i, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    places = rows * H + h
    below = inner[:, None] > inner[None, :]

    strength = tl.load(beta + places, mask=live, other=0.0).to(tl.float32)
    solved = tl.trans(load_rows(inverse, rows, live, h, 0, H, C, C, C))
    pairs = tl.zeros([C, C], dtype=tl.float32)
    read = tl.zeros([C, BK], dtype=tl.float32)
    found = tl.zeros([C], dtype=tl.float32)
    written = tl.zeros([C], dtype=tl.float32)
    for tile in range(NV):
        column = tile * BV
        tile_d = load_rows(dv_new, rows, live, h, column, H, V, C, BV)
        tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
        tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
        kept, inside = state_places(slot, 0, column, K, V, BK, BV)
        state = tl.load(states + kept, mask=inside, other=0.0)
        y = tl.dot(solved, tile_d, input_precision=PRECISION)
        store_rows(dv, y * strength[:, None], rows, live, h, column, H, V, C, BV)
        written += tl.sum(y * tile_e, 1)
        found += tl.sum(y * tile_v, 1)
        y = (-y).to(tile_d.dtype)
        pairs = tl.dot(y, tl.trans(tile_e), acc=pairs, input_precision=PRECISION)
        read = tl.dot(y, tl.trans(state), acc=read, input_precision=PRECISION)

    tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
    if HAS_G:
        running, _, _, whole, rest, unit = running_gates(g, g, rows, live, h, H, C, HAS_G, False)
        read *= decay(running)[:, None]
        pairs *= pair_decays(whole, rest, unit, C)
    pairs = tl.where(below, pairs, 0.0)
    products = pairs * tl.dot(tile_k, tl.trans(tile_k), input_precision=PRECISION)
    reads = tl.sum(read * tile_k, 1)
    found += reads + tl.sum(products, 1)
    # The same number two ways: where keys are nearly parallel the parts of the sum cancel, and
    # where beta is nothing so is the quotient.
    strong = tl.abs(strength) > 0.0625
    quotient = written / tl.where(strong, strength, 1.0)
    tl.store(dbeta + places, tl.where(strong, quotient, found), mask=live)
    if WITH_G:
        reached = tl.cumsum(products * strength[:, None], 0, reverse=True)
        step = tl.sum(tl.where(below, reached, 0.0), 1)
        step += tl.cumsum(reads * strength, 0, reverse=True)
        step += tl.load(steps + places, mask=live, other=0.0)
        # What passes over the whole chunk, behind the one block's own entry.
        step += tl.load(spans + (tl.cast(i, tl.int64) * 2 + 1) * H + h)
        tl.store(dg + places, step, mask=live)
    pairs *= strength[:, None]
    both = (pairs + tl.trans(pairs)).to(tile_k.dtype)
    acc = read * strength[:, None]
    acc += load_rows(dk, rows, live, h, 0, H, K, C, BK)
    acc = tl.dot(both, tile_k, acc=acc, input_precision=PRECISION)
    store_rows(dk, acc, rows, live, h, 0, H, K, C, BK)
