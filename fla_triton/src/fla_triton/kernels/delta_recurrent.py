"""The delta rule token by token, for a few tokens: decoding.

    S~ = diag(exp(gk_t)) exp(g_t) S_{t-1} diag(exp(gv_t))
    e_t = beta_t (v_t - S~^T k_t);  S_t = S~ + k_t e_t^T
    o_t = scale (S~^T q_t + (k_t . q_t) e_t)

or, with strengths of channels b and w, e_t = w_t*v_t - S~^T (b_t*k_t). Where q and k have any
length, or gates and beta are logits, ``activations`` makes them into these on the way.

The output is taken from S~, so that both sums over K stand side by side. The state is read and
written once and everything else is small: 8 N H K V bytes, 7 N H K V flops a token. No matrix
units, no rounding of the state. One program takes a few columns of one head's state, whole in K,
so that no sum runs between programs.

Measured on an H200, one token of B64 H32 K = V = 128 with one decay a head: 72 us, in place in the
slots of a pool 74, or 73 where they are [V, K]; copying as many bytes takes 67.
"""

import triton
import triton.language as tl

from fla_triton.kernels.activations import log_decay, rate_of, reciprocal_norm, writing_strength
from fla_triton.kernels.common import sequence_at, state_places, step_decay


@triton.jit
def delta_step(
    state,
    q,
    k,
    v,
    g,
    gk,
    gv,
    beta,
    b,
    w,
    a_log,
    dt_bias,
    h,
    row,
    shared,
    keys,
    values,
    scale,
    bound,
    K: tl.constexpr,
    V: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_GK: tl.constexpr,
    HAS_GV: tl.constexpr,
    HAS_BETA: tl.constexpr,
    BETA_OF_CHANNELS: tl.constexpr,
    HAS_STRENGTHS: tl.constexpr,
    NORMS: tl.constexpr,
    GATE: tl.constexpr,
    BOUNDED: tl.constexpr,
    HAS_RATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    DOUBLED: tl.constexpr,
):
    """The state after one token, and its output, of a tile of columns.

    ``row`` is the token's place among value heads, of which ``h`` is the one, ``shared`` that among
    heads of q and k.
    """
    key = tl.load(k + shared * K + keys, mask=keys < K, other=0.0).to(tl.float32)
    query = tl.load(q + shared * K + keys, mask=keys < K, other=0.0).to(tl.float32)
    error = tl.load(v + row * V + values, mask=values < V, other=0.0).to(tl.float32)
    if NORMS:
        key *= reciprocal_norm(key, 0)
        query *= reciprocal_norm(query, 0)
    if HAS_G:
        gate = tl.load(g + row).to(tl.float32)
        if GATE:
            if HAS_BIAS:
                gate += tl.load(dt_bias + h).to(tl.float32)
            gate = log_decay(gate, rate_of(a_log, h, HAS_RATE), bound, BOUNDED)
        state *= step_decay(gate)
    if HAS_GK:
        channels = tl.load(gk + row * K + keys, mask=keys < K, other=0.0).to(tl.float32)
        if GATE:
            if HAS_BIAS:
                bias = tl.load(dt_bias + h * K + keys, mask=keys < K, other=0.0)
                channels += bias.to(tl.float32)
            channels = log_decay(channels, rate_of(a_log, h, HAS_RATE), bound, BOUNDED)
        state *= step_decay(channels)[:, None]
    if HAS_GV:
        columns = tl.load(gv + row * V + values, mask=values < V, other=0.0).to(tl.float32)
        state *= step_decay(columns)[None, :]
    erased = key
    if HAS_STRENGTHS:
        erased *= tl.load(b + row * K + keys, mask=keys < K, other=0.0).to(tl.float32)
        error *= tl.load(w + row * V + values, mask=values < V, other=0.0).to(tl.float32)
    error -= tl.sum(erased[:, None] * state, 0)
    out = tl.sum(query[:, None] * state, 0)
    if BETA_OF_CHANNELS:
        error *= tl.load(beta + row * V + values, mask=values < V, other=0.0).to(tl.float32)
    elif HAS_BETA:
        error *= writing_strength(tl.load(beta + row).to(tl.float32), SIGMOID, DOUBLED)
    state += key[:, None] * error[None, :]
    return state, (out + tl.sum(key * query) * error) * scale


