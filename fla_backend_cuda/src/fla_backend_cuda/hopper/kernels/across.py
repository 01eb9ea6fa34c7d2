"""Gradients of a delta rule's inputs on Hopper: pairs of segments of a chunk, and states around it.

What ``fla_triton``'s ``delta_channel_across`` computes, whose notation this keeps, from the same
operands and in the same places. A warp has the rows of two segments, and a thread of each segment
one row in the same channels: what belongs to segments is read once for eight rows, and sums over a
segment do not leave their warp. Operands wait in shared memory, those of a tile of V while the one
before it is multiplied, and those of pairs behind the last of them; scores are masked in registers.

Bytes a token and head: three times V, and K V / C of S and of dS, for each tile of 64 channels
anew; three times K and 2 C of scores read, three times K written. Flops: 6 K V + 12 K C. On an H200
0.48 ms at B2 T8192 H16 K = V = 128, where the portable kernel takes 0.91.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fla_backend_cuda.hopper.kernels.copies import chunk_at, copy_tile, first_slot, sequence_at
from fla_triton import pieces as layout

SEGMENTS = gl.constexpr(layout.SEGMENTS)
PIECES = gl.constexpr(layout.PIECES)
READING = gl.constexpr(layout.READING)
WRITING = gl.constexpr(layout.WRITING)
CROSSING = gl.constexpr(layout.CROSSING)
DECAYS = gl.constexpr(layout.BEFORE)
"""First of the rows of decays, which lie side by side: so many of ``KINDS``."""
BESIDE = gl.constexpr(layout.BESIDE - layout.BEFORE)
BEHIND = gl.constexpr(layout.BEHIND - layout.BEFORE)
KINDS = gl.constexpr(4 * layout.SEGMENTS)
TOTAL = gl.constexpr(layout.TOTAL)
ACROSS = gl.constexpr(layout.ACROSS)

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
OF_SEGMENTS = gl.constexpr(gl.SliceLayout(1, BY_SEGMENTS))
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


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
def _decays(decays_s, at: gl.constexpr):
    """What each segment decays by, for all its tokens."""
    return gl.expand_dims(decays_s.slice(at, SEGMENTS).load(OF_SEGMENTS), 1)


@gluon.jit
def _store_sums(pieces, at: gl.constexpr, x, K: gl.constexpr):
    """Write sums over each segment's tokens."""
    segment = gl.arange(0, 8, layout=gl.SliceLayout(1, OF_SEGMENTS))
    channel = gl.arange(0, 64, layout=gl.SliceLayout(0, OF_SEGMENTS))
    gl.store(pieces + (segment + at)[:, None] * K + channel[None, :], gl.sum(x, 1))


@gluon.jit
def _paired(level: gl.constexpr):
    """Pairs of a level: those of the two halves of a group of segments."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, LEFT)) // 8
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, LEFT)) // 8
    return ((row[:, None] ^ column[None, :]) >> level) == 1


@gluon.jit
def _store_tile(x, tile, tile_s, left, stride: gl.constexpr):
    """Write a tile by way of shared memory, whole rows at a time."""
    tile_s.store(tile.to(x.dtype.element_ty))
    found = tile_s.load(STORED)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))
    channel = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))
    gl.store(x + row[:, None] * stride + channel[None, :], found, mask=(row < left)[:, None])


@gluon.jit
def _copy(
    step: gl.constexpr,
    tiles_s,
    of_values,
    of_pairs,
    left,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
):
    """Start copying the operands of a step: of a tile of V, or behind the last those of pairs."""
    NV: gl.constexpr = V // 64
    at: gl.constexpr = step % 2 * 5
    if step < NV:
        state, dstate, do, y, v_new = of_values
        column: gl.constexpr = step * 64
        copy_tile(tiles_s.index(at), state + column, 64, V, 64, 64)
        copy_tile(tiles_s.index(at + 1), dstate + column, 64, V, 64, 64)
        copy_tile(tiles_s.index(at + 2), do + column, left, H * V, 64, 64)
        copy_tile(tiles_s.index(at + 3), y + column, left, H * V, 64, 64)
        copy_tile(tiles_s.index(at + 4), v_new + column, left, H * V, 64, 64)
    if step == NV:
        from_q, from_left, to_k, reads, errors = of_pairs
        copy_tile(tiles_s.index(at), from_q, left, H * K, 64, 64)
        copy_tile(tiles_s.index(at + 1), from_left, left, H * K, 64, 64)
        copy_tile(tiles_s.index(at + 2), to_k, left, H * K, 64, 64)
        copy_tile(tiles_s.index(at + 3), reads, left, H * 64, 64, 64)
        copy_tile(tiles_s.index(at + 4), errors, left, H * 64, 64, 64)
    async_copy.commit_group()


@gluon.jit
def _cross(
    level: gl.constexpr, later, left_s, right_s, scores_s, decays_s, mixed_s, dtype: gl.constexpr
):
    """Gradients of both sides of a level's pairs, and what they give for gates."""
    mixed = gl.where(later, _by_segments(left_s.load(PRODUCT)), _by_segments(right_s.load(PRODUCT)))
    if level > 0:
        mixed *= _decays(decays_s, BESIDE + SEGMENTS * (2 - level))
    mixed_s.store(_as_tile(mixed.to(dtype)))
    fence_async_shared()
    scores = gl.where(_paired(level), scores_s.load(LEFT), 0.0)
    gl.thread_barrier()
    zero = gl.zeros([64, 64], gl.float32, layout=PRODUCT)
    found = warpgroup_mma(scores.to(dtype), mixed_s, zero, use_acc=False, is_async=True)
    found = _by_segments(warpgroup_mma_wait(0, deps=[found]))
    crossing = _by_segments(mixed_s.load(PRODUCT)) * found
    if level > 0:
        found *= _decays(decays_s, BESIDE + SEGMENTS * (2 - level))
    return found, crossing


