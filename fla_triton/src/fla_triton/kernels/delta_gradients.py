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

Bytes a head: q, k, v, v_new, dv_new and do read, dq, dk and dv written once, X and dS of each chunk
and S of every second. Flops a token and head: 8 K V + 6 V C + 10 K C.
"""

# ruff: noqa: C901

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
    both are one program's, and in this order dv may be dv_new and dk v_new.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    h = pid % H
    n, pair = chunk_at(table, pid // H, T, EVERY * C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)
    pair_slot = first_slot(first, n, T, EVERY * C, VARLEN)
    inner = tl.arange(0, C)
    below = inner[:, None] > inner[None, :]
    chunks = tl.minimum(tl.cdiv(length, C) - EVERY * pair, EVERY)
    for step in range(chunks):
        second = step == chunks - 2
        c = EVERY * pair + chunks - 1 - step
        place = (slot + c) * H + h
        pair_place = (pair_slot + c // EVERY) * H + h
        live = c * C + inner < length
        rows = first + c * C + inner
        places = rows * H + h
        before = rows - C
        passed = (inner < C) & second
        begins = c == 0
        ends = (c + 1) * C >= length

        # Pairs of the chunk's own tokens.
        strength = tl.load(beta + places, mask=live, other=0.0).to(tl.float32)
        solved = tl.trans(load_rows(inverse, rows, live, h, 0, H, C, C, C))
        asked = tl.zeros([C, C], dtype=tl.float32)
        erased = tl.zeros([C, C], dtype=tl.float32)
        parts = tl.zeros([C], dtype=tl.float32)
        written = tl.zeros([C], dtype=tl.float32)
        for tile in range(NV):
            column = tile * BV
            tile_d = load_rows(dv_new, rows, live, h, column, H, V, C, BV)
            tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
            tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
            tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
            y = tl.dot(solved, tile_d, input_precision=PRECISION)
            written += tl.sum(y * tile_e, 1)
            parts += tl.sum(y * tile_v, 1)
            y = (-y).to(tile_d.dtype)
            asked = tl.dot(tile_do, tl.trans(tile_e), acc=asked, input_precision=PRECISION)
            erased = tl.dot(y, tl.trans(tile_e), acc=erased, input_precision=PRECISION)
        tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
        tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
        if HAS_G:
            running, until, total, whole, rest, unit = running_gates(
                g, g, rows, live, h, H, C, HAS_G, False
            )
            pairs = pair_decays(whole, rest, unit, C)
            asked *= pairs
            erased *= pairs
        asked = tl.where(inner[:, None] >= inner[None, :], asked, 0.0) * scale
        erased = tl.where(below, erased, 0.0)
        products = tl.dot(tile_k, tl.trans(tile_k), input_precision=PRECISION) * erased
        parts += tl.sum(products, 1)
        if WITH_G:
            products *= strength[:, None]
            products += tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION) * asked
            reached = tl.cumsum(products, 0, reverse=True)
            found = tl.sum(tl.where(below, reached, 0.0), 1)
        attending = asked.to(tile_q.dtype)
        erased *= strength[:, None]
        erasing = (erased + tl.trans(erased)).to(tile_k.dtype)

        # Between the chunk's tokens and the states around it.
        acc_q = tl.zeros([C, BK], dtype=tl.float32)
        read = tl.zeros([C, BK], dtype=tl.float32)
        both = 0.0
        for tile in range(NV):
            column = tile * BV
            at_pair, inside = state_places(pair_place, 0, column, K, V, BK, BV)
            at_chunk, _ = state_places(place, 0, column, K, V, BK, BV)
            state = tl.load(states + at_pair, mask=inside, other=0.0)
            if EVERY == 2:
                near_k = load_rows(k, before, passed, h, 0, H, K, C, BK)
                if HAS_G:
                    weight = tl.load(into + (place - H) * C + inner, mask=passed, other=0.0)[
                        :, None
                    ]
                    kept = tl.load(totals + place - H, mask=second, other=1.0)
                near_e = load_rows(v_new, before, passed, h, column, H, V, C, BV)
                state = state.to(tl.float32)
                if HAS_G:
                    near_e = (near_e * weight).to(near_k.dtype)
                    state *= kept
                state = tl.dot(tl.trans(near_k), near_e, acc=state, input_precision=PRECISION)
            if WITH_G:
                dstate = tl.load(dstates + at_chunk, mask=inside, other=0.0)
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
            state = state.to(tile_k.dtype)
            tile_d = load_rows(dv_new, rows, live, h, column, H, V, C, BV)
            tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
            y = tl.dot(solved, tile_d, input_precision=PRECISION)
            store_rows(dv, y * strength[:, None], rows, live, h, column, H, V, C, BV)
            y = (-y).to(tile_d.dtype)
            acc_q = tl.dot(tile_do, tl.trans(state), acc=acc_q, input_precision=PRECISION)
            read = tl.dot(y, tl.trans(state), acc=read, input_precision=PRECISION)
        # Read again: across the loop they would take registers that it wants.
        tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
        tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
        acc_q *= scale
        if HAS_G:
            arriving = decay(running)[:, None]
            acc_q *= arriving
            read *= arriving
        reads = tl.sum(read * tile_k, 1)
        # The same number two ways: where keys are nearly parallel the parts of the sum cancel, and
        # where beta is nothing so is the quotient.
        strong = tl.abs(strength) > 0.0625
        quotient = written / tl.where(strong, strength, 1.0)
        tl.store(dbeta + places, tl.where(strong, quotient, parts + reads), mask=live)
        if WITH_G:
            arrives = reads * strength + tl.sum(acc_q * tile_q, 1)
            found += tl.cumsum(arrives, 0, reverse=True) + both * decay(total)
        acc_q = tl.dot(attending, tile_k, acc=acc_q, input_precision=PRECISION)
        store_rows(dq, acc_q, rows, live, h, 0, H, K, C, BK)
        read *= strength[:, None]
        read = tl.dot(tl.trans(attending), tile_q, acc=read, input_precision=PRECISION)
        read = tl.dot(erasing, tile_k, acc=read, input_precision=PRECISION)

        acc_k = tl.zeros([C, BK], dtype=tl.float32)
        for tile in range(NV):
            column = tile * BV
            at_chunk, inside = state_places(place, 0, column, K, V, BK, BV)
            dstate = tl.load(dstates + at_chunk, mask=inside, other=0.0)
            tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
            acc_k = tl.dot(tile_e, tl.trans(dstate), acc=acc_k, input_precision=PRECISION)
        if HAS_G:
            acc_k *= decay(until)[:, None]
        if WITH_G:
            leaves = tl.sum(acc_k * tile_k, 1)
            found += tl.sum(tl.where(below, leaves[None, :], 0.0), 1)
            tl.store(dg + places, found, mask=live)
        store_rows(dk, acc_k + read, rows, live, h, 0, H, K, C, BK)
