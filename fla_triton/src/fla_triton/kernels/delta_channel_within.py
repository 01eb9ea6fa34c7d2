"""Gradients of a delta rule's inputs: pairs of one segment, where every channel has its own decay.

The last of the kernels of ``delta_channel_gradients``, whose notation this keeps. From pairs of
different segments, from states and to them, tokens have ``over_q``, ``over_left`` and ``over_k``,
less what their own segment decays. To that the pairs ``j < i`` of the segment add

    dq_i = sum_j dP_ij D_ij k_j,   dleft_i = sum_j dR_ij D_ij k_j,
    dk_j = sum_i D_ij (dP_ij q_i + dR_ij left_i).

Few pairs of many channels: a thread takes a channel of all tokens of a segment, and every pair as
it stands, in float32. D_ij is a running product in which j falls. So does i, hence what there is
of dk_j when i has come down to t is what j gives to tokens from t on, and the gradient of a gate is

    dg_t = sum_{j < t} k_j dk_j + sum_{i >= t} (q_i dq_i + left_i dleft_i) + pieces,

whose middle sum is of pairs that begin before the segment, and ``pieces`` of those that pass over
it. Nothing is exchanged between threads, and nothing cancels.

Bytes a token and head: q, k, gates, strengths, three times K and C / 4 float32 of gradients of
scores read, dq, dk and dg written. Flops: 18 for each of C / 16 pairs a token and channel.
"""

# The compiler does not unpack tuples into others, nor merge branches on constants and on values.
# ruff: noqa: RUF005, SIM108

import triton
import triton.language as tl

from fla_triton import pieces as layout
from fla_triton.kernels.common import chunk_at, first_slot, sequence_at, step_decay
from fla_triton.kernels.delta_channel_segments import SEGMENTS, row_of

ACROSS = tl.constexpr(layout.ACROSS)
CROSSING = tl.constexpr(layout.CROSSING)
READING = tl.constexpr(layout.READING)
WRITING = tl.constexpr(layout.WRITING)


@triton.jit
def passing_over(rows, segment, inside, K: tl.constexpr):
    """Of the gradient of a segment's gates what all pairs give that begin and end outside it."""
    HALF: tl.constexpr = SEGMENTS // 2
    found = tl.load(rows + ACROSS * K, mask=inside, other=0.0)
    for other in tl.static_range(SEGMENTS):
        earlier = other < segment
        # From the state to later segments, from earlier ones to the next state.
        row = tl.where(earlier, WRITING + other, READING + other)
        found += tl.load(rows + row * K, mask=inside & (other != segment), other=0.0)
        if other < HALF:
            within = earlier & (segment < HALF)
        else:
            within = (other > segment) & (segment >= HALF)
        found += tl.load(rows + (CROSSING + other) * K, mask=inside & within, other=0.0)
    place = segment % HALF
    other = tl.where(place == 1, segment - 1, segment + 1)
    within = inside & ((place == 1) | (place == 2))
    return found + tl.load(rows + (other + (CROSSING + SEGMENTS)) * K, mask=within, other=0.0)


