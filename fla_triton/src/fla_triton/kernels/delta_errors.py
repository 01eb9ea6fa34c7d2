"""What the gradients of the delta rule owe to pairs of tokens of a chunk, and to its errors.

The first of the two kernels of ``delta_gradients``, whose notation this keeps. It takes the
gradient of the errors back through the chunk's triangular system, ``y = X^T dv_new``, and leaves
both gradients of scores in one matrix ``pairs``: dA_ij on and below its diagonal, beta_i dB_ij at
(j, i), above it. Of the gradients of strengths and gates it leaves what pairs of the chunk give.

Bytes a token and head: q, k, v, v_new, do, dv_new and C elements of X read, y and C elements
written. Flops: 6 V C + 4 K C.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import (
    first_slot,
    load_rows,
    pair_decays,
    program_at,
    running_gates,
    store_rows,
)

WEAK = tl.constexpr(0.0625)
"""Up to this strength the gradient of a strength is a sum, above it a quotient."""


@triton.jit(do_not_specialize=["T", "scale"])
def delta_errors(
    q,
    k,
    v,
    g,
    beta,
    inverse,
    v_new,
    do,
    dv_new,
    y,
    pairs,
    dbeta,
    dg,
    unit_q,
    unit_k,
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
    GROUP: tl.constexpr,
    HAS_G: tl.constexpr,
    NORMS: tl.constexpr,
    WITH_G: tl.constexpr,
    VARLEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one chunk of one head. ``y`` may be ``dv_new``.

    ``GROUP`` heads share a head of q and k. ``NORMS``: these are raw, ``unit_q`` and ``unit_k
    [slots, H, C]`` make them units, and gradients of scores are those of raw products.
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    n, h, c, first, length = program_at(cu, table, T, H, C, VARLEN)
    inner = tl.arange(0, C)
    live = c * C + inner < length
    # From the chunk's first token on: places inside it are narrow.
    token = (first + c * C) * H
    shared = (first + c * C) * (H // GROUP)
    q += shared * K
    k += shared * K
    v += token * V
    v_new += token * V
    do += token * V
    dv_new += token * V
    y += token * V
    inverse += token * C
    pairs += token * C
    beta += token
    dbeta += token
    if HAS_G:
        g += token
    if WITH_G:
        dg += token
    places = inner * H + h
    below = inner[:, None] > inner[None, :]

    strength = tl.load(beta + places, mask=live, other=0.0).to(tl.float32)
    solved = tl.trans(load_rows(inverse, inner, live, h, 0, H, C, C, C))
    asked = tl.zeros([C, C], dtype=tl.float32)
    erased = tl.zeros([C, C], dtype=tl.float32)
    offered = tl.zeros([C], dtype=tl.float32)
    written = tl.zeros([C], dtype=tl.float32)
    for tile in range(NV):
        column = tile * BV
        tile_d = load_rows(dv_new, inner, live, h, column, H, V, C, BV)
        tile_e = load_rows(v_new, inner, live, h, column, H, V, C, BV)
        tile_v = load_rows(v, inner, live, h, column, H, V, C, BV)
        tile_do = load_rows(do, inner, live, h, column, H, V, C, BV)
        turned = tl.trans(tile_e)
        found = tl.dot(solved, tile_d, input_precision=PRECISION)
        asked = tl.dot(tile_do, turned, acc=asked, input_precision=PRECISION)
        written += tl.sum(found * tile_e, 1)
        offered += tl.sum(found * tile_v, 1)
        narrow = found.to(tile_d.dtype)
        store_rows(y, narrow, inner, live, h, column, H, V, C, BV)
        erased = tl.dot(narrow, turned, acc=erased, input_precision=PRECISION)
    asked = tl.where(inner[:, None] >= inner[None, :], asked, 0.0) * scale
    erased = tl.where(below, -erased, 0.0)
    if HAS_G:
        _, _, _, whole, rest, unit = running_gates(g, g, inner, live, h, H, C, HAS_G, False)
        decays = pair_decays(whole, rest, unit, C)
        asked *= decays
        erased *= decays
    if NORMS:
        slot = ((first_slot(first, n, T, C, VARLEN) + c) * H + h) * C + inner
        own_k = tl.load(unit_k + slot)
        asked *= tl.load(unit_q + slot)[:, None] * own_k[None, :]
        erased *= own_k[:, None] * own_k[None, :]
    tile_k = load_rows(k, inner, live, h // GROUP, 0, H // GROUP, K, C, BK)
    turned = tl.trans(tile_k)
    products = tl.dot(tile_k, turned, input_precision=PRECISION)
    for row in range(BK, K, BK):
        more = load_rows(k, inner, live, h // GROUP, row, H // GROUP, K, C, BK)
        products = tl.dot(more, tl.trans(more), acc=products, input_precision=PRECISION)
    products *= erased
    offered += tl.sum(products, 1)
    dtype: tl.constexpr = k.dtype.element_ty
    mirrored = tl.trans((erased * strength[:, None]).to(dtype))
    store_rows(pairs, asked.to(dtype) + mirrored, inner, live, h, 0, H, C, C, C)
    # The same number two ways: where keys are nearly parallel the parts of the sum cancel, and
    # where beta is nothing so is the quotient.
    strong = tl.abs(strength) > WEAK
    quotient = written / tl.where(strong, strength, 1.0)
    tl.store(dbeta + places, tl.where(strong, quotient, offered), mask=live)
    if WITH_G:
        tile_q = load_rows(q, inner, live, h // GROUP, 0, H // GROUP, K, C, BK)
        products *= strength[:, None]
        attend = tl.dot(tile_q, turned, input_precision=PRECISION)
        for row in range(BK, K, BK):
            tile_q = load_rows(q, inner, live, h // GROUP, row, H // GROUP, K, C, BK)
            more = load_rows(k, inner, live, h // GROUP, row, H // GROUP, K, C, BK)
            attend = tl.dot(tile_q, tl.trans(more), acc=attend, input_precision=PRECISION)
        products += attend * asked
        # Of each token what pairs give that end there, of all that begin before another one.
        begun = tl.cumsum(products, 1) - products
        found = tl.sum(tl.where(below | (inner[:, None] == inner[None, :]), begun, 0.0), 0)
        tl.store(dg + places, found, mask=live)
