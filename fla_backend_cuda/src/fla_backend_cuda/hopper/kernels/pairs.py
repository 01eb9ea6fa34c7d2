"""Scores of the pairs of a chunk under channel decays, in registers: the tree of ``tree`` by warps.

With running log decays G of key channels inside the chunk and their total G_C,

    P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) for j <= i,
    A_ij = sum_d left_id k_jd exp(G_id - G_jd) for j < i, where keys erase (``ERASE``),
    q_in_i = scale exp(G_i) q_i,   k_out_j = exp(G_C - G_j) k_j,   totals = exp(G_C).

A warp takes a block of 16 tokens, a lane eight channels of two of them (``tiles``). An operand of a
product with channels in the order in which lanes have them is what the lanes hold, on the left as
on the right, since a product does not care in which order it adds up channels. So nothing is
exchanged but, on the three lowest levels, what segments decay by, between lanes; and what crosses
blocks: keys decayed until their block's end, and what blocks decay by, through shared memory.

As in ``fla_triton``'s ``pairs`` factors are products of ``exp(g)``, none a quotient, no exponent a
difference. But where keys erase, in bfloat16 with gates raw or in float32, a chunk whose
channels all decay moderately is scored by powers of both signs (``halves``): the same results in
fewer steps, which the rest of this kernel does not tell apart.

Where keys erase, the chunk's system is solved on the spot (``solve``), and what its tokens erase
and write is multiplied out: w = X left exp(G), u = X value, X = (I + A)^-1 with strengths in it.

Raw q, k, gates and strengths become on the way what ``activations`` says; norms take a walk over q
and k before, so that caches serve the second one.

Bytes a token and head: q, k and gates read, q_in, k_out and C of P written; if keys erase, v and
strengths read, w, u and C of X written. Flops: 128 K for P; as many for A, 2 (K + V) C for w and u.

Such chunks, and others with strengths of heads and gates that are made (``AHEAD``), have all of q,
k and gates on its way into shared memory before the first of it is read. Of strengths of channels
there is no room for theirs beside.

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16: 0.143 ms, where the portable kernel
takes 0.236 and the bytes alone 0.087. If keys erase, 0.201, with the inverse written too 0.202, and
0.275 where most chunks take the tree; before, 0.256 and 0.295. The portable kernel takes 0.512, the
bytes 0.142. With strengths of channels 0.305 and 0.321, in place of 0.311 and 0.394. Bounded gates
raw take 0.217, in place of 0.280.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: C901, SIM108

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fla_backend_cuda.hopper.kernels.copies import (
    chunk_at,
    copy_tile,
    first_slot,
    sequence_at,
    write_tile,
)
from fla_backend_cuda.hopper.kernels.gates import LOG2E, activate, decays, log_gated, powers
from fla_backend_cuda.hopper.kernels.halves import FAR, RANGE, gather, moderate, quick_scores
from fla_backend_cuda.hopper.kernels.lanes import across_lanes
from fla_backend_cuda.hopper.kernels.solve import inverse
from fla_backend_cuda.hopper.kernels.tiles import (
    STEPS,
    TILES,
    WIDE_STEPS,
    apart,
    columns_of,
    load_both,
    paired,
    rows_of,
    store_both,
    tile_at,
    unit,
    wide_rows_of,
)
from fla_backend_cuda.hopper.kernels.warps import (
    BLOCK,
    PRODUCTS,
    WIDE,
    WIDE_COLUMNS,
    WIDTH,
    C,
    as_column,
    no_products,
    store_square,
)
from fla_triton.kernels.activations import rate_of, reciprocal_root, writing_strength

SOLVED = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
)
"""``[64, 32]``: the inverse times a tile."""
SOLVING = gl.constexpr(gl.DotOperandLayout(0, SOLVED, 2))


@gluon.jit
def _reciprocal_norms(x, places, low_mask, high_mask, behind, K: gl.constexpr):
    """What makes tokens t and t + 8 of each block units."""
    squares_low = gl.zeros([4, 8, WIDTH], gl.float32, layout=TILES)
    squares_high = squares_low
    for step in gl.static_range(0, K, WIDTH):
        low, high = load_both(x, places + step, low_mask, high_mask, behind)
        squares_low += low.to(gl.float32) * low.to(gl.float32)
        squares_high += high.to(gl.float32) * high.to(gl.float32)
    low = reciprocal_root(gl.sum(squares_low, 2))
    high = reciprocal_root(gl.sum(squares_high, 2))
    return low[:, :, None], high[:, :, None]


@gluon.jit
def _reciprocal_norms_of(tiles_s, K: gl.constexpr):
    """The same of tokens in shared memory."""
    squares_low = gl.zeros([4, 8, WIDTH], gl.float32, layout=TILES)
    squares_high = squares_low
    for step in gl.static_range(K // WIDTH):
        low, high = apart(tiles_s.index(step))
        squares_low += low.to(gl.float32) * low.to(gl.float32)
        squares_high += high.to(gl.float32) * high.to(gl.float32)
    low = reciprocal_root(gl.sum(squares_low, 2))
    high = reciprocal_root(gl.sum(squares_high, 2))
    return low[:, :, None], high[:, :, None]


@gluon.jit
def _total(totals_s, block: gl.constexpr):
    """What a block decays by ``[1, 1, 32]``; every row of a block holds it."""
    row = totals_s.slice(8 * block, 1).load(gl.SliceLayout(0, TILES))
    return row[None, :, :]


@gluon.jit
def _strengths(strength_s, block: gl.constexpr):
    """Strengths of a block's tokens, as a row."""
    return strength_s.slice(block * BLOCK, BLOCK).load(gl.SliceLayout(0, WIDE))[None, :]


