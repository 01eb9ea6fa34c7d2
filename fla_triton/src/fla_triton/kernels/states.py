"""States before (or gradients of states after) each chunk of C tokens.

For one head with running log decays G inside a chunk of C tokens and G_C its total:

    forward   S_{c+1} = exp(G_C) S_c + sum_s k_s (exp(G_C - G_s) v_s)^T
    backward  dS_{c-1} = exp(G_C) dS_c + sum_s q_s (scale exp(G_s) do_s)^T

Both are one loop: ``a`` is k or q, ``b`` is v or do, and the loop runs over chunks in either
direction. Log decays come summed (``gate_sums``): summed in the loop, across warps, they took a
sixth of its time. Where key channels decay (``HAS_GK``), a and b come with all factors in them, and
what a chunk leaves of rows of the state comes ready made (``channel_prepare``). The state stays in
registers in float32; each chunk's is written once, in the dtype in which matrix products read it. A
sequence whose programs would leave the chip idle is cut into segments: one pass sums each segment
from zero, ``chain`` joins them, and a second pass starts each segment where the one before it
ended.

Bytes for N sequences of T tokens: a and b once (twice with segments), T / C * K * V elements of
states. Flops: 2 T K V a head.

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16, where copying reaches 4.27 TB/s: 0.068
ms with one decay a head in chunks of 128, 69 % of that rate, and 0.102 with a gate a token in those
of 64, 62 %.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: C901, SIM108

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    decay,
    first_slot,
    load_rows,
    sequence_at,
    state_places,
)
from fla_triton.kernels.gates import sums_at


@triton.jit
def total_of(sums, slot, there, h, H: tl.constexpr, C: tl.constexpr):
    """Log decay of a chunk that may not be there."""
    return tl.load(sums_at(sums, slot, h, H, C) + C - 1, mask=there, other=0.0)


@triton.jit(do_not_specialize=["T", "span", "segments", "parts", "scale"])
def chunk_states(
    a,
    b,
    sums,
    gk,
    start,
    states,
    last,
    logs,
    cu,
    T,
    span,
    segments,
    parts,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    REVERSE: tl.constexpr,
    TOTALS: tl.constexpr,
    HAS_SUMS: tl.constexpr,
    HAS_GK: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_LAST: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one tile of one head's state over one segment of one sequence.

    ``TOTALS`` writes what the segment adds to a state of zero (``last``) and its log decay, or the
    factors of its rows if ``HAS_GK`` (``logs``); otherwise the state at each chunk (``states``)
    and, after the last segment, ``last``.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    NK: tl.constexpr = (K + BK - 1) // BK
    column = (pid % NV) * BV
    row = (pid // NV % NK) * BK
    part = pid // (NV * NK) % parts
    head = pid // (NV * NK) // parts
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)
    chunks = tl.cdiv(length, C)
    segment = segments - 1 - part if REVERSE else part
    begin = tl.minimum(segment * span, chunks)
    end = tl.minimum(begin + span, chunks)

    joint = tl.cast(head, tl.int64) * segments + part
    places, mask = state_places(joint, row, column, K, V, BK, BV)
    state = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_START:
        state += tl.load(start + places, mask=mask, other=0.0)
    if HAS_GK:
        log = tl.full([BK], 1.0, dtype=tl.float32)
    else:
        log = 0.0
    if HAS_SUMS:
        at = end - 1 if REVERSE else begin
        total = total_of(sums, slot + at, begin < end, h, H, C)
    for step in range(begin, end):
        c = end - 1 - (step - begin) if REVERSE else step
        if not TOTALS:
            kept, inside = state_places((slot + c) * H + h, row, column, K, V, BK, BV)
            tl.store(states + kept, state.to(states.dtype.element_ty), mask=inside)
        tokens = c * C + tl.arange(0, C)
        live = tokens < length
        rows = first + tokens
        tile_a = load_rows(a, rows, live, h, row, H, K, C, BK)
        tile_b = load_rows(b, rows, live, h, column, H, V, C, BV)
        if HAS_GK:
            keys = row + tl.arange(0, BK)
            place = tl.cast(slot + c, tl.int64) * H + h
            total = tl.load(gk + place * K + keys, mask=keys < K, other=0.0)
            state *= total[:, None]
            log *= total
        if HAS_SUMS:
            given = sums_at(sums, slot + c, h, H, C)
            if REVERSE:
                weight = decay(tl.load(given + tl.arange(0, C))) * scale
            else:
                weight = decay(tl.load(given + C + tl.arange(0, C)))
            tile_b = (tile_b * weight[:, None]).to(tile_b.dtype)
            state *= decay(total)
            log += total
            # A chunk ahead: it would be waited for.
            total = total_of(sums, slot + (c - 1 if REVERSE else c + 1), step + 1 < end, h, H, C)
        elif REVERSE and not HAS_GK:
            tile_b = (tile_b * scale).to(tile_b.dtype)
        state = tl.dot(tl.trans(tile_a), tile_b, acc=state, input_precision=PRECISION)
    if TOTALS:
        tl.store(last + places, state, mask=mask)
        if HAS_GK:
            keys = row + tl.arange(0, BK)
            tl.store(logs + joint * K + keys, log, mask=(keys < K) & (column == 0))
        else:
            tl.store(logs + joint, log, mask=(row == 0) & (column == 0))
    elif HAS_LAST:
        # Whatever lies in the segments: one that is empty hands its start on.
        places, mask = state_places(head, row, column, K, V, BK, BV)
        tl.store(last + places, state, mask=mask & (part == segments - 1))


@triton.jit(do_not_specialize=["segments"])
def chain(
    joints,
    logs,
    start,
    segments,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_GK: tl.constexpr,
    HAS_START: tl.constexpr,
):
    """Turn ``joints [N * H, segments, K * V]`` from what segments add into where they start."""
    pid = tl.program_id(0)
    KV: tl.constexpr = K * V
    blocks: tl.constexpr = (KV + BLOCK - 1) // BLOCK
    head = tl.cast(pid // blocks, tl.int64)
    inner = (pid % blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = inner < KV
    carry = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_START:
        carry += tl.load(start + head * KV + inner, mask=mask, other=0.0)
    for part in range(segments - 1):
        joint = head * segments + part
        added = tl.load(joints + joint * KV + inner, mask=mask, other=0.0)
        tl.store(joints + joint * KV + inner, carry, mask=mask)
        if HAS_GK:
            factor = tl.load(logs + joint * K + inner // V, mask=mask, other=0.0)
        else:
            factor = decay(tl.load(logs + joint))
        carry = carry * factor + added
    tl.store(joints + (head * segments + segments - 1) * KV + inner, carry, mask=mask)
