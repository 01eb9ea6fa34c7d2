"""Gradients of a delta rule's inputs on Hopper: pairs of segments of a chunk, and states around it.

What ``fla_triton``'s ``delta_channel_segments`` and ``delta_channel_across`` compute, whose
notation this keeps. A warp has the rows of two segments, and a thread of each segment one row in
the same channels: what belongs to segments is read once for eight rows, and sums over a segment do
not leave their warp. Operands wait in shared memory, those of a tile of V while the one before it
is multiplied, and q, k, gates and scores behind the last of them; scores are masked in registers.

Queries, what is erased and keys decay in place, eight tokens of a channel in a thread. What passes
over a segment is summed here as well, and leaves the chunk as one row a segment.

Bytes a token and head: three times V, and K V / C of S and of dS, for each tile of 64 channels
anew; three times K and 2 C of scores read, three times K written. Flops: 6 K V + 12 K C. On an H200
0.45 ms at B2 T8192 H16 K = V = 128, in place of 0.48 and of 0.19 for segments by themselves.
"""

# Branches on constants cannot be merged with branches on values, nor tuples unpacked into others.
# ruff: noqa: C901, RUF005, SIM108

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fla_backend_cuda.hopper.kernels.copies import (
    chunk_at,
    copy_tile,
    first_slot,
    sequence_at,
    store_tile,
)
from fla_backend_cuda.hopper.kernels.lanes import across_lanes
from fla_triton import pieces as layout
from fla_triton.kernels.common import step_decay

SEGMENTS = gl.constexpr(layout.SEGMENTS)
READING = gl.constexpr(layout.READING)
WRITING = gl.constexpr(layout.WRITING)
CROSSING = gl.constexpr(layout.CROSSING)

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
BY_32 = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [1, 0, 0], [0, 0, 8], [0, 0, 16]],
        lane_bases=[[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        warp_bases=[[2, 0, 0], [4, 0, 0]],
        block_bases=[],
        shape=[8, 8, 32],
    )
)
BY_16 = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [1, 0, 0], [0, 0, 8]],
        lane_bases=[[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        warp_bases=[[2, 0, 0], [4, 0, 0]],
        block_bases=[],
        shape=[8, 8, 16],
    )
)
BY_8 = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 1], [1, 0, 0]],
        lane_bases=[[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        warp_bases=[[2, 0, 0], [4, 0, 0]],
        block_bases=[],
        shape=[8, 8, 8],
    )
)
"""Fewer channels of ``BY_SEGMENTS``: what a thread has left of when sums over tokens are formed."""
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
WALKED = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [1, 0], [2, 0], [4, 0], [8, 0]],
        lane_bases=[[0, 2], [0, 4], [0, 8], [0, 16], [0, 32]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 64],
    )
)
"""``[64, 64]`` with all tokens of a segment in a thread."""
WALKER = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [1, 0]],
        lane_bases=[[0, 2], [0, 4], [0, 8], [0, 16], [0, 32]],
        warp_bases=[[2, 0], [4, 0]],
        block_bases=[],
        shape=[8, 64],
    )
)
"""One token of each segment, of those."""
ROW = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0]))
"""``[1, 64]``: a number of each channel."""


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
def _decays(decays_s):
    """What each segment decays by, for all its tokens."""
    return gl.expand_dims(decays_s.load(OF_SEGMENTS), 1)


@gluon.jit
def _folded(x, bit: gl.constexpr, folded: gl.constexpr):
    """Add up two lanes' tokens, whose numbers differ in a bit; each keeps half of the channels."""
    halves = gl.reshape(x, [8, 8, 2, x.shape[2] // 2])
    low, high = gl.split(gl.permute(halves, (0, 1, 3, 2)))
    low = gl.convert_layout(low, folded, assert_trivial=True)
    high = gl.convert_layout(high, folded, assert_trivial=True)
    token = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, folded)))[None, :, None]
    later = token & bit != 0
    return gl.where(later, high, low) + across_lanes(gl.where(later, low, high), 4 * bit)