@gluon.jit
def _left(columns, dtype: gl.constexpr):
    """Four columns of blocks as the left operand of products of a warpgroup."""
    early = gl.join(columns[0].to(dtype), columns[1].to(dtype))
    late = gl.join(columns[2].to(dtype), columns[3].to(dtype))
    both = gl.permute(gl.join(early, late), (0, 3, 2, 1))
    return gl.convert_layout(gl.reshape(both, [C, C]), SOLVING, assert_trivial=True)


@gluon.jit
def _multiply(target, x, tiles_s, left, stride: gl.constexpr, COUNT: gl.constexpr):
    """Write the inverse times so many tiles ``[64, 32]``, by way of their memory."""
    D: gl.constexpr = COUNT * WIDTH
    whole_s = tiles_s._reinterpret(tiles_s.dtype, [C, D], STEPS)
    product: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16]
    )
    zero = gl.zeros([C, D], gl.float32, layout=product)
    x = gl.convert_layout(x, gl.DotOperandLayout(0, product, 2), assert_trivial=True)
    found = warpgroup_mma(x, whole_s, zero, use_acc=False, is_async=True)
    found = warpgroup_mma_wait(0, deps=[found])
    whole_s.store(found.to(tiles_s.dtype))
    write_tile(target, whole_s, left, stride, C, D)


@gluon.jit
def _copy_gates(tile_s, gates, left, stride: gl.constexpr):
    """Start copying a tile of gates."""
    if gates.dtype.element_ty == gl.float32:
        layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
        rows = gl.arange(0, C, layout=gl.SliceLayout(1, layout))[:, None]
        columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))[None, :]
        async_copy.async_copy_global_to_shared(
            tile_s, gates + rows * stride + columns, mask=rows + 0 * columns < left
        )
    else:
        copy_tile(tile_s, gates, left, stride, C, WIDTH)


@gluon.jit
def _copy_values(value_s, values, left, stride: gl.constexpr, TOGETHER: gl.constexpr):
    """Start copying tiles of values into shared memory."""
    for step in gl.static_range(TOGETHER):
        copy_tile(value_s.index(step), values + step * WIDTH, left, stride, C, WIDTH)
    async_copy.commit_group()


