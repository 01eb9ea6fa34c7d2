"""What normalised linear attention divides by, and its gradients.

With z the sum of keys up to a token, ``w_t = scale q_t . z_t + eps`` and ``o_t = x_t / w_t``. A
gradient do of o is one of x and one of w:

    dx_t = do_t / w_t,   dw_t = -(o_t . dx_t),
    dq_t += scale dw_t z_t,   dk_s += sum_{t >= s} scale dw_t q_t = y_s.

Both sums, z forwards and y backwards in time, are kept in float32 at the ends of chunks of C
tokens: ``chunk_sums`` and ``quotient_gradients`` sum each chunk, ``running`` goes along the chunks.
What a chunk adds to its own tokens is a product of pairs: ``normalisers`` forms it here,
``chunk_gradients`` among those it forms anyway.

The gradient of q is a difference whose terms may be much larger than it, each of them rounded.
Since o does not change where q becomes longer, ``q_t . dq_t = 0``; ``balance`` takes out the
multiple of z_t that breaks this, as ``fla_core.normaliser`` explains.

Bytes a token and head, 2-byte elements: 2 K (chunk_sums), 4 K (normalisers), 6 V + 2 K
(quotient_gradients), 8 K (balance). Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16,
where copying reaches 4.27 TB/s: 34, 42, 84 and 109 us, 46, 75, 75 and 58 % of that rate.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import first_slot, load_rows, program_at, sequence_at, store_rows


@triton.jit
def chunk_of(cu, table, T, H: tl.constexpr, C: tl.constexpr, VARLEN: tl.constexpr):
    """Head of a program, rows of its chunk, which of them there are, and the place of its sum."""
    n, h, c, first, length = program_at(cu, table, T, H, C, VARLEN)
    inner = c * C + tl.arange(0, C)
    place = (first_slot(first, n, T, C, VARLEN) + c) * H + h
    return h, first + inner, inner < length, place


@triton.jit(do_not_specialize=["T"])
def chunk_sums(
    k,
    sums,
    cu,
    table,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: the sum of the keys of one chunk of one head, ``sums [slots, H, K]``."""
    h, rows, live, place = chunk_of(cu, table, T, H, C, VARLEN)
    keys = tl.arange(0, BK)
    tile = load_rows(k, rows, live, h, 0, H, K, C, BK).to(tl.float32)
    tl.store(sums + place * K + keys, tl.sum(tile, 0), mask=keys < K)


@triton.jit(do_not_specialize=["T"])
def running(
    sums,
    z,
    start,
    last,
    cu,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    REVERSE: tl.constexpr,
    HAS_START: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: ``z``, the sums of a sequence's chunks before each, from that of each.

    ``REVERSE``: behind each. ``start [N, H, K]`` comes first, ``last`` takes the sum of all. No sum
    is a difference of two: what a chunk adds may be much larger than all before.
    """
    n = tl.program_id(0) // H
    h = tl.program_id(0) % H
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)
    chunks = tl.cdiv(length, C)
    keys = tl.arange(0, BK)
    inside = keys < K
    ends = tl.cast(tl.program_id(0), tl.int64) * K + keys
    carry = tl.zeros([BK], dtype=tl.float32)
    if HAS_START:
        carry += tl.load(start + ends, mask=inside, other=0.0).to(tl.float32)
    for begin in range(0, chunks + 1, BLOCK):
        steps = begin + tl.arange(0, BLOCK)
        at = chunks - 1 - steps if REVERSE else steps
        before = at + 1 if REVERSE else at - 1
        there = (before >= 0) & (before < chunks)
        places = ((slot + before) * H + h)[:, None] * K + keys[None, :]
        added = tl.load(sums + places, mask=there[:, None] & inside[None, :], other=0.0)
        found = carry[None, :] + tl.cumsum(added, 0)
        places = ((slot + at) * H + h)[:, None] * K + keys[None, :]
        tl.store(z + places, found, mask=(steps < chunks)[:, None] & inside[None, :])
        carry += tl.sum(added, 0)
    tl.store(last + ends, carry, mask=inside)


@triton.jit(do_not_specialize=["T", "scale", "eps"])
def normalisers(
    q,
    k,
    z,
    w,
    cu,
    table,
    T,
    scale,
    eps,
    H: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: ``w [rows, H]``, float32, of one chunk of one head, from z before it."""
    h, rows, live, place = chunk_of(cu, table, T, H, C, VARLEN)
    tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK)
    tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
    keys = tl.arange(0, BK)
    before = tl.load(z + place * K + keys, mask=keys < K, other=0.0)
    pairs = tl.dot(tile_q, tl.trans(tile_k), input_precision=PRECISION)
    causal = tl.arange(0, C)[:, None] >= tl.arange(0, C)[None, :]
    found = tl.sum(tl.where(causal, pairs, 0.0), 1)
    found += tl.sum(tile_q.to(tl.float32) * before[None, :], 1)
    tl.store(w + rows * H + h, found * scale + eps, mask=live)


@triton.jit(do_not_specialize=["T", "scale"])
def quotient_gradients(
    o,
    do,
    w,
    q,
    dx,
    dw,
    sums,
    cu,
    table,
    T,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    C: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: dx, ``dw [rows, H]`` with what q is multiplied by, and their sum of queries."""
    h, rows, live, place = chunk_of(cu, table, T, H, C, VARLEN)
    inverse = 1.0 / tl.load(w + rows * H + h, mask=live, other=1.0)
    found = tl.zeros([C], dtype=tl.float32)
    for column in range(0, V, BV):
        tile = load_rows(do, rows, live, h, column, H, V, C, BV).to(tl.float32) * inverse[:, None]
        store_rows(dx, tile, rows, live, h, column, H, V, C, BV)
        tile_o = load_rows(o, rows, live, h, column, H, V, C, BV).to(tl.float32)
        found += tl.sum(tile_o * tile, 1)
    tl.store(dw + rows * H + h, -found, mask=live)
    tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK).to(tl.float32)
    keys = tl.arange(0, BK)
    total = tl.sum(tile_q * (-scale * found)[:, None], 0)
    tl.store(sums + place * K + keys, total, mask=keys < K)


@triton.jit(do_not_specialize=["T", "scale", "damping", "clear"])
def balance(
    q,
    k,
    z,
    dq,
    cu,
    table,
    T,
    scale,
    damping,
    clear,
    H: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: dq of one chunk of one head in place, freed of what breaks ``q . dq = 0``."""
    h, rows, live, place = chunk_of(cu, table, T, H, C, VARLEN)
    keys = tl.arange(0, BK)
    before = tl.load(z + place * K + keys, mask=keys < K, other=0.0)
    tile_k = load_rows(k, rows, live, h, 0, H, K, C, BK)
    causal = tl.arange(0, C)[:, None] >= tl.arange(0, C)[None, :]
    ones = tl.where(causal, 1.0, 0.0).to(tile_k.dtype)
    sums = tl.dot(ones, tile_k, input_precision=PRECISION) + before[None, :]
    tile_q = load_rows(q, rows, live, h, 0, H, K, C, BK).to(tl.float32)
    found = load_rows(dq, rows, live, h, 0, H, K, C, BK).to(tl.float32)
    along = tl.sum(tile_q * sums, 1)
    square = along * along + damping * tl.sum(tile_q * tile_q, 1) * tl.sum(sums * sums, 1)
    share = along * tl.sum(tile_q * found, 1) / (square + (clear / scale) * (clear / scale))
    store_rows(dq, found - share[:, None] * sums, rows, live, h, 0, H, K, C, BK)