@triton.jit(do_not_specialize=["T", "scale", "bound"])
def delta_recurrent(
    q,
    k,
    v,
    g,
    gk,
    gv,
    beta,
    b,
    w,
    a_log,
    dt_bias,
    start,
    o,
    last,
    cu,
    T,
    scale,
    bound,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_GK: tl.constexpr,
    HAS_GV: tl.constexpr,
    HAS_BETA: tl.constexpr,
    BETA_OF_CHANNELS: tl.constexpr,
    HAS_STRENGTHS: tl.constexpr,
    NORMS: tl.constexpr,
    GATE: tl.constexpr,
    BOUNDED: tl.constexpr,
    HAS_RATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    DOUBLED: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_LAST: tl.constexpr,
    SINGLE: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: BV columns of one head of one sequence, every token.

    H counts value heads; ``GROUP`` of them share one head of q and k. ``SINGLE`` says that every
    sequence has one token: without a loop, a token's loads do not wait for the state.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    column = (pid % NV) * BV
    head = pid // NV
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    keys = tl.arange(0, BK)
    values = column + tl.arange(0, BV)
    places, mask = state_places(head, 0, column, K, V, BK, BV)
    if HAS_START:
        state = tl.load(start + places, mask=mask, other=0.0).to(tl.float32)
    else:
        state = tl.zeros([BK, BV], dtype=tl.float32)
    for t in range(1 if SINGLE else length):
        row = (first + t) * H + h
        shared = (first + t) * (H // GROUP) + h // GROUP
        state, out = delta_step(
            state,
            q,
            k,
            v,
            g,
            gk,
            gv,
            beta,
            b,
            w,
            a_log,
            dt_bias,
            h,
            row,
            shared,
            keys,
            values,
            scale,
            bound,
            K,
            V,
            HAS_G,
            HAS_GK,
            HAS_GV,
            HAS_BETA,
            BETA_OF_CHANNELS,
            HAS_STRENGTHS,
            NORMS,
            GATE,
            BOUNDED,
            HAS_RATE,
            HAS_BIAS,
            SIGMOID,
            DOUBLED,
        )
        tl.store(o + row * V + values, out.to(o.dtype.element_ty), mask=values < V)
    if HAS_LAST:
        tl.store(last + places, state, mask=mask)


@triton.jit(do_not_specialize=["T", "scale", "bound", "units", "count"])
def delta_pooled(
    q,
    k,
    v,
    g,
    gk,
    gv,
    beta,
    b,
    w,
    a_log,
    dt_bias,
    pool,
    slots,
    accepted,
    o,
    last,
    cu,
    T,
    scale,
    bound,
    units,
    count,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_GK: tl.constexpr,
    HAS_GV: tl.constexpr,
    HAS_BETA: tl.constexpr,
    BETA_OF_CHANNELS: tl.constexpr,
    HAS_STRENGTHS: tl.constexpr,
    NORMS: tl.constexpr,
    GATE: tl.constexpr,
    BOUNDED: tl.constexpr,
    HAS_RATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    DOUBLED: tl.constexpr,
    SPAN: tl.constexpr,
    EACH: tl.constexpr,
    HAS_ACCEPTED: tl.constexpr,
    INPLACE: tl.constexpr,
    HAS_LAST: tl.constexpr,
    V_FIRST: tl.constexpr,
    UNIT: tl.constexpr,
    SINGLE: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: BV columns of one head of one sequence, whose state lies in a slot of a pool.

    ``slots`` is ``[N, SPAN]``, of ``count`` slots that lie ``units * UNIT`` elements apart. A
    number outside of them is never followed: a sequence that would start there is skipped, and
    its rows of ``o`` and ``last`` are zeros; a state that would end there is dropped. With
    ``EACH`` the state after token t goes to slot t of its sequence, else the last one to where
    it came from.
    """
    pid = tl.program_id(0)
    NV: tl.constexpr = (V + BV - 1) // BV
    column = (pid % NV) * BV
    head = pid // NV
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    keys = tl.arange(0, BK)
    values = column + tl.arange(0, BV)
    KEY_STEP: tl.constexpr = 1 if V_FIRST else V
    VALUE_STEP: tl.constexpr = K if V_FIRST else 1
    inside = h * (K * V) + keys[:, None] * KEY_STEP + values[None, :] * VALUE_STEP
    mask = (keys < K)[:, None] & (values < V)[None, :]
    mine = slots + tl.cast(n, tl.int64) * SPAN
    begin = 0
    if HAS_ACCEPTED:
        begin = tl.load(accepted + n).to(tl.int64) - 1
    slot = tl.load(mine + begin, mask=(begin >= 0) & (begin < SPAN), other=-1).to(tl.int64)
    live = (slot >= 0) & (slot < count)
    home = pool + slot * units * UNIT + inside
    state = tl.load(home, mask=mask & live, other=0.0).to(tl.float32)
    for t in range(1 if SINGLE else length):
        row = (first + t) * H + h
        shared = (first + t) * (H // GROUP) + h // GROUP
        state, out = delta_step(
            state,
            q,
            k,
            v,
            g,
            gk,
            gv,
            beta,
            b,
            w,
            a_log,
            dt_bias,
            h,
            row,
            shared,
            keys,
            values,
            scale,
            bound,
            K,
            V,
            HAS_G,
            HAS_GK,
            HAS_GV,
            HAS_BETA,
            BETA_OF_CHANNELS,
            HAS_STRENGTHS,
            NORMS,
            GATE,
            BOUNDED,
            HAS_RATE,
            HAS_BIAS,
            SIGMOID,
            DOUBLED,
        )
        out = tl.where(live, out, 0.0)
        tl.store(o + row * V + values, out.to(o.dtype.element_ty), mask=values < V)
        if EACH:
            to = tl.load(mine + t, mask=live & (t < SPAN), other=-1).to(tl.int64)
            kept = mask & (to >= 0) & (to < count)
            where = pool + to * units * UNIT + inside
            tl.store(where, state.to(pool.dtype.element_ty), mask=kept)
    if INPLACE and not EACH:
        tl.store(home, state.to(pool.dtype.element_ty), mask=mask & live & (length > 0))
    if HAS_LAST:
        state = tl.where(live, state, 0.0)
        tl.store(last + tl.cast(n, tl.int64) * (H * K * V) + inside, state, mask=mask)
