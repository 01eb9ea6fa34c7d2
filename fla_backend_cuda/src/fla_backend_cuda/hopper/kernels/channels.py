"""Gradients of queries, keys and gates in every chunk on Hopper, a decay for each key channel.

What ``fla_triton``'s ``channel_gradients`` computes, whose notation this keeps, in registers. A
thread has two channels of sixteen tokens of the chunk: token bits 1 and 2 tell lanes apart, the
others registers. So transposed, channels by tokens, what a product adds up to lies as the next one
takes it on the left, and gradients of pairs,

    found^T [channels, i] = mixed^T [channels, j] dP [j, i],

take turns with what decays without any exchange between threads but, on two levels of the tree,
what neighbouring segments decay by. Scores of pairs are multiplied out here, and wait in shared
memory, since all warps read them; masks of levels are formed in registers, where shared memory for
three programs has no room for more.

Decays are products of ``exp(g)``. None is a quotient and no exponent a difference.

Bytes a token and head: q, k, gates, v and do read, dq, dk and dg written, v and do once more for
each further 64 channels, and K V / C of S and of dS read. Flops: 4 K V; 2 C V for scores of each
64 channels; 2 K C log2(C) at most for pairs and as many for gates.

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16: 0.279 ms with gates in float32, 79 % of
the rate of copying, where the portable kernels take 0.894, and 0.293 with gates in bfloat16.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: SIM102, SIM108

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fla_backend_cuda.hopper.kernels.copies import chunk_at, copy_tile, first_slot, sequence_at
from fla_backend_cuda.hopper.kernels.lanes import quick_exp2
from fla_backend_cuda.hopper.kernels.turned import (
    BLOCK,
    COLUMNS,
    LOADED,
    PRODUCT,
    SQUARE_COLUMNS,
    SQUARE_ROWS,
    SQUARES,
    STORED,
    TILE,
    WIDE,
    added,
    apart,
    as_rows,
    as_sums,
    blocks_of,
    channel_of,
    joined,
    masked,
    mixed,
    no_sums,
    ones,
    plus,
    scaled,
    tiles_of,
    times,
    total_of,
    widened,
)

LOG2E = gl.constexpr(1.4426950408889634)
FROM_START = gl.constexpr(4)
TO_END = gl.constexpr(5)
"""Sums of a block for gates: over tokens from a gate on, and over those before it; then levels."""


@gluon.jit
def _allocated(
    count: gl.constexpr,
    dtype: gl.constexpr,
    rows: gl.constexpr,
    columns: gl.constexpr,
    layout: gl.constexpr,
):
    """So many tiles, each on its own: of one array, threads wait for all where they need one."""
    found = ()
    for _ in gl.static_range(count):
        found += (gl.allocate_shared_memory(dtype, [rows, columns], layout),)
    return found


@gluon.jit
def _decays(g_s, block: gl.constexpr):
    """``exp(g)`` of a block's tokens."""
    gate = g_s.slice(block * BLOCK, BLOCK).load(LOADED).to(gl.float32)
    return apart(quick_exp2(gate * LOG2E))


@gluon.jit
def _tokens(x_s, block: gl.constexpr):
    """A block's tokens."""
    return apart(x_s.slice(block * BLOCK, BLOCK).load(LOADED))


@gluon.jit
def _summed(which: gl.constexpr):
    """Which tokens ``[16, 16]`` each gate of a block is a sum over."""
    token = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, COLUMNS))[:, None]
    gate = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, COLUMNS))[None, :]
    if which == FROM_START:
        found = token >= gate
    elif which == TO_END:
        found = token < gate
    else:
        found = ((gate >> which) & 1 == 1) == (token >= gate)
        found = found & (token >> which == gate >> which)
    return found


@gluon.jit
def _paired(scores, level: gl.constexpr):
    """Of scores ``[16, 16]`` those of a level; of level -1 of a token with itself."""
    row = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, COLUMNS))[:, None]
    column = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, COLUMNS))[None, :]
    if level < 0:
        kept = row == column
    else:
        kept = (row ^ column) >> level == 1
    mask = gl.where(kept, -1, 0).to(gl.int16)
    # Two at a time.
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;",
        "=r,r,r",
        [scores, mask],
        dtype=scores.dtype,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def _gated(acc, x, which: gl.constexpr, dtype: gl.constexpr):
    """Add sums over tokens: terms keep the digits of ``dtype``, and the range of float32."""
    matrix = gl.where(_summed(which), 1.0, 0.0).to(gl.bfloat16)
    high = as_rows(x, gl.bfloat16)
    acc = mma_v2(high, matrix, acc)
    if dtype == gl.float16:
        a, b, c, d = x
        rest = (
            a - a.to(gl.bfloat16).to(gl.float32),
            b - b.to(gl.bfloat16).to(gl.float32),
            c - c.to(gl.bfloat16).to(gl.float32),
            d - d.to(gl.bfloat16).to(gl.float32),
        )
        acc = mma_v2(as_rows(rest, gl.bfloat16), matrix, acc)
    return acc


