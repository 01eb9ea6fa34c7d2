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

``local_dv`` is the part of dv_new that comes from the outputs of the same chunk. Then two kernels:
``delta_errors`` leaves y, both gradients of scores and what the chunk's own pairs give to dbeta and
dg; ``delta_gradients`` adds the states, and hands out the rest. In one kernel all this spilled
hundreds of bytes a thread.

Bytes a token and head: q, k, v_new, y, do and C elements of pairs read, dq, dk and dv written, once
or twice, dS of each chunk and S of every second. Flops: 7 K V + 8 K C.
"""

# ruff: noqa: C901

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    decay,
    first_slot,
    load_rows,
    pair_decays,
    program_at,
    running_gates,
    state_places,
    store_rows,
)
from fla_triton.kernels.delta_errors import WEAK


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
    NV: tl.constexpr = (V + BV - 1) // BV
    _, h, c, first, length = program_at(cu, table, T, H, C, VARLEN)
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
    tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
    scores = tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION)
    for row in range(BK, K, BK):
        more_q = load_rows(q, rows, live, h, row, H, K, C, BK)
        more_k = load_rows(k, rows, live, h, row, H, K, C, BK)
        scores = tl.dot(more_q, tl.trans(more_k), acc=scores, input_precision=PRECISION)
    scores *= scale
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
    g,
    beta,
    v_new,
    y,
    do,
    pairs,
    into,
    totals,
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
    EVERY: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
    WITH_G: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: ``EVERY`` neighbouring chunks of one head, 1 or 2, the later one first.

    Of two, ``states`` keeps the state before the first; that between them is formed anew. Hence
    both are one program's, and in this order dv may be y and dk v_new. ``dbeta`` and ``dg`` are
    added to.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    n, h, pair, first, length = program_at(cu, table, T, H, EVERY * C, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)
    pair_slot = first_slot(first, n, T, EVERY * C, VARLEN)
    inner = tl.arange(0, C)
    below = inner[:, None] > inner[None, :]
    # From the first chunk's first token on: places inside the chunks are narrow.
    token = (first + EVERY * pair * C) * H
    q += token * K
    k += token * K
    dq += token * K
    dk += token * K
    v_new += token * V
    y += token * V
    do += token * V
    dv += token * V
    pairs += token * C
    beta += token
    dbeta += token
    if HAS_G:
        g += token
    if WITH_G:
        dg += token
    states += ((pair_slot + pair) * H + h) * (K * V)
    chunks = tl.minimum(tl.cdiv(length, C) - EVERY * pair, EVERY)
    for step in range(chunks):
        second = step == chunks - 2
        back = chunks - 1 - step
        c = EVERY * pair + back
        place = (slot + c) * H + h
        live = c * C + inner < length
        rows = back * C + inner
        places = rows * H + h
        before = rows - C
        passed = (inner < C) & second
        begins = c == 0
        ends = (c + 1) * C >= length
        dstate_of = dstates + place * (K * V)

        # Between the chunk's tokens and the states around it.
        acc_q = tl.zeros([C, BK], dtype=tl.float32)
        read = tl.zeros([C, BK], dtype=tl.float32)
        both = 0.0
        for tile in range(NV):
            column = tile * BV
            at, inside = state_places(0, 0, column, K, V, BK, BV)
            state = tl.load(states + at, mask=inside, other=0.0)
            if EVERY == 2:
                near_k = load_rows(k, before, passed, h, 0, H, K, C, BK)
                near_e = load_rows(v_new, before, passed, h, column, H, V, C, BV)
                if HAS_G:
                    weight = tl.load(into + (place - H) * C + inner, mask=passed, other=0.0)
                    kept = tl.load(totals + place - H, mask=second, other=1.0)
            tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
            tile_y = load_rows(y, rows, live, h, column, H, V, C, BV)
            if EVERY == 2:
                state = state.to(tl.float32)
                if HAS_G:
                    near_e = (near_e * weight[:, None]).to(near_k.dtype)
                    state *= kept
                state = tl.dot(tl.trans(near_k), near_e, acc=state, input_precision=PRECISION)
            if WITH_G:
                dstate = tl.load(dstate_of + at, mask=inside, other=0.0)
                # At the ends of a sequence the caller's own, which may be all there is of a gate.
                wide = dstate.to(tl.float32)
                exact = state.to(tl.float32)
                outer, _ = state_places(n * H + h, 0, column, K, V, BK, BV)
                if HAS_START:
                    given = tl.load(start + outer, mask=inside & begins, other=0.0)
                    exact = tl.where(begins, given, exact)
                if HAS_DLAST:
                    given = tl.load(dlast + outer, mask=inside & ends, other=0.0)
                    wide = tl.where(ends, given, wide)
                both += tl.sum(exact * wide)
            turned = tl.trans(state.to(tile_do.dtype))
            acc_q = tl.dot(tile_do, turned, acc=acc_q, input_precision=PRECISION)
            read = tl.dot(tile_y, turned, acc=read, input_precision=PRECISION)
            strength = tl.load(beta + places, mask=live, other=0.0).to(tl.float32)
            dvalue = tile_y * strength[:, None]
            store_rows(dv, dvalue, rows, live, h, column, H, V, C, BV)
        tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
        tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
        scores = load_rows(pairs, rows, live, h, 0, H, C, C, C)
        above = inner[:, None] < inner[None, :]
        attending = tl.where(above, 0.0, scores).to(tile_k.dtype)
        erasing = tl.where(above, scores, 0.0).to(tile_k.dtype)
        strength = tl.load(beta + places, mask=live, other=0.0).to(tl.float32)
        acc_q *= scale
        read = -read
        if HAS_G:
            running, until, total, _, _, _ = running_gates(g, g, rows, live, h, H, C, HAS_G, False)
            arriving = decay(running)[:, None]
            acc_q *= arriving
            read *= arriving
        erases = tl.sum(read * tile_k, 1)
        weak = tl.abs(strength) <= WEAK
        known = tl.load(dbeta + places, mask=live & weak, other=0.0)
        tl.store(dbeta + places, known + erases, mask=live & weak)
        if WITH_G:
            arrives = erases * strength + tl.sum(acc_q * tile_q, 1)
            found = tl.load(dg + places, mask=live, other=0.0)
            found += tl.cumsum(arrives, 0, reverse=True) + both * decay(total)
        acc_q = tl.dot(attending, tile_k, acc=acc_q, input_precision=PRECISION)
        store_rows(dq, acc_q, rows, live, h, 0, H, K, C, BK)
        read *= strength[:, None]
        read = tl.dot(tl.trans(attending), tile_q, acc=read, input_precision=PRECISION)
        read = tl.dot(erasing, tile_k, acc=read, input_precision=PRECISION)
        read = tl.dot(tl.trans(erasing), tile_k, acc=read, input_precision=PRECISION)

        acc_k = tl.zeros([C, BK], dtype=tl.float32)
        for tile in range(NV):
            column = tile * BV
            at, inside = state_places(0, 0, column, K, V, BK, BV)
            dstate = tl.load(dstate_of + at, mask=inside, other=0.0)
            tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
            acc_k = tl.dot(tile_e, tl.trans(dstate), acc=acc_k, input_precision=PRECISION)
        if HAS_G:
            acc_k *= decay(until)[:, None]
        if WITH_G:
            leaves = tl.sum(acc_k * tile_k, 1)
            found += tl.sum(tl.where(below, leaves[None, :], 0.0), 1)
            tl.store(dg + places, found, mask=live)
        store_rows(dk, acc_k + read, rows, live, h, 0, H, K, C, BK)
