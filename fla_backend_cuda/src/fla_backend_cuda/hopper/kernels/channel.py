"""Gradients of a delta rule's inputs on Hopper, where every key channel has its own decay.

In place of three of ``fla_triton``'s kernels, ``delta_channel_segments``, ``delta_channel_across``
and ``delta_channel_within``, whose notation this keeps: what they hand to one another does not
leave the chip. Pairs of a chunk are the six levels of ``tree``, all of one form: with the decays d
of tokens to the middle of their group,

    mixed = d q of later tokens, d k of earlier ones;   found = (dP + dP^T, masked) mixed,
    dq += d found of later tokens,   dk += d found of earlier ones,

and once more with left and dR. The upper three are levels of segments of eight tokens and take q,
left and k weighted by what their segment decays; that is multiplied into their gradients before
the lower three add to them. A pair adds ``mixed found`` to the gates between its tokens: a product
with zeros and ones, which name the tokens of a level on whose side of the middle a gate lies
further in; so does what is read of the state before the chunk and written to the one after it.
Decays are products of ``exp(g)``, none a quotient, no exponent a difference; no terms cancel.

A warp has the rows of two segments, and a thread of each segment one row in the same channels.
The four levels that these hold stay in its registers: products of 16 tokens by 16 channels' columns
turned by ``movmatrix``, decays between lanes. What crosses warps goes through shared memory.

Bytes a token and head: q, k and gates twice, three times V for each 64 key channels, K V / C of S
and of dS and 2 C of scores read, dq, dk, dg and dv written. Flops: 6 K V + 24 K C. On an H200 1.00
ms at B2 T8192 H16 K = V = 128, where the three kernels took 1.01, and no memory between them: 24 %
of the rate of copying. Code as long as it is bounds it: with its levels and sides unrolled, 9200
instructions in place of 5600, it took 2.20.
"""

# Kernels branch on constants, in line.
# ruff: noqa: C901

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
from fla_triton.kernels.common import step_decay

PRODUCT = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
)
LEFT = gl.constexpr(gl.DotOperandLayout(0, PRODUCT, 2))
BY_SEGMENTS = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [1, 0, 0], [0, 0, 8], [0, 0, 16], [0, 0, 32]],
        lane_bases=[[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        warp_bases=[[2, 0, 0], [4, 0, 0]],
        block_bases=[],
        shape=[8, 8, 64],
    )
)
"""``PRODUCT`` as segments, tokens of one and channels."""
BLOCKS = gl.constexpr(
    gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1, 1], instr_shape=[1, 16, 8])
)
"""``PRODUCT`` as the two segments of each warp, their tokens and channels."""
BLOCKS_LEFT = gl.constexpr(gl.DotOperandLayout(0, BLOCKS, 2))
BLOCKS_RIGHT = gl.constexpr(gl.DotOperandLayout(1, BLOCKS, 2))
OF_SEGMENTS = gl.constexpr(gl.SliceLayout(1, BY_SEGMENTS))
OF_TOKENS = gl.constexpr(gl.SliceLayout(2, BY_SEGMENTS))
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
LINES = gl.constexpr(gl.BlockedLayout([8, 1], [1, 32], [1, 4], [0, 1]))
"""A channel of every segment in a thread."""

WEAK = gl.constexpr(0.0625)
"""As in ``fla_triton``'s ``delta_errors``."""


@gluon.jit
def _by_segments(x):
    """Segments, tokens of one and channels of a tile, in float32."""
    return gl.convert_layout(gl.reshape(x, [8, 8, 64]), BY_SEGMENTS, assert_trivial=True).to(
        gl.float32
    )


@gluon.jit
def _as_tile(x):
    """The tile that ``_by_segments`` takes apart."""
    return gl.convert_layout(gl.reshape(x, [64, 64]), PRODUCT, assert_trivial=True)


@gluon.jit
def _tokens():
    """Numbers ``[1, 8, 1]`` of a segment's tokens."""
    along: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, BY_SEGMENTS))
    return gl.arange(0, 8, layout=along)[None, :, None]


@gluon.jit
def _segments():
    """Numbers ``[8, 1, 1]`` of segments."""
    along: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, BY_SEGMENTS))
    return gl.arange(0, 8, layout=along)[:, None, None]