@gluon.jit
def _edges(q_s, k_s, g_s, of_q, of_k, beyond, block: gl.constexpr, dtype: gl.constexpr):
    """Queries of a block decayed since its start, keys until its end, and its decay.

    Each once more beyond that, and sums of their products with gradients.
    """
    since = _decays(g_s, block)
    until = ones()
    totals = since
    for level in gl.static_range(4):
        since, until, totals = joined(since, until, totals, level)
    queries = times(widened(_tokens(q_s, block)), since)
    keys = times(widened(_tokens(k_s, block)), until)
    reading = total_of(times(queries, tiles_of(of_q)))
    writing = total_of(times(keys, tiles_of(of_k)))
    near = (as_rows(queries, dtype), as_rows(keys, dtype))
    far = (as_rows(scaled(queries, beyond), dtype), as_rows(scaled(keys, beyond), dtype))
    return near, far, reading, writing, totals[0]


@gluon.jit
def _store_block(x, tiles, left, stride: gl.constexpr, block: gl.constexpr):
    """Write a block: of each token 32 bytes a warp, which the four make a line of."""
    token = 2 * gl.arange(0, 4, layout=gl.SliceLayout(1, TILE))[:, None]
    channel = gl.arange(0, 64, layout=gl.SliceLayout(0, TILE))[None, :]
    places = x + (token * stride + channel)
    for tile in gl.static_range(4):
        here = token + 0 * channel < left - (block * BLOCK + tile // 2 * 8 + tile % 2)
        gl.store(
            places + (block * BLOCK + tile // 2 * 8 + tile % 2) * stride,
            tiles[tile].to(x.dtype.element_ty),
            mask=here,
        )


@gluon.jit
def _finish(
    q_s,
    k_s,
    g_s,
    near_s,
    far_s,
    passing,
    targets,
    left,
    stride: gl.constexpr,
    block: gl.constexpr,
    WITH_GATES: gl.constexpr,
):
    """Write gradients of a block, from those of what is around it."""
    dtype: gl.constexpr = q_s.dtype
    acc_g = no_sums()
    raw_q = _tokens(q_s, block)
    raw_k = _tokens(k_s, block)
    since = _decays(g_s, block)
    scores = near_s.slice(block * BLOCK, BLOCK).load(COLUMNS)
    own = _paired(scores, -1)
    dq = tiles_of(mma_v2(as_rows(raw_k, dtype), own, no_sums()))
    dk = tiles_of(mma_v2(as_rows(raw_q, dtype), own, no_sums()))
    q = widened(raw_q)
    k = widened(raw_k)
    until = ones()
    totals = since
    for level in gl.static_range(4):
        if level == 0 or level == 3:
            queries, keys = since, until
        else:
            queries, keys = masked(since, until, level)
        both = mixed(q, k, queries, keys, level)
        pairs = _paired(scores, level)
        found = tiles_of(mma_v2(as_rows(both, dtype), pairs, no_sums()))
        if WITH_GATES:
            acc_g = _gated(acc_g, times(both, found), level, dtype)
        dq, dk = added(dq, dk, found, queries, keys, level)
        since, until, totals = joined(since, until, totals, level)
    far_q = times(tiles_of(far_s[2 * block].load(WIDE)), since)
    far_k = times(tiles_of(far_s[2 * block + 1].load(WIDE)), until)
    if WITH_GATES:
        acc_g = _gated(acc_g, times(q, far_q), FROM_START, dtype)
        acc_g = _gated(acc_g, times(k, far_k), TO_END, dtype)
        a, b, c, d = tiles_of(acc_g)
        dg = (a + passing, b + passing, c + passing, d + passing)
        _store_block(targets[2], dg, left, stride, block)
    _store_block(targets[0], plus(dq, far_q), left, stride, block)
    _store_block(targets[1], plus(dk, far_k), left, stride, block)


@gluon.jit
def _pairs(pairs_s, later: gl.constexpr, earlier: gl.constexpr):
    """Scores of a block's tokens, columns, with another's."""
    return pairs_s[earlier].slice(later * BLOCK, BLOCK).load(COLUMNS)


@gluon.jit
def _turned_pairs(pairs_s, later: gl.constexpr, earlier: gl.constexpr):
    """Scores of a block's tokens, columns, with those of an earlier one."""
    scores = pairs_s[earlier].slice(later * BLOCK, BLOCK)
    return scores.permute([1, 0]).load(COLUMNS)


@gluon.jit
def _diagonal(squares):
    """Of products of rows of states those of a channel with itself, channels in their order."""
    within: gl.constexpr = gl.SliceLayout(0, SQUARES)
    row = gl.arange(0, 16, layout=gl.SliceLayout(1, within))[:, None]
    column = gl.arange(0, 16, layout=gl.SliceLayout(0, within))[None, :]
    found = gl.sum(gl.where((row == column)[None, :, :], squares, 0.0), 2)
    found = gl.permute(gl.reshape(found, [4, 2, 8]), (0, 2, 1))
    return gl.convert_layout(gl.reshape(found, [64]), gl.SliceLayout(0, TILE))


@gluon.jit
def _products(states, dstates, V: gl.constexpr):
    """Sums over columns of products of two states in memory."""
    across = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, STORED))
    down = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))[:, None]
    right = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))[None, :]
    for column in range(0, V, 64):
        places = down * V + right + column
        state = gl.load(states + places).to(gl.float32)
        across += gl.sum(state * gl.load(dstates + places).to(gl.float32), 1)
    return gl.convert_layout(across, gl.SliceLayout(0, TILE))


