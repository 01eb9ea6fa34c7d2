"""Gradients of the delta rule in every chunk, with one decay a head, or none.

With ``v_new`` for v, outputs and states are those of linear attention, and so are their gradients;
``dv_new``, the gradient of the errors, remains to be taken back through the chunk's triangular
system. With X its inverse, S the state before the chunk, dS the gradient of the state after it,
running log decays G, D_ij = exp(G_i - G_j), dA_ij = scale D_ij (do_i . v_new_j) for j <= i, and

    y = X^T dv_new,   dB_ij = -D_ij (y_i . v_new_j) for j < i,   r_i = -exp(G_i) S y_i,

the gradients are

    dq_i = scale exp(G_i) S do_i + sum_{j <= i} dA_ij k_j
    dk_i = exp(G_C - G_i) dS v_new_i + sum_{t >= i} dA_ti q_t
           + beta_i (r_i + sum_{j < i} dB_ij k_j) + sum_{t > i} beta_t dB_ti k_t
    dv_i = beta_i y_i
    dbeta_i = y_i . v_i + r_i . k_i + sum_{j < i} dB_ij (k_i . k_j) = y_i . v_new_i / beta_i

The system's right-hand side is an output of linear attention that reads with keys in place of
queries, and -y the gradient of what it reads. A gate g_t decays every pair (j, i) with j < t <= i,
where j may lie in the state before the chunk and i behind it, so that

    dg_t = sum_{j < t <= i} dA_ij (q_i . k_j) + beta_i dB_ij (k_i . k_j)

and likewise with the states. These sums are formed as they stand, pairs by rows and columns; as
the running sum of ``q . dq - k . dk``, a gradient that a hard gate makes small would be a
difference of large numbers.

``local_dv`` is the part of dv_new that comes from the outputs of the same chunk.

Bytes a head: q, k, v, v_new, dv_new and do read, dq, dk and dv written once, X, S and dS of each
chunk. Flops a token and head: 6 K V + 6 V C + 10 K C.
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
from fla_triton.kernels.gradients import state_product


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


@triton.jit(do_not_specialize=["T", "scale"])
def delta_gradients(
    q,
    k,
    v,
    g,
    beta,
    inverse,
    v_new,
    dv_new,
    do,
    states,
    dstates,
    start,
    dlast,
    dq,
    dk,
    dv,
    dbeta,
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
    HAS_G: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
    WITH_G: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head; dv may be dv_new, and dk v_new."""
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    places = rows * H + h
    below = inner[:, None] > inner[None, :]

    strength = tl.load(beta + places, mask=live, other=0.0).to(tl.float32)
    solved = tl.trans(load_rows(inverse, rows, live, h, 0, H, C, C, C))
    asked = tl.zeros([C, C], dtype=tl.float32)
    erased = tl.zeros([C, C], dtype=tl.float32)
    acc_q = tl.zeros([C, BK], dtype=tl.float32)
    acc_k = tl.zeros([C, BK], dtype=tl.float32)
    read = tl.zeros([C, BK], dtype=tl.float32)
    parts = tl.zeros([C], dtype=tl.float32)
    written = tl.zeros([C], dtype=tl.float32)
    both = 0.0
    for tile in range(NV):
        column = tile * BV
        tile_d = load_rows(dv_new, rows, live, h, column, H, V, C, BV)
        tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
        tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
        tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
        kept, inside = state_places(slot, 0, column, K, V, BK, BV)
        state = tl.load(states + kept, mask=inside, other=0.0)
        dstate = tl.load(dstates + kept, mask=inside, other=0.0)
        if WITH_G:
            both += tl.sum(state.to(tl.float32) * dstate.to(tl.float32))
        y = tl.dot(solved, tile_d, input_precision=PRECISION)
        written += tl.sum(y * tile_e, 1)
        parts += tl.sum(y * tile_v, 1)
        store_rows(dv, y * strength[:, None], rows, live, h, column, H, V, C, BV)
        y = (-y).to(tile_d.dtype)
        asked = tl.dot(tile_do, tl.trans(tile_e), acc=asked, input_precision=PRECISION)
        erased = tl.dot(y, tl.trans(tile_e), acc=erased, input_precision=PRECISION)
        acc_q = tl.dot(tile_do, tl.trans(state), acc=acc_q, input_precision=PRECISION)
        read = tl.dot(y, tl.trans(state), acc=read, input_precision=PRECISION)
        acc_k = tl.dot(tile_e, tl.trans(dstate), acc=acc_k, input_precision=PRECISION)

    tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
    tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
    acc_q *= scale
    if HAS_G:
        running, until, total, whole, rest, unit = running_gates(
            g, g, rows, live, h, H, C, HAS_G, False
        )
        pairs = pair_decays(whole, rest, unit, C)
        arriving = decay(running)[:, None]
        acc_q *= arriving
        read *= arriving
        acc_k *= decay(until)[:, None]
        asked *= pairs
        erased *= pairs
    asked = tl.where(inner[:, None] >= inner[None, :], asked, 0.0) * scale
    erased = tl.where(below, erased, 0.0)
    products = tl.dot(tile_k, tl.trans(tile_k), input_precision=PRECISION) * erased
    reads = tl.sum(read * tile_k, 1)
    parts += reads + tl.sum(products, 1)
    # The same number two ways: where keys are nearly parallel the parts of the sum cancel, and
    # where beta is nothing so is the quotient.
    strong = tl.abs(strength) > 0.0625
    quotient = written / tl.where(strong, strength, 1.0)
    tl.store(dbeta + places, tl.where(strong, quotient, parts), mask=live)
    if WITH_G:
        products *= strength[:, None]
        products += tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION) * asked
        reached = tl.cumsum(products, 0, reverse=True)
        # From keys before t to queries from t on, and from keys to the state.
        step = tl.sum(tl.where(below, reached + tl.sum(acc_k * tile_k, 1)[None, :], 0.0), 1)
        # From the state to queries, and to keys that read it.
        step += tl.cumsum(reads * strength + tl.sum(acc_q * tile_q, 1), 0, reverse=True)
        if HAS_START or HAS_DLAST:
            begins = c == 0
            ends = (c + 1) * C >= length
            if begins | ends:
                both = state_product(
                    states,
                    dstates,
                    start,
                    dlast,
                    slot,
                    n * H + h,
                    begins,
                    ends,
                    K,
                    V,
                    BK,
                    BV,
                    HAS_START,
                    HAS_DLAST,
                )
        tl.store(dg + places, step + both * decay(total), mask=live)
    attending = asked.to(tile_q.dtype)
    acc_q = tl.dot(attending, tile_k, acc=acc_q, input_precision=PRECISION)
    store_rows(dq, acc_q, rows, live, h, 0, H, K, C, BK)
    acc_k += read * strength[:, None]
    acc_k = tl.dot(tl.trans(attending), tile_q, acc=acc_k, input_precision=PRECISION)
    erased *= strength[:, None]
    erasing = (erased + tl.trans(erased)).to(tile_k.dtype)
    acc_k = tl.dot(erasing, tile_k, acc=acc_k, input_precision=PRECISION)
    store_rows(dk, acc_k, rows, live, h, 0, H, K, C, BK)