@gluon.jit
def _of_tokens(x, stride: gl.constexpr, left):
    """Numbers of a chunk's tokens ``[8, 8, 1]``, in float32; zero where there are none."""
    segment = gl.arange(0, 8, layout=gl.SliceLayout(1, OF_TOKENS))[:, None]
    token = gl.arange(0, 8, layout=gl.SliceLayout(0, OF_TOKENS))[None, :]
    row = segment * 8 + token
    found = gl.load(x + row * stride, mask=row < left, other=0.0)
    return gl.expand_dims(found.to(gl.float32), 2)


@gluon.jit
def _decays(decays_s):
    """What each segment decays by, for all its tokens."""
    return gl.expand_dims(decays_s.load(OF_SEGMENTS), 1)


@gluon.jit
def _other(x, level):
    """What the token of a segment holds that differs in this bit of its number."""
    lanes = gl.full([8, 8, 64], 4, gl.int32, layout=BY_SEGMENTS) << level
    return gl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, $2, 31, -1;",
        "=f,f,r",
        [x, lanes],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def _widened(since, until, level):
    """Decays since the start of groups of tokens and until their end, of groups twice as large."""
    later = ((_tokens() >> level) & 1) == 1
    other = _other(since * until, level)
    return since * gl.where(later, other, 1.0), until * gl.where(later, 1.0, other)


@gluon.jit
def _first(a, b):
    return a


@gluon.jit
def _decays_of_segments(totals_s, before_s, behind_s, beside_s):
    """Decays around segments, from what each of them decays by: ``[8, 64]``, a row each.

    From the chunk's start to the segment, from it to the end, and between it and the middle of
    four and of eight.
    """
    one = gl.full([8, 64], 1.0, gl.float32, layout=LINES)
    row = gl.arange(0, 8, layout=gl.SliceLayout(1, LINES))[:, None]
    before = one
    behind = one
    far = one
    near = one
    for i in gl.static_range(8):
        total = totals_s.slice(i, 1).load(LINES)
        before *= gl.where(row > i, total, 1.0)
        behind *= gl.where(row < i, total, 1.0)
        if i < 4:
            far *= gl.where(row < i, total, 1.0)
        else:
            far *= gl.where(row > i, total, 1.0)
        if i % 4 == 1:
            near *= gl.where(row == i - 1, total, 1.0)
        if i % 4 == 2:
            near *= gl.where(row == i + 1, total, 1.0)
    before_s.store(before)
    behind_s.store(behind)
    beside_s.index(0).store(near)
    beside_s.index(1).store(far)


@gluon.jit
def _pair_places():
    """Rows and columns of a matrix of pairs."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, LEFT))
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, LEFT))
    return row[:, None], column[None, :]


@gluon.jit
def _passed_over(which, x, acc, gates_s, dtype: gl.constexpr):
    """Add to gates what the tokens have that ``which [64, 64]`` names by row.

    Terms keep the digits of ``dtype``, and the range of float32.
    """
    ones = gl.where(which, 1.0, 0.0).to(gl.bfloat16)
    tile = _as_tile(x)
    high = tile.to(gl.bfloat16)
    gl.thread_barrier()
    gates_s.index(2).store(high)
    if dtype == gl.float16:
        gates_s.index(3).store((tile - high.to(gl.float32)).to(gl.bfloat16))
    fence_async_shared()
    gl.thread_barrier()
    acc = warpgroup_mma(ones, gates_s.index(2), acc, is_async=True)
    if dtype == gl.float16:
        acc = warpgroup_mma(ones, gates_s.index(3), acc, is_async=True)
    return warpgroup_mma_wait(0, deps=[acc])


@gluon.jit
def _added(more, decay, later, of_left, of_k):
    """Add products to the gradients of both sides of a level's pairs."""
    of_left += more * gl.where(later, decay, 0.0)
    of_k += more * gl.where(later, 0.0, decay)
    return of_left, of_k


@gluon.jit
def _gates_between(gate, token, level):
    """Tokens of a level whose pairs pass over a gate: to the middle of its group, or from there."""
    beyond = ((gate >> level) & 1) == 1
    return (((gate ^ token) >> level) == 0) & ((token >= gate) == beyond)


