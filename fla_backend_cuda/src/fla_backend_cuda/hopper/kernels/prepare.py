"""What passes over time read of a chunk where a decay is a head's, in registers of four warps.

With running log decays G,

    A_ij = beta_i (k_i . k_j) exp(G_i - G_j) for j < i,   X = (I + A)^-1,
    P_ij = scale (q_i . k_j) exp(G_i - G_j) for j <= i,

as ``fla_triton``'s ``delta_prepare`` writes them, and with it ``since`` exp(G_i), ``into``
exp(G_C - G_i), ``totals`` exp(G_C), beta in float32, and what X lost when rounded (``WITH_LOW``).

Raw q and k (``NORMS``) pass over time as they are, since what makes their vectors units is a factor
of each token: with r of q and r' of k, A has r'_i r'_j in it, P r_i r'_j, ``since`` and ``into``
r', and ``asks`` is r exp(G). Backward has beta times ``since`` in one, ``erases``.

Keys come into shared memory once and are columns of both products and rows of one; scores stay
where products leave them, and are solved there (``solve``).

Bytes a token and head: q and k read, C of X and P written, C of ``low``. Flops: 4 K C, and 2 C^2.

Measured on an H200 at B2 T8192 H16 K = 128 in bfloat16, with gates and without ``low``: 0.097 ms,
where the portable kernel takes 0.112, and 0.104 of raw q and k; the bytes alone take 0.05.
"""

# ruff: noqa: C901

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from fla_backend_cuda.hopper.kernels.copies import chunk_at, copy_tile, first_slot, sequence_at
from fla_backend_cuda.hopper.kernels.solve import inverse as inverse_of
from fla_backend_cuda.hopper.kernels.warps import (
    BLOCK,
    PRODUCTS,
    WIDE,
    WIDE_COLUMNS,
    WIDE_ROWS,
    WIDTH,
    C,
    store_square,
)
from fla_triton.kernels.activations import reciprocal_root
from fla_triton.kernels.common import decay, running_gates

STEPS = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))
"""``[64]``: a number of each token, all in each warp, so that sums over them stay in it."""


@gluon.jit
def _block_of(step, block: gl.constexpr):
    """A block of numbers in shared memory, as a row."""
    return step.slice(block * BLOCK, BLOCK).load(gl.SliceLayout(0, WIDE))[None, :]


@gluon.jit
def _decays(rows, columns, block: gl.constexpr):
    """``exp`` of the gates between all tokens and those of a block; zero above the diagonal.

    ``rows``, ``columns``: running sums in two parts, whole numbers and what is left.
    """
    token = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))[:, None]
    column = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, WIDE))[None, :]
    causal = token >= column
    between = (rows[0] - _block_of(columns[0], block)) + (rows[1] - _block_of(columns[1], block))
    return gl.where(causal, decay(gl.where(causal, between, 0.0)), 0.0)


@gluon.jit
def _at_blocks(x_0, x_1, x_2, x_3):
    """Blocks on the diagonal ``[4, 16, 16]`` of four columns of blocks."""
    block = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))[:, None] // BLOCK
    found = gl.where(block == 0, x_0, x_1)
    found = gl.where(block == 2, x_2, found)
    found = gl.where(block == 3, x_3, found)
    return gl.convert_layout(gl.reshape(found, [4, BLOCK, BLOCK]), PRODUCTS)


@gluon.jit
def _squares(tile):
    """Sums of squares of the rows of an operand."""
    wide = tile.to(gl.float32)
    return gl.convert_layout(gl.sum(wide * wide, 1), gl.SliceLayout(1, WIDE))


@gluon.jit
def _diagonal(columns):
    """The diagonal of four columns of blocks."""
    row = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))[:, None]
    found = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    for block in gl.static_range(4):
        column = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, WIDE))[None, :]
        found = gl.where(row == column, columns[block], found)
    return gl.sum(found, 1)


