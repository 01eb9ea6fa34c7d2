"""The delta rule's passes over time: states before each chunk, and their gradients in reverse.

Inside a chunk of C tokens that starts from S, the errors written are ``v_new = u - w S``, w and u
free of S (``delta_prepare``). For one head with running log decays G and their total G_C:

    forward   S_{c+1} = exp(G_C) S_c + sum_s (exp(G_C - G_s) k_s) v_new_s^T
    backward  dv_new_s = dv_s + (exp(G_C - G_s) k_s)^T dS_c
              dS_{c-1} = exp(G_C) dS_c + sum_s (scale exp(G_s) q_s) do_s^T - sum_s w_s dv_new_s^T

where dv is what the chunk's own outputs ask of its errors. Decays come ready made, so that one pass
serves every kind of gate: of a head (``HAS_G``) as weights of tokens and a factor of the state; of
a channel (``CHANNEL``) as a factor of each row of the state, with k and q already weighted.

The state stays in registers in float32, whole in K; only it and one product stand between one chunk
and the next. ``v_new`` may be u and ``dv_new`` dv: what a program writes nobody else reads.

Of the states before chunks only every ``EVERY``-th need be kept, where who reads them forms the
others from it.

Bytes for N sequences of T tokens and a head: forward w, u and k read, v_new and T / C states
written; backward q, k, w, do and dv read, dv_new and T / C states written. Flops a token: 4 K V
forward, 6 K V backward.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    first_slot,
    load_rows,
    sequence_at,
    state_places,
    store_rows,
)


@triton.jit
def load_total(
    totals, place, HAS_G: tl.constexpr, CHANNEL: tl.constexpr, K: tl.constexpr, BK: tl.constexpr
):
    """Factor of the state over a chunk: ``totals [slots, H]``, or ``[slots, H, K]`` as a column."""
    if CHANNEL:
        keys = tl.arange(0, BK)
        total = tl.load(totals + place * K + keys, mask=keys < K, other=0.0)[:, None]
    elif HAS_G:
        total = tl.load(totals + place)
    else:
        total = 1.0
    return total


@triton.jit(do_not_specialize=["T"])
def delta_states(
    w,
    u,
    k,
    into,
    totals,
    start,
    states,
    v_new,
    last,
    cu,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    HAS_G: tl.constexpr,
    CHANNEL: tl.constexpr,
    EVERY: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_LAST: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BV columns of one head's state over one sequence.

    ``into [slots, H, C]`` holds ``exp(G_C - G_s)``; ``states [slots, H, K, V]`` takes the state
    before each chunk, or every second, in the dtype in which products read it.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    column = (pid % NV) * BV
    head = pid // NV
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)
    kept_slot = first_slot(first, n, T, C * EVERY, VARLEN)

    ends, mask = state_places(head, 0, column, K, V, BK, BV)
    state = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_START:
        state += tl.load(start + ends, mask=mask, other=0.0)
    for c in range(tl.cdiv(length, C)):
        place = (slot + c) * H + h
        kept, inside = state_places((kept_slot + c // EVERY) * H + h, 0, column, K, V, BK, BV)
        narrow = state.to(states.dtype.element_ty)
        tl.store(states + kept, narrow, mask=inside & (c % EVERY == 0))
        inner = tl.arange(0, C)
        live = c * C + inner < length
        rows = first + c * C + inner
        tile_w = load_rows(w, rows, live, h, 0, H, K, C, BK)
        tile_u = load_rows(u, rows, live, h, column, H, V, C, BV)
        tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
        new = tile_u - tl.dot(tile_w, narrow, input_precision=PRECISION)
        store_rows(v_new, new, rows, live, h, column, H, V, C, BV)
        if HAS_G:
            new *= tl.load(into + place * C + inner)[:, None]
        if HAS_G or CHANNEL:
            state *= load_total(totals, place, HAS_G, CHANNEL, K, BK)
        state = tl.dot(tl.trans(tile_k), new.to(tile_k.dtype), acc=state, input_precision=PRECISION)
    if HAS_LAST:
        tl.store(last + ends, state, mask=mask)


@triton.jit(do_not_specialize=["T", "scale"])
def delta_state_gradients(
    q,
    k,
    w,
    do,
    dv,
    since,
    into,
    totals,
    dlast,
    dstates,
    dv_new,
    dstart,
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
    HAS_DLAST: tl.constexpr,
    HAS_DSTART: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: BV columns of the gradient of one head's state, from the last chunk back.

    ``since [slots, H, C]`` holds ``exp(G_s)``; ``dstates`` takes the gradient of the state after
    each chunk; ``dlast`` is that of the final state, ``dstart`` takes that of the initial one.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    column = (pid % NV) * BV
    head = pid // NV
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)
    chunks = tl.cdiv(length, C)

    ends, mask = state_places(head, 0, column, K, V, BK, BV)
    dstate = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_DLAST:
        dstate += tl.load(dlast + ends, mask=mask, other=0.0)
    for step in range(chunks):
        c = chunks - 1 - step
        place = (slot + c) * H + h
        kept, inside = state_places(place, 0, column, K, V, BK, BV)
        narrow = dstate.to(dstates.dtype.element_ty)
        tl.store(dstates + kept, narrow, mask=inside)
        inner = tl.arange(0, C)
        live = c * C + inner < length
        rows = first + c * C + inner
        tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
        tile_dv = load_rows(dv, rows, live, h, column, H, V, C, BV)
        tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
        tile_do = load_rows(do, rows, live, h, column, H, V, C, BV)
        tile_w = load_rows(w, rows, live, h, 0, H, K, C, BK)
        dnew = tl.dot(tile_k, narrow, input_precision=PRECISION)
        weight = scale
        if HAS_G:
            dnew *= tl.load(into + place * C + inner)[:, None]
            weight = tl.load(since + place * C + inner)[:, None] * scale
        if HAS_G or CHANNEL:
            dstate *= load_total(totals, place, HAS_G, CHANNEL, K, BK)
        dnew += tile_dv
        store_rows(dv_new, dnew, rows, live, h, column, H, V, C, BV)
        asked = (tile_do * weight).to(tile_q.dtype)
        dstate = tl.dot(tl.trans(tile_q), asked, acc=dstate, input_precision=PRECISION)
        erased = (-dnew).to(tile_w.dtype)
        dstate = tl.dot(tl.trans(tile_w), erased, acc=dstate, input_precision=PRECISION)
    if HAS_DSTART:
        tl.store(dstart + ends, dstate, mask=mask)