@gluon.jit
def _outside(
    side,
    of_left,
    of_k,
    acc_g,
    sides_s,
    to_k_s,
    around_s,
    beside_s,
    gates_s,
    dtype: gl.constexpr,
    WITH_GATES: gl.constexpr,
):
    """Add the pairs of segments of different warps to one side's gradients, and to that of keys."""
    for step in range(2):
        # Halves of two and of four segments.
        level = step + 4
        later = ((_segments() >> (step + 1)) & 1) == 1
        left = _by_segments(sides_s.index(side).load(PRODUCT))
        right = _by_segments(to_k_s.load(PRODUCT))
        mixed = gl.where(later, left, right) * _decays(beside_s.index(step))
        gl.thread_barrier()
        sides_s.index(2).store(_as_tile(mixed).to(dtype))
        fence_async_shared()
        row, column = _pair_places()
        scores = around_s.index(side).load(LEFT)
        scores = gl.where(((row ^ column) >> level) == 1, scores, gl.zeros_like(scores))
        gl.thread_barrier()
        nothing = gl.zeros([64, 64], gl.float32, layout=PRODUCT)
        more = warpgroup_mma(scores, sides_s.index(2), nothing, use_acc=False, is_async=True)
        more = _by_segments(warpgroup_mma_wait(0, deps=[more]))
        of_left, of_k = _added(more, _decays(beside_s.index(step)), later, of_left, of_k)
        if WITH_GATES:
            crossing = _by_segments(sides_s.index(2).load(PRODUCT)) * more
            which = _gates_between(row, column, level)
            acc_g = _passed_over(which, crossing, acc_g, gates_s, dtype)
    return of_left, of_k, acc_g


@gluon.jit
def _block_places():
    """Rows and columns of the matrices of pairs of each warp's two segments."""
    along: gl.constexpr = gl.SliceLayout(0, BLOCKS_LEFT)
    row = gl.arange(0, 16, layout=gl.SliceLayout(1, along))[:, None]
    column = gl.arange(0, 16, layout=gl.SliceLayout(0, along))[None, :]
    return row[None, :, :], column[None, :, :]


@gluon.jit
def _own_scores(scores, stride: gl.constexpr, left):
    """Of a chunk's scores those of each warp's tokens with one another, ``[4, 16, 16]``."""
    along: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, BLOCKS_LEFT))
    block = gl.arange(0, 4, layout=along)[:, None, None] * 16
    row, column = _block_places()
    row = block + row + 0 * column
    return gl.load(scores + row * stride + (block + column), mask=row < left, other=0.0)


@gluon.jit
def _turned(x, dtype: gl.constexpr):
    """A tile of segments as the right operand of products of each warp: nothing leaves it."""
    if dtype == gl.float16:
        turned = gl.inline_asm_elementwise(
            "{ .reg .b32 x; cvt.rn.f16x2.f32 x, $2, $1;"
            " movmatrix.sync.aligned.m8n8.trans.b16 $0, x; }",
            "=r,f,f",
            [x],
            dtype=gl.float16,
            is_pure=True,
            pack=2,
        )
    else:
        turned = gl.inline_asm_elementwise(
            "{ .reg .b32 x; cvt.rn.bf16x2.f32 x, $2, $1;"
            " movmatrix.sync.aligned.m8n8.trans.b16 $0, x; }",
            "=r,f,f",
            [x],
            dtype=gl.bfloat16,
            is_pure=True,
            pack=2,
        )
    # Eight by eight, rows and columns have changed places.
    turned = gl.permute(gl.reshape(turned, [8, 8, 8, 8]), (0, 3, 2, 1))
    return gl.convert_layout(gl.reshape(turned, [4, 16, 64]), BLOCKS_RIGHT, assert_trivial=True)


@gluon.jit
def _as_blocks(x):
    return gl.convert_layout(gl.reshape(x, [4, 16, 64]), BLOCKS, assert_trivial=True)


@gluon.jit
def _as_segments(x):
    return gl.convert_layout(gl.reshape(x, [8, 8, 64]), BY_SEGMENTS, assert_trivial=True)


