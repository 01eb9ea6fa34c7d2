"""Scores of the pairs of a chunk under channel decays, in registers: the tree of ``tree`` by warps.

With running log decays G of key channels inside the chunk and their total G_C,

    P_ij = scale sum_d q_id k_jd exp(G_id - G_jd) for j <= i,
    A_ij = sum_d left_id k_jd exp(G_id - G_jd) for j < i, where keys erase (``ERASE``),
    q_in_i = scale exp(G_i) q_i,   k_out_j = exp(G_C - G_j) k_j,   totals = exp(G_C).

A warp takes a block of 16 tokens, a lane eight channels of two of them: t in a tile ``low`` and
t + 8 in a tile ``high``. An operand of a product with channels in the order in which lanes have
them is what the lanes hold, on the left as on the right, since a product does not care in which
order it adds up channels. So nothing is exchanged but, on the three lowest levels, what segments
decay by, between lanes; and what crosses blocks: keys decayed until their block's end, and what
blocks decay by, through shared memory.

As in ``fla_triton``'s ``pairs`` factors are products of ``exp(g)``, none a quotient, no exponent a
difference.

Where keys erase, the chunk's system is solved on the spot (``solve``), and what its tokens erase
and write is multiplied out: w = X left exp(G), u = X value, X = (I + A)^-1 with strengths in it.

Raw q, k, gates and strengths become on the way what ``activations`` says; norms take a walk over q
and k before, so that caches serve the second one.

Bytes a token and head: q, k and gates read, q_in, k_out and C of P written; if keys erase, v and
strengths read, w, u and C of X written. Flops: 128 K for P; as many for A, 2 (K + V) C for w and u.

With strengths of heads and gates that are made (``AHEAD``) all of q, k and gates is on its way into
shared memory before the first of it is read. Of strengths of channels there is no room for theirs
beside, and gates activated on load were no faster.

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16: 0.143 ms, where the portable kernel
takes 0.236 and the bytes alone 0.087. If keys erase, 0.253 ahead and 0.286 not, and with the
inverse written too 0.293 and 0.325; the portable kernel takes 0.512, the bytes 0.142. Half of the
time instructions are issued: 62 for each element of q, two of them products of tensor cores.
Bounded gates raw cost nothing; all arguments raw 0.065 ms, where a pass before takes 0.11.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: C901, SIM108

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from fla_backend_cuda.hopper.kernels.copies import chunk_at, copy_tile, first_slot, sequence_at
from fla_backend_cuda.hopper.kernels.lanes import across_lanes
from fla_backend_cuda.hopper.kernels.solve import inverse
from fla_backend_cuda.hopper.kernels.warps import (
    BLOCK,
    PAIRS,
    PRODUCTS,
    WIDE,
    WIDE_COLUMNS,
    WIDE_ROWS,
    WIDTH,
    C,
    as_column,
    no_products,
    store_square,
)
from fla_triton.kernels.activations import rate_of, reciprocal_root, writing_strength

LOG2E = gl.constexpr(1.4426950408889634)
FLOOR = gl.constexpr(-110.0)
"""Gates below this are taken for it, as the portable kernels take them."""

TILES = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 8, 4], [4, 1, 1], [2, 1, 0]))
"""``[4, 8, 32]``: eight tokens of each block."""

BLOCKS = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 32],
    )
)
"""``[64, 32]`` as two of ``TILES``."""

ROWS = gl.constexpr(gl.DotOperandLayout(0, PRODUCTS, 8))
COLUMNS = gl.constexpr(gl.DotOperandLayout(1, PRODUCTS, 8))

PLAIN_ROWS = gl.constexpr(gl.DotOperandLayout(0, WIDE, 2))
PLAIN_COLUMNS = gl.constexpr(gl.DotOperandLayout(1, WIDE, 2))

STEPS = gl.constexpr(gl.SwizzledSharedLayout(8, 2, 4, [1, 0]))
"""Tiles ``[64, 32]`` in shared memory, of which products read columns."""

WIDE_STEPS = gl.constexpr(gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
"""The same in float32."""


@gluon.jit
def _apart(tile_s):
    """Tokens t and t + 8 of each block of a tile in shared memory."""
    x = gl.permute(gl.reshape(tile_s.load(BLOCKS), [4, 2, 8, WIDTH]), (0, 2, 3, 1))
    low, high = gl.split(x)
    return (
        gl.convert_layout(low, TILES, assert_trivial=True),
        gl.convert_layout(high, TILES, assert_trivial=True),
    )


@gluon.jit
def _rows(low, high, dtype: gl.constexpr):
    """Two tiles as the left operand ``[4, 16, 32]``."""
    both = gl.permute(gl.join(low.to(dtype), high.to(dtype)), (0, 3, 1, 2))
    return gl.convert_layout(gl.reshape(both, [4, BLOCK, WIDTH]), ROWS)


@gluon.jit
def _columns(low, high, dtype: gl.constexpr):
    """Two tiles as the right operand ``[4, 32, 16]``."""
    both = gl.permute(gl.join(low.to(dtype), high.to(dtype)), (0, 3, 1, 2))
    turned = gl.permute(gl.reshape(both, [4, BLOCK, WIDTH]), (0, 2, 1))
    return gl.convert_layout(turned, COLUMNS)


@gluon.jit
def _wide_rows(low, high, factor, dtype: gl.constexpr):
    """Two tiles, times a factor, as the left operand ``[64, 32]``."""
    both = gl.join((low * factor).to(dtype), (high * factor).to(dtype))
    both = gl.reshape(gl.permute(both, (0, 3, 1, 2)), [C, WIDTH])
    return gl.convert_layout(both, WIDE_ROWS)


@gluon.jit
def _paired(level: gl.constexpr):
    """Pairs ``[1, 16, 16]`` of a level; of level -1 a token with itself."""
    along: gl.constexpr = gl.SliceLayout(0, PRODUCTS)
    row = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, along))[:, None]
    column = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, along))[None, :]
    if level < 0:
        found = row == column
    else:
        found = ((row ^ column) >> level == 1) & (row > column)
    return found[None, :, :]


@gluon.jit
def _load(x, places, low_mask, high_mask, behind):
    """Tokens t and t + 8 of each block."""
    return (
        gl.load(x + places, mask=low_mask, other=0.0),
        gl.load(x + places + behind, mask=high_mask, other=0.0),
    )


@gluon.jit
def _store(x, places, low, high, low_mask, high_mask, behind):
    dtype: gl.constexpr = x.dtype.element_ty
    gl.store(x + places, low.to(dtype), mask=low_mask)
    gl.store(x + places + behind, high.to(dtype), mask=high_mask)


@gluon.jit
def _decays(gate):
    gate = gate.to(gl.float32)
    return gl.exp2(gl.where(gate < FLOOR, FLOOR, gate) * LOG2E)


@gluon.jit
def _reciprocal_norms(x, places, low_mask, high_mask, behind, K: gl.constexpr):
    """What makes tokens t and t + 8 of each block units."""
    squares_low = gl.zeros([4, 8, WIDTH], gl.float32, layout=TILES)
    squares_high = squares_low
    for step in gl.static_range(0, K, WIDTH):
        low, high = _load(x, places + step, low_mask, high_mask, behind)
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
        low, high = _apart(tiles_s.index(step))
        squares_low += low.to(gl.float32) * low.to(gl.float32)
        squares_high += high.to(gl.float32) * high.to(gl.float32)
    low = reciprocal_root(gl.sum(squares_low, 2))
    high = reciprocal_root(gl.sum(squares_high, 2))
    return low[:, :, None], high[:, :, None]


@gluon.jit
def _unit(x, factor, dtype: gl.constexpr):
    return (x.to(gl.float32) * factor).to(dtype)


@gluon.jit
def _reciprocal(x):
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _log2(x):
    return gl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _gated(x, rate, weight, BOUNDED: gl.constexpr):
    """``exp`` of the log decays of logits: ``activations.log_decay`` in fewer steps.

    ``weight``: minus the rate, or the bound in powers of two; zero where no token is, so that
    nothing decays there.
    """
    if BOUNDED:
        found = _reciprocal(1.0 + gl.exp2(x * (rate * -LOG2E)))
    else:
        bits = x * LOG2E
        small = gl.exp2(-gl.abs(bits))
        # The logarithm's own error is absolute: 2 ** -22.
        series = small * (LOG2E + small * (-LOG2E / 2 + small * (LOG2E / 3)))
        found = gl.where(small < 0.015625, series, _log2(1.0 + small))
        found += gl.where(bits > 0.0, bits, 0.0)
    found = found * weight
    return gl.exp2(gl.where(found < FLOOR * LOG2E, FLOOR * LOG2E, found))


@gluon.jit
def _total(totals_s, block: gl.constexpr):
    """What a block decays by ``[1, 1, 32]``; every row of a block holds it."""
    row = totals_s.slice(8 * block, 1).load(gl.SliceLayout(0, TILES))
    return row[None, :, :]


@gluon.jit
def _strengths(
    erase,
    block: gl.constexpr,
    first,
    left,
    h,
    H: gl.constexpr,
    SIGMOID: gl.constexpr,
    DOUBLED: gl.constexpr,
):
    """Strengths of a block's tokens, as a row."""
    token = block * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, WIDE))
    found = gl.load(erase + (first + token) * H + h, mask=token < left, other=0.0)
    return writing_strength(found.to(gl.float32), SIGMOID, DOUBLED)[None, :]


