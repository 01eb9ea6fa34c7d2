"""Gradients of q, k, v and of the gates in every chunk, with one decay a head.

With S the state before the chunk, dS the gradient of the state after it, running log decays G,
D_ij = exp(G_i - G_j) for j <= i, and dA_ij = scale D_ij (do_i . v_j):

    dq_i = scale exp(G_i) S do_i + sum_{j <= i} dA_ij k_j
    dk_j = exp(G_C - G_j) dS v_j + sum_{i >= j} dA_ij q_i
    dv_j = exp(G_C - G_j) dS^T k_j + sum_{i >= j} scale D_ij (q_i . k_j) do_i

A gate g_t decays every pair (j, i) with j < t <= i, where j may lie in the state before the chunk
and i behind it. With c_ij = dA_ij (q_i . k_j) for what a pair adds to ``sum o . do``,

    dg_t = sum_{j < t <= i} c_ij.

These sums are formed as they stand, pairs by rows and columns; as the running sum of
``q . dq - k . dk``, which is the same, a gradient that a hard gate makes small would be a
difference of large numbers. Each block sums its own pairs and those that reach into it or out of
it; ``gate_gradients`` adds what passes over it.

Of normalised attention ``do`` is that of the numerators; dw is that of the normalisers, z the sum
of keys before each block and dz what later blocks ask of it (``normaliser``).

A chunk of C tokens is R = 1 or 2 blocks of BT; one program takes one block of one head.
Bytes a head: q, k, v, do read and dq, dk, dv written once, S and dS of each chunk.
Flops a token and head: 6 K V + (6 K + 4 V) BT + (R - 1) (3 K + 3 V) BT.

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16, where copying reaches 4.27 TB/s:
0.25 ms without a decay and 0.30 with one a head, 57 and 47 % of that rate, in chunks of two blocks;
0.37 with a gate a token and its gradient, 47 %, in chunks of one.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: C901, SIM102

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    chunk_at,
    decay,
    first_slot,
    load_rows,
    pair_decays,
    remainder,
    sequence_at,
    state_places,
    store_rows,
)
from fla_triton.kernels.gates import sums_at, unit_of


@triton.jit
def decays_over(earlier, later, unit, C: tl.constexpr):
    """``exp`` of the gates between two blocks, later tokens by row, from where their sums lie."""
    whole = tl.load(later + 2 * C)[:, None] - tl.load(earlier + 2 * C)[None, :]
    rest = tl.load(later + 3 * C)[:, None] - tl.load(earlier + 3 * C)[None, :]
    return decay(whole * unit + rest)


@triton.jit
def state_product(
    states,
    dstates,
    start,
    dlast,
    slot,
    head,
    begins,
    ends,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
):
    """``<S, dS>`` of one chunk, in strips.

    At the ends of a sequence they are the caller's own, in float32, and are not rounded: of one
    token's gate they may be all there is.
    """
    ROWS: tl.constexpr = 32 if BK > 32 else BK
    strips = tl.zeros([ROWS, BV], dtype=tl.float32)
    for row in tl.static_range(0, K, ROWS):
        for column in range(0, V, BV):
            places, inside = state_places(slot, row, column, K, V, ROWS, BV)
            outer, _ = state_places(head, row, column, K, V, ROWS, BV)
            state = tl.load(states + places, mask=inside, other=0.0).to(tl.float32)
            dstate = tl.load(dstates + places, mask=inside, other=0.0).to(tl.float32)
            if HAS_START:
                given = tl.load(start + outer, mask=inside & begins, other=0.0)
                state = tl.where(begins, given, state)
            if HAS_DLAST:
                given = tl.load(dlast + outer, mask=inside & ends, other=0.0)
                dstate = tl.where(ends, given, dstate)
            strips += state * dstate
    return tl.sum(strips)


@triton.jit
def pairs_over(x, dtype: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr):
    """Sums of ``x [i, j]`` over pairs ``j < t <= i`` for each t.

    By a product: scans across warps take 25 us longer at the size measured above.
    """
    inner = tl.arange(0, BT)
    before = tl.where(inner[:, None] < inner[None, :], 1.0, 0.0)
    if dtype == tl.float32:
        found = tl.dot(x, before, input_precision=PRECISION)
    else:
        ones = before.to(tl.bfloat16)
        high = x.to(tl.bfloat16)
        low = remainder(x, high).to(tl.bfloat16)
        found = tl.dot(high, ones, acc=tl.dot(low, ones))
    return tl.sum(tl.where(inner[:, None] >= inner[None, :], found, 0.0), 0)


@triton.jit(do_not_specialize=["T", "scale"])
def chunk_gradients(
    q,
    k,
    v,
    sums,
    gamma,
    do,
    states,
    dstates,
    start,
    dlast,
    dw,
    z,
    dz,
    dq,
    dk,
    dv,
    steps,
    spans,
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
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
    HAS_W: tl.constexpr,
    WITH_GATES: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BT tokens of one head, all of K, and V in tiles."""
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    C: tl.constexpr = R * BT
    GATED: tl.constexpr = HAS_G or HAS_GAMMA
    block = pid % R
    h = pid // R % H
    i = pid // (R * H)
    n, c = chunk_at(table, i, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h

    inner = tl.arange(0, BT)
    begin = c * C + block * BT
    if WITH_GATES:
        span = spans + tl.cast(i, tl.int64) * (R + 1) * H + h
        # A block beyond the last token passes nothing on.
        tl.store(span + block * H, 0.0, mask=begin >= length)
    if begin >= length:
        return
    live = begin + inner < length
    rows = first + begin + inner
    # The other block of a chunk of two: an earlier one is full, a later one may be anything.
    has_earlier = (R == 2) & (block == 1)
    has_later = (R == 2) & (block == 0) & (begin + BT < length)
    full = inner < BT
    partly = begin + BT + inner < length

    if WITH_GATES:
        # Before anything else is in registers.
        both = 0.0
        if block == 0:
            both = state_product(
                states,
                dstates,
                start,
                dlast,
                slot,
                n * H + h,
                c == 0,
                (c + 1) * C >= length,
                K,
                V,
                BK,
                BV,
                HAS_START,
                HAS_DLAST,
            )
    tile_k = load_rows(k, rows, live, h, 0, H, K, BT, BK)
    tile_q = load_rows(q, rows, live, h, 0, H, K, BT, BK)
    tile_do = load_rows(do, rows, live, h, 0, H, V, BT, BV)
    places, inside = state_places(slot, 0, 0, K, V, BK, BV)
    dstate = tl.load(dstates + places, mask=inside, other=0.0)

    # Decays inside the block, from the chunk's start and to its end.
    scores = tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION) * scale
    if GATED:
        chunk = sums_at(sums, first_slot(first, n, T, C, VARLEN) + c, h, H, C)
        given = chunk + block * BT + inner
        whole = tl.load(given + 2 * C)
        rest = tl.load(given + 3 * C)
        unit = unit_of(gamma, h, HAS_G)
        pairs = pair_decays(whole, rest, unit, BT)
        since_start = decay(tl.load(given)) * scale
        until_end = decay(tl.load(given + C))
        scores *= pairs
    else:
        scores = tl.where(inner[:, None] >= inner[None, :], scores, 0.0)
    narrow = scores.to(tile_q.dtype)

    if R == 2:
        # Scores of the later block's queries with these keys, transposed.
        far_scores = tl.zeros([BT, BT], dtype=tile_q.dtype)
        if has_later:
            far_q = load_rows(q, rows + BT, partly, h, 0, H, K, BT, BK)
            far = tl.dot(tile_k, tl.trans(far_q), input_precision=PRECISION) * scale
            if GATED:
                far *= tl.trans(decays_over(given, chunk + BT + inner, unit, C))
            far_scores = far.to(tile_q.dtype)

    for tile in range(NV):
        if NV > 1:
            places, inside = state_places(slot, 0, tile * BV, K, V, BK, BV)
            dstate = tl.load(dstates + places, mask=inside, other=0.0)
            tile_do = load_rows(do, rows, live, h, tile * BV, H, V, BT, BV)
        acc_v = tl.dot(tile_k, dstate, input_precision=PRECISION)
        if GATED:
            acc_v *= until_end[:, None]
        acc_v = tl.dot(tl.trans(narrow), tile_do, acc=acc_v, input_precision=PRECISION)
        if R == 2:
            if has_later:
                far_do = load_rows(do, rows + BT, partly, h, tile * BV, H, V, BT, BV)
                acc_v = tl.dot(far_scores, far_do, acc=acc_v, input_precision=PRECISION)
        store_rows(dv, acc_v, rows, live, h, tile * BV, H, V, BT, BV)

    tile_v = load_rows(v, rows, live, h, 0, H, V, BT, BV)
    products = tl.zeros([BT, BT], dtype=tl.float32)
    for tile in range(NV):
        if NV > 1:
            tile_do = load_rows(do, rows, live, h, tile * BV, H, V, BT, BV)
            tile_v = load_rows(v, rows, live, h, tile * BV, H, V, BT, BV)
        products = tl.dot(tile_do, tl.trans(tile_v), acc=products, input_precision=PRECISION)
    if HAS_W:
        # The normaliser is one more column of v, of ones, and dw and the rows dz and z are its own.
        keys = tl.arange(0, BK)
        ends = (first_slot(first, n, T, BT, VARLEN) + c * R + block) * H + h
        weight = tl.load(dw + rows * H + h, mask=live, other=0.0)
        products += weight[:, None]
    if WITH_GATES:
        found = pairs_over(products * scores, tile_q.dtype, BT, PRECISION)
    if GATED:
        dscores = products * pairs * scale
    else:
        dscores = tl.where(inner[:, None] >= inner[None, :], products, 0.0) * scale
    dscores = dscores.to(tile_q.dtype)
    acc_k = tl.zeros([BT, BK], dtype=tl.float32)
    for tile in range(NV):
        if NV > 1:
            places, inside = state_places(slot, 0, tile * BV, K, V, BK, BV)
            dstate = tl.load(dstates + places, mask=inside, other=0.0)
            tile_v = load_rows(v, rows, live, h, tile * BV, H, V, BT, BV)
        acc_k = tl.dot(tile_v, tl.trans(dstate), acc=acc_k, input_precision=PRECISION)
    if HAS_W:
        acc_k += tl.load(dz + ends * K + keys, mask=keys < K, other=0.0)[None, :]
    if GATED:
        acc_k *= until_end[:, None]
    if WITH_GATES:
        wide_k = tile_k.to(tl.float32)
        over = tl.sum(wide_k * acc_k)
    if R == 2:
        if has_later:
            far = tl.zeros([BT, BT], dtype=tl.float32)
            for tile in range(NV):
                if NV > 1:
                    tile_v = load_rows(v, rows, live, h, tile * BV, H, V, BT, BV)
                far_do = load_rows(do, rows + BT, partly, h, tile * BV, H, V, BT, BV)
                far = tl.dot(tile_v, tl.trans(far_do), acc=far, input_precision=PRECISION)
            far *= scale
            if GATED:
                far *= tl.trans(decays_over(given, chunk + BT + inner, unit, C))
            far_q = load_rows(q, rows + BT, partly, h, 0, H, K, BT, BK)
            far = far.to(far_q.dtype)
            acc_k = tl.dot(far, far_q, acc=acc_k, input_precision=PRECISION)
    if WITH_GATES:
        out_of = tl.sum(wide_k * acc_k, 1)
        # Not a running sum less its last term: a hard gate may leave nothing of what is before it.
        earlier = inner[:, None] < inner[None, :]
        found += tl.sum(tl.where(earlier, out_of[:, None], 0.0), 0)
    acc_k = tl.dot(tl.trans(dscores), tile_q, acc=acc_k, input_precision=PRECISION)
    store_rows(dk, acc_k, rows, live, h, 0, H, K, BT, BK)

    acc_q = tl.zeros([BT, BK], dtype=tl.float32)
    for tile in range(NV):
        places, inside = state_places(slot, 0, tile * BV, K, V, BK, BV)
        state = tl.load(states + places, mask=inside, other=0.0)
        if NV > 1:
            tile_do = load_rows(do, rows, live, h, tile * BV, H, V, BT, BV)
        acc_q = tl.dot(tile_do, tl.trans(state), acc=acc_q, input_precision=PRECISION)
    if HAS_W:
        acc_q += weight[:, None] * tl.load(z + ends * K + keys, mask=keys < K, other=0.0)[None, :]
    if GATED:
        acc_q *= since_start[:, None]
    else:
        acc_q *= scale
    if WITH_GATES:
        wide_q = tile_q.to(tl.float32)
        # What passes over the other block: from these keys on, or from the state to these queries.
        if block == 1:
            over = tl.sum(wide_q * acc_q)
        tl.store(span + block * H, over)
    if R == 2:
        if has_earlier:
            near = tl.zeros([BT, BT], dtype=tl.float32)
            for tile in range(NV):
                if NV > 1:
                    tile_do = load_rows(do, rows, live, h, tile * BV, H, V, BT, BV)
                far_v = load_rows(v, rows - BT, full, h, tile * BV, H, V, BT, BV)
                near = tl.dot(tile_do, tl.trans(far_v), acc=near, input_precision=PRECISION)
            near *= scale
            if GATED:
                near *= decays_over(chunk + inner, given, unit, C)
            far_k = load_rows(k, rows - BT, full, h, 0, H, K, BT, BK)
            near = near.to(far_k.dtype)
            acc_q = tl.dot(near, far_k, acc=acc_q, input_precision=PRECISION)
    if WITH_GATES:
        found += tl.cumsum(tl.sum(wide_q * acc_q, 1), 0, reverse=True)
        tl.store(steps + rows * H + h, found, mask=live)
    acc_q = tl.dot(dscores, tile_k, acc=acc_q, input_precision=PRECISION)
    store_rows(dq, acc_q, rows, live, h, 0, H, K, BT, BK)
    if WITH_GATES:
        if block == 0:
            tl.store(span + R * H, both * decay(tl.load(chunk + C - 1)))


