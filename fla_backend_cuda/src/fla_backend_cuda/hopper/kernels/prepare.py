"""What passes over time read of a chunk where a decay is a head's, in registers of four warps.

With running log decays G,

    A_ij = beta_i (k_i . k_j) exp(G_i - G_j) for j < i,   X = (I + A)^-1,
    P_ij = scale (q_i . k_j) exp(G_i - G_j) for j <= i,

as ``fla_triton``'s ``delta_prepare`` writes them, and with it ``since`` exp(G_i), ``into``
exp(G_C - G_i), ``totals`` exp(G_C), beta in float32, and what X lost when rounded (``WITH_LOW``).
Keys come into shared memory once and are columns of both products and rows of one; scores stay
where products leave them, and are solved there (``solve``).

Bytes a token and head: q and k read, C of X and P written, C of ``low``. Flops: 4 K C, and 2 C^2.

Measured on an H200 at B2 T8192 H16 K = 128 in bfloat16, with gates and without ``low``: 0.097 ms,
where the portable kernel takes 0.112; the bytes alone take 0.05.
"""

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
    cu,
    table,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    HAS_G: gl.constexpr,
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
    start = (first * H + h) * K
    for step in gl.static_range(K // WIDTH):
        copy_tile(keys_s.index(step), k + start + step * WIDTH, left, H * K, C, WIDTH)
        copy_tile(queries_s.index(step), q + start + step * WIDTH, left, H * K, C, WIDTH)
    async_copy.commit_group()

    token = gl.arange(0, C, layout=STEPS)
    live = token < left
    strength = gl.load(beta + (first + token) * H + h, mask=live, other=0.0).to(gl.float32)
    gl.store(strengths + slot * C + token, strength)
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    if HAS_G:
        running, until, total, whole, rest, unit = running_gates(
            g, g, first + token, live, h, H, C, HAS_G, False
        )
        gl.store(since + slot * C + token, decay(running))
        gl.store(into + slot * C + token, decay(until))
        gl.store(totals + slot, decay(total))
        of_rows: gl.constexpr = gl.SliceLayout(1, WIDE)
        whole_s = gl.allocate_shared_memory(gl.float32, [C], vector)
        rest_s = gl.allocate_shared_memory(gl.float32, [C], vector)
        whole_s.store(whole)
        rest_s.store(rest)
        rows = (whole_s.load(of_rows)[:, None], rest_s.load(of_rows)[:, None])
        columns = (whole_s, rest_s)
    strength = gl.convert_layout(strength, gl.SliceLayout(1, WIDE))[:, None]

    none = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    attend = (none, none, none, none)
    system = (none, none, none, none)
    async_copy.wait_group(0)
    gl.thread_barrier()
    for step in gl.static_range(K // WIDTH):
        tile_k = keys_s.index(step).load(WIDE_ROWS)
        tile_q = queries_s.index(step).load(WIDE_ROWS)
        asked = ()
        wrong = ()
        for block in gl.static_range(4):
            turned = keys_s.index(step).slice(block * BLOCK, BLOCK).permute((1, 0))
            operand = turned.load(WIDE_COLUMNS)
            asked += (mma_v2(tile_q, operand, attend[block]),)
            wrong += (mma_v2(tile_k, operand, system[block]),)
        attend = asked
        system = wrong
    scored = ()
    solved = ()
    row = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))[:, None]
    for block in gl.static_range(4):
        if HAS_G:
            pairs = _decays(rows, columns, block)
            asked = attend[block] * scale * pairs
            wrong = system[block] * strength * pairs
        else:
            column = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, WIDE))[None, :]
            asked = gl.where(row >= column, attend[block] * scale, 0.0)
            wrong = system[block] * strength
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
