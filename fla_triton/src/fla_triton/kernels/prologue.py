"""Raw arguments of a delta rule made into those that chunks read, and gradients taken back.

Forward, of each token and head, as ``activations`` has it:

    q, k -> unit vectors, or copies, for each of the value heads that share them;
    g [.., H, K] or [.., H] -> log decays in float32;  beta -> strengths in float32.

Back, with u = r x and r the reciprocal norm, formed anew from x:

    dx = r (du - u (u . du)),  du summed over the value heads;
    dg = slope ddecay,  ddt_bias = sum_t dg,  dA_log = sum ddecay (d decay / d A_log),

the last two as one partial sum for each block of tokens, which somebody adds up in a fixed order.

Every tensor is read once and written once: 2 (1 + GROUP) K elements of q and k a token and key
head, K logits read and 4 K bytes written of gates of channels; back K more of each are read.
About 10 flops an element.
"""

import triton
import triton.language as tl

from fla_triton.kernels.activations import (
    log_decay,
    log_decay_slopes,
    rate_of,
    reciprocal_norm,
    sigmoid_slope,
    writing_strength,
)
from fla_triton.kernels.common import load_rows, store_rows


@triton.jit
def block_at(pid, tokens, H: tl.constexpr, BT: tl.constexpr):
    """Rows (int64) of a block of tokens, which of them there are, and its head of ``H``."""
    rows = tl.cast(pid // H, tl.int64) * BT + tl.arange(0, BT)
    return rows, rows < tokens, pid % H


@triton.jit
def load_logits(
    g,
    dt_bias,
    rows,
    live,
    h,
    H: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    CHANNELS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Logits of a block in float32, with their bias: ``[BT, BK]``, or ``[BT, 1]`` of heads."""
    if CHANNELS:
        x = load_rows(g, rows, live, h, 0, H, K, BT, BK).to(tl.float32)
        if HAS_BIAS:
            columns = tl.arange(0, BK)
            bias = tl.load(dt_bias + h * K + columns, mask=columns < K, other=0.0)
            x += bias.to(tl.float32)[None, :]
    else:
        x = load_rows(g, rows, live, h, 0, H, 1, BT, 1).to(tl.float32)
        if HAS_BIAS:
            x += tl.load(dt_bias + h).to(tl.float32)
    return x


@triton.jit
def share_out(
    x,
    made,
    rows,
    live,
    h,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    NORMS: tl.constexpr,
):
    """Write a block of q or k, made units if asked for, for every value head that reads it."""
    tile = load_rows(x, rows, live, h, 0, H // GROUP, K, BT, BK)
    if NORMS:
        wide = tile.to(tl.float32)
        tile = (wide * reciprocal_norm(wide, 1)[:, None]).to(tile.dtype)
    for member in range(GROUP):
        store_rows(made, tile, rows, live, h * GROUP + member, 0, H, K, BT, BK)


@triton.jit(do_not_specialize=["tokens", "bound"])
def delta_prologue(
    q,
    k,
    g,
    beta,
    a_log,
    dt_bias,
    queries,
    keys,
    decay,
    strength,
    tokens,
    bound,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    SHARES: tl.constexpr,
    NORMS: tl.constexpr,
    GATE: tl.constexpr,
    BOUNDED: tl.constexpr,
    CHANNELS: tl.constexpr,
    HAS_RATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    DOUBLED: tl.constexpr,
):
    """One program: BT tokens of one head of q and k, and its GROUP of the H value heads."""
    rows, live, h = block_at(tl.program_id(0), tokens, H // GROUP, BT)
    if SHARES:
        share_out(q, queries, rows, live, h, H, GROUP, K, BK, BT, NORMS)
        share_out(k, keys, rows, live, h, H, GROUP, K, BK, BT, NORMS)
    for member in range(GROUP):
        head = h * GROUP + member
        if GATE:
            x = load_logits(g, dt_bias, rows, live, head, H, K, BK, BT, CHANNELS, HAS_BIAS)
            found = log_decay(x, rate_of(a_log, head, HAS_RATE), bound, BOUNDED)
            if CHANNELS:
                store_rows(decay, found, rows, live, head, 0, H, K, BT, BK)
            else:
                store_rows(decay, found, rows, live, head, 0, H, 1, BT, 1)
        if SIGMOID:
            x = tl.load(beta + rows * H + head, mask=live, other=0.0).to(tl.float32)
            written = writing_strength(x, SIGMOID, DOUBLED)
            tl.store(strength + rows * H + head, written, mask=live)


@triton.jit
def gather_back(
    x,
    dmade,
    dx,
    rows,
    live,
    h,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    NORMS: tl.constexpr,
):
    """Gradient of a block of q or k; ``dx`` may be ``dmade``, which nobody else reads here."""
    du = tl.zeros([BT, BK], dtype=tl.float32)
    for member in range(GROUP):
        du += load_rows(dmade, rows, live, h * GROUP + member, 0, H, K, BT, BK).to(tl.float32)
    if NORMS:
        wide = load_rows(x, rows, live, h, 0, H // GROUP, K, BT, BK).to(tl.float32)
        inverse = reciprocal_norm(wide, 1)[:, None]
        unit = wide * inverse
        du = inverse * (du - unit * tl.sum(unit * du, 1)[:, None])
    store_rows(dx, du, rows, live, h, 0, H // GROUP, K, BT, BK)


@triton.jit(do_not_specialize=["tokens", "bound"])
def delta_epilogue(
    q,
    k,
    g,
    beta,
    a_log,
    dt_bias,
    dqueries,
    dkeys,
    ddecay,
    dstrength,
    dq,
    dk,
    dg,
    dbeta,
    drate,
    dbias,
    tokens,
    bound,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    SHARES: tl.constexpr,
    NORMS: tl.constexpr,
    GATE: tl.constexpr,
    BOUNDED: tl.constexpr,
    CHANNELS: tl.constexpr,
    HAS_RATE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    DOUBLED: tl.constexpr,
):
    """One program: as in ``delta_prologue``; partial sums are ``[blocks, H]``, ``[.., H, K]``.

    ``dg`` may be ``ddecay``.
    """
    rows, live, h = block_at(tl.program_id(0), tokens, H // GROUP, BT)
    if SHARES:
        gather_back(q, dqueries, dq, rows, live, h, H, GROUP, K, BK, BT, NORMS)
        gather_back(k, dkeys, dk, rows, live, h, H, GROUP, K, BK, BT, NORMS)
    for member in range(GROUP):
        head = h * GROUP + member
        part = tl.cast(tl.program_id(0) // (H // GROUP), tl.int64) * H + head
        if GATE:
            x = load_logits(g, dt_bias, rows, live, head, H, K, BK, BT, CHANNELS, HAS_BIAS)
            rate = rate_of(a_log, head, HAS_RATE)
            by_logits, by_rate = log_decay_slopes(x, rate, bound, BOUNDED)
            # Zero where no token is, and so is every sum of it.
            if CHANNELS:
                given = load_rows(ddecay, rows, live, head, 0, H, K, BT, BK).to(tl.float32)
                dx = given * by_logits
                store_rows(dg, dx, rows, live, head, 0, H, K, BT, BK)
            else:
                given = load_rows(ddecay, rows, live, head, 0, H, 1, BT, 1).to(tl.float32)
                dx = given * by_logits
                store_rows(dg, dx, rows, live, head, 0, H, 1, BT, 1)
            if HAS_RATE:
                tl.store(drate + part, tl.sum(given * by_rate))
            if HAS_BIAS:
                summed = tl.sum(dx, 0)
                if CHANNELS:
                    columns = tl.arange(0, BK)
                    tl.store(dbias + part * K + columns, summed, mask=columns < K)
                else:
                    tl.store(dbias + part, tl.sum(dx))
        if SIGMOID:
            x = tl.load(beta + rows * H + head, mask=live, other=0.0).to(tl.float32)
            given = tl.load(dstrength + rows * H + head, mask=live, other=0.0)
            slope = sigmoid_slope(x)
            if DOUBLED:
                slope *= 2.0
            given = given.to(tl.float32) * slope
            tl.store(dbeta + rows * H + head, given.to(dbeta.dtype.element_ty), mask=live)
