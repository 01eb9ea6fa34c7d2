"""Outputs of the delta rule in one pass over time: no state and no error is ever stored.

With S the state before a chunk, running log decays G and the causal scores P of its tokens, all
decays and the scale in them,

    v_new = X (v - exp(G) k S)   or   v_new = u - w S
    o = scale exp(G) q S + P v_new
    S <- exp(G_C) S + (exp(G_C - G) k)^T v_new

where X is the inverse of the chunk's triangular system times beta. The first form (``SOLVES``)
reads k where the second reads w, and so less; the second has one product less between one chunk
and the next.

Bytes a token and head: q, k and v read and o written, X and P; or q, k, w and u and P. Flops a
token and head: 6 K V + 4 C V, or 6 K V + 2 C V.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import first_slot, load_rows, sequence_at, state_places, store_rows
from fla_triton.kernels.delta_states import load_total


@triton.jit(do_not_specialize=["T", "scale"])
def delta_outputs(
    q,
    k,
    v,
    w,
    inverse,
    scores,
    since,
    into,
    totals,
    start,
    o,
    last,
    cu,
    T,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    HAS_G: tl.constexpr,
    CHANNEL: tl.constexpr,
    SOLVES: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_LAST: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BV columns of one head's outputs over one sequence.

    ``v`` holds u where the system is not solved here. ``since`` and ``into`` ``[slots, H, C]`` hold
    ``exp(G)`` and ``exp(G_C - G)``; decays of channels are in q, k and w already.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    column = (pid % NV) * BV
    head = pid // NV
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)

    ends, mask = state_places(head, 0, column, K, V, BK, BV)
    state = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_START:
        state += tl.load(start + ends, mask=mask, other=0.0)
    for c in range(tl.cdiv(length, C)):
        place = (slot + c) * H + h
        inner = tl.arange(0, C)
        live = c * C + inner < length
        rows = first + c * C + inner
        tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
        tile_v = load_rows(v, rows, live, h, column, H, V, C, BV)
        tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
        tile_p = load_rows(scores, rows, live, h, 0, H, C, C, C)
        narrow = state.to(tile_k.dtype)
        arriving = scale
        if HAS_G:
            decays = tl.load(since + place * C + inner)[:, None]
            arriving = decays * scale
        if SOLVES:
            tile_x = load_rows(inverse, rows, live, h, 0, H, C, C, C)
            read = tl.dot(tile_k, narrow, input_precision=PRECISION)
            if HAS_G:
                read *= decays
            asked = (tile_v - read).to(tile_k.dtype)
            new = tl.dot(tile_x, asked, input_precision=PRECISION)
        else:
            tile_w = load_rows(w, rows, live, h, 0, H, K, C, BK)
            new = tile_v - tl.dot(tile_w, narrow, input_precision=PRECISION)
        out = tl.dot(tile_q, narrow, input_precision=PRECISION) * arriving
        out = tl.dot(tile_p, new.to(tile_p.dtype), acc=out, input_precision=PRECISION)
        store_rows(o, out, rows, live, h, column, H, V, C, BV)
        if HAS_G:
            new *= tl.load(into + place * C + inner)[:, None]
        if HAS_G or CHANNEL:
            state *= load_total(totals, place, HAS_G, CHANNEL, K, BK)
        state = tl.dot(tl.trans(tile_k), new.to(tile_k.dtype), acc=state, input_precision=PRECISION)
    if HAS_LAST:
        tl.store(last + ends, state, mask=mask)