@gluon.jit
def _own_level(
    level,
    later,
    left,
    right,
    decay,
    scores,
    of_left,
    of_k,
    acc_g,
    dtype: gl.constexpr,
    WITH_GATES: gl.constexpr,
):
    """Add a level of pairs that each warp has for itself."""
    row, column = _block_places()
    nothing = gl.zeros([4, 16, 64], gl.float32, layout=BLOCKS)
    scores = gl.where(((row ^ column) >> level) == 1, scores, gl.zeros_like(scores))
    mixed = gl.where(later, left, right) * decay
    more = _as_segments(mma_v2(scores, _turned(mixed, dtype), nothing))
    of_left, of_k = _added(more, decay, later, of_left, of_k)
    if WITH_GATES:
        crossing = mixed * more
        one = gl.full([4, 16, 16], 1.0, gl.bfloat16, layout=BLOCKS_LEFT)
        ones = gl.where(_gates_between(row, column, level), one, gl.zeros_like(one))
        acc_g = mma_v2(ones, _turned(crossing, gl.bfloat16), acc_g)
        if dtype == gl.float16:
            crossing -= crossing.to(gl.bfloat16).to(gl.float32)
            acc_g = mma_v2(ones, _turned(crossing, gl.bfloat16), acc_g)
    return of_left, of_k, acc_g


@gluon.jit
def _own_tile(x, places, mask):
    """A thread's own elements of a tile in memory."""
    return _by_segments(gl.load(x + places, mask=mask, other=0.0))


@gluon.jit
def _own_levels(
    side,
    rows_s,
    decay_s,
    strength,
    erase,
    places,
    live,
    scores,
    of_k,
    acc_g,
    dtype: gl.constexpr,
    CHANNELS: gl.constexpr,
    WITH_GATES: gl.constexpr,
):
    """Gradients of one side of the pairs that each warp has for itself, added to that of keys.

    Returns these, the gradients of gates, and what tokens decay by since their segment's start and
    until its end.
    """
    of_left = gl.zeros([8, 8, 64], gl.float32, layout=BY_SEGMENTS)
    since = _by_segments(decay_s.load(PRODUCT))
    until = gl.full([8, 8, 64], 1.0, gl.float32, layout=BY_SEGMENTS)
    for level in range(4):
        if level > 0:
            since, until = _widened(since, until, level - 1)
        later = (((_segments() * 8 + _tokens()) >> level) & 1) == 1
        left = _by_segments(rows_s.index(side).load(PRODUCT))
        if CHANNELS:
            if side == 1:
                left *= _own_tile(erase, places, live)
        else:
            left *= gl.where(side == 1, strength, 1.0)
        right = _by_segments(rows_s.index(1).load(PRODUCT))
        decay = gl.where(later, since, until)
        of_left, of_k, acc_g = _own_level(
            level, later, left, right, decay, scores, of_left, of_k, acc_g, dtype, WITH_GATES
        )
    return of_left, of_k, acc_g, since, until


@gluon.jit
def _store_tile(x, tile, tile_s, left, stride: gl.constexpr):
    """Write a tile by way of shared memory, whole rows at a time."""
    tile_s.store(tile.to(x.dtype.element_ty))
    found = tile_s.load(STORED)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))
    channel = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))
    gl.store(x + row[:, None] * stride + channel[None, :], found, mask=(row < left)[:, None])


