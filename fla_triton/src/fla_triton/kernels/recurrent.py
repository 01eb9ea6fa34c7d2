"""Token by token, for a few tokens: decoding, with decays of heads, of key and of value channels.

    S_t = exp(g_t) diag(exp(gk_t)) S_{t-1} diag(exp(gv_t)) + k_t v_t^T;  o_t = scale S_t^T q_t

The state is read and written once and everything else is small: 8 N H K V bytes, 4 N H K V flops a
token. No matrix units, no rounding of the state. One program takes a few columns of one head's
state, whole in K, so that o needs no sum between programs.

Measured on an H200: one token of B64 H32 K = V = 128 in 72 us, with decays of heads or of key
channels; copying as many bytes takes 67.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import sequence_at, state_places, step_decay


@triton.jit(do_not_specialize=["T", "scale"])
def recurrent_outputs(
    q,
    k,
    v,
    g,
    gamma,
    gk,
    gv,
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
    HAS_G: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
    HAS_GK: tl.constexpr,
    HAS_GV: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_LAST: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: BV columns of one head of one sequence, every token."""
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
    # Added to zeros, a state would be waited for before a token is loaded.
    if HAS_START:
        state = tl.load(start + places, mask=mask, other=0.0).to(tl.float32)
    else:
        state = tl.zeros([BK, BV], dtype=tl.float32)
    gate = 0.0
    if HAS_GAMMA:
        gate += tl.load(gamma + h).to(tl.float32)
    for t in range(length):
        row = (first + t) * H + h
        key = tl.load(k + row * K + keys, mask=keys < K, other=0.0).to(tl.float32)
        query = tl.load(q + row * K + keys, mask=keys < K, other=0.0).to(tl.float32)
        value = tl.load(v + row * V + values, mask=values < V, other=0.0).to(tl.float32)
        if HAS_G or HAS_GAMMA:
            x = gate
            if HAS_G:
                x += tl.load(g + row).to(tl.float32)
            state *= step_decay(x)
        if HAS_GK:
            x = tl.load(gk + row * K + keys, mask=keys < K, other=0.0).to(tl.float32)
            state *= step_decay(x)[:, None]
        if HAS_GV:
            x = tl.load(gv + row * V + values, mask=values < V, other=0.0).to(tl.float32)
            state *= step_decay(x)[None, :]
        state += key[:, None] * value[None, :]
        out = tl.sum(query[:, None] * state, 0) * scale
        tl.store(o + row * V + values, out.to(o.dtype.element_ty), mask=values < V)
    if HAS_LAST:
        tl.store(last + places, state, mask=mask)