@gluon.jit
def _lost(x, dtype: gl.constexpr):
    """What a number loses when rounded."""
    return x - x.to(dtype).to(gl.float32)


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
    dtype: gl.constexpr = k.dtype.element_ty

    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    keys_s = gl.allocate_shared_memory(dtype, [K // WIDTH, C, WIDTH], plain)
    queries_s = gl.allocate_shared_memory(dtype, [K // WIDTH, C, WIDTH], plain)
    start = (first * (H // GROUP) + h // GROUP) * K
    apart: gl.constexpr = H // GROUP * K
    for step in gl.static_range(K // WIDTH):
        copy_tile(keys_s.index(step), k + start + step * WIDTH, left, apart, C, WIDTH)
        copy_tile(queries_s.index(step), q + start + step * WIDTH, left, apart, C, WIDTH)
    async_copy.commit_group()

    token = gl.arange(0, C, layout=STEPS)
    live = token < left
    of_rows: gl.constexpr = gl.SliceLayout(1, WIDE)
    written = gl.load(beta + (first + token) * H + h, mask=live, other=0.0).to(gl.float32)
    gl.store(strengths + slot * C + token, written)
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    if HAS_G:
        running, until, total, whole, rest, unit = running_gates(
            g, g, first + token, live, h, H, C, HAS_G, False
        )
        arriving = decay(running)
        leaving = decay(until)
        gl.store(totals + slot, decay(total))
        whole_s = gl.allocate_shared_memory(gl.float32, [C], vector)
        rest_s = gl.allocate_shared_memory(gl.float32, [C], vector)
        whole_s.store(whole)
        rest_s.store(rest)
        rows = (whole_s.load(of_rows)[:, None], rest_s.load(of_rows)[:, None])
        columns = (whole_s, rest_s)
    elif NORMS:
        arriving = gl.full([C], 1.0, gl.float32, layout=STEPS)
        leaving = arriving
        gl.store(totals + slot, 1.0)
    if HAS_G and not NORMS:
        gl.store(since + slot * C + token, arriving)
        gl.store(into + slot * C + token, leaving)
        if WITH_LOW:
            gl.store(erases + slot * C + token, written * arriving)
    strength = gl.convert_layout(written, of_rows)[:, None]

    none = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    attend = (none, none, none, none)
    system = (none, none, none, none)
    if NORMS:
        squares_q = gl.zeros([C], gl.float32, layout=of_rows)
    async_copy.wait_group(0)
    gl.thread_barrier()
    for step in gl.static_range(K // WIDTH):
        tile_k = keys_s.index(step).load(WIDE_ROWS)
        tile_q = queries_s.index(step).load(WIDE_ROWS)
        if NORMS:
            squares_q += _squares(tile_q)
        asked = ()
        wrong = ()
        for block in gl.static_range(4):
            turned = keys_s.index(step).slice(block * BLOCK, BLOCK).permute((1, 0))
            operand = turned.load(WIDE_COLUMNS)
            asked += (mma_v2(tile_q, operand, attend[block]),)
            wrong += (mma_v2(tile_k, operand, system[block]),)
        attend = asked
        system = wrong
    asking = scale
    if NORMS:
        factor_q = reciprocal_root(squares_q)
        factor_k = reciprocal_root(_diagonal(system))
        asking = factor_q[:, None] * scale
        strength *= factor_k[:, None]
        factors_s = gl.allocate_shared_memory(gl.float32, [C], vector)
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
    scored = ()
    solved = ()
    row = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))[:, None]
    for block in gl.static_range(4):
        asked = attend[block] * asking
        wrong = system[block] * strength
        if NORMS:
            later = _block_of(factors_s, block)
            asked *= later
            wrong *= later
        if HAS_G:
            pairs = _decays(rows, columns, block)
            asked *= pairs
            wrong *= pairs
        else:
            column = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, WIDE))[None, :]
            asked = gl.where(row >= column, asked, 0.0)
        scored += (asked,)
        solved += (wrong,)
    square_s = gl.allocate_shared_memory(dtype, [C, C], plain)
    store_square(scores, scored, square_s, first, left, h, H)
    near = _at_blocks(solved[0], solved[1], solved[2], solved[3])
    found = inverse_of(near, solved[0], solved[1], solved[2])
    store_square(inverse, found, square_s, first, left, h, H)
    if WITH_LOW:
        lost = ()
        for block in gl.static_range(4):
            lost += (_lost(found[block], dtype),)
        store_square(low, lost, square_s, first, left, h, H)
