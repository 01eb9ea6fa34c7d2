"""What passes over time read of a chunk where a decay is a head's, in registers of four warps.

With running log decays G,

    A_ij = beta_i (k_i . k_j) exp(G_i - G_j) for j < i,   X = (I + A)^-1,
    P_ij = scale (q_i . k_j) exp(G_i - G_j) for j <= i,

as ``fla_triton``'s ``delta_prepare`` writes them, and with it ``since`` exp(G_i), ``into``
exp(G_C - G_i), ``totals`` exp(G_C), beta in float32, and what X lost when rounded (``WITH_LOW``).

Raw q and k (``NORMS``) pass over time as they are, since what makes their vectors units is a factor
of each token: with r of q and r' of k, A has r'_i r'_j in it, P r_i r'_j, ``since`` and ``into``
r', and ``asks`` is r exp(G). Backward has beta times ``since`` in one, ``erases``.

Keys come into shared memory once and are columns of both products, which a warpgroup multiplies out
of there, and rows of one; scores stay where products leave them, and are solved there (``solve``).

Bytes a token and head: q and k read, C of X and P written, C of ``low``. Flops: 4 K C, and 2 C^2.

Measured on an H200 at B2 T8192 H16 K = 128 in bfloat16, with gates and without ``low``: 0.087 ms,
0.097 with products of each warp by itself; the portable kernel takes 0.112, the bytes alone 0.05.
"""

# ruff: noqa: C901

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fla_backend_cuda.hopper.kernels.copies import chunk_at, copy_tile, first_slot, sequence_at
from fla_backend_cuda.hopper.kernels.solve import inverse as inverse_of
from fla_backend_cuda.hopper.kernels.warps import BLOCK, PRODUCTS, SQUARE, WIDE, C, store_square
from fla_triton.kernels.activations import reciprocal_root
from fla_triton.kernels.common import decay, running_gates

STEPS = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))
"""``[64]``: a number of each token, all in each warp, so that sums over them stay in it."""

SCORES = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
)
"""``[64, 64]``: scores of all tokens with all, rows of a warp as in ``WIDE``."""

LATER = gl.constexpr(gl.SliceLayout(1, SCORES))
EARLIER = gl.constexpr(gl.SliceLayout(0, SCORES))

MATRIX = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
VECTOR = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _at_blocks(x_0, x_1, x_2, x_3):
    """Blocks on the diagonal ``[4, 16, 16]`` of four columns of blocks."""
    block = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))[:, None] // BLOCK
    found = gl.where(block == 0, x_0, x_1)
    found = gl.where(block == 2, x_2, found)
    found = gl.where(block == 3, x_3, found)
    return gl.convert_layout(gl.reshape(found, [4, BLOCK, BLOCK]), PRODUCTS)


@gluon.jit
def _columns(x):
    """``[64, 64]`` as four columns of blocks ``[64, 16]``."""
    x = gl.permute(gl.reshape(x, [C, 4, BLOCK]), (0, 2, 1))
    even, odd = gl.split(gl.reshape(x, [C, BLOCK, 2, 2]))
    x_0, x_2 = gl.split(even)
    x_1, x_3 = gl.split(odd)
    return (
        gl.convert_layout(x_0, WIDE),
        gl.convert_layout(x_1, WIDE),
        gl.convert_layout(x_2, WIDE),
        gl.convert_layout(x_3, WIDE),
    )


@gluon.jit
def _store(x, found, square_s, first, left, h, H: gl.constexpr):
    """Write ``[64, 64]`` to ``[rows, H, C]``, by way of shared memory, for whole rows."""
    square_s.store(found.to(x.dtype.element_ty))
    rows = gl.arange(0, C, layout=gl.SliceLayout(1, SQUARE))[:, None]
    inner = gl.arange(0, C, layout=gl.SliceLayout(0, SQUARE))[None, :]
    places = (first * H + h) * C + rows * (H * C) + inner
    gl.store(x + places, square_s.load(SQUARE), mask=rows + 0 * inner < left)