@triton.jit(do_not_specialize=["T"])
def delta_channel_within(
    q,
    k,
    g,
    erase,
    diagonal,
    reads,
    errors,
    over_q,
    over_left,
    over_k,
    pieces,
    dq,
    dk,
    dg,
    derase,
    cu,
    table,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    PIECES: tl.constexpr,
    CHANNELS: tl.constexpr,
    WITH_GATES: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BK channels of one segment of one head.

    ``reads`` and ``errors [rows, H, C / SEGMENTS]``: of each token the gradients of its scores with
    the tokens of its segment; ``diagonal [rows, H]`` those of reads with itself. dq and dk may be
    ``over_q`` and ``over_k``. ``derase`` takes the gradient of b, or of beta what the tile adds,
    ``[rows, H, K / BK]``. ``pieces [slots, H, PIECES, K]``: of ``SEGMENTS`` rows what passes over
    each segment, of ``fla_triton.pieces`` what to sum it from.
    """
    pid = tl.program_id(0)
    NK: tl.constexpr = (K + BK - 1) // BK
    S: tl.constexpr = C // SEGMENTS
    tile = pid % NK
    h = pid // NK % H
    piece = pid // (NK * H)
    segment = piece % SEGMENTS
    n, c = chunk_at(table, piece // SEGMENTS, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    begin = c * C + segment * S
    live = length - begin
    token = (first + begin) * H + h
    channel = tile * BK + tl.arange(0, BK)
    inside = channel < K
    base = token * K + channel

    ks = ()
    decays = ()
    sinces = ()
    since = tl.full([BK], 1.0, dtype=tl.float32)
    for s in tl.static_range(S):
        here = inside & (s < live)
        ks = ks + (row_of(k, base + s * (H * K), here),)
        decay = step_decay(row_of(g, base + s * (H * K), here))
        since *= decay
        decays = decays + (decay,)
        sinces = sinces + (since,)
    dks = ()
    until = tl.full([BK], 1.0, dtype=tl.float32)
    for s in tl.static_range(S - 1, -1, -1):
        here = inside & (s < live)
        dks = (row_of(over_k, base + s * (H * K), here) * until,) + dks
        until *= decays[s]
    running = tl.zeros([BK], dtype=tl.float32)
    if WITH_GATES:
        slot = (first_slot(first, n, T, C, VARLEN) + c) * H + h
        rows = pieces + slot * (PIECES * K) + channel
        if PIECES == SEGMENTS:
            running += tl.load(rows + segment * K, mask=inside, other=0.0)
        else:
            running += passing_over(rows, segment, inside, K)
    # Stores wait: the compiler takes no load past one, which might be to the same place.
    found_q = ()
    found_k = ()
    found_g = ()
    found_strength = ()
    for i in tl.static_range(S - 1, -1, -1):
        is_live = i < live
        here = inside & is_live
        place = base + i * (H * K)
        q_i = row_of(q, place, here)
        if CHANNELS:
            strength = row_of(erase, place, here)
        else:
            strength = row_of(erase, token + i * H, is_live)
        left_i = strength * ks[i]
        dq_i = row_of(over_q, place, here) * sinces[i]
        dleft_i = row_of(over_left, place, here) * sinces[i]
        running += q_i * dq_i + left_i * dleft_i
        dg_i = running
        scores = (token + i * H) * S
        decay = decays[i]
        changed = ()
        for j in tl.static_range(i - 1, -1, -1):
            pull = row_of(reads, scores + j, is_live) * decay
            wrong = row_of(errors, scores + j, is_live) * decay
            dq_i += pull * ks[j]
            dleft_i += wrong * ks[j]
            dk_j = dks[j] + (pull * q_i + wrong * left_i)
            dg_i += ks[j] * dk_j
            changed = (dk_j,) + changed
            if j > 0:
                decay = decay * decays[j]
        own = row_of(diagonal, token + i * H, is_live)
        found_q = (dq_i + own * ks[i],) + found_q
        found_k = (dks[i] + own * q_i + dleft_i * strength,) + found_k
        found_g = (dg_i,) + found_g
        found_strength = (dleft_i * ks[i],) + found_strength
        dks = changed
    for i in tl.static_range(S):
        is_live = i < live
        here = inside & is_live
        place = base + i * (H * K)
        tl.store(dq + place, found_q[i].to(dq.dtype.element_ty), mask=here)
        tl.store(dk + place, found_k[i].to(dk.dtype.element_ty), mask=here)
        if WITH_GATES:
            tl.store(dg + place, found_g[i].to(dg.dtype.element_ty), mask=here)
        if CHANNELS:
            tl.store(derase + place, found_strength[i].to(derase.dtype.element_ty), mask=here)
        else:
            part = (token + i * H) * NK + tile
            tl.store(derase + part, tl.sum(found_strength[i], 0), mask=is_live)