@gluon.jit
def _write_solved(
    scores,
    tensors,
    strength_s,
    left_s,
    value_s,
    square_s,
    first,
    left,
    h,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    TOGETHER: gl.constexpr,
    CHANNELS: gl.constexpr,
    WITH_INVERSE: gl.constexpr,
):
    """Invert a chunk's system, and multiply with it what its tokens erase and write.

    ``value_s`` holds the first ``TOGETHER`` tiles of values, or what is on its way there, but where
    channels are written with strengths of their own.
    """
    wrong, wrong_0, wrong_1, wrong_2 = scores
    v, write, w, u, solved = tensors
    dtype: gl.constexpr = v.dtype.element_ty
    if not CHANNELS:
        strength = strength_s.load(gl.SliceLayout(1, WIDE))[:, None]
        wrong_0 *= strength
        wrong_1 *= strength
        wrong_2 *= strength
        strength = gl.convert_layout(gl.reshape(strength, [4, BLOCK, 1]), PRODUCTS)
        wrong *= strength
    x_0, x_1, x_2, x_3 = inverse(wrong, wrong_0, wrong_1, wrong_2)
    if WITH_INVERSE:
        store_square(solved, (x_0, x_1, x_2, x_3), square_s, first, left, h, H)
    if not CHANNELS:
        x_0 *= _strengths(strength_s, 0)
        x_1 *= _strengths(strength_s, 1)
        x_2 *= _strengths(strength_s, 2)
        x_3 *= _strengths(strength_s, 3)
    x = _left((x_0, x_1, x_2, x_3), dtype)
    fence_async_shared()
    gl.thread_barrier()
    _multiply(w + (first * H + h) * K, x, left_s, left, H * K, K // WIDTH)
    values = v + (first * H + h) * V
    rows_u = u + (first * H + h) * V
    for column in gl.static_range(0, V, TOGETHER * WIDTH):
        if CHANNELS:
            strengths = write + (first * H + h) * V
            for step in gl.static_range(TOGETHER):
                at = column + step * WIDTH
                tile = tile_at(values + at, left, H * V).to(gl.float32)
                tile *= tile_at(strengths + at, left, H * V).to(gl.float32)
                value_s.index(step).store(tile.to(dtype))
        else:
            if column > 0:
                _copy_values(value_s, values + column, left, H * V, TOGETHER)
            async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        _multiply(rows_u + column, x, value_s, left, H * V, TOGETHER)
        gl.thread_barrier()


@gluon.jit(do_not_specialize=["T", "scale", "bound"])
def channel_pairs(
    q,
    k,
    v,
    g,
    erase,
    write,
    a_log,
    dt_bias,
    q_in,
    k_out,
    w,
    u,
    scores,
    solved,
    totals,
    cu,
    table,
    T,
    scale,
    bound,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    GROUP: gl.constexpr,
    ERASE: gl.constexpr,
    CHANNELS: gl.constexpr,
    WITH_INVERSE: gl.constexpr,
    NORMS: gl.constexpr,
    GATE: gl.constexpr,
    BOUNDED: gl.constexpr,
    HAS_RATE: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    SIGMOID: gl.constexpr,
    DOUBLED: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: one chunk of one head.

    ``ERASE``: keys erase, with strengths ``erase`` of channels (``CHANNELS``) or of heads; else
    q_in bears the scale.
    """
    pid = gl.program_id(0)
    h = pid % H
    i = pid // H
    n, c = chunk_at(table, i, T, C, VARLEN)
    begin, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(begin, n, T, C, VARLEN) + c) * H + h
    first = begin + c * C
    left = length - c * C
    dtype: gl.constexpr = k.dtype.element_ty
    # Tiles of values in shared memory at once.
    if V % 128 == 0:
        TOGETHER: gl.constexpr = 128 // WIDTH
    else:
        TOGETHER: gl.constexpr = 64 // WIDTH

    block = gl.arange(0, 4, layout=gl.SliceLayout(1, gl.SliceLayout(2, TILES)))[:, None, None]
    token = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, TILES)))[None, :, None]
    channel = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, gl.SliceLayout(1, TILES)))[None, None, :]
    inner = block * BLOCK + token
    here = inner + 0 * channel
    low_mask = here < left
    high_mask = here + 8 < left
    places = (first * H + h) * K + inner * (H * K) + channel
    BEHIND: gl.constexpr = 8 * H * K
    if GROUP == 1:
        shared = places
    else:
        shared = (first * (H // GROUP) + h // GROUP) * K + inner * (H // GROUP * K) + channel
    SHARED: gl.constexpr = BEHIND // GROUP
    if GATE:
        rate = rate_of(a_log, h, HAS_RATE)
        if BOUNDED:
            weight = bound * LOG2E
        else:
            weight = -rate
        weight_low = gl.where(inner < left, weight, 0.0)
        weight_high = gl.where(inner + 8 < left, weight, 0.0)
    # Of what waits in shared memory three programs of a multiprocessor leave 76 KB each.
    WIDE_GATES: gl.constexpr = GATE or g.dtype.element_ty == gl.float32
    QUICK: gl.constexpr = ERASE and dtype == gl.bfloat16 and WIDE_GATES
    AHEAD: gl.constexpr = QUICK or (ERASE and not CHANNELS and not GATE)
    COUNT: gl.constexpr = K // WIDTH
    # Strengths of channels are numbers of their own.
    FARTHER: gl.constexpr = GATE and BOUNDED and not CHANNELS
    if AHEAD:
        # Queries make room for what is erased, and keys for values.
        left_s = gl.allocate_shared_memory(dtype, [COUNT, C, WIDTH], STEPS)
        value_s = gl.allocate_shared_memory(dtype, [max(COUNT, TOGETHER), C, WIDTH], STEPS)
        if WIDE_GATES:
            gates_s = gl.allocate_shared_memory(gl.float32, [COUNT, C, WIDTH], WIDE_STEPS)
        else:
            gates_s = gl.allocate_shared_memory(g.dtype.element_ty, [COUNT, C, WIDTH], STEPS)
        corner = (first * (H // GROUP) + h // GROUP) * K
        APART: gl.constexpr = H // GROUP * K
        gates = g + (first * H + h) * K
        if QUICK and not GATE:
            for step in gl.static_range(COUNT):
                _copy_gates(gates_s.index(step), gates + step * WIDTH, left, H * K)
            async_copy.commit_group()
        for step in gl.static_range(COUNT):
            copy_tile(left_s.index(step), q + corner + step * WIDTH, left, APART, C, WIDTH)
            copy_tile(value_s.index(step), k + corner + step * WIDTH, left, APART, C, WIDTH)
            if not QUICK:
                _copy_gates(gates_s.index(step), gates + step * WIDTH, left, H * K)
                async_copy.commit_group()
        if QUICK:
            async_copy.commit_group()
            if GATE:
                activate(gates_s, gates, dt_bias, rate, weight, h, left, H, K, BOUNDED, HAS_BIAS)
            async_copy.wait_group(0 if FARTHER and not NORMS else 1)
            gl.thread_barrier()
            halves_s = gl.allocate_shared_memory(
                gl.float32, [2 * COUNT, 1, WIDTH], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
            )
            asked = True
            if FARTHER and not NORMS:
                asked = moderate(left_s, K) & moderate(value_s, K)
            quick = gather(gates_s, halves_s, FAR if FARTHER else RANGE, asked, K, not GATE)
        async_copy.wait_group(0 if NORMS or QUICK else COUNT - 1)
        gl.thread_barrier()
    if NORMS and AHEAD:
        unit_q_low, unit_q_high = _reciprocal_norms_of(left_s, K)
        unit_k_low, unit_k_high = _reciprocal_norms_of(value_s, K)
    elif NORMS:
        unit_q_low, unit_q_high = _reciprocal_norms(q, shared, low_mask, high_mask, SHARED, K)
        unit_k_low, unit_k_high = _reciprocal_norms(k, shared, low_mask, high_mask, SHARED, K)

    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    keys_s = gl.allocate_shared_memory(dtype, [C, WIDTH], plain)
    if ERASE and not AHEAD:
        left_s = gl.allocate_shared_memory(dtype, [K // WIDTH, C, WIDTH], STEPS)
        value_s = gl.allocate_shared_memory(dtype, [TOGETHER, C, WIDTH], STEPS)
        if not CHANNELS:
            _copy_values(value_s, v + (first * H + h) * V, left, H * V, TOGETHER)
    totals_s = gl.allocate_shared_memory(gl.float32, [4 * 8, WIDTH], plain)

    # Where strengths are of channels the name has no use.
    strength_s = totals_s
    if ERASE and not CHANNELS:
        lane: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
        strength_s = gl.allocate_shared_memory(
            gl.float32, [C], gl.SwizzledSharedLayout(1, 1, 1, [0])
        )
        there = gl.arange(0, C, layout=lane)
        strength = gl.load(erase + (first + there) * H + h, mask=there < left, other=0.0)
        strength_s.store(writing_strength(strength.to(gl.float32), SIGMOID, DOUBLED))

    near = no_products()
    far_0 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    far_1 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    far_2 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    wrong = no_products()
    wrong_0 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    wrong_1 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    wrong_2 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    if QUICK:
        end = gl.where(quick, 0, K)
    else:
        end = K
    for step in range(0, end, WIDTH):
        at = places + step
        if AHEAD:
            q_low, q_high = apart(left_s.index(step // WIDTH))
            k_low, k_high = apart(value_s.index(step // WIDTH))
            g_low, g_high = apart(gates_s.index(step // WIDTH))
        else:
            q_low, q_high = load_both(q, shared + step, low_mask, high_mask, SHARED)
            k_low, k_high = load_both(k, shared + step, low_mask, high_mask, SHARED)
            g_low, g_high = load_both(g, at, low_mask, high_mask, BEHIND)
        if NORMS:
            q_low = unit(q_low, unit_q_low, dtype)
            q_high = unit(q_high, unit_q_high, dtype)
            k_low = unit(k_low, unit_k_low, dtype)
            k_high = unit(k_high, unit_k_high, dtype)
        if GATE and QUICK:
            total_low = powers(g_low)
            total_high = powers(g_high)
        elif GATE:
            g_low = g_low.to(gl.float32)
            g_high = g_high.to(gl.float32)
            if HAS_BIAS:
                bias = gl.load(dt_bias + h * K + step + channel).to(gl.float32)
                g_low += bias
                g_high += bias
            total_low = powers(log_gated(g_low, rate, weight_low, BOUNDED))
            total_high = powers(log_gated(g_high, rate, weight_high, BOUNDED))
        else:
            total_low = decays(g_low)
            total_high = decays(g_high)

        # A token does not decay towards itself.
        found = mma_v2(
            rows_of(q_low, q_high, dtype), columns_of(k_low, k_high, dtype), no_products()
        )
        near += gl.where(paired(-1), found, 0.0)

        right_low = k_low.to(gl.float32)
        right_high = k_high.to(gl.float32)
        q_low = q_low.to(gl.float32) * total_low
        q_high = q_high.to(gl.float32) * total_high
        left_low = right_low
        left_high = right_high
        if ERASE:
            if CHANNELS:
                b_low, b_high = load_both(erase, at, low_mask, high_mask, BEHIND)
                left_low = left_low * b_low.to(gl.float32)
                left_high = left_high * b_high.to(gl.float32)
            left_low = left_low * total_low
            left_high = left_high * total_high
        for level in gl.static_range(3):
            columns = columns_of(right_low, right_high, dtype)
            found = mma_v2(rows_of(q_low, q_high, dtype), columns, no_products())
            near += gl.where(paired(level), found, 0.0)
            if ERASE:
                found = mma_v2(rows_of(left_low, left_high, dtype), columns, no_products())
                wrong += gl.where(paired(level), found, 0.0)
            later = (token >> level) & 1 == 1
            other_low = across_lanes(total_low, 4 << level)
            other_high = across_lanes(total_high, 4 << level)
            before_low = gl.where(later, other_low, 1.0)
            before_high = gl.where(later, other_high, 1.0)
            q_low *= before_low
            q_high *= before_high
            if ERASE:
                left_low *= before_low
                left_high *= before_high
            right_low *= gl.where(later, 1.0, other_low)
            right_high *= gl.where(later, 1.0, other_high)
            total_low *= other_low
            total_high *= other_high
        columns = columns_of(right_low, right_high, dtype)
        found = mma_v2(rows_of(q_low, q_high, dtype), columns, no_products())
        near += gl.where(paired(3), found, 0.0)
        if ERASE:
            found = mma_v2(rows_of(left_low, left_high, dtype), columns, no_products())
            wrong += gl.where(paired(3), found, 0.0)
        q_high *= total_low
        if ERASE:
            left_high *= total_low
        right_low *= total_high
        total_low *= total_high

        keys = gl.permute(gl.join(right_low.to(dtype), right_high.to(dtype)), (0, 3, 1, 2))
        keys_s.store(gl.reshape(keys, [C, WIDTH]))
        totals_s.store(gl.reshape(total_low, [4 * 8, WIDTH]))
        if AHEAD and not QUICK:
            # An empty group for each step: with it those that may be on their way are as many.
            async_copy.commit_group()
            async_copy.wait_group(COUNT - 1)
        total_0 = _total(totals_s, 0)
        total_1 = _total(totals_s, 1)
        total_2 = _total(totals_s, 2)
        total_3 = _total(totals_s, 3)

        columns = keys_s.slice(2 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        far_2 = mma_v2(wide_rows_of(q_low, q_high, 1.0, dtype), columns, far_2)
        if ERASE:
            wrong_2 = mma_v2(wide_rows_of(left_low, left_high, 1.0, dtype), columns, wrong_2)
        columns = keys_s.slice(1 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        between = gl.where(block == 3, total_2, 1.0)
        far_1 = mma_v2(wide_rows_of(q_low, q_high, between, dtype), columns, far_1)
        if ERASE:
            wrong_1 = mma_v2(wide_rows_of(left_low, left_high, between, dtype), columns, wrong_1)
        columns = keys_s.slice(0 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        between *= gl.where(block >= 2, total_1, 1.0)
        far_0 = mma_v2(wide_rows_of(q_low, q_high, between, dtype), columns, far_0)
        if ERASE:
            wrong_0 = mma_v2(wide_rows_of(left_low, left_high, between, dtype), columns, wrong_0)

        # What blocks decay by that lie before a block, and behind it.
        before = gl.where(block >= 1, total_0, 1.0) * between
        behind = gl.where(block == 0, total_1, 1.0) * gl.where(block <= 1, total_2, 1.0)
        behind *= gl.where(block <= 2, total_3, 1.0)
        enter = before
        if not ERASE:
            enter = before * scale
        store_both(q_in, at, q_low * enter, q_high * enter, low_mask, high_mask, BEHIND)
        if ERASE:
            lefts = gl.join((left_low * before).to(dtype), (left_high * before).to(dtype))
            lefts = gl.reshape(gl.permute(lefts, (0, 3, 1, 2)), [C, WIDTH])
            left_s.index(step // WIDTH).store(lefts)
        store_both(k_out, at, right_low * behind, right_high * behind, low_mask, high_mask, BEHIND)
        whole = total_low * before * behind
        totals_at = totals + slot * K + step + channel + 0 * inner
        gl.store(totals_at, whole, mask=here == 0)
    if QUICK:
        # A zero that the compiler does not know: both ways form addresses of their own.
        again = T >> 31
        if NORMS:
            units = (unit_q_low, unit_q_high, unit_k_low, unit_k_high)
        else:
            units = (1.0, 1.0, 1.0, 1.0)
        near, far_0, far_1, far_2, wrong, wrong_0, wrong_1, wrong_2 = quick_scores(
            (near, far_0, far_1, far_2, wrong, wrong_0, wrong_1, wrong_2),
            (left_s, value_s, gates_s, halves_s, keys_s),
            units,
            (erase, q_in, k_out, totals),
            (first * H + h) * K + (inner + again) * (H * K) + channel,
            (slot + again) * K,
            inner + again + 0 * channel < left,
            inner + again + 8 + 0 * channel < left,
            gl.where(quick, COUNT, 0),
            BEHIND,
            CHANNELS,
            NORMS,
            dtype,
        )
    if AHEAD and not CHANNELS:
        _copy_values(value_s, v + (first * H + h) * V, left, H * V, TOGETHER)
    column = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, WIDE))[None, :]
    row = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))[:, None]
    own = gl.where(row % BLOCK >= column, as_column(near), 0.0) * scale
    square_s = gl.allocate_shared_memory(dtype, [C, C], plain)
    asked = (
        gl.where(row < BLOCK, own, far_0 * scale),
        gl.where(row < 2 * BLOCK, own, far_1 * scale),
        gl.where(row < 3 * BLOCK, own, far_2 * scale),
        own,
    )
    store_square(scores, asked, square_s, first, left, h, H)
    if ERASE:
        _write_solved(
            (wrong, wrong_0, wrong_1, wrong_2),
            (v, write, w, u, solved),
            strength_s,
            left_s,
            value_s,
            square_s,
            first,
            left,
            h,
            H,
            K,
            V,
            TOGETHER,
            CHANNELS,
            WITH_INVERSE,
        )