@gluon.jit(do_not_specialize=["T", "scale"])
def across_segments(
    from_q,
    from_left,
    to_k,
    v_new,
    do,
    y,
    reads,
    errors,
    states,
    dstates,
    start,
    dlast,
    over_q,
    over_left,
    over_k,
    pieces,
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
    NV: gl.constexpr = V // 64
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
    values = token * V
    scores = token * 64
    corner = slot * (K * V) + row * V
    mine = pieces + slot * (PIECES * K) + row
    dtype: gl.constexpr = to_k.dtype.element_ty

    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tiles_s = gl.allocate_shared_memory(dtype, [10, 64, 64], matrix)
    mixed_s = gl.allocate_shared_memory(dtype, [2, 64, 64], matrix)
    decays_s = gl.allocate_shared_memory(gl.float32, [KINDS, 64], plain)

    of_values = (states + corner, dstates + corner, do + values, y + values, v_new + values)
    of_pairs = (from_q + keys, from_left + keys, to_k + keys, reads + scores, errors + scores)
    wide: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    kind = gl.arange(0, KINDS, layout=gl.SliceLayout(1, wide))
    channel = gl.arange(0, 64, layout=gl.SliceLayout(0, wide))
    async_copy.async_copy_global_to_shared(
        decays_s, mine + (kind + DECAYS)[:, None] * K + channel[None, :]
    )
    _copy(0, tiles_s, of_values, of_pairs, left, H, K, V)
    _copy(1, tiles_s, of_values, of_pairs, left, H, K, V)

    zero = gl.zeros([64, 64], gl.float32, layout=PRODUCT)
    acc_q = zero
    acc_left = zero
    acc_k = zero
    across = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, STORED))
    for step in gl.static_range(NV):
        async_copy.wait_group(1)
        fence_async_shared()
        state_s = tiles_s.index(step % 2 * 5)
        dstate_s = tiles_s.index(step % 2 * 5 + 1)
        turned = state_s.permute([1, 0])
        acc_q = warpgroup_mma(
            tiles_s.index(step % 2 * 5 + 2), turned, acc_q, use_acc=step > 0, is_async=True
        )
        acc_left = warpgroup_mma(
            tiles_s.index(step % 2 * 5 + 3), turned, acc_left, use_acc=step > 0, is_async=True
        )
        acc_k = warpgroup_mma(
            tiles_s.index(step % 2 * 5 + 4),
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
                places = outer + down[:, None] * V + right[None, :]
                if HAS_START:
                    begins = c == 0
                    given = gl.load(start + places, mask=(down >= 0)[:, None] & begins, other=0.0)
                    exact = gl.where(begins, given, exact)
                if HAS_DLAST:
                    ends = left <= 64
                    given = gl.load(dlast + places, mask=(down >= 0)[:, None] & ends, other=0.0)
                    dexact = gl.where(ends, given, dexact)
            across += gl.sum(exact * dexact, 1)
        acc_q, acc_left, acc_k = warpgroup_mma_wait(0, deps=[acc_q, acc_left, acc_k])
        _copy(step + 2, tiles_s, of_values, of_pairs, left, H, K, V)
    async_copy.wait_group(0)

    at: gl.constexpr = NV % 2 * 5
    from_q_s = tiles_s.index(at)
    from_left_s = tiles_s.index(at + 1)
    to_k_s = tiles_s.index(at + 2)
    before = _decays(decays_s, 0)
    of_q = _by_segments(acc_q) * (before * scale)
    of_left = _by_segments(acc_left) * -before
    of_k = _by_segments(acc_k) * _decays(decays_s, BEHIND)
    if WITH_GATES:
        reading = _by_segments(from_q_s.load(PRODUCT)) * of_q
        reading += _by_segments(from_left_s.load(PRODUCT)) * of_left
        _store_sums(mine, READING, reading, K)
        _store_sums(mine, WRITING, _by_segments(to_k_s.load(PRODUCT)) * of_k, K)
        down = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))
        total = gl.load(mine + TOTAL * K + down)
        gl.store(mine + ACROSS * K + down, across * total)

    segment = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, BY_SEGMENTS)))
    segment = segment[:, None, None]
    for level in gl.static_range(3):
        # Halves of one, two and four segments; the first touch each other in the middle.
        later = ((segment >> level) & 1) == 1
        found, crossing = _cross(
            level, later, from_q_s, to_k_s, tiles_s.index(at + 3), decays_s, mixed_s.index(0), dtype
        )
        of_q += gl.where(later, found, 0.0)
        of_k += gl.where(later, 0.0, found)
        found, more = _cross(
            level,
            later,
            from_left_s,
            to_k_s,
            tiles_s.index(at + 4),
            decays_s,
            mixed_s.index(1),
            dtype,
        )
        of_left += gl.where(later, found, 0.0)
        of_k += gl.where(later, 0.0, found)
        if WITH_GATES and level > 0:
            _store_sums(mine, CROSSING + SEGMENTS * (2 - level), crossing + more, K)
    _store_tile(over_q + keys, _as_tile(of_q), tiles_s.index(at), left, H * K)
    _store_tile(over_left + keys, _as_tile(of_left), tiles_s.index(at + 1), left, H * K)
    _store_tile(over_k + keys, _as_tile(of_k), tiles_s.index(at + 2), left, H * K)
