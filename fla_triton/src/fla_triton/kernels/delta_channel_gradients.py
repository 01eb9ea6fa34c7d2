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

Two kernels, since one wants more registers than there are: ``delta_channel_errors`` takes a chunk
of one head and leaves y, dv and both gradients of scores, ``delta_channel_gradients`` takes a tile
of its channels. Bytes a token and head: v, v_new, do, dv_new and C of X read, y, dv and 2 C of
gradients of scores written; q, k, gates and strengths read and their gradients written, do, v_new,
y, 2 C of scores and K V / C of S and of dS read. Flops, with L = log2(C): 6 V C; 6 K V + 10 K C L.
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
from fla_triton.kernels.spans import (
    are_paired,
    behind,
    decays,
    is_later,
    load_gates,
    ones,
    to_middle,
    up_to,
)
from fla_triton.kernels.tree import both_ways, sums


@triton.jit
def both_gradients(
    dq,
    dleft,
    dk,
    dg,
    reads,
    errors,
    q,
    k,
    strengths,
    high,
    low,
    rows,
    live,
    h,
    row,
    H: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    LEVELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    WITH_GATES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add a tile of channels of what the pairs ``j < i`` of q and of left with k give.

    Operands are read again on every level: all of them do not fit into registers.

    Args:
        dq, dleft, dk, dg: ``[C, BK]``, float32; dg is handed back as it is if not ``WITH_GATES``.
        reads, errors: gradients of both scores in memory, mirrored at the diagonal.
        high, low: of ``load_gates``.
    """
    dtype: tl.constexpr = k.dtype.element_ty
    for level in range(LEVELS):
        # Zero, which only the device knows: what does not depend on the level leaves the loop.
        here = rows + (level >> 8)
        later = is_later(level, C)
        paired = are_paired(level, C)
        between = ones(to_middle(level, C), dtype)
        factor = decays(between, high, low, PRECISION)
        both = load_rows(k, here, live, h, row, H, K, C, BK)
        both = tl.where(later, load_rows(q, here, live, h, row, H, K, C, BK), both)
        pulls = load_rows(reads, here, live, h, 0, H, C, C, C)
        chosen = tl.where(paired, pulls, 0.0).to(dtype)
        found = tl.dot(chosen, (both * factor).to(dtype), input_precision=PRECISION) * factor
        crossing = both * found
        dq += tl.where(later, found, 0.0)
        dk += tl.where(later, 0.0, found)
        strength = load_strengths(strengths, here, live, h, row, H, K, C, BK, CHANNELS)
        both = load_rows(k, here, live, h, row, H, K, C, BK) * tl.where(later, strength, 1.0)
        pulls = load_rows(errors, here, live, h, 0, H, C, C, C)
        chosen = tl.where(paired, pulls, 0.0).to(dtype)
        found = tl.dot(chosen, (both * factor).to(dtype), input_precision=PRECISION) * factor
        crossing += both * found
        dleft += tl.where(later, found, 0.0)
        dk += tl.where(later, 0.0, found)
        if WITH_GATES:
            dg += sums(tl.trans(between), crossing, dtype, PRECISION)
    return dq, dleft, dk, dg


@triton.jit(do_not_specialize=["T", "scale"])
def delta_channel_errors(
    v,
    write,
    v_new,
    inverse,
    do,
    dv_new,
    y,
    dv,
    dwrite,
    dbeta,
    diagonal,
    reads,
    errors,
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
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head.

    ``y`` may be ``dv_new``. ``reads`` and ``errors [rows, H, C]`` take dP and dR, mirrored at the
    diagonal, which ``diagonal [rows, H]`` takes. Strengths of channels: ``dwrite`` takes the
    gradient of w. Of heads: ``dbeta [rows, H, 2]`` takes y . v and y . v_new.
    """
    pid = tl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    solved = tl.trans(load_rows(inverse, rows, live, h, 0, H, C, C, C))
    pulls = tl.zeros([C, C], dtype=tl.float32)
    wrong = tl.zeros([C, C], dtype=tl.float32)
    offered = tl.zeros([C], dtype=tl.float32)
    written = tl.zeros([C], dtype=tl.float32)
    for column in range(0, V, BV):
        tile_d = load_rows(dv_new, rows, live, h, column, H, V, C, BV)
        found = tl.dot(solved, tile_d, input_precision=PRECISION)
        tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
        tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
        strength = load_strengths(write, rows, live, h, column, H, V, C, BV, CHANNELS)
        store_rows(dv, found * strength, rows, live, h, column, H, V, C, BV)
        if CHANNELS:
            store_rows(dwrite, found * tile_v, rows, live, h, column, H, V, C, BV)
        else:
            offered += tl.sum(found * tile_v, 1)
            written += tl.sum(found * tile_e, 1)
        narrow = found.to(tile_d.dtype)
        store_rows(y, narrow, rows, live, h, column, H, V, C, BV)
        turned = tl.trans(tile_e)
        wrong = tl.dot(narrow, turned, acc=wrong, input_precision=PRECISION)
        tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
        pulls = tl.dot(tile_do, turned, acc=pulls, input_precision=PRECISION)
    if not CHANNELS:
        places = (rows * H + h) * 2
        tl.store(dbeta + places, offered, mask=live)
        tl.store(dbeta + places + 1, written, mask=live)
    own = tl.sum(tl.where(inner[:, None] == inner[None, :], pulls, 0.0), 1) * scale
    tl.store(diagonal + rows * H + h, own, mask=live)
    dtype: tl.constexpr = v.dtype.element_ty
    store_rows(reads, both_ways(pulls * scale, dtype), rows, live, h, 0, H, C, C, C)
    store_rows(errors, both_ways(-wrong, dtype), rows, live, h, 0, H, C, C, C)


@triton.jit(do_not_specialize=["T", "scale"])
def delta_channel_gradients(
    q,
    k,
    g,
    erase,
    v_new,
    do,
    y,
    diagonal,
    reads,
    errors,
    states,
    dstates,
    start,
    dlast,
    dq,
    dk,
    dg,
    derase,
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
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
    WITH_GATES: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BK channels of one chunk of one head.

    ``derase`` takes the gradient of b, or of beta what the tile adds, ``[rows, H, K / BK]``.
    """
    pid = tl.program_id(0)
    NK: tl.constexpr = (K + BK - 1) // BK
    tile = pid % NK
    row = tile * BK
    h = pid // NK % H
    n, c = chunk_at(table, pid // (NK * H), T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    head = n * H + h
    begins = c == 0
    ends = (c + 1) * C >= length
    inner = tl.arange(0, C)
    live = c * C + inner < length
    rows = first + c * C + inner
    dtype: tl.constexpr = k.dtype.element_ty

    acc_q = tl.zeros([C, BK], dtype=tl.float32)
    acc_left = tl.zeros([C, BK], dtype=tl.float32)
    acc_k = tl.zeros([C, BK], dtype=tl.float32)
    across = tl.zeros([BK], dtype=tl.float32)
    for column in range(0, V, BV):
        places, inside = state_places(slot, row, column, K, V, BK, BV)
        outer, _ = state_places(head, row, column, K, V, BK, BV)
        state = tl.load(states + places, mask=inside, other=0.0)
        dstate = tl.load(dstates + places, mask=inside, other=0.0)
        turned = tl.trans(state)
        tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
        acc_q = tl.dot(tile_do, turned, acc=acc_q, input_precision=PRECISION)
        tile_y = load_rows(y, rows, live, h, column, H, V, C, BV)
        acc_left = tl.dot(tile_y, turned, acc=acc_left, input_precision=PRECISION)
        tile_e = load_rows(v_new, rows, live, h, column, H, V, C, BV)
        acc_k = tl.dot(tile_e, tl.trans(dstate), acc=acc_k, input_precision=PRECISION)
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

    high, low = load_gates(g, rows, live, h, row, H, K, C, BK, dtype)
    before = ones(up_to(C), dtype)
    after = ones(behind(C), dtype)
    since = decays(before, high, low, PRECISION)
    acc_q *= since * scale
    acc_left *= -since
    acc_k *= decays(after, high, low, PRECISION)
    acc_g = tl.zeros([C, BK], dtype=tl.float32)
    tile_q = load_rows(q, rows, live, h, row, H, K, C, BK)
    tile_k = load_rows(k, rows, live, h, row, H, K, C, BK)
    strength = load_strengths(erase, rows, live, h, row, H, K, C, BK, CHANNELS)
    if WITH_GATES:
        entering = tile_q * acc_q + tile_k * strength * acc_left
        acc_g += sums(tl.trans(before), entering, dtype, PRECISION)
        acc_g += sums(tl.trans(after), tile_k * acc_k, dtype, PRECISION)
        total = tl.sum(tl.where((inner == C - 1)[:, None], since, 0.0), 0)
        acc_g += (across * total)[None, :]
    own = tl.load(diagonal + rows * H + h, mask=live, other=0.0)[:, None]
    acc_q += own * tile_k
    acc_k += own * tile_q
    acc_q, acc_left, acc_k, acc_g = both_gradients(
        acc_q,
        acc_left,
        acc_k,
        acc_g,
        reads,
        errors,
        q,
        k,
        erase,
        high,
        low,
        rows,
        live,
        h,
        row,
        H,
        K,
        C,
        BK,
        LEVELS,
        CHANNELS,
        WITH_GATES,
        PRECISION,
    )
    if WITH_GATES:
        store_rows(dg, acc_g, rows, live, h, row, H, K, C, BK)
    store_rows(dq, acc_q, rows, live, h, row, H, K, C, BK)
    tile_k = load_rows(k, rows, live, h, row, H, K, C, BK)
    strength = load_strengths(erase, rows, live, h, row, H, K, C, BK, CHANNELS)
    store_rows(dk, acc_k + acc_left * strength, rows, live, h, row, H, K, C, BK)
    of_strength = acc_left * tile_k
    if CHANNELS:
        store_rows(derase, of_strength, rows, live, h, row, H, K, C, BK)
    else:
        tl.store(derase + (rows * H + h) * NK + tile, tl.sum(of_strength, 1), mask=live)


@triton.jit(do_not_specialize=["size"])
def beta_gradients(beta, sums, parts, dbeta, size, NK: tl.constexpr, BLOCK: tl.constexpr):
    """One program: BLOCK strengths of heads, from the sums and parts that the others have left."""
    place = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    strength = tl.load(beta + place, mask=inside, other=0.0).to(tl.float32)
    found = tl.load(sums + 2 * place, mask=inside, other=0.0)
    written = tl.load(sums + 2 * place + 1, mask=inside, other=0.0)
    for tile in range(NK):
        found += tl.load(parts + NK * place + tile, mask=inside, other=0.0)
    # The same number two ways: where keys are nearly parallel the parts of the sum cancel, and
    # where beta is nothing so is the quotient.
    strong = tl.abs(strength) > 0.0625
    quotient = written / tl.where(strong, strength, 1.0)
    tl.store(dbeta + place, tl.where(strong, quotient, found), mask=inside)
