"""States before each chunk and gradients of the states after each, in one launch, on Hopper.

What ``fla_triton``'s ``chunk_states`` computes in two, one after the other. Where key channels
decay, with G_C the total decay of a chunk, and q and k weighted with theirs (``channel_pairs``),

    S_{c+1} = exp(G_C) S_c + k_out^T v,      dS_{c-1} = exp(G_C) dS_c + q_in^T do;

where a head decays, q and k come as they are, and weights from sums of gates.

A program walks the chunks of a segment for one tile of a state, in one direction: a chain that
waits for memory and products more than it computes. Programs of both directions share the
multiprocessors.

Bytes a token and head: q, k, v and do read once for each tile of the other side, and twice
K V / C of states written. Flops: 4 K V. On an H200 at B2 T8192 H16 K = V = 128 in bfloat16 0.153 ms
under channel decays, where two launches that wait for decays besides take 0.302, and 0.164 under
those of heads, where two take 0.207.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: SIM102

import triton
import triton.language as tl

from fla_triton.kernels.common import decay, first_slot, sequence_at


@triton.jit
def _walk(
    pid,
    a,
    b,
    totals,
    sums,
    start,
    states,
    last,
    cu,
    T,
    span,
    segments,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    CHANNEL: tl.constexpr,
    REVERSE: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_LAST: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """Walk a segment."""
    NV: tl.constexpr = V // BV
    NK: tl.constexpr = K // BK
    part = pid // (NV * NK) % segments
    head = pid // (NV * NK) // segments
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)
    chunks = tl.cdiv(length, C)
    segment = segments - 1 - part if REVERSE else part
    begin = tl.minimum(segment * span, chunks)
    end = tl.minimum(begin + span, chunks)

    row = pid // NV % NK * BK + tl.arange(0, BK)
    column = pid % NV * BV + tl.arange(0, BV)
    inner = tl.arange(0, C)
    places = row[:, None] * V + column[None, :]
    state = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_START:
        joint = tl.cast(head, tl.int64) * segments + part
        state += tl.load(start + joint * (K * V) + places)
    # Of the next chunk, so that no product waits for them: they are not copied ahead as tiles are.
    ahead = tl.cast(slot + (end - 1 if REVERSE else begin), tl.int64) * H + h
    if CHANNEL:
        total = tl.load(totals + ahead * K + row, mask=begin + 0 * row < end, other=0.0)
    else:
        total = tl.load(sums + ahead * (4 * C) + C - 1, mask=begin < end, other=0.0)
    for step in range(begin, end):
        c = end - 1 - (step - begin) if REVERSE else step
        place = tl.cast(slot + c, tl.int64) * H + h
        ahead = place - H if REVERSE else place + H
        if CHANNEL:
            following = tl.load(totals + ahead * K + row, mask=step + 1 + 0 * row < end, other=0.0)
        else:
            following = tl.load(sums + ahead * (4 * C) + C - 1, mask=step + 1 < end, other=0.0)
        tl.store(states + place * (K * V) + places, state.to(states.dtype.element_ty))
        live = (c * C + inner < length)[:, None]
        token = ((first + c * C + inner) * H + h)[:, None]
        tile_a = tl.load(a + token * K + row[None, :], mask=live, other=0.0)
        tile_b = tl.load(b + token * V + column[None, :], mask=live, other=0.0)
        if CHANNEL:
            state *= total[:, None]
        else:
            given = sums + place * (4 * C) + inner
            weight = decay(tl.load(given)) * scale if REVERSE else decay(tl.load(given + C))
            tile_b = (tile_b * weight[:, None]).to(tile_b.dtype)
            state *= decay(total)
        state = tl.dot(tl.trans(tile_a), tile_b, acc=state)
        total = following
    if HAS_LAST:
        if part == segments - 1:
            tl.store(last + tl.cast(head, tl.int64) * (K * V) + places, state)


@triton.jit(do_not_specialize=["T", "span", "segments", "scale"])
def both_states(
    q_in,
    k_out,
    v,
    do,
    totals,
    sums,
    start,
    dlast,
    states,
    dstates,
    dstart,
    cu,
    T,
    span,
    segments,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    CHANNEL: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_DLAST: tl.constexpr,
    HAS_DSTART: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: a tile of one head's state or of its gradient, over a segment of a sequence.

    ``start`` and ``dlast [N, H, segments, K, V]``: where segments start, in the order in which they
    are walked.
    """
    pid = tl.program_id(0)
    if pid % 2 == 0:
        _walk(
            pid // 2,
            k_out,
            v,
            totals,
            sums,
            start,
            states,
            None,
            cu,
            T,
            span,
            segments,
            scale,
            H,
            K,
            V,
            BK,
            BV,
            C,
            CHANNEL,
            False,
            HAS_START,
            False,
            VARLEN,
        )
    else:
        _walk(
            pid // 2,
            q_in,
            do,
            totals,
            sums,
            dlast,
            dstates,
            dstart,
            cu,
            T,
            span,
            segments,
            scale,
            H,
            K,
            V,
            BK,
            BV,
            C,
            CHANNEL,
            True,
            HAS_DLAST,
            HAS_DSTART,
            VARLEN,
        )
