"""The delta rule token by token, for a few tokens: decoding.

    S~ = diag(exp(gk_t)) exp(g_t) S_{t-1} diag(exp(gv_t))
    e_t = beta_t (v_t - S~^T k_t);  S_t = S~ + k_t e_t^T
    o_t = scale (S~^T q_t + (k_t . q_t) e_t)

or, with strengths of channels b and w, e_t = w_t*v_t - S~^T (b_t*k_t).

The output is taken from S~, so that both sums over K stand side by side. The state is read and
written once and everything else is small: 8 N H K V bytes, 7 N H K V flops a token. No matrix
units, no rounding of the state. One program takes a few columns of one head's state, whole in K,
so that no sum runs between programs.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import sequence_at, state_places, step_decay


@triton.jit(do_not_specialize=["T", "scale"])
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
    GROUP: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_GK: tl.constexpr,
    HAS_GV: tl.constexpr,
    HAS_BETA: tl.constexpr,
    BETA_OF_CHANNELS: tl.constexpr,
    HAS_STRENGTHS: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_LAST: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: BV columns of one head of one sequence, every token.

    H counts value heads; ``GROUP`` of them share one head of q and k.
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
    state = tl.zeros([BK, BV], dtype=tl.float32)
    if HAS_START:
        state += tl.load(start + places, mask=mask, other=0.0)
    for t in range(length):
        row = (first + t) * H + h
        shared = (first + t) * (H // GROUP) + h // GROUP
        key = tl.load(k + shared * K + keys, mask=keys < K, other=0.0).to(tl.float32)
        query = tl.load(q + shared * K + keys, mask=keys < K, other=0.0).to(tl.float32)
        error = tl.load(v + row * V + values, mask=values < V, other=0.0).to(tl.float32)
        if HAS_G:
            state *= step_decay(tl.load(g + row).to(tl.float32))
        if HAS_GK:
            gate = tl.load(gk + row * K + keys, mask=keys < K, other=0.0).to(tl.float32)
            state *= step_decay(gate)[:, None]
        if HAS_GV:
            gate = tl.load(gv + row * V + values, mask=values < V, other=0.0).to(tl.float32)
            state *= step_decay(gate)[None, :]
        erased = key
        if HAS_STRENGTHS:
            erased *= tl.load(b + row * K + keys, mask=keys < K, other=0.0).to(tl.float32)
            error *= tl.load(w + row * V + values, mask=values < V, other=0.0).to(tl.float32)
        error -= tl.sum(erased[:, None] * state, 0)
        out = tl.sum(query[:, None] * state, 0)
        if BETA_OF_CHANNELS:
            error *= tl.load(beta + row * V + values, mask=values < V, other=0.0).to(tl.float32)
        elif HAS_BETA:
            error *= tl.load(beta + row).to(tl.float32)
        state += key[:, None] * error[None, :]
        out = (out + tl.sum(key * query) * error) * scale
        tl.store(o + row * V + values, out.to(o.dtype.element_ty), mask=values < V)
    if HAS_LAST:
        tl.store(last + places, state, mask=mask)
