"""Operands of pairs of segments of a chunk, where every key channel has its own decay.

A chunk falls into eight segments. A pair ``j < i`` of different segments decays from j to the end
of its segment, over the segments between, and from the start of i's segment to i:

    D_ij = since_i M_ab until_j.

since and until belong to a token, M to segments; none exceeds one. Of each token this leaves

    from_q = since q,   from_left = since left,   to_k = until k,

and of each segment, in rows of ``pieces`` (``fla_triton.pieces``), what lies between it and the
chunk's start and end, and between it and the middle of four and of eight segments (``tree`` has the
levels of pairs). A thread walks a channel of a whole chunk, there and back; nothing is exchanged.
In a segment loads come before stores: the compiler takes no load past one, which might be to the
same place.

Bytes a token and head: q, k, gates and strengths read, most of k and gates twice, and three times K
written. Flops: 8 K.
"""

# The compiler does not unpack tuples into others.
# ruff: noqa: RUF005

import triton
import triton.language as tl

from fla_triton import pieces as layout
from fla_triton.kernels.common import chunk_at, first_slot, sequence_at, step_decay

BEFORE = tl.constexpr(layout.BEFORE)
BEHIND = tl.constexpr(layout.BEHIND)
BESIDE = tl.constexpr(layout.BESIDE)
PIECES = tl.constexpr(layout.PIECES)
SEGMENTS = tl.constexpr(layout.SEGMENTS)
TOTAL = tl.constexpr(layout.TOTAL)


@triton.jit
def row_of(x, places, here):
    """A token's channels, or its number, float32; zero where there are none."""
    return tl.load(x + places, mask=here, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["T"])
def delta_channel_segments(
    q,
    k,
    g,
    erase,
    from_q,
    from_left,
    to_k,
    pieces,
    cu,
    table,
    T,
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
    """One program: BK channels of one chunk of one head. ``pieces [slots, H, PIECES, K]``."""
    pid = tl.program_id(0)
    NK: tl.constexpr = (K + BK - 1) // BK
    S: tl.constexpr = C // SEGMENTS
    h = pid // NK % H
    n, c = chunk_at(table, pid // (NK * H), T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    channel = pid % NK * BK + tl.arange(0, BK)
    inside = channel < K
    live = length - c * C
    token = (first + c * C) * H + h
    base = token * K + channel
    rows = pieces + slot * (PIECES * K) + channel

    before = tl.full([BK], 1.0, dtype=tl.float32)
    beside = tl.full([BK], 1.0, dtype=tl.float32)
    previous = tl.full([BK], 1.0, dtype=tl.float32)
    for segment in range(SEGMENTS):
        # The far side of a middle: since the middle of eight, and of four.
        beside = tl.where(segment == SEGMENTS // 2, 1.0, beside)
        tl.store(rows + (BEFORE + segment) * K, before, mask=inside)
        far = inside & (segment >= SEGMENTS // 2)
        tl.store(rows + (BESIDE + segment) * K, beside, mask=far)
        near = tl.where(segment % 4 == 3, previous, 1.0)
        far = inside & (segment % 4 >= 2)
        tl.store(rows + (BESIDE + SEGMENTS + segment) * K, near, mask=far)
        since = tl.full([BK], 1.0, dtype=tl.float32)
        queries = ()
        lefts = ()
        for s in tl.static_range(S):
            i = segment * S + s
            here = inside & (i < live)
            place = base + i * (H * K)
            since *= step_decay(row_of(g, place, here))
            if CHANNELS:
                strength = row_of(erase, place, here)
            else:
                strength = row_of(erase, token + i * H, i < live)
            queries = queries + (row_of(q, place, here) * since,)
            lefts = lefts + (row_of(k, place, here) * strength * since,)
        for s in tl.static_range(S):
            i = segment * S + s
            here = inside & (i < live)
            place = base + i * (H * K)
            tl.store(from_q + place, queries[s].to(from_q.dtype.element_ty), mask=here)
            tl.store(from_left + place, lefts[s].to(from_left.dtype.element_ty), mask=here)
        previous = since
        before *= since
        beside *= since
    tl.store(rows + TOTAL * K, before, mask=inside)
    behind = tl.full([BK], 1.0, dtype=tl.float32)
    beside = tl.full([BK], 1.0, dtype=tl.float32)
    following = tl.full([BK], 1.0, dtype=tl.float32)
    for back in range(SEGMENTS):
        segment = SEGMENTS - 1 - back
        beside = tl.where(segment == SEGMENTS // 2 - 1, 1.0, beside)
        tl.store(rows + (BEHIND + segment) * K, behind, mask=inside)
        far = inside & (segment < SEGMENTS // 2)
        tl.store(rows + (BESIDE + segment) * K, beside, mask=far)
        near = tl.where(segment % 4 == 0, following, 1.0)
        far = inside & (segment % 4 < 2)
        tl.store(rows + (BESIDE + SEGMENTS + segment) * K, near, mask=far)
        until = tl.full([BK], 1.0, dtype=tl.float32)
        keys = ()
        for s in tl.static_range(S - 1, -1, -1):
            i = segment * S + s
            here = inside & (i < live)
            place = base + i * (H * K)
            keys = (row_of(k, place, here) * until,) + keys
            until *= step_decay(row_of(g, place, here))
        for s in tl.static_range(S):
            i = segment * S + s
            here = inside & (i < live)
            tl.store(to_k + base + i * (H * K), keys[s].to(to_k.dtype.element_ty), mask=here)
        following = until
        behind *= until
        beside *= until