@triton.jit(do_not_specialize=["T"])
def gate_gradients(
    steps,
    spans,
    dg,
    parts,
    cu,
    table,
    T,
    H: tl.constexpr,
    BT: tl.constexpr,
    R: tl.constexpr,
    WITH_G: tl.constexpr,
    WITH_GAMMA: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: dg of one chunk of one head, and its sum, the chunk's part of dg_gamma."""
    pid = tl.program_id(0)
    C: tl.constexpr = R * BT
    h = pid % H
    i = pid // H
    n, c = chunk_at(table, i, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    tokens = c * C + tl.arange(0, C)
    live = tokens < length
    rows = first + tokens
    span = spans + tl.cast(i, tl.int64) * (R + 1) * H + h
    over = tl.zeros([C], dtype=tl.float32) + tl.load(span + R * H)
    if R > 1:
        second = tl.arange(0, C) >= BT
        over += tl.where(second, tl.load(span), tl.load(span + H))
    step = tl.load(steps + rows * H + h, mask=live, other=0.0)
    found = step + over
    if WITH_G:
        tl.store(dg + rows * H + h, found, mask=live)
    if WITH_GAMMA:
        tl.store(parts + tl.cast(i, tl.int64) * H + h, tl.sum(tl.where(live, found, 0.0)))
