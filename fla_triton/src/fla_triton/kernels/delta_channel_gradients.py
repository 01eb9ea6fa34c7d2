"""Gradients of a delta rule's inputs in every chunk, where every key channel has its own decay.

With ``v_new`` for v, outputs and states are those of linear attention: S the state before the
chunk, dS the gradient of the state after it and D_ij = exp(G_i - G_j), channel by channel,

    dP_ij = scale (do_i . v_new_j) for j <= i,
    dq_i = scale exp(G_i) S do_i + sum_{j <= i} dP_ij D_ij k_j
    dk_j = exp(G_C - G_j) dS v_new_j + sum_{i >= j} dP_ij D_ij q_i.

What that leaves is the gradient of v_new. Taken back through the chunk's triangular system, with X
its inverse, it becomes that of what is written, ``y = X^T dv_new``, and the system's right-hand
side is once more an output of linear attention, which reads with ``left`` in place of queries and
whose gradient is -y:

    dR_ij = -(y_i . v_new_j) for j < i,
    dleft_i = -exp(G_i) S y_i + sum_{j < i} dR_ij D_ij k_j,   dk_j += sum_{i > j} dR_ij D_ij left_i.

Strengths then share out what belongs to them: with beta of a head ``left = beta k`` and y is the
gradient of ``beta v``, so that dbeta_i = y_i . v_i + dleft_i . k_i = y_i . v_new_i / beta_i; with b
and w of channels, of ``b*k`` and ``w*v``.

The gradient of a gate is the sum of what all pairs that it decays add, in its channel, formed as it
stands for the reason that ``channel_gradients`` gives; the pairs of both reads meet in one tree.

One program takes a chunk of C tokens of one head. Bytes a head: q, k, v, v_new, do, dv_new, gates
and strengths read and their gradients written once, C of X a token, S and dS of each chunk. Flops a
token and head, with L = log2(C): 6 K V + 4 V C + 2 V C (2 + K / BK) + 6 K C L.
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
from fla_triton.kernels.delta_channel_prepare import load_strengths
from fla_triton.kernels.tree import (
    MOST_LEVELS,
    are_paired,
    both_ways,
    doubled,
    is_later,
    load_decays,
    sums,
)


@triton.jit
def both_gradients(
    reads,
    errors,
    q,
    left,
    k,
    decays,
    C: tl.constexpr,
    BK: tl.constexpr,
    WITH_GATES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of a tile of channels from those of the pairs ``j < i`` of q and of left with k.

    Args:
        reads, errors: gradients of both scores, of ``both_ways``.
        q, left, k: ``[C, BK]``; products are taken in the dtype of k.
        decays: of ``load_decays``.

    Returns:
        gradients of q, left, k and of log decays (zero if not ``WITH_GATES``), float32; decays
        since the block's start and until its end.
    """
    since = decays
    until = tl.full([C, BK], 1.0, dtype=tl.float32)
    dq = tl.zeros([C, BK], dtype=tl.float32)
    dleft = tl.zeros([C, BK], dtype=tl.float32)
    dk = tl.zeros([C, BK], dtype=tl.float32)
    dg = tl.zeros([C, BK], dtype=tl.float32)
    inner = tl.arange(0, C)
    below = inner[:, None] > inner[None, :]
    for level in tl.static_range(MOST_LEVELS):
        if (1 << level) < C:
            later = is_later(level, C)
            paired = are_paired(level, C)
            factor = tl.where(later, since, until)
            earlier = k * factor
            wide = tl.where(later, q * factor, earlier)
            chosen = tl.where(paired, reads, 0.0).to(k.dtype)
            found = tl.dot(chosen, wide.to(k.dtype), input_precision=PRECISION)
            crossing = wide * found
            found *= factor
            dq += tl.where(later, found, 0.0)
            dk += tl.where(later, 0.0, found)
            wide = tl.where(later, left * factor, earlier)
            chosen = tl.where(paired, errors, 0.0).to(k.dtype)
            found = tl.dot(chosen, wide.to(k.dtype), input_precision=PRECISION)
            crossing += wide * found
            found *= factor
            dleft += tl.where(later, found, 0.0)
            dk += tl.where(later, 0.0, found)
            if WITH_GATES:
                if level == 0:
                    dg += tl.where(later, crossing, 0.0)
                else:
                    segment = inner >> level
                    joint = segment[:, None] == segment[None, :]
                    dg += sums(joint & (later ^ below), crossing, k.dtype, PRECISION)
            since, until = doubled(since, until, level, C, BK)
    return dq, dleft, dk, dg, since, until