@gluon.jit
def _squares(x_s, K: gl.constexpr):
    """Sums of squares of rows in shared memory."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // K, K // 8], [4, 1], [1, 0])
    x = x_s.load(layout).to(gl.float32)
    return gl.convert_layout(gl.sum(x * x, 1), LATER)


@gluon.jit
def _lost(x, dtype: gl.constexpr):
    """What a number loses when rounded."""
    return x - x.to(dtype).to(gl.float32)


@gluon.jit
def fetch(
    q, k, queries_s, keys_s, first, left, h, H: gl.constexpr, K: gl.constexpr, GROUP: gl.constexpr
):
    """Start copying the queries and keys of a chunk."""
    start = (first * (H // GROUP) + h // GROUP) * K
    copy_tile(keys_s, k + start, left, H // GROUP * K, C, K)
    copy_tile(queries_s, q + start, left, H // GROUP * K, C, K)
    async_copy.commit_group()


@gluon.jit
def prepare_chunk(
    sources,
    made,
    queries_s,
    keys_s,
    place,
    following,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    NORMS: gl.constexpr,
    WITH_LOW: gl.constexpr,
    FOLLOWS: gl.constexpr,
):
    """One chunk of one head, whose queries and keys are on their way into shared memory.

    Those of the chunk that is ``following`` are sent for when they have been read.
    """
    q, k, g, beta = sources
    inverse, low, scores, since, into, totals, strengths, asks, unit_q, unit_k, erases = made
    first, left, h, slot = place
    dtype: gl.constexpr = k.dtype.element_ty
    token = gl.arange(0, C, layout=STEPS)
    live = token < left
    written = gl.load(beta + (first + token) * H + h, mask=live, other=0.0).to(gl.float32)
    gl.store(strengths + slot * C + token, written)
    if HAS_G:
        running, until, total, whole, rest, unit = running_gates(
            g, g, first + token, live, h, H, C, HAS_G, False
        )
        arriving = decay(running)
        leaving = decay(until)
        gl.store(totals + slot, decay(total))
        whole_s = gl.allocate_shared_memory(gl.float32, [C], VECTOR)
        rest_s = gl.allocate_shared_memory(gl.float32, [C], VECTOR)
        whole_s.store(whole)
        rest_s.store(rest)
    elif NORMS:
        arriving = gl.full([C], 1.0, gl.float32, layout=STEPS)
        leaving = arriving
        gl.store(totals + slot, 1.0)
    if HAS_G and not NORMS:
        gl.store(since + slot * C + token, arriving)
        gl.store(into + slot * C + token, leaving)
        if WITH_LOW:
            gl.store(erases + slot * C + token, written * arriving)
    strength = gl.convert_layout(written, LATER)
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    if NORMS:
        factor_q = reciprocal_root(_squares(queries_s, K))
    none = gl.zeros([C, C], gl.float32, layout=SCORES)
    turned = keys_s.permute((1, 0))
    system = warpgroup_mma(keys_s, turned, none, use_acc=False, is_async=True)
    attend = warpgroup_mma(queries_s, turned, none, use_acc=False, is_async=True)
    row = gl.arange(0, C, layout=LATER)[:, None]
    column = gl.arange(0, C, layout=EARLIER)[None, :]
    if HAS_G:
        between = whole_s.load(LATER)[:, None] - whole_s.load(EARLIER)[None, :]
        between += rest_s.load(LATER)[:, None] - rest_s.load(EARLIER)[None, :]
        causal = row >= column
        pairs = gl.where(causal, decay(gl.where(causal, between, 0.0)), 0.0)
    attend, system = warpgroup_mma_wait(0, deps=[attend, system])
    if FOLLOWS:
        gl.thread_barrier()
        next_first, next_left, next_h = following
        fetch(q, k, queries_s, keys_s, next_first, next_left, next_h, H, K, GROUP)
    if NORMS:
        factor_k = reciprocal_root(gl.sum(gl.where(row == column, system, 0.0), 1))
        factors_s = gl.allocate_shared_memory(gl.float32, [C], VECTOR)
        factors_s.store(factor_k)
        own_k = factors_s.load(STEPS)
        own_q = gl.convert_layout(factor_q, STEPS)
        gl.store(since + slot * C + token, arriving * own_k)
        gl.store(into + slot * C + token, leaving * own_k)
        gl.store(asks + slot * C + token, arriving * own_q)
        if WITH_LOW:
            gl.store(erases + slot * C + token, written * arriving * own_k)
            gl.store(unit_q + slot * C + token, own_q)
            gl.store(unit_k + slot * C + token, own_k)
        earlier = factors_s.load(EARLIER)[None, :]
        attend *= factor_q[:, None] * earlier
        system *= factor_k[:, None] * earlier
    attend *= scale
    system *= strength[:, None]
    if HAS_G:
        attend *= pairs
        system *= pairs
    else:
        attend = gl.where(row >= column, attend, 0.0)
    scores_s = gl.allocate_shared_memory(dtype, [C, C], MATRIX)
    _store(scores, attend, scores_s, first, left, h, H)
    solved = _columns(system)
    near = _at_blocks(solved[0], solved[1], solved[2], solved[3])
    found = inverse_of(near, solved[0], solved[1], solved[2])
    square_s = gl.allocate_shared_memory(dtype, [C, C], PLAIN)
    store_square(inverse, found, square_s, first, left, h, H)
    if WITH_LOW:
        lost = ()
        for block in gl.static_range(4):
            lost += (_lost(found[block], dtype),)
        store_square(low, lost, square_s, first, left, h, H)


@gluon.jit(do_not_specialize=["T", "scale"])
def chunk_prepare(
    q,
    k,
    g,
    beta,
    inverse,
    low,
    scores,
    since,
    into,
    totals,
    strengths,
    asks,
    unit_q,
    unit_k,
    erases,
    cu,
    table,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    NORMS: gl.constexpr,
    WITH_LOW: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: one chunk of one head."""
    pid = gl.program_id(0)
    h = pid % H
    i = pid // H
    n, c = chunk_at(table, i, T, C, VARLEN)
    begin, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(begin, n, T, C, VARLEN) + c) * H + h
    first = begin + c * C
    left = length - c * C
    keys_s = gl.allocate_shared_memory(k.dtype.element_ty, [C, K], MATRIX)
    queries_s = gl.allocate_shared_memory(k.dtype.element_ty, [C, K], MATRIX)
    fetch(q, k, queries_s, keys_s, first, left, h, H, K, GROUP)
    prepare_chunk(
        (q, k, g, beta),
        (inverse, low, scores, since, into, totals, strengths, asks, unit_q, unit_k, erases),
        queries_s,
        keys_s,
        (first, left, h, slot),
        None,
        scale,
        H,
        K,
        GROUP,
        HAS_G,
        NORMS,
        WITH_LOW,
        False,
    )