@gluon.jit
def _places(zero, stride: gl.constexpr):
    """Where a thread's own elements of a tile lie, and in which row."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, PRODUCT))
    channel = gl.arange(0, 64, layout=gl.SliceLayout(0, PRODUCT))
    row = row[:, None] + zero
    return row * stride + channel[None, :], row + 0 * channel[None, :]


@gluon.jit
def _store_own(x, tile, tile_s, left, zero, stride: gl.constexpr):
    """Write a tile of whatever dtype."""
    if x.dtype.element_ty == tile_s.dtype:
        _store_tile(x, tile, tile_s, left, stride)
    else:
        places, rows = _places(zero, stride)
        gl.store(x + places, tile.to(x.dtype.element_ty), mask=rows < left)


@gluon.jit
def _copy(
    step: gl.constexpr,
    around_s,
    rows_s,
    of_values,
    of_pairs,
    left,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
):
    """Start copying the operands of a step: of a tile of V, or behind the last those of pairs."""
    if step < V // 64:
        state, dstate, do, y, v_new = of_values
        column: gl.constexpr = step * 64
        copy_tile(around_s.index(0), state + column, 64, V, 64, 64)
        copy_tile(around_s.index(1), dstate + column, 64, V, 64, 64)
        copy_tile(rows_s.index(0), do + column, left, H * V, 64, 64)
        copy_tile(rows_s.index(1), y + column, left, H * V, 64, 64)
        copy_tile(rows_s.index(2), v_new + column, left, H * V, 64, 64)
    else:
        q, k, reads, errors = of_pairs
        copy_tile(around_s.index(0), reads, left, H * 64, 64, 64)
        copy_tile(around_s.index(1), errors, left, H * 64, 64, 64)
        copy_tile(rows_s.index(0), q, left, H * K, 64, 64)
        copy_tile(rows_s.index(1), k, left, H * K, 64, 64)
    async_copy.commit_group()


@gluon.jit(do_not_specialize=["T", "scale"])
def channel_gradients(
    q,
    k,
    g,
    erase,
    write,
    v_new,
    do,
    y,
    reads,
    errors,
    diagonal,
    sums,
    states,
    dstates,
    start,
    dlast,
    dq,
    dk,
    dg,
    derase,
    cu,
    table,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    CHANNELS: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_DLAST: gl.constexpr,
    WITH_GATES: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: one chunk of one head; K and V are multiples of 64.

    ``y`` takes dv. ``derase`` takes the gradient of b or, with ``sums [rows, H, 2]`` of
    ``delta_channel_errors``, that of beta.
    """
    pid = gl.program_id(0)
    h = pid % H
    i = pid // H
    n, c = chunk_at(table, i, T, 64, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = (first_slot(first, n, T, 64, VARLEN) + c) * H + h
    left = length - c * 64
    token = (first + c * 64) * H + h
    dtype: gl.constexpr = k.dtype.element_ty

    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    wide: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    around_s = gl.allocate_shared_memory(dtype, [2, 64, 64], matrix)
    rows_s = gl.allocate_shared_memory(dtype, [3, 64, 64], matrix)
    to_k_s = gl.allocate_shared_memory(dtype, [64, 64], matrix)
    # Operands of pairs of segments, and two tiles that products read; then what waits.
    sides_s = gl.allocate_shared_memory(dtype, [4, 64, 64], matrix)
    decay_s = gl.allocate_shared_memory(gl.float32, [64, 64], wide)
    before_s = gl.allocate_shared_memory(gl.float32, [8, 64], plain)
    behind_s = gl.allocate_shared_memory(gl.float32, [8, 64], plain)
    beside_s = gl.allocate_shared_memory(gl.float32, [2, 8, 64], plain)
    totals_s = gl.allocate_shared_memory(gl.float32, [8, 64], plain)
    across_s = gl.allocate_shared_memory(gl.float32, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gates_s = sides_s._reinterpret(gl.bfloat16, [4, 64, 64], matrix)
    waiting_s = sides_s._reinterpret(gl.float32, [2, 64, 64], wide)
    from_q_s = sides_s.index(0)
    from_left_s = sides_s.index(1)
    q_s = rows_s.index(0)
    k_s = rows_s.index(1)

    erased = gl.zeros([8, 8], gl.float32, layout=OF_TOKENS)
    for part in range(K // 64):
        # Zero, which only the device knows: what is the same for all tiles is formed in each.
        zero = (part + (T >> 30)) >> 8
        live_rows = left + zero
        token_here = token + zero
        row = part * 64
        keys = token_here * K + row
        values = token_here * V
        scores = token_here * 64
        corner = (slot + zero) * (K * V) + row * V
        of_values = (states + corner, dstates + corner, do + values, y + values, v_new + values)
        of_pairs = (q + keys, k + keys, reads + scores, errors + scores)
        _copy(0, around_s, rows_s, of_values, of_pairs, live_rows, H, K, V)

        places, rows = _places(zero, H * K)
        live = rows < live_rows
        decay = step_decay(_own_tile(g + keys, places, live))
        decay_s.store(_as_tile(decay))
        one = gl.full([8, 8, 64], 1.0, gl.float32, layout=BY_SEGMENTS)
        since, until = _widened(decay, one, 0)
        since, until = _widened(since, until, 1)
        since, until = _widened(since, until, 2)
        # All tokens of a segment have the same.
        totals_s.store(gl.reduce(since * until, 1, _first))
        if CHANNELS:
            strength = _own_tile(erase + keys, places, live)
        else:
            strength = _of_tokens(erase + token_here, H, live_rows)
        tile_k = _own_tile(k + keys, places, live)
        from_q_s.store(_as_tile(_own_tile(q + keys, places, live) * since).to(dtype))
        from_left_s.store(_as_tile(tile_k * strength * since).to(dtype))
        to_k_s.store(_as_tile(tile_k * until).to(dtype))
        _decays_of_segments(totals_s, before_s, behind_s, beside_s)

        nothing = gl.zeros([64, 64], gl.float32, layout=PRODUCT)
        acc_q = nothing
        acc_left = nothing
        acc_k = nothing
        across = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, STORED))
        for step in gl.static_range(V // 64):
            async_copy.wait_group(0)
            fence_async_shared()
            state_s = around_s.index(0)
            dstate_s = around_s.index(1)
            turned = state_s.permute([1, 0])
            acc_q = warpgroup_mma(rows_s.index(0), turned, acc_q, use_acc=step > 0, is_async=True)
            acc_left = warpgroup_mma(
                rows_s.index(1), turned, acc_left, use_acc=step > 0, is_async=True
            )
            acc_k = warpgroup_mma(
                rows_s.index(2),
                dstate_s.permute([1, 0]),
                acc_k,
                use_acc=step > 0,
                is_async=True,
            )
            if WITH_GATES:
                # At the ends of a sequence states are the caller's own, in float32, and are not
                # rounded: of one token's gate they may be all there is.
                exact = state_s.load(STORED).to(gl.float32)
                dexact = dstate_s.load(STORED).to(gl.float32)
                if HAS_START or HAS_DLAST:
                    down = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))
                    right = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))
                    outer = (n.to(gl.int64) * H + h) * (K * V) + row * V + step * 64
                    corners = outer + down[:, None] * V + right[None, :]
                    if HAS_START:
                        begins = c == 0
                        given = gl.load(
                            start + corners, mask=(down >= 0)[:, None] & begins, other=0.0
                        )
                        exact = gl.where(begins, given, exact)
                    if HAS_DLAST:
                        ends = live_rows <= 64
                        given = gl.load(
                            dlast + corners, mask=(down >= 0)[:, None] & ends, other=0.0
                        )
                        dexact = gl.where(ends, given, dexact)
                across += gl.sum(exact * dexact, 1)
            acc_q, acc_left, acc_k = warpgroup_mma_wait(0, deps=[acc_q, acc_left, acc_k])
            # All warps have read what the next operands take the place of.
            gl.thread_barrier()
            _copy(step + 1, around_s, rows_s, of_values, of_pairs, live_rows, H, K, V)
        if WITH_GATES:
            across_s.store(across)

        before = _decays(before_s)
        of_q = _by_segments(acc_q) * (before * scale)
        of_left = _by_segments(acc_left) * -before
        of_k = _by_segments(acc_k) * _decays(behind_s)
        acc_g = nothing
        if WITH_GATES:
            reading = _by_segments(from_q_s.load(PRODUCT)) * of_q
            reading += _by_segments(from_left_s.load(PRODUCT)) * of_left
            gate_row, token_column = _pair_places()
            acc_g = _passed_over(token_column >= gate_row, reading, acc_g, gates_s, dtype)
            writing = _by_segments(to_k_s.load(PRODUCT)) * of_k
            acc_g = _passed_over(token_column < gate_row, writing, acc_g, gates_s, dtype)

        reads_own = _own_scores(reads + scores, H * 64, live_rows)
        errors_own = _own_scores(errors + scores, H * 64, live_rows)
        async_copy.wait_group(0)
        for side in range(2):
            of_q, of_k, acc_g = _outside(
                side,
                of_q,
                of_k,
                acc_g,
                sides_s,
                to_k_s,
                around_s,
                beside_s,
                gates_s,
                dtype,
                WITH_GATES,
            )
            of_q, of_left = of_left, of_q
        gl.thread_barrier()
        # Registers hold one side at a time; what tokens have from other warps' waits.
        keys_s = around_s._reinterpret(gl.float32, [64, 64], wide)
        waiting_s.index(0).store(_as_tile(of_q))
        waiting_s.index(1).store(_as_tile(of_left))
        keys_s.store(_as_tile(of_k))
        of_k = gl.zeros([8, 8, 64], gl.float32, layout=BY_SEGMENTS)
        acc_g = _as_blocks(acc_g)
        for side in range(2):
            of_left, of_k, acc_g, since, until = _own_levels(
                side,
                rows_s,
                decay_s,
                strength,
                erase + keys,
                places,
                live,
                gl.where(side == 0, reads_own, errors_own),
                of_k,
                acc_g,
                dtype,
                CHANNELS,
                WITH_GATES,
            )
            of_left += since * _by_segments(waiting_s.index(side).load(PRODUCT))
            waiting_s.index(side).store(_as_tile(of_left))
            if side == 1:
                of_k += until * _by_segments(keys_s.load(PRODUCT))
        if WITH_GATES:
            acc_g = gl.convert_layout(gl.reshape(acc_g, [64, 64]), PRODUCT, assert_trivial=True)
            total = before_s.slice(7, 1).load(PRODUCT) * totals_s.slice(7, 1).load(PRODUCT)
            acc_g += across_s.load(gl.SliceLayout(0, PRODUCT))[None, :] * total
            gl.thread_barrier()
            _store_own(dg + keys, acc_g, around_s.index(0), live_rows, zero, H * K)
        own = _of_tokens(diagonal + token_here, H, live_rows)
        of_q = _by_segments(waiting_s.index(0).load(PRODUCT))
        of_q += own * _by_segments(k_s.load(PRODUCT))
        of_left = _by_segments(waiting_s.index(1).load(PRODUCT))
        of_k += own * _by_segments(q_s.load(PRODUCT))
        _store_tile(dq + keys, _as_tile(of_q), around_s.index(1), live_rows, H * K)
        tile_k = _by_segments(k_s.load(PRODUCT))
        if CHANNELS:
            strength = _own_tile(erase + keys, places, live)
            found_b = _as_tile(of_left * tile_k)
            _store_own(derase + keys, found_b, around_s.index(0), live_rows, zero, H * K)
        else:
            erased += gl.sum(of_left * tile_k, 2)
        of_k += of_left * strength
        _store_tile(dk + keys, _as_tile(of_k), around_s.index(1), live_rows, H * K)
        # Nobody reads of shared memory any more what the next tile's operands take the place of.
        gl.thread_barrier()
    if not CHANNELS:
        segment = gl.arange(0, 8, layout=gl.SliceLayout(1, OF_TOKENS))[:, None]
        place = segment * 8 + gl.arange(0, 8, layout=gl.SliceLayout(0, OF_TOKENS))[None, :]
        inside = place < left
        beta = gl.load(erase + token + place * H, mask=inside, other=0.0).to(gl.float32)
        of_beta = sums + (token + place * H) * 2
        strong = gl.abs(beta) > WEAK
        written = gl.load(of_beta + 1, mask=inside, other=0.0) / gl.where(strong, beta, 1.0)
        erased += gl.load(of_beta, mask=inside, other=0.0)
        gl.store(derase + token + place * H, gl.where(strong, written, erased), mask=inside)
    down = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))[:, None]
    right = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))[None, :]
    inside = down + 0 * right < left
    for column in gl.static_range(0, V, 64):
        place = token * V + down * (H * V) + (right + column)
        found = gl.load(y + place, mask=inside, other=0.0).to(gl.float32)
        if CHANNELS:
            found *= gl.load(write + place, mask=inside, other=0.0).to(gl.float32)
        else:
            found *= gl.load(write + token + down * H, mask=down < left, other=0.0).to(gl.float32)
        gl.store(y + place, found.to(y.dtype.element_ty), mask=inside)