@gluon.jit
def _store_sums(sums_s, at: gl.constexpr, x):
    """Keep sums over each segment's tokens, eight channels of them in each token's lanes."""
    found = _folded(_folded(_folded(x, 4, BY_32), 2, BY_16), 1, BY_8)
    sums_s.slice(at, SEGMENTS).store(gl.reshape(found, [SEGMENTS, 64]))


@gluon.jit
def _rows(sums_s, at: gl.constexpr):
    """A sum of each segment."""
    found = ()
    for segment in gl.static_range(8):
        found += (sums_s.slice(at + segment, 1).load(ROW),)
    return found


@gluon.jit
def _store_passing(pieces, sums_s, across, K: gl.constexpr):
    """Write what each segment's gates have of pairs that begin and end outside it."""
    reading = _rows(sums_s, READING)
    writing = _rows(sums_s, WRITING)
    wide = _rows(sums_s, CROSSING)
    narrow = _rows(sums_s, CROSSING + SEGMENTS)
    channel = gl.arange(0, 64, layout=gl.SliceLayout(0, ROW))[None, :]
    for segment in gl.static_range(8):
        found = across
        for other in gl.static_range(8):
            # From the state to later segments, from earlier ones to the next state.
            if other < segment:
                found += writing[other]
                if segment < 4:
                    found += wide[other]
            if other > segment:
                found += reading[other]
                if segment >= 4:
                    found += wide[other]
        if segment % 4 == 1:
            found += narrow[segment - 1]
        if segment % 4 == 2:
            found += narrow[segment + 1]
        gl.store(pieces + segment * K + channel, found)


@gluon.jit
def _tokens(x):
    """Tokens of each segment ``[8, 64]``, one by one, of a tile."""
    x = gl.permute(gl.reshape(x, [8, 2, 2, 2, 64]), (0, 4, 3, 2, 1))
    early, late = gl.split(x)
    a, b = gl.split(early)
    c, d = gl.split(late)
    pairs = (a, b, c, d)
    found = ()
    for pair in gl.static_range(4):
        even, odd = gl.split(pairs[pair])
        found += (gl.convert_layout(even, WALKER, assert_trivial=True),)
        found += (gl.convert_layout(odd, WALKER, assert_trivial=True),)
    return found


@gluon.jit
def _in_turn(x):
    """Rows of eight tensors ``[N, 64]``, the first of each before the second of any."""
    early = gl.join(gl.join(x[0], x[1]), gl.join(x[2], x[3]))
    late = gl.join(gl.join(x[4], x[5]), gl.join(x[6], x[7]))
    found = gl.permute(gl.join(early, late), (0, 4, 3, 2, 1))
    return gl.reshape(found, [8 * x[0].shape[0], 64])


@gluon.jit
def _tile_of(x):
    """The tile whose tokens are these."""
    return gl.convert_layout(_in_turn(x), WALKED, assert_trivial=True)


@gluon.jit
def _walk(q_s, left_s, k_s, gates, strength, totals_s, dtype: gl.constexpr):
    """Make of q and k in shared memory the operands of pairs of segments.

    Queries and what is erased decay from the start of their segment on, keys until its end.
    """
    decays = _tokens(step_decay(gates.to(gl.float32)))
    k = k_s.load(WALKED).to(gl.float32)
    queries = _tokens(q_s.load(WALKED).to(gl.float32))
    lefts = _tokens(k * strength)
    since = decays[0]
    from_q = (queries[0] * since,)
    from_left = (lefts[0] * since,)
    for s in gl.static_range(1, 8):
        since *= decays[s]
        from_q += (queries[s] * since,)
        from_left += (lefts[s] * since,)
    totals_s.store(since)
    q_s.store(_tile_of(from_q).to(dtype))
    left_s.store(_tile_of(from_left).to(dtype))
    keys = _tokens(k)
    until = decays[7]
    to_k = (keys[7],)
    for s in gl.static_range(6, -1, -1):
        to_k = (keys[s] * until,) + to_k
        until *= decays[s]
    k_s.store(_tile_of(to_k).to(dtype))


