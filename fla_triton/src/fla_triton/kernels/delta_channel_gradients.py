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
stands for the reason that ``channel_gradients`` gives. A pair adds to all gates between its tokens.

Four kernels. ``delta_channel_errors`` takes a chunk of one head and leaves y, dv and both gradients
of scores; ``delta_channel_segments`` the operands of pairs of the chunk's eight segments;
``delta_channel_across`` what comes of these pairs and of states, for a tile of channels, less
what each token's segment decays; ``delta_channel_within`` adds a segment's own pairs and hands out
the gradients. Pairs of segments are the three upper levels of ``tree``, and matrix products; those
of one segment are few, and taken one by one.

Bytes a token and head: v, v_new, do, dv_new and C of X read, y, dv, 2 C and C / 4 float32 of
gradients of scores written; three times K, do, v_new, y, 2 C of scores and K V / C of S and of dS
read, three times K written. Flops: 6 V C; 6 K V + 12 K C.
"""

import triton
import triton.language as tl

from fla_triton import pieces as layout
from fla_triton.kernels.common import (
    chunk_at,
    first_slot,
    load_rows,
    sequence_at,
    state_places,
    store_rows,
)
from fla_triton.kernels.delta_channel_prepare import load_strengths
from fla_triton.kernels.delta_channel_segments import (
    BEFORE,
    BEHIND,
    BESIDE,
    PIECES,
    SEGMENTS,
    TOTAL,
)
from fla_triton.kernels.tree import both_ways

ACROSS = tl.constexpr(layout.ACROSS)
CROSSING = tl.constexpr(layout.CROSSING)
READING = tl.constexpr(layout.READING)
WRITING = tl.constexpr(layout.WRITING)


@triton.jit
def store_segment_scores(x, scores, rows, live, h, H: tl.constexpr, C: tl.constexpr):
    """Write to ``x [rows, H, C / SEGMENTS]`` what pairs of one segment have of ``scores``."""
    S: tl.constexpr = C // SEGMENTS
    inner = tl.arange(0, C)
    column = inner[None, :] - (inner // S * S)[:, None]
    places = (rows * H + h)[:, None] * S + column
    tl.store(x + places, scores, mask=(column >= 0) & (column < S) & live[:, None])


@triton.jit
def load_pairs(x, paired, rows, live, h, H: tl.constexpr, C: tl.constexpr):
    """Scores ``[C, C]`` of the pairs that ``paired`` names; zero elsewhere."""
    places = (rows * H + h)[:, None] * C + tl.arange(0, C)[None, :]
    return tl.load(x + places, mask=paired & live[:, None], other=0.0)


@triton.jit
def load_pieces(pieces, at, known, column, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr):
    """A number of each segment and channel, as a tile of its tokens; one if it is not ``known``."""
    channel = column + tl.arange(0, BK)
    segment = tl.arange(0, C) // (C // SEGMENTS)
    places = (segment + at)[:, None] * K + channel[None, :]
    return tl.load(pieces + places, mask=(channel < K)[None, :] & known, other=1.0)


@triton.jit
def store_segment_sums(
    pieces, at, x, wanted, column, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr
):
    """Sum a tile ``[C, BK]`` over the tokens of each segment, if that is ``wanted``."""
    found = tl.sum(tl.reshape(x, [SEGMENTS, C // SEGMENTS, BK]), 1)
    channel = column + tl.arange(0, BK)
    places = (tl.arange(0, SEGMENTS) + at)[:, None] * K + channel[None, :]
    mask = tl.broadcast_to((channel < K)[None, :] & wanted, [SEGMENTS, BK])
    tl.store(pieces + places, found, mask=mask)


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
    near_reads,
    near_errors,
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
    diagonal, which ``diagonal [rows, H]`` takes; ``near_reads`` and ``near_errors [rows, H,
    C / SEGMENTS]``, in float32, those of each token with the tokens of its segment. Strengths of
    channels: ``dwrite`` takes the gradient of w. Of heads: ``dbeta [rows, H, 2]`` takes y . v and
    y . v_new.
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
    pulls *= scale
    store_segment_scores(near_reads, pulls, rows, live, h, H, C)
    store_segment_scores(near_errors, -wrong, rows, live, h, H, C)
    store_rows(reads, both_ways(pulls, dtype), rows, live, h, 0, H, C, C, C)
    store_rows(errors, both_ways(-wrong, dtype), rows, live, h, 0, H, C, C, C)


@triton.jit(do_not_specialize=["T", "scale"])
def delta_channel_across(
    from_q,
    from_left,
    to_k,
    v_new,
    do,
    y,
    reads,
    errors,
    states,
    dstates,
    start,
    dlast,
    over_q,
    over_left,
    over_k,
    pieces,
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
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
    WITH_GATES: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BK channels of one chunk of one head.

    ``from_q``, ``from_left``, ``to_k`` and the decays in ``pieces`` are of
    ``delta_channel_segments``; ``over_q``, ``over_left`` and ``over_k`` may take their places. The
    sums for gates in ``pieces`` are written if ``WITH_GATES``.
    """
    pid = tl.program_id(0)
    NK: tl.constexpr = (K + BK - 1) // BK
    row = pid % NK * BK
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
    dtype: tl.constexpr = to_k.dtype.element_ty

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
            exact = state.to(tl.float32)
            dexact = dstate.to(tl.float32)
            if HAS_START:
                given = tl.load(start + outer, mask=inside & begins, other=0.0)
                exact = tl.where(begins, given, exact)
            if HAS_DLAST:
                given = tl.load(dlast + outer, mask=inside & ends, other=0.0)
                dexact = tl.where(ends, given, dexact)
            across += tl.sum(exact * dexact, 1)

    mine = pieces + slot * (PIECES * K)
    before = load_pieces(mine, BEFORE, True, row, K, C, BK)
    acc_q *= before * scale
    acc_left *= -before
    acc_k *= load_pieces(mine, BEHIND, True, row, K, C, BK)
    tile_q = load_rows(from_q, rows, live, h, row, H, K, C, BK)
    tile_left = load_rows(from_left, rows, live, h, row, H, K, C, BK)
    tile_k = load_rows(to_k, rows, live, h, row, H, K, C, BK)
    if WITH_GATES:
        reading = tile_q * acc_q + tile_left * acc_left
        store_segment_sums(mine, READING, reading, True, row, K, C, BK)
        store_segment_sums(mine, WRITING, tile_k * acc_k, True, row, K, C, BK)
        channel = row + tl.arange(0, BK)
        total = tl.load(mine + channel + TOTAL * K, mask=channel < K, other=0.0)
        tl.store(mine + channel + ACROSS * K, across * total, mask=channel < K)

    for wide in range(3):
        # Halves of one, two and four segments; the first touch each other in the middle.
        half = inner // ((C // SEGMENTS) << wide)
        group = half // 2
        later = (half % 2)[:, None] == 1
        paired = (group[:, None] == group[None, :]) & (half[:, None] != half[None, :])
        beside = load_pieces(mine, BESIDE + SEGMENTS * (2 - wide), wide > 0, row, K, C, BK)
        # Zero, which only the device knows: what does not depend on the level leaves the loop.
        here = rows + (wide >> 8)
        tile_k = load_rows(to_k, here, live, h, row, H, K, C, BK)
        tile = tl.where(later, load_rows(from_q, here, live, h, row, H, K, C, BK), tile_k)
        right_q = (tile * beside).to(dtype)
        tile = tl.where(later, load_rows(from_left, here, live, h, row, H, K, C, BK), tile_k)
        right_left = (tile * beside).to(dtype)
        pulls = load_pairs(reads, paired, here, live, h, H, C)
        of_q = tl.dot(pulls, right_q, input_precision=PRECISION)
        wrong = load_pairs(errors, paired, here, live, h, H, C)
        of_left = tl.dot(wrong, right_left, input_precision=PRECISION)
        if WITH_GATES:
            crossing = right_q * of_q + right_left * of_left
            at = CROSSING + SEGMENTS * (2 - wide)
            store_segment_sums(mine, at, crossing, wide > 0, row, K, C, BK)
        of_q *= beside
        of_left *= beside
        acc_q += tl.where(later, of_q, 0.0)
        acc_left += tl.where(later, of_left, 0.0)
        acc_k += tl.where(later, 0.0, of_q + of_left)
    store_rows(over_q, acc_q, rows, live, h, row, H, K, C, BK)
    store_rows(over_left, acc_left, rows, live, h, row, H, K, C, BK)
    store_rows(over_k, acc_k, rows, live, h, row, H, K, C, BK)


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