@gluon.jit
def _left(x, dtype: gl.constexpr):
    """A column of blocks as the left operand of plain products."""
    return gl.convert_layout(x.to(dtype), PLAIN_ROWS)


@gluon.jit
def _tile(x, left, stride: gl.constexpr):
    """Tile ``[64, 32]`` in memory, zero where there are no rows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    rows = gl.arange(0, C, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))[None, :]
    return gl.load(x + rows * stride + columns, mask=rows + 0 * columns < left, other=0.0)


@gluon.jit
def _multiply(target, x, tile_s, left, stride: gl.constexpr):
    """Write the inverse times a tile ``[64, 32]``."""
    acc = gl.zeros([C, WIDTH], gl.float32, layout=WIDE)
    for block in gl.static_range(4):
        columns = tile_s.slice(block * BLOCK, BLOCK).load(PLAIN_COLUMNS)
        acc = mma_v2(x[block], columns, acc)
    found = gl.convert_layout(acc.to(target.dtype.element_ty), PAIRS)
    rows = gl.arange(0, C, layout=gl.SliceLayout(1, PAIRS))[:, None]
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, PAIRS))[None, :]
    gl.store(target + rows * stride + columns, found, mask=rows + 0 * columns < left)


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
    SIGMOID: gl.constexpr,
    DOUBLED: gl.constexpr,
):
    """Invert a chunk's system, and multiply with it what its tokens erase and write.

    ``value_s`` holds the first ``TOGETHER`` tiles of values, or what is on its way there, but where
    channels are written with strengths of their own.
    """
    wrong, wrong_0, wrong_1, wrong_2 = scores
    v, erase, write, w, u, solved = tensors
    dtype: gl.constexpr = v.dtype.element_ty
    token = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))
    if not CHANNELS:
        strength = gl.load(erase + (first + token) * H + h, mask=token < left, other=0.0)
        strength = writing_strength(strength.to(gl.float32), SIGMOID, DOUBLED)[:, None]
        wrong_0 *= strength
        wrong_1 *= strength
        wrong_2 *= strength
        strength = gl.convert_layout(gl.reshape(strength, [4, BLOCK, 1]), PRODUCTS)
        wrong *= strength
    x_0, x_1, x_2, x_3 = inverse(wrong, wrong_0, wrong_1, wrong_2)
    if WITH_INVERSE:
        store_square(solved, (x_0, x_1, x_2, x_3), square_s, first, left, h, H)
    if not CHANNELS:
        x_0 *= _strengths(erase, 0, first, left, h, H, SIGMOID, DOUBLED)
        x_1 *= _strengths(erase, 1, first, left, h, H, SIGMOID, DOUBLED)
        x_2 *= _strengths(erase, 2, first, left, h, H, SIGMOID, DOUBLED)
        x_3 *= _strengths(erase, 3, first, left, h, H, SIGMOID, DOUBLED)
    x = (_left(x_0, dtype), _left(x_1, dtype), _left(x_2, dtype), _left(x_3, dtype))
    rows_w = w + (first * H + h) * K
    for step in range(K // WIDTH):
        _multiply(rows_w + step * WIDTH, x, left_s.index(step), left, H * K)
    values = v + (first * H + h) * V
    rows_u = u + (first * H + h) * V
    for column in gl.static_range(0, V, TOGETHER * WIDTH):
        if CHANNELS:
            strengths = write + (first * H + h) * V
            for step in gl.static_range(TOGETHER):
                at = column + step * WIDTH
                tile = _tile(values + at, left, H * V).to(gl.float32)
                tile *= _tile(strengths + at, left, H * V).to(gl.float32)
                value_s.index(step).store(tile.to(dtype))
        else:
            if column > 0:
                _copy_values(value_s, values + column, left, H * V, TOGETHER)
            async_copy.wait_group(0)
            gl.thread_barrier()
        for step in range(TOGETHER):
            at = column + step * WIDTH
            _multiply(rows_u + at, x, value_s.index(step), left, H * V)
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
    # Of what waits in shared memory three programs of a multiprocessor leave 76 KB each.
    AHEAD: gl.constexpr = ERASE and not CHANNELS and not GATE
    COUNT: gl.constexpr = K // WIDTH
    if AHEAD:
        # Queries make room for what is erased, and keys for values.
        left_s = gl.allocate_shared_memory(dtype, [COUNT, C, WIDTH], STEPS)
        value_s = gl.allocate_shared_memory(dtype, [max(COUNT, TOGETHER), C, WIDTH], STEPS)
        if g.dtype.element_ty == gl.float32:
            gates_s = gl.allocate_shared_memory(gl.float32, [COUNT, C, WIDTH], WIDE_STEPS)
        else:
            gates_s = gl.allocate_shared_memory(g.dtype.element_ty, [COUNT, C, WIDTH], STEPS)
        corner = (first * (H // GROUP) + h // GROUP) * K
        APART: gl.constexpr = H // GROUP * K
        for step in gl.static_range(COUNT):
            copy_tile(left_s.index(step), q + corner + step * WIDTH, left, APART, C, WIDTH)
            copy_tile(value_s.index(step), k + corner + step * WIDTH, left, APART, C, WIDTH)
            gates = g + (first * H + h) * K + step * WIDTH
            _copy_gates(gates_s.index(step), gates, left, H * K)
            async_copy.commit_group()
        async_copy.wait_group(0 if NORMS else COUNT - 1)
        gl.thread_barrier()
    if NORMS and AHEAD:
        unit_q_low, unit_q_high = _reciprocal_norms_of(left_s, K)
        unit_k_low, unit_k_high = _reciprocal_norms_of(value_s, K)
    elif NORMS:
        unit_q_low, unit_q_high = _reciprocal_norms(q, shared, low_mask, high_mask, SHARED, K)
        unit_k_low, unit_k_high = _reciprocal_norms(k, shared, low_mask, high_mask, SHARED, K)
    if GATE:
        rate = rate_of(a_log, h, HAS_RATE)
        if BOUNDED:
            weight = bound * LOG2E
        else:
            weight = -rate
        weight_low = gl.where(inner < left, weight, 0.0)
        weight_high = gl.where(inner + 8 < left, weight, 0.0)

    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    keys_s = gl.allocate_shared_memory(dtype, [C, WIDTH], plain)
    if ERASE and not AHEAD:
        left_s = gl.allocate_shared_memory(dtype, [K // WIDTH, C, WIDTH], STEPS)
        value_s = gl.allocate_shared_memory(dtype, [TOGETHER, C, WIDTH], STEPS)
        if not CHANNELS:
            _copy_values(value_s, v + (first * H + h) * V, left, H * V, TOGETHER)
    totals_s = gl.allocate_shared_memory(gl.float32, [4 * 8, WIDTH], plain)

    near = no_products()
    far_0 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    far_1 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    far_2 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    wrong = no_products()
    wrong_0 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    wrong_1 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    wrong_2 = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    for step in range(0, K, WIDTH):
        at = places + step
        if AHEAD:
            q_low, q_high = _apart(left_s.index(step // WIDTH))
            k_low, k_high = _apart(value_s.index(step // WIDTH))
            g_low, g_high = _apart(gates_s.index(step // WIDTH))
        else:
            q_low, q_high = _load(q, shared + step, low_mask, high_mask, SHARED)
            k_low, k_high = _load(k, shared + step, low_mask, high_mask, SHARED)
            g_low, g_high = _load(g, at, low_mask, high_mask, BEHIND)
        if NORMS:
            q_low = _unit(q_low, unit_q_low, dtype)
            q_high = _unit(q_high, unit_q_high, dtype)
            k_low = _unit(k_low, unit_k_low, dtype)
            k_high = _unit(k_high, unit_k_high, dtype)
        if GATE:
            g_low = g_low.to(gl.float32)
            g_high = g_high.to(gl.float32)
            if HAS_BIAS:
                bias = gl.load(dt_bias + h * K + step + channel).to(gl.float32)
                g_low += bias
                g_high += bias
            total_low = _gated(g_low, rate, weight_low, BOUNDED)
            total_high = _gated(g_high, rate, weight_high, BOUNDED)
        else:
            total_low = _decays(g_low)
            total_high = _decays(g_high)

        # A token does not decay towards itself.
        found = mma_v2(_rows(q_low, q_high, dtype), _columns(k_low, k_high, dtype), no_products())
        near += gl.where(_paired(-1), found, 0.0)

        right_low = k_low.to(gl.float32)
        right_high = k_high.to(gl.float32)
        q_low = q_low.to(gl.float32) * total_low
        q_high = q_high.to(gl.float32) * total_high
        left_low = right_low
        left_high = right_high
        if ERASE:
            if CHANNELS:
                b_low, b_high = _load(erase, at, low_mask, high_mask, BEHIND)
                left_low = left_low * b_low.to(gl.float32)
                left_high = left_high * b_high.to(gl.float32)
            left_low = left_low * total_low
            left_high = left_high * total_high
        for level in gl.static_range(3):
            columns = _columns(right_low, right_high, dtype)
            found = mma_v2(_rows(q_low, q_high, dtype), columns, no_products())
            near += gl.where(_paired(level), found, 0.0)
            if ERASE:
                found = mma_v2(_rows(left_low, left_high, dtype), columns, no_products())
                wrong += gl.where(_paired(level), found, 0.0)
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
        columns = _columns(right_low, right_high, dtype)
        found = mma_v2(_rows(q_low, q_high, dtype), columns, no_products())
        near += gl.where(_paired(3), found, 0.0)
        if ERASE:
            found = mma_v2(_rows(left_low, left_high, dtype), columns, no_products())
            wrong += gl.where(_paired(3), found, 0.0)
        q_high *= total_low
        if ERASE:
            left_high *= total_low
        right_low *= total_high
        total_low *= total_high

        keys = gl.permute(gl.join(right_low.to(dtype), right_high.to(dtype)), (0, 3, 1, 2))
        keys_s.store(gl.reshape(keys, [C, WIDTH]))
        totals_s.store(gl.reshape(total_low, [4 * 8, WIDTH]))
        if AHEAD:
            # An empty group for each step: with it those that may be on their way are as many.
            async_copy.commit_group()
            async_copy.wait_group(COUNT - 1)
        total_0 = _total(totals_s, 0)
        total_1 = _total(totals_s, 1)
        total_2 = _total(totals_s, 2)
        total_3 = _total(totals_s, 3)

        columns = keys_s.slice(2 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        far_2 = mma_v2(_wide_rows(q_low, q_high, 1.0, dtype), columns, far_2)
        if ERASE:
            wrong_2 = mma_v2(_wide_rows(left_low, left_high, 1.0, dtype), columns, wrong_2)
        columns = keys_s.slice(1 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        between = gl.where(block == 3, total_2, 1.0)
        far_1 = mma_v2(_wide_rows(q_low, q_high, between, dtype), columns, far_1)
        if ERASE:
            wrong_1 = mma_v2(_wide_rows(left_low, left_high, between, dtype), columns, wrong_1)
        columns = keys_s.slice(0 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        between *= gl.where(block >= 2, total_1, 1.0)
        far_0 = mma_v2(_wide_rows(q_low, q_high, between, dtype), columns, far_0)
        if ERASE:
            wrong_0 = mma_v2(_wide_rows(left_low, left_high, between, dtype), columns, wrong_0)

        # What blocks decay by that lie before a block, and behind it.
        before = gl.where(block >= 1, total_0, 1.0) * between
        behind = gl.where(block == 0, total_1, 1.0) * gl.where(block <= 1, total_2, 1.0)
        behind *= gl.where(block <= 2, total_3, 1.0)
        enter = before
        if not ERASE:
            enter = before * scale
        _store(q_in, at, q_low * enter, q_high * enter, low_mask, high_mask, BEHIND)
        if ERASE:
            lefts = gl.join((left_low * before).to(dtype), (left_high * before).to(dtype))
            lefts = gl.reshape(gl.permute(lefts, (0, 3, 1, 2)), [C, WIDTH])
            left_s.index(step // WIDTH).store(lefts)
        _store(k_out, at, right_low * behind, right_high * behind, low_mask, high_mask, BEHIND)
        whole = total_low * before * behind
        totals_at = totals + slot * K + step + channel + 0 * inner
        gl.store(totals_at, whole, mask=here == 0)
    if AHEAD:
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
            (v, erase, write, w, u, solved),
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
            SIGMOID,
            DOUBLED,
        )