@gluon.jit
def _between(totals_s, before_s, behind_s, middle_s, quarter_s, total_s):
    """Decays between each segment and the chunk's start, its end, and the middles in between."""
    segments = ()
    for s in gl.static_range(8):
        segments += (totals_s.slice(s, 1).load(ROW),)
    one = gl.full([1, 64], 1.0, gl.float32, layout=ROW)
    before = (one,)
    behind = (one,)
    for s in gl.static_range(7):
        before += (before[s] * segments[s],)
        behind = (behind[0] * segments[7 - s],) + behind
    before_s.store(_in_turn(before))
    behind_s.store(_in_turn(behind))
    total_s.store(gl.reshape(before[7] * segments[7], [64]))
    two, five = segments[3] * segments[2], segments[4] * segments[5]
    early = (two * segments[1], two, segments[3], one)
    middle_s.store(_in_turn(early + (one, segments[4], five, five * segments[6])))
    early = (segments[1], one, one, segments[2])
    quarter_s.store(_in_turn(early + (segments[5], one, one, segments[6])))


@gluon.jit
def _paired(level: gl.constexpr):
    """Pairs of a level: those of the two halves of a group of segments."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, LEFT)) // 8
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, LEFT)) // 8
    return ((row[:, None] ^ column[None, :]) >> level) == 1


@gluon.jit
def _copy(
    step: gl.constexpr,
    tiles_s,
    gates_s,
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
        q, k, g, reads, errors = of_pairs
        copy_tile(tiles_s.index(at), q, left, H * K, 64, 64)
        copy_tile(tiles_s.index(at + 2), k, left, H * K, 64, 64)
        if g.dtype.element_ty == gl.float32:
            wide: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
            row = gl.arange(0, 64, layout=gl.SliceLayout(1, wide))
            channel = gl.arange(0, 64, layout=gl.SliceLayout(0, wide))
            async_copy.async_copy_global_to_shared(
                gates_s, g + row[:, None] * (H * K) + channel[None, :], mask=(row < left)[:, None]
            )
        else:
            copy_tile(tiles_s.index(at + 1), g, left, H * K, 64, 64)
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
        mixed *= _decays(decays_s)
    mixed_s.store(_as_tile(mixed.to(dtype)))
    fence_async_shared()
    scores = gl.where(_paired(level), scores_s.load(LEFT), 0.0)
    gl.thread_barrier()
    zero = gl.zeros([64, 64], gl.float32, layout=PRODUCT)
    found = warpgroup_mma(scores.to(dtype), mixed_s, zero, use_acc=False, is_async=True)
    found = _by_segments(warpgroup_mma_wait(0, deps=[found]))
    crossing = _by_segments(mixed_s.load(PRODUCT)) * found
    if level > 0:
        found *= _decays(decays_s)
    return found, crossing


@gluon.jit(do_not_specialize=["T", "scale"])
def across_segments(
    q,
    k,
    g,
    erase,
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
    CHANNELS: gl.constexpr,
    WITH_GATES: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: 64 channels of one chunk of one head; K and V are multiples of 64.

    ``erase``: strengths of channels (``CHANNELS``) or of heads. If ``WITH_GATES``, ``pieces
    [slots, H, SEGMENTS, K]`` takes for each segment what passes over it.
    """
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
    mine = pieces + slot * (SEGMENTS * K) + row
    dtype: gl.constexpr = k.dtype.element_ty

    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tiles_s = gl.allocate_shared_memory(dtype, [10, 64, 64], matrix)
    mixed_s = gl.allocate_shared_memory(dtype, [2, 64, 64], matrix)
    before_s = gl.allocate_shared_memory(gl.float32, [SEGMENTS, 64], plain)
    behind_s = gl.allocate_shared_memory(gl.float32, [SEGMENTS, 64], plain)
    middle_s = gl.allocate_shared_memory(gl.float32, [SEGMENTS, 64], plain)
    quarter_s = gl.allocate_shared_memory(gl.float32, [SEGMENTS, 64], plain)
    totals_s = gl.allocate_shared_memory(gl.float32, [SEGMENTS, 64], plain)
    total_s = gl.allocate_shared_memory(gl.float32, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # Gates in float32; narrow ones come where what is erased will be.
    gates_s = mixed_s._reinterpret(gl.float32, [64, 64], plain)

    of_values = (states + corner, dstates + corner, do + values, y + values, v_new + values)
    of_pairs = (q + keys, k + keys, g + keys, reads + scores, errors + scores)
    _copy(0, tiles_s, gates_s, of_values, of_pairs, left, H, K, V)
    _copy(1, tiles_s, gates_s, of_values, of_pairs, left, H, K, V)

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
                # Plus a zero that the compiler does not know: else addresses of all tiles of V are
                # formed before the first, and spill.
                again = (T >> 31) * (step + 1)
                down = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED)) + again
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
        _copy(step + 2, tiles_s, gates_s, of_values, of_pairs, left, H, K, V)
    down = gl.arange(0, 64, layout=gl.SliceLayout(1, WALKED))[:, None]
    right = gl.arange(0, 64, layout=gl.SliceLayout(0, WALKED))[None, :]
    if CHANNELS:
        strength = gl.load(
            erase + keys + down * (H * K) + right, mask=down + 0 * right < left, other=0.0
        )
    else:
        strength = gl.load(erase + token + down * H, mask=down < left, other=0.0)
    async_copy.wait_group(0)

    at: gl.constexpr = NV % 2 * 5
    from_q_s = tiles_s.index(at)
    from_left_s = tiles_s.index(at + 1)
    to_k_s = tiles_s.index(at + 2)
    if g.dtype.element_ty == gl.float32:
        gates = gates_s.load(WALKED)
    else:
        # Where q has another dtype of 16 bits, its tile holds the bits of gates as they are.
        gates = from_left_s._reinterpret(g.dtype.element_ty, [64, 64], matrix).load(WALKED)
    _walk(from_q_s, from_left_s, to_k_s, gates, strength.to(gl.float32), totals_s, dtype)
    _between(totals_s, before_s, behind_s, middle_s, quarter_s, total_s)
    before = _decays(before_s)
    of_q = _by_segments(acc_q) * (before * scale)
    of_left = _by_segments(acc_left) * -before
    of_k = _by_segments(acc_k) * _decays(behind_s)
    if WITH_GATES:
        reading = _by_segments(from_q_s.load(PRODUCT)) * of_q
        reading += _by_segments(from_left_s.load(PRODUCT)) * of_left
        # In the memory of a tile of V that nobody reads any more.
        sums_s = tiles_s.index(9 - at)._reinterpret(gl.float32, [4 * SEGMENTS, 64], plain)
        _store_sums(sums_s, READING, reading)
        _store_sums(sums_s, WRITING, _by_segments(to_k_s.load(PRODUCT)) * of_k)
        total_s.store(across * total_s.load(gl.SliceLayout(1, STORED)))

    segment = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, BY_SEGMENTS)))
    segment = segment[:, None, None]
    for level in gl.static_range(3):
        # Halves of one, two and four segments; the first touch each other in the middle.
        later = ((segment >> level) & 1) == 1
        if level == 2:
            decays_s = middle_s
        else:
            decays_s = quarter_s
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
            _store_sums(sums_s, CROSSING + SEGMENTS * (2 - level), crossing + more)
    if WITH_GATES:
        whole = gl.expand_dims(total_s.load(gl.SliceLayout(0, ROW)), 0)
        _store_passing(mine, sums_s, whole, K)
    store_tile(over_q + keys, _as_tile(of_q), tiles_s.index(at), left, H * K)
    store_tile(over_left + keys, _as_tile(of_left), tiles_s.index(at + 1), left, H * K)
    store_tile(over_k + keys, _as_tile(of_k), tiles_s.index(at + 2), left, H * K)