@gluon.jit
def _across(
    squares,
    states,
    dstates,
    start,
    dlast,
    outer,
    begins,
    ends,
    V: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_DLAST: gl.constexpr,
):
    """Sums over columns of products of the state before the chunk and the gradient behind it.

    At the ends of a sequence states are the caller's own, in float32, and are not rounded: of one
    token's gate they may be all there is.
    """
    across = _diagonal(squares)
    if HAS_START:
        if begins:
            across = _products(start + outer, dstates, V)
    if HAS_DLAST:
        if ends:
            if HAS_START:
                if begins:
                    across = _products(start + outer, dlast + outer, V)
                else:
                    across = _products(states, dlast + outer, V)
            else:
                across = _products(states, dlast + outer, V)
    return across


@gluon.jit
def _copy_state(target, source, V: gl.constexpr):
    """Start copying a tile of a state, channels in the order of accumulators."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    channel = channel_of(gl.arange(0, 64, layout=gl.SliceLayout(1, layout)))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
    async_copy.async_copy_global_to_shared(target, source + channel[:, None] * V + columns[None, :])


@gluon.jit
def _copy(tiles_s, of_values, column: gl.constexpr, left, H: gl.constexpr, V: gl.constexpr):
    """Start copying the operands of a tile of V."""
    state, dstate, do, v = of_values
    _copy_state(tiles_s[0], state + column, V)
    _copy_state(tiles_s[1], dstate + column, V)
    copy_tile(tiles_s[2], do + column, left, H * V, 64, 64)
    copy_tile(tiles_s[3], v + column, left, H * V, 64, 64)
    async_copy.commit_group()


@gluon.jit
def _multiply(tiles_s, of_values, left, H: gl.constexpr, V: gl.constexpr, WITH_GATES: gl.constexpr):
    """Scores, what states give queries and keys, and products of states by channels.

    The first tile of V is on its way, and behind it the operands of pairs: all is there afterwards.
    """
    zero = gl.zeros([64, 64], gl.float32, layout=PRODUCT)
    acc_q = zero
    acc_k = zero
    acc_p = zero
    squares = gl.zeros([4, 16, 16], gl.float32, layout=SQUARES)
    for step in gl.static_range(V // 64):
        if step == 0:
            async_copy.wait_group(1)
        else:
            async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        state_s, dstate_s, do_s, v_s = tiles_s
        do_t = do_s.permute([1, 0])
        v_t = v_s.permute([1, 0])
        acc_p = warpgroup_mma(do_s, v_t, acc_p, use_acc=step > 0, is_async=True)
        acc_q = warpgroup_mma(state_s, do_t, acc_q, use_acc=step > 0, is_async=True)
        acc_k = warpgroup_mma(dstate_s, v_t, acc_k, use_acc=step > 0, is_async=True)
        if WITH_GATES:
            straight = state_s.reshape([4, 16, 64]).load(SQUARE_ROWS)
            turned = dstate_s.reshape([4, 16, 64]).permute([0, 2, 1]).load(SQUARE_COLUMNS)
            squares = mma_v2(straight, turned, squares)
        acc_p, acc_q, acc_k = warpgroup_mma_wait(0, deps=[acc_p, acc_q, acc_k])
        if step * 64 + 64 < V:
            gl.thread_barrier()
            _copy(tiles_s, of_values, step * 64 + 64, left, H, V)
    async_copy.wait_group(0)
    gl.thread_barrier()
    return acc_p, acc_q, acc_k, squares


@gluon.jit
def _store_scores(pairs_s, near_s, scores, dtype: gl.constexpr):
    """Write scores for the products of other blocks, and mirrored for those of their own."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, WIDE))[:, None]
    column = gl.arange(0, 16, layout=gl.SliceLayout(0, WIDE))[None, :]
    quarters = blocks_of(scores)
    near = no_sums()
    for block in gl.static_range(4):
        near += gl.where(row // BLOCK == block, quarters[block], 0.0)
        if block < 3:
            pairs_s[block].store(quarters[block].to(dtype))
    near = near.to(dtype)
    near_s.store(near)
    mirrored = near_s.reshape([4, 16, 16]).permute([0, 2, 1]).load(SQUARES)
    mirrored = gl.convert_layout(gl.reshape(mirrored, [64, 16]), WIDE)
    near_s.store(gl.where(row % BLOCK >= column, near, mirrored))


@gluon.jit(do_not_specialize=["T", "scale"])
def channel_chunk_gradients(
    q,
    k,
    v,
    g,
    do,
    states,
    dstates,
    start,
    dlast,
    dq,
    dk,
    dg,
    cu,
    table,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_DLAST: gl.constexpr,
    WITH_GATES: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: 64 channels of one chunk of one head; K and V are multiples of 64."""
    NK: gl.constexpr = K // 64
    pid = gl.program_id(0)
    row = pid % NK * 64
    h = pid // NK % H
    i = pid // (NK * H)
    n, c = chunk_at(table, i, T, 64, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, 64, VARLEN) + c) * H + h
    left = length - c * 64
    token = (first + c * 64) * H + h
    keys = token * K + row
    corner = slot * (K * V) + row * V
    dtype: gl.constexpr = k.dtype.element_ty
    gate_dtype: gl.constexpr = g.dtype.element_ty

    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    rows: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    narrow: gl.constexpr = gl.SwizzledSharedLayout(8, 4, 2, [1, 0])
    tiles_s = _allocated(4, dtype, 64, 64, matrix)
    q_s = gl.allocate_shared_memory(dtype, [64, 64], rows)
    k_s = gl.allocate_shared_memory(dtype, [64, 64], rows)
    gates: gl.constexpr = gl.SwizzledSharedLayout(
        128 // gate_dtype.primitive_bitwidth, 1, 8, [1, 0]
    )
    g_s = gl.allocate_shared_memory(gate_dtype, [64, 64], gates)

    of_values = (states + corner, dstates + corner, do + token * V, v + token * V)
    _copy(tiles_s, of_values, 0, left, H, V)
    copy_tile(q_s, q + keys, left, H * K, 64, 64)
    copy_tile(k_s, k + keys, left, H * K, 64, 64)
    copy_tile(g_s, g + keys, left, H * K, 64, 64)
    async_copy.commit_group()

    acc_p, acc_q, acc_k, squares = _multiply(tiles_s, of_values, left, H, V, WITH_GATES)

    spread: gl.constexpr = gl.SwizzledSharedLayout(8, 2, 2, [1, 0])
    pairs_s = _allocated(3, dtype, 64, 16, narrow)
    far_s = _allocated(8, gl.float32, 64, 16, spread)
    near_s = gl.allocate_shared_memory(dtype, [64, 16], narrow)
    _store_scores(pairs_s, near_s, acc_p * scale, dtype)

    of_q = blocks_of(acc_q)
    of_k = blocks_of(acc_k)
    one = gl.full([4, 64], 1.0, gl.float32, layout=TILE)
    near_1, _, reads_1, writes_1, total_1 = _edges(q_s, k_s, g_s, of_q[1], of_k[1], one, 1, dtype)
    near_2, _, reads_2, writes_2, total_2 = _edges(q_s, k_s, g_s, of_q[2], of_k[2], one, 2, dtype)
    near_0, far_0, _, writes_0, total_0 = _edges(q_s, k_s, g_s, of_q[0], of_k[0], total_1, 0, dtype)
    near_3, far_3, reads_3, _, total_3 = _edges(q_s, k_s, g_s, of_q[3], of_k[3], total_2, 3, dtype)
    before_1 = total_0 * scale
    before_2 = before_1 * total_1
    before_3 = before_2 * total_2
    behind_2 = total_3
    behind_1 = total_2 * total_3
    behind_0 = total_1 * behind_1
    passing_0 = one
    passing_1 = one
    passing_2 = one
    passing_3 = one
    if WITH_GATES:
        outer = (n.to(gl.int64) * H + h) * (K * V) + row * V
        across = _across(
            squares,
            states + corner,
            dstates + corner,
            start,
            dlast,
            outer,
            c == 0,
            left <= 64,
            V,
            HAS_START,
            HAS_DLAST,
        )
        through = total_0 * behind_0 * across[None, :]
        reads_3 *= before_3
        reads_2 = reads_2 * before_2 + reads_3
        writes_0 *= behind_0
        writes_1 = writes_1 * behind_1 + writes_0
        passing_0 = through + (reads_1 * before_1 + reads_2)
        passing_1 = through + reads_2 + writes_0
        passing_2 = through + reads_3 + writes_1
        passing_3 = through + (writes_2 * behind_2 + writes_1)

    # Pairs of both halves of the chunk, then of the blocks of one.
    found = mma_v2(near_2[0], _pairs(pairs_s, 2, 0), no_sums())
    found = tiles_of(mma_v2(far_3[0], _pairs(pairs_s, 3, 0), found))
    if WITH_GATES:
        passing_1 += total_of(times(widened(tiles_of(far_0[1])), found))
    far = as_sums(plus(scaled(found, total_1), scaled(tiles_of(of_k[0]), behind_0)))
    far_s[1].store(mma_v2(near_1[0], _pairs(pairs_s, 1, 0), far))
    far_s[0].store(of_q[0] * scale)

    found = mma_v2(far_0[1], _turned_pairs(pairs_s, 3, 0), no_sums())
    found = tiles_of(mma_v2(near_1[1], _turned_pairs(pairs_s, 3, 1), found))
    if WITH_GATES:
        passing_2 += total_of(times(widened(tiles_of(far_3[0])), found))
    far = as_sums(plus(scaled(found, total_2), scaled(tiles_of(of_q[3]), before_3)))
    far_s[6].store(mma_v2(near_2[1], _turned_pairs(pairs_s, 3, 2), far))
    far_s[7].store(of_k[3])

    far = as_sums(scaled(tiles_of(of_q[1]), before_1))
    far_s[2].store(mma_v2(near_0[1], _turned_pairs(pairs_s, 1, 0), far))
    far = as_sums(scaled(tiles_of(of_k[1]), behind_1))
    far = mma_v2(near_2[0], _pairs(pairs_s, 2, 1), far)
    far_s[3].store(mma_v2(far_3[0], _pairs(pairs_s, 3, 1), far))

    far = as_sums(scaled(tiles_of(of_q[2]), before_2))
    far = mma_v2(far_0[1], _turned_pairs(pairs_s, 2, 0), far)
    far_s[4].store(mma_v2(near_1[1], _turned_pairs(pairs_s, 2, 1), far))
    far = as_sums(scaled(tiles_of(of_k[2]), behind_2))
    far_s[5].store(mma_v2(near_3[0], _pairs(pairs_s, 3, 2), far))

    if WITH_GATES:
        targets = (dq + keys, dk + keys, dg + keys)
    else:
        targets = (dq + keys, dk + keys)
    _finish(q_s, k_s, g_s, near_s, far_s, passing_0, targets, left, H * K, 0, WITH_GATES)
    _finish(q_s, k_s, g_s, near_s, far_s, passing_1, targets, left, H * K, 1, WITH_GATES)
    _finish(q_s, k_s, g_s, near_s, far_s, passing_2, targets, left, H * K, 2, WITH_GATES)
    _finish(q_s, k_s, g_s, near_s, far_s, passing_3, targets, left, H * K, 3, WITH_GATES)
