"""Linear attention over time on Hopper: the state never leaves the chip, and warps have roles.

Per chunk of C tokens and tile of V, with running log decays G and their total G_C,

    o_i = scale exp(G_i) S^T q_i + sum_{j <= i} P_ij v_j,
    P_ij = scale exp(G_i - G_j) (q_i . k_j),
    S <- exp(G_C) S + sum_j k_j (exp(G_C - G_j) v_j)^T,

and ``o_i / w_i`` where attention is normalised by a given ``w [rows, H]``.

One warpgroup, the chain, holds S transposed in registers and hands each chunk's over in shared
memory; ``WRITERS`` others score the pairs of a chunk and multiply out its outputs; the last copies
operands into shared memory, ``STAGES`` chunks ahead, and sums the gates.

Where every key channel has its own decay (``CHANNEL``), q and k come weighted with their decays,
the scores P are given, and so is what a chunk leaves of each row of S (``channel_prepare``).

Bytes of a head and tile of 64 columns: q, k and v read and o written, for channels C of P a token
besides; k and v once more where a second half walks over the first. Flops a token and head:
4 K V + 2 C V, and 2 C K for each tile of V unless ``CHANNEL``.

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16 with one decay a head that does not
change: 0.116 ms in two halves, 54 % of the rate of copying for what is read and written once, and
0.159 in one piece, 1.24 us a chunk. With a gate a token 0.125; loaded into registers, where every
warp waits for its own copy of each chunk's, they took 0.143. Without a decay 0.096.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: C901, SIM102, SIM108

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fla_backend_cuda.hopper.kernels.copies import (
    barriers_of,
    copy_gates,
    copy_steps,
    copy_tile,
    first_slot,
    sequence_at,
)
from fla_backend_cuda.hopper.kernels.lanes import quick_exp2
from fla_triton.kernels.common import FLOOR, LOG2E


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _decay(exponent):
    """``2 ** exponent`` where rounding may have left the exponent a little above zero."""
    return gl.exp2(gl.where(exponent > 0.0, 0.0, exponent))


@gluon.jit
def _log2(gate):
    """A log decay to base 2, as far as float32 can tell it from zero."""
    return gl.where(gate < FLOOR, FLOOR, gate) * LOG2E


@gluon.jit
def _sum_gates(tiles, i, gate, unit, live, HAS_G: gl.constexpr):
    """Write the decays of a chunk's tokens, summed as ``fla_triton``'s ``running_gates`` does."""
    q_s, k_s, v_s, p_s, state_s, total_s, gate_s, since_s, into_s, whole_s, rest_s = tiles
    if HAS_G:
        exponent = _log2(gate)
        one = gl.floor(exponent + 0.5)
        part = exponent - one
    else:
        one = gl.where(live, 1.0, 0.0)
        part = one * 0.0
    whole = gl.associative_scan(one, 0, _add)
    rest = gl.associative_scan(part, 0, _add)
    all_whole = gl.sum(one, 0)
    left = gl.sum(part, 0)
    since_s.index(i).store(_decay(whole * unit + rest))
    into_s.index(i).store(_decay((all_whole - whole) * unit + (left - rest)))
    whole_s.index(i).store(whole)
    rest_s.index(i).store(rest)


@gluon.jit
def _unit_of(gamma, h, HAS_G: gl.constexpr, HAS_GAMMA: gl.constexpr):
    """By what a whole number of a running sum is multiplied."""
    if HAS_GAMMA and not HAS_G:
        unit = _log2(gl.load(gamma + h).to(gl.float32))
    else:
        unit = 1.0
    return unit


@gluon.jit
def _copy(
    operands,
    tiles,
    barriers,
    place,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    C: gl.constexpr,
    STAGES: gl.constexpr,
    HAS_G: gl.constexpr,
    HAS_GAMMA: gl.constexpr,
    CHANNEL: gl.constexpr,
):
    """Fill the ring of operands."""
    q, k, v, g, gamma, scores, totals, w, o, scale = operands
    q_s, k_s, v_s, p_s, state_s, total_s, gate_s, since_s, into_s, whole_s, rest_s = tiles
    full, empty, gates_full, state_full, state_empty = barriers
    first, length, begin, end, h, column, slot = place
    # Every warp has all tokens: a running sum crosses no warps.
    every: gl.constexpr = gl.BlockedLayout([C // 32], [32], [4], [0])
    steps = gl.arange(0, C, layout=every)
    unit = _unit_of(gamma, h, HAS_G, HAS_GAMMA)
    if HAS_G:
        # A ring further ahead than operands: where there is room for these, gates have arrived.
        for j in gl.static_range(STAGES):
            copy_gates(gate_s.index(j), g + (first + j * C) * H + h, length - j * C, H, C)
        async_copy.commit_group()
        if HAS_GAMMA:
            fixed = gl.load(gamma + h).to(gl.float32)
    for c in range(end):
        i = c % STAGES
        mbarrier.wait(empty.index(i), ((c // STAGES) & 1) ^ 1)
        row = first + c * C
        left = length - c * C
        copy_tile(k_s.index(i), k + (row * H + h) * K, left, H * K, C, K)
        copy_tile(v_s.index(i), v + (row * H + h) * V + column, left, H * V, C, BV)
        if CHANNEL:
            copy_steps(total_s.index(i), totals + ((slot + c) * H + h) * K, K)
        if c >= begin:
            copy_tile(q_s.index(i), q + (row * H + h) * K, left, H * K, C, K)
            if CHANNEL:
                copy_tile(p_s.index(i), scores + (row * H + h) * C, left, H * C, C, C)
        if HAS_G:
            later = g + (row + STAGES * C) * H + h
            ahead = gate_s.index((c + STAGES) % (2 * STAGES))
            copy_gates(ahead, later, left - STAGES * C, H, C)
        async_copy.mbarrier_arrive(full.index(i), increment_count=False)
        if HAS_G or HAS_GAMMA:
            gate = 0.0
            if HAS_G:
                if c == 0:
                    async_copy.wait_group(0)
                gate = gate_s.index(c % (2 * STAGES)).load(every)
                if HAS_GAMMA:
                    gate = gate + gl.where(steps < left, fixed, 0.0)
            _sum_gates(tiles, i, gate, unit, steps < left, HAS_G)
            mbarrier.arrive(gates_full.index(i), count=1)


@gluon.jit
def _outputs(
    operands,
    tiles,
    barriers,
    place,
    WHICH: gl.constexpr,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    C: gl.constexpr,
    STAGES: gl.constexpr,
    BUFFERS: gl.constexpr,
    WRITERS: gl.constexpr,
    HAS_G: gl.constexpr,
    HAS_GAMMA: gl.constexpr,
    HAS_W: gl.constexpr,
    CHANNEL: gl.constexpr,
):
    """Outputs of every ``WRITERS``-th chunk from its state and pairs, from chunk ``WHICH`` on."""
    q, k, v, g, gamma, scores, totals, w, o, scale = operands
    q_s, k_s, v_s, p_s, state_s, total_s, gate_s, since_s, into_s, whole_s, rest_s = tiles
    full, empty, gates_full, state_full, state_empty = barriers
    first, length, begin, end, h, column, slot = place
    GATED: gl.constexpr = HAS_G or HAS_GAMMA
    dtype: gl.constexpr = v.dtype.element_ty
    over_columns: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BV, 16]
    )
    over_steps: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C, 16]
    )
    of_later: gl.constexpr = gl.SliceLayout(1, over_steps)
    of_earlier: gl.constexpr = gl.SliceLayout(0, over_steps)
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    steps = gl.arange(0, C, layout=gl.SliceLayout(1, stored))
    columns = gl.arange(0, BV, layout=gl.SliceLayout(0, stored))
    tokens = gl.arange(0, C, layout=gl.SliceLayout(1, over_columns))
    causal = gl.arange(0, C, layout=of_later)[:, None] >= gl.arange(0, C, layout=of_earlier)[None]
    unit = _unit_of(gamma, h, HAS_G, HAS_GAMMA)
    # Phases before this one have passed as well: the chain had waited for them.
    mbarrier.wait(state_full.index(WHICH), 0, pred=begin + WHICH < end)
    for c in range(begin + WHICH, end, WRITERS):
        i = c % STAGES
        buffer = (c - begin) % BUFFERS
        phase = ((c - begin) // BUFFERS) & 1
        state = state_s.index(buffer).permute([1, 0])
        row = first + c * C
        if HAS_W:
            weight = gl.load(w + (row + tokens) * H + h, mask=tokens < length - c * C, other=1.0)
        mbarrier.wait(full.index(i), (c // STAGES) & 1)
        fence_async_shared()
        nothing = gl.zeros([C, BV], gl.float32, layout=over_columns)
        if CHANNEL:
            acc = warpgroup_mma(p_s.index(i), v_s.index(i), nothing, use_acc=False, is_async=True)
            mbarrier.wait(state_full.index(buffer), phase)
            fence_async_shared()
            acc = warpgroup_mma(q_s.index(i), state, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(state_empty.index(buffer), count=1)
        else:
            pairs = warpgroup_mma(
                q_s.index(i),
                k_s.index(i).permute([1, 0]),
                gl.zeros([C, C], gl.float32, layout=over_steps),
                use_acc=False,
                is_async=True,
            )
            mbarrier.wait(state_full.index(buffer), phase)
            fence_async_shared()
            acc = warpgroup_mma(q_s.index(i), state, nothing, use_acc=False, is_async=True)
            pairs, acc = warpgroup_mma_wait(1, deps=[pairs, acc])
            if GATED:
                mbarrier.wait(gates_full.index(i), (c // STAGES) & 1)
                whole = whole_s.index(i).load(of_later)
                between = (whole[:, None] - whole_s.index(i).load(of_earlier)[None, :]) * unit
                if HAS_G:
                    rest = rest_s.index(i).load(of_later)
                    rest = rest[:, None] - rest_s.index(i).load(of_earlier)[None, :]
                    between = between + rest
                # Rounding may leave a decay a little above one: less than 16 bits show.
                pairs = pairs * quick_exp2(between)
            pairs = gl.where(causal, pairs * scale, 0.0).to(dtype)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(state_empty.index(buffer), count=1)
            if GATED:
                since = since_s.index(i).load(gl.SliceLayout(1, over_columns)) * scale
                acc = acc * since[:, None]
            else:
                acc = acc * scale
            left: gl.constexpr = gl.DotOperandLayout(0, over_columns, 2)
            pairs = gl.convert_layout(pairs, left)
            acc = warpgroup_mma(pairs, v_s.index(i), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(i), count=1)
        if HAS_W:
            acc = acc * (1.0 / weight)[:, None]
        found = gl.convert_layout(acc.to(dtype), stored)
        places = o + (row * H + h) * V + column
        live = (steps < length - c * C)[:, None]
        gl.store(places + steps[:, None] * (H * V) + columns[None, :], found, mask=live)


@gluon.jit
def _leaving(v_s, into_s, i, layout: gl.constexpr):
    """Values of a chunk, transposed, as the state after it keeps them."""
    into = into_s.index(i).load(gl.SliceLayout(0, layout))
    value = v_s.index(i).permute([1, 0]).load(layout)
    return (value.to(gl.float32) * into[None, :]).to(value.dtype)


@gluon.jit
def _chain(
    operands,
    tiles,
    barriers,
    place,
    ends,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    C: gl.constexpr,
    STAGES: gl.constexpr,
    BUFFERS: gl.constexpr,
    GATED: gl.constexpr,
    CHANNEL: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_LAST: gl.constexpr,
):
    """States, one chunk after the other."""
    q, k, v, g, gamma, scores, totals, w, o, scale = operands
    q_s, k_s, v_s, p_s, state_s, total_s, gate_s, since_s, into_s, whole_s, rest_s = tiles
    full, empty, gates_full, state_full, state_empty = barriers
    first, length, begin, end, h, column, slot = place
    start, last, head, joint, final = ends
    dtype: gl.constexpr = k.dtype.element_ty
    over_keys: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, K, 16]
    )
    left: gl.constexpr = gl.DotOperandLayout(0, over_keys, 2)
    across: gl.constexpr = gl.SliceLayout(0, over_keys)
    rows = column + gl.arange(0, BV, layout=gl.SliceLayout(1, over_keys))
    keys = gl.arange(0, K, layout=across)
    places = keys[None, :] * V + rows[:, None]
    if HAS_START:
        state = gl.load(start + joint * (K * V) + places)
    else:
        state = gl.zeros([BV, K], gl.float32, layout=over_keys)
    if GATED:
        mbarrier.wait(full.index(0), 0, pred=end > 0)
        mbarrier.wait(gates_full.index(0), 0, pred=end > 0)
        value = _leaving(v_s, into_s, 0, left)
        total = since_s.index(0).slice(C - 1, 1).load(across)
    for c in range(end):
        i = c % STAGES
        narrow = state.to(dtype)
        if not GATED:
            mbarrier.wait(full.index(i), (c // STAGES) & 1)
            value = v_s.index(i).permute([1, 0])
        if CHANNEL:
            total = total_s.index(i).load(across)
        if GATED or CHANNEL:
            state = state * total[None, :]
        fence_async_shared()
        state = warpgroup_mma(value, k_s.index(i), state, is_async=True)
        if c >= begin:
            buffer = (c - begin) % BUFFERS
            mbarrier.wait(state_empty.index(buffer), (((c - begin) // BUFFERS) & 1) ^ 1)
            state_s.index(buffer).store(narrow)
            fence_async_shared()
            mbarrier.arrive(state_full.index(buffer), count=1)
        if GATED:
            # What the next chunk needs in registers, while the product runs.
            j = (c + 1) % STAGES
            phase = ((c + 1) // STAGES) & 1
            more = c + 1 < end
            mbarrier.wait(full.index(j), phase, pred=more)
            mbarrier.wait(gates_full.index(j), phase, pred=more)
            value = _leaving(v_s, into_s, j, left)
            total = since_s.index(j).slice(C - 1, 1).load(across)
        state = warpgroup_mma_wait(0, deps=[state])
        mbarrier.arrive(empty.index(i), count=1)
        # No writer comes where chunks are walked again.
        mbarrier.arrive(empty.index(i), count=1, pred=c < begin)
    if HAS_LAST:
        if final:
            gl.store(last + head.to(gl.int64) * (K * V) + places, state)


@gluon.jit(do_not_specialize=["T", "span", "parts", "halves", "share", "scale"])
def decayed_over_time(
    q,
    k,
    v,
    g,
    gamma,
    scores,
    totals,
    w,
    start,
    o,
    last,
    cu,
    T,
    span,
    parts,
    halves,
    share,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    C: gl.constexpr,
    STAGES: gl.constexpr,
    BUFFERS: gl.constexpr,
    WRITERS: gl.constexpr,
    HAS_G: gl.constexpr,
    HAS_GAMMA: gl.constexpr,
    HAS_W: gl.constexpr,
    CHANNEL: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_LAST: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: BV columns of one head's state over half of a segment of one sequence.

    A sequence is cut into ``parts`` segments of ``span`` chunks; ``start [N, H, parts, K, V]`` has
    the state before each, ``last [N, H, K, V]`` takes that after the last one. Of two ``halves``
    the first has ``share`` of 16 chunks; the second walks them again for their state alone.
    """
    pid = gl.program_id(0)
    NV: gl.constexpr = V // BV
    GATED: gl.constexpr = HAS_G or HAS_GAMMA
    column = pid % NV * BV
    half = pid // NV % halves
    part = pid // NV // halves % parts
    head = pid // NV // halves // parts
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    skipped = gl.minimum(part * span, gl.cdiv(length, C))
    slot = first_slot(first, n, T, C, VARLEN) + skipped
    first += skipped * C
    length = gl.maximum(gl.minimum(length - skipped * C, span * C), 0)
    chunks = gl.cdiv(length, C)
    cut = chunks * share // 16
    begin = cut * half
    end = cut + (chunks - cut) * half

    dtype: gl.constexpr = k.dtype.element_ty
    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_s = gl.allocate_shared_memory(dtype, [STAGES, C, K], matrix)
    k_s = gl.allocate_shared_memory(dtype, [STAGES, C, K], matrix)
    v_s = gl.allocate_shared_memory(dtype, [STAGES, C, BV], matrix)
    state_s = gl.allocate_shared_memory(dtype, [BUFFERS, BV, K], matrix)
    full = barriers_of(STAGES, 128)
    empty = barriers_of(STAGES, 2)
    state_full = barriers_of(BUFFERS, 1)
    state_empty = barriers_of(BUFFERS, 1)
    # A name that a form has no use for stands for something that is there.
    if CHANNEL:
        p_s = gl.allocate_shared_memory(dtype, [STAGES, C, C], matrix)
    else:
        p_s = q_s
    if CHANNEL:
        total_s = gl.allocate_shared_memory(gl.float32, [STAGES, K], vector)
    else:
        total_s = q_s
    if HAS_G:
        gate_s = gl.allocate_shared_memory(gl.float32, [2 * STAGES, C], vector)
    else:
        gate_s = q_s
    if GATED:
        since_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
        into_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
        whole_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
        rest_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
        gates_full = barriers_of(STAGES, 1)
    else:
        since_s, into_s, whole_s, rest_s = q_s, q_s, q_s, q_s
        gates_full = full

    operands = (q, k, v, g, gamma, scores, totals, w, o, scale)
    tiles = (q_s, k_s, v_s, p_s, state_s, total_s, gate_s, since_s, into_s, whole_s, rest_s)
    barriers = (full, empty, gates_full, state_full, state_empty)
    place = (first, length, begin, end, h, column, slot)
    joint = head.to(gl.int64) * parts + part
    final = (part == parts - 1) & (half == halves - 1)
    ends = (start, last, head, joint, final)
    # The arguments are spelled out: constants do not survive in a tuple that has a name.
    if WRITERS == 2:
        gl.warp_specialize(
            [
                (
                    _chain,
                    (
                        operands,
                        tiles,
                        barriers,
                        place,
                        ends,
                        H,
                        K,
                        V,
                        BV,
                        C,
                        STAGES,
                        BUFFERS,
                        GATED,
                        CHANNEL,
                        HAS_START,
                        HAS_LAST,
                    ),
                ),
                (
                    _outputs,
                    (
                        operands,
                        tiles,
                        barriers,
                        place,
                        0,
                        H,
                        K,
                        V,
                        BV,
                        C,
                        STAGES,
                        BUFFERS,
                        WRITERS,
                        HAS_G,
                        HAS_GAMMA,
                        HAS_W,
                        CHANNEL,
                    ),
                ),
                (
                    _outputs,
                    (
                        operands,
                        tiles,
                        barriers,
                        place,
                        1,
                        H,
                        K,
                        V,
                        BV,
                        C,
                        STAGES,
                        BUFFERS,
                        WRITERS,
                        HAS_G,
                        HAS_GAMMA,
                        HAS_W,
                        CHANNEL,
                    ),
                ),
                (
                    _copy,
                    (
                        operands,
                        tiles,
                        barriers,
                        place,
                        H,
                        K,
                        V,
                        BV,
                        C,
                        STAGES,
                        HAS_G,
                        HAS_GAMMA,
                        CHANNEL,
                    ),
                ),
            ],
            [4, 4, 4],
            [104, 104, 80],
        )
    else:
        gl.warp_specialize(
            [
                (
                    _chain,
                    (
                        operands,
                        tiles,
                        barriers,
                        place,
                        ends,
                        H,
                        K,
                        V,
                        BV,
                        C,
                        STAGES,
                        BUFFERS,
                        GATED,
                        CHANNEL,
                        HAS_START,
                        HAS_LAST,
                    ),
                ),
                (
                    _outputs,
                    (
                        operands,
                        tiles,
                        barriers,
                        place,
                        0,
                        H,
                        K,
                        V,
                        BV,
                        C,
                        STAGES,
                        BUFFERS,
                        WRITERS,
                        HAS_G,
                        HAS_GAMMA,
                        HAS_W,
                        CHANNEL,
                    ),
                ),
                (
                    _copy,
                    (
                        operands,
                        tiles,
                        barriers,
                        place,
                        H,
                        K,
                        V,
                        BV,
                        C,
                        STAGES,
                        HAS_G,
                        HAS_GAMMA,
                        CHANNEL,
                    ),
                ),
            ],
            [4, 4],
            [144, 80],
        )