@triton.jit(do_not_specialize=["T", "scale"])
def delta_channel_gradients(
    q,
    k,
    v,
    g,
    erase,
    write,
    v_new,
    inverse,
    do,
    dv_new,
    states,
    dstates,
    start,
    dlast,
    dq,
    dk,
    dv,
    dg,
    derase,
    dwrite,
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
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
    WITH_GATES: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head; of beta, ``derase`` takes the whole gradient."""
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    head = n * H + h
    begins = c == 0
    ends = (c + 1) * C >= length
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    below = inner[:, None] > inner[None, :]
    dtype: tl.constexpr = k.dtype.element_ty

    solved = tl.trans(load_rows(inverse, rows, live, h, 0, H, C, C, C))
    reads = tl.zeros([C, C], dtype=tl.float32)
    errors = tl.zeros([C, C], dtype=tl.float32)
    dbeta = tl.zeros([C], dtype=tl.float32)
    written = tl.zeros([C], dtype=tl.float32)
    for column in range(0, V, BV):
        tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
        tile_d = load_rows(dv_new, rows, live, h, column, H, V, C, BV)
        tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
        tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
        strength = load_strengths(write, rows, live, h, column, H, V, C, BV, CHANNELS)
        y = tl.dot(solved, tile_d, input_precision=PRECISION)
        store_rows(dv, y * strength, rows, live, h, column, H, V, C, BV)
        if CHANNELS:
            store_rows(dwrite, y * tile_v, rows, live, h, column, H, V, C, BV)
        else:
            dbeta += tl.sum(y * tile_v, 1)
            written += tl.sum(y * tile_e, 1)
        y = y.to(dtype)
        reads = tl.dot(tile_do, tl.trans(tile_e), acc=reads, input_precision=PRECISION)
        errors = tl.dot(y, tl.trans(tile_e), acc=errors, input_precision=PRECISION)
    own = tl.sum(tl.where(inner[:, None] == inner[None, :], reads, 0.0), 1) * scale
    reads = both_ways(reads * scale, dtype)
    errors = both_ways(-errors, dtype)

    for row in range(0, K, BK):
        from_start = tl.zeros([C, BK], dtype=tl.float32)
        erased = tl.zeros([C, BK], dtype=tl.float32)
        to_end = tl.zeros([C, BK], dtype=tl.float32)
        across = tl.zeros([BK], dtype=tl.float32)
        for column in range(0, V, BV):
            places, inside = state_places(slot, row, column, K, V, BK, BV)
            outer, _ = state_places(head, row, column, K, V, BK, BV)
            state = tl.load(states + places, mask=inside, other=0.0)
            dstate = tl.load(dstates + places, mask=inside, other=0.0)
            tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
            tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
            tile_d = load_rows(dv_new, rows, live, h, column, H, V, C, BV)
            y = tl.dot(solved, tile_d, input_precision=PRECISION).to(dtype)
            turned = tl.trans(state)
            from_start = tl.dot(tile_do, turned, acc=from_start, input_precision=PRECISION)
            erased = tl.dot(y, turned, acc=erased, input_precision=PRECISION)
            to_end = tl.dot(tile_e, tl.trans(dstate), acc=to_end, input_precision=PRECISION)
            if WITH_GATES:
                # At the ends of a sequence states are the caller's own, in float32, and are not
                # rounded: of one token's gate they may be all there is.
                wide = state.to(tl.float32)
                dwide = dstate.to(tl.float32)
                if HAS_START:
                    given = tl.load(start + outer, mask=inside & begins, other=0.0)
                    wide = tl.where(begins, given, wide)
                if HAS_DLAST:
                    given = tl.load(dlast + outer, mask=inside & ends, other=0.0)
                    dwide = tl.where(ends, given, dwide)
                across += tl.sum(wide * dwide, 1)

        tile_q = load_rows(q, rows, live, h, row, H, K, C, BK)
        tile_k = load_rows(k, rows, live, h, row, H, K, C, BK)
        strength = load_strengths(erase, rows, live, h, row, H, K, C, BK, CHANNELS)
        left = tile_k * strength
        decays = load_decays(g, rows, live, h, row, H, K, C, BK)
        acc_q, acc_left, acc_k, acc_g, since, until = both_gradients(
            reads, errors, tile_q, left, tile_k, decays, C, BK, WITH_GATES, PRECISION
        )
        from_start *= since * scale
        erased *= -since
        to_end *= until
        if WITH_GATES:
            entering = tile_q * from_start + left * erased
            acc_g += sums(inner[:, None] <= inner[None, :], entering, dtype, PRECISION)
            acc_g += sums(below, tile_k * to_end, dtype, PRECISION)
            total = tl.sum(tl.where((inner == C - 1)[:, None], since, 0.0), 0)
            acc_g += (across * total)[None, :]
            store_rows(dg, acc_g, rows, live, h, row, H, K, C, BK)
        acc_q += from_start + own[:, None] * tile_k
        store_rows(dq, acc_q, rows, live, h, row, H, K, C, BK)
        acc_left += erased
        of_strength = acc_left * tile_k
        if CHANNELS:
            store_rows(derase, of_strength, rows, live, h, row, H, K, C, BK)
        else:
            dbeta += tl.sum(of_strength, 1)
        acc_k += to_end + own[:, None] * tile_q + acc_left * strength
        store_rows(dk, acc_k, rows, live, h, row, H, K, C, BK)
    if not CHANNELS:
        # The same number two ways: where keys are nearly parallel the parts of the sum cancel, and
        # where beta is nothing so is the quotient.
        beta = tl.sum(load_strengths(erase, rows, live, h, 0, H, K, C, BK, CHANNELS), 1)
        strong = tl.abs(beta) > 0.0625
        quotient = written / tl.where(strong, beta, 1.0)
        tl.store(derase + rows * H + h, tl.where(strong, quotient, dbeta), mask=live)
