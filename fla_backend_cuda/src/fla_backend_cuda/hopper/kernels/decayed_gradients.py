"""Gradients of q, k, v and gates in every chunk on Hopper, where each token has a gate.

What ``fla_triton``'s ``chunk_gradients`` computes, whose notation this keeps, in chunks of one
block. Two warpgroups share the columns of every product, so that two programs fit the registers and
the shared memory of a multiprocessor: q and k lie there whole, V passes in tiles of 64.

Gradients of gates are written as they are. With x_ij the product of a score and its gradient,
summed over rows and over columns, with what queries read of the state before and keys leave behind,

    dg_t = sum_{i >= t} (q_i . a_i + sum_{j < i} x_ij - sum_{j > i} x_ji)
           + sum_{j < t} k_j . b_j + exp(G_C) <S, dS>,

where ``<S, dS>`` is the trace of a product. What cancels is left out, not subtracted: pairs of a
token with itself and, of sums of keys, what lies behind t. Under fast decay these alone are large.
Errors are 0.4 of what rounding the inputs does, in bfloat16, where a product of rounded pairs with
ones had 0.5; ``q . dq - k . dk`` summed over 8192 tokens would have 8 (emulated against float64).

Bytes a token and head: q, k, v, do read and dq, dk, dv written, and K V / C of S and of dS read.
Flops: 6 K V + (6 K + 4 V) C, and 2 K V for gates. On an H200 0.245 ms at B2 T8192 H16 K = V = 128
in bfloat16: 71 % of the rate of copying. With 216 bytes a thread of addresses that spilled, each
formed once, 0.307; they are formed anew in each phase. 24 bytes spilled where that was timed, 8 do
since rows are read from shared memory before their addresses are formed.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: C901, SIM102

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
    write_tile,
)
from fla_backend_cuda.hopper.kernels.lanes import quick_exp2
from fla_triton.kernels.common import decay

WARPS = gl.constexpr(8)
SQUARE = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
)
"""Products of 64 columns."""
MATRIX = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0]))


@gluon.jit
def _zero(T):
    """Zero, which the compiler does not know.

    What a phase indexes with its own multiple of it is addressed anew. Else addresses of memory and
    descriptors of tiles lie in registers from where they are first formed, and spill.
    """
    return T >> 31


@gluon.jit
def _decayed(pairs, sums):
    """Pairs of tokens, later by row, times ``exp`` of the gates between; zero above the diagonal.

    Rounding may leave a decay a little above one: less than 16 bits show.
    """
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, SQUARE))
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, SQUARE))
    causal = row[:, None] >= column[None, :]
    whole = gl.load(sums + 128 + row)[:, None] - gl.load(sums + 128 + column)[None, :]
    rest = gl.load(sums + 192 + row)[:, None] - gl.load(sums + 192 + column)[None, :]
    return gl.where(causal, pairs * quick_exp2(whole + rest), 0.0)


@gluon.jit
def _across_ends(
    states,
    dstates,
    start,
    dlast,
    outer,
    begins,
    ends,
    K: gl.constexpr,
    V: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_DLAST: gl.constexpr,
):
    """``<S, dS>`` where a sequence begins or ends: states are the caller's own, not rounded.

    Of one token's gate they may be all there is.
    """
    down = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))[:, None]
    right = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))[None, :]
    found = gl.zeros([64, 64], gl.float32, layout=STORED)
    for corner in range(0, K * V, 64 * V):
        for column in range(0, V, 64):
            places = corner + column + down * V + right
            state = gl.load(states + places).to(gl.float32)
            dstate = gl.load(dstates + places).to(gl.float32)
            if HAS_START:
                given = gl.load(start + outer + places, mask=(places >= 0) & begins, other=0.0)
                state = gl.where(begins, given, state)
            if HAS_DLAST:
                given = gl.load(dlast + outer + places, mask=(places >= 0) & ends, other=0.0)
                dstate = gl.where(ends, given, dstate)
            found += state * dstate
    return gl.sum(gl.sum(found, 1), 0)


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _before(before, whole, before_later, whole_later):
    """Of a stretch of tokens and the next one: the sum before the last token, and the whole."""
    return whole + before_later, whole + whole_later


@gluon.jit
def _by_warpgroup(x, COLUMNS: gl.constexpr):
    """Sums over rows of ``[64, COLUMNS]``, one for each warpgroup, ``[64, 2]``: no warp waits."""
    return gl.sum(gl.reshape(x, [64, 2, COLUMNS // 2]), 2)


@gluon.jit(do_not_specialize=["T", "scale"])
def decayed_chunk_gradients(
    q,
    k,
    v,
    sums,
    do,
    states,
    dstates,
    start,
    dlast,
    dq,
    dk,
    dv,
    dg,
    parts,
    cu,
    table,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_DLAST: gl.constexpr,
    WITH_G: gl.constexpr,
    WITH_GAMMA: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: one chunk of one head; K is 64 or 128, V a multiple of 64.

    ``dg [rows, H]``; ``parts [chunks, H]``: its sums, the chunks' parts of the gradient of gamma.
    """
    NV: gl.constexpr = V // 64
    BUFFERS: gl.constexpr = 2 if NV > 1 else 1
    WITH_GATES: gl.constexpr = WITH_G or WITH_GAMMA
    pid = gl.program_id(0)
    h = pid % H
    i = pid // H
    n, c = chunk_at(table, i, T, 64, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    place = (first_slot(first, n, T, 64, VARLEN) + c) * H + h
    left = length - c * 64
    token = (first + c * 64) * H + h
    dtype: gl.constexpr = k.dtype.element_ty
    wide: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, K // 2, 16]
    )

    q_m = gl.allocate_shared_memory(dtype, [1, 64, K], MATRIX)
    k_m = gl.allocate_shared_memory(dtype, [1, 64, K], MATRIX)
    do_s = gl.allocate_shared_memory(dtype, [BUFFERS, 64, 64], MATRIX)
    v_s = gl.allocate_shared_memory(dtype, [BUFFERS, 64, 64], MATRIX)
    state_m = gl.allocate_shared_memory(dtype, [1, K, 64], MATRIX)
    dstate_m = gl.allocate_shared_memory(dtype, [1, K, 64], MATRIX)
    scores_m = gl.allocate_shared_memory(dtype, [1, 64, 64], MATRIX)
    if WITH_GATES:
        parts_of: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        across_s = gl.allocate_shared_memory(gl.float32, [NV, 64, 2], parts_of)
        reads_s = gl.allocate_shared_memory(gl.float32, [64, 2], parts_of)
        leaves_s = gl.allocate_shared_memory(gl.float32, [64, 2], parts_of)
        taken_s = gl.allocate_shared_memory(gl.float32, [64, 4], parts_of)

    again = _zero(T)
    q_s, k_s = q_m.index(again), k_m.index(again)
    state_s, dstate_s = state_m.index(again), dstate_m.index(again)
    corner = place * (K * V)
    copy_tile(q_s, q + token * K, left, H * K, 64, K, WARPS)
    copy_tile(k_s, k + token * K, left, H * K, 64, K, WARPS)
    async_copy.commit_group()
    copy_tile(do_s.index(0), do + token * V, left, H * V, 64, 64, WARPS)
    copy_tile(v_s.index(0), v + token * V, left, H * V, 64, 64, WARPS)
    copy_tile(state_s, states + corner, K, V, K, 64, WARPS)
    copy_tile(dstate_s, dstates + corner, K, V, K, 64, WARPS)
    async_copy.commit_group()
    if NV > 1:
        copy_tile(do_s.index(1), do + token * V + 64, left, H * V, 64, 64, WARPS)
        copy_tile(v_s.index(1), v + token * V + 64, left, H * V, 64, 64, WARPS)
        async_copy.commit_group()

    given = sums + place * 256
    square_row = gl.arange(0, 64, layout=gl.SliceLayout(1, SQUARE))

    async_copy.wait_group(BUFFERS)
    fence_async_shared()
    gl.thread_barrier()
    scores = gl.zeros([64, 64], gl.float32, layout=SQUARE)
    scores = warpgroup_mma(q_s, k_s.permute([1, 0]), scores, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    scores *= scale
    scores_m.index(again).store(_decayed(scores, given).to(dtype))
    square_column = gl.arange(0, 64, layout=gl.SliceLayout(0, SQUARE))
    diagonal = square_row[:, None] == square_column[None, :]

    acc_p = gl.zeros([64, 64], gl.float32, layout=SQUARE)
    acc_q = gl.zeros([64, K], gl.float32, layout=wide)
    acc_k = gl.zeros([64, K], gl.float32, layout=wide)
    for tile in gl.static_range(NV):
        again = _zero(T) * (tile + 2)
        k_s, scores_s = k_m.index(again), scores_m.index(again)
        state_s, dstate_s = state_m.index(again), dstate_m.index(again)
        do_t, v_t = do_s.index(tile % 2 + again), v_s.index(tile % 2 + again)
        async_copy.wait_group(1 if tile + 1 < NV else 0)
        fence_async_shared()
        gl.thread_barrier()
        acc_v = gl.zeros([64, 64], gl.float32, layout=SQUARE)
        if WITH_GATES:
            # A product for its diagonal alone, which takes less than to load and multiply numbers.
            acc_s = gl.zeros([64, 64], gl.float32, layout=SQUARE)
            for part in gl.static_range(0, K, 64):
                dstate = dstate_s.slice(part, 64).permute([1, 0])
                state = state_s.slice(part, 64)
                acc_s = warpgroup_mma(state, dstate, acc_s, use_acc=part > 0, is_async=True)
        else:
            acc_v = warpgroup_mma(k_s, dstate_s, acc_v, use_acc=False, is_async=True)
        acc_p = warpgroup_mma(do_t, v_t.permute([1, 0]), acc_p, use_acc=tile > 0, is_async=True)
        acc_q = warpgroup_mma(do_t, state_s.permute([1, 0]), acc_q, use_acc=tile > 0, is_async=True)
        acc_k = warpgroup_mma(v_t, dstate_s.permute([1, 0]), acc_k, use_acc=tile > 0, is_async=True)
        if WITH_GATES:
            acc_s, acc_p, acc_q, acc_k = warpgroup_mma_wait(3, deps=[acc_s, acc_p, acc_q, acc_k])
            across_s.index(tile).store(_by_warpgroup(gl.where(diagonal, acc_s, 0.0), 64))
            # Not before: registers hold four of these five products.
            acc_v = warpgroup_mma(k_s, dstate_s, acc_v, use_acc=False, is_async=True)
        until = decay(gl.load(given + again + 64 + square_row))
        acc_v, acc_p, acc_q, acc_k = warpgroup_mma_wait(0, deps=[acc_v, acc_p, acc_q, acc_k])
        gl.thread_barrier()
        if tile + 1 < NV:
            copy_tile(state_s, states + corner + (tile + 1) * 64, K, V, K, 64, WARPS, again)
            copy_tile(dstate_s, dstates + corner + (tile + 1) * 64, K, V, K, 64, WARPS, again)
            async_copy.commit_group()
        acc_v *= until[:, None]
        acc_v = warpgroup_mma(scores_s.permute([1, 0]), do_t, acc_v, is_async=True)
        acc_v = warpgroup_mma_wait(0, deps=[acc_v])
        v_t.store(acc_v.to(dtype))
        gl.thread_barrier()
        write_tile(dv + token * V + tile * 64, v_t, left, H * V, 64, 64, WARPS, again)
        if tile + 2 < NV:
            gl.thread_barrier()
            copy_tile(do_t, do + token * V + (tile + 2) * 64, left, H * V, 64, 64, WARPS, again)
            copy_tile(v_t, v + token * V + (tile + 2) * 64, left, H * V, 64, 64, WARPS, again)
            async_copy.commit_group()

    again = _zero(T) * (NV + 2)
    q_s, k_s, scores_s = q_m.index(again), k_m.index(again), scores_m.index(again)
    given += again
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, wide))
    acc_q *= (decay(gl.load(given + row)) * scale)[:, None]
    acc_k *= decay(gl.load(given + 64 + row))[:, None]
    # What was read of V and of states is of no use any more.
    dscores_s = state_m.index(again).slice(0, 64)
    if WITH_GATES:
        terms = gl.where(diagonal, 0.0, acc_p * scores_s.load(SQUARE).to(gl.float32))
        taken = gl.sum(gl.reshape(terms, [4, 16, 64]), 1)
        taken_s.store(gl.permute(taken, [1, 0]))
        reads = _by_warpgroup(acc_q * q_s.load(wide).to(gl.float32), K)
        reads += gl.convert_layout(_by_warpgroup(terms, 64), reads.type.layout)
        reads_s.store(reads)
        leaves_s.store(_by_warpgroup(acc_k * k_s.load(wide).to(gl.float32), K))
    acc_p *= scale
    dscores_s.store(_decayed(acc_p, given).to(dtype))
    fence_async_shared()
    gl.thread_barrier()
    acc_q = warpgroup_mma(dscores_s, k_s, acc_q, is_async=True)
    acc_k = warpgroup_mma(dscores_s.permute([1, 0]), q_s, acc_k, is_async=True)
    if WITH_GATES:
        # Every warp sums all tokens, while products run: none waits for another.
        two: gl.constexpr = gl.BlockedLayout([2, 2], [32, 1], [WARPS, 1], [1, 0])
        four: gl.constexpr = gl.BlockedLayout([2, 4], [32, 1], [WARPS, 1], [1, 0])
        every: gl.constexpr = gl.BlockedLayout([2], [32], [WARPS], [0])
        gate = gl.arange(0, 64, layout=every)
        reads = gl.convert_layout(gl.sum(reads_s.load(two), 1), every)
        taken = gl.convert_layout(gl.sum(taken_s.load(four), 1), every)
        leaves = gl.convert_layout(gl.sum(leaves_s.load(two), 1), every)
        found = gl.associative_scan(reads - taken, 0, _add, reverse=True)
        nothing = gl.zeros([64], gl.float32, layout=every)
        found += gl.associative_scan((nothing, leaves), 0, _before)[0]
        through = 0.0
        for tile in gl.static_range(NV):
            through += gl.sum(gl.sum(across_s.index(tile).load(two), 1), 0)
        if HAS_START or HAS_DLAST:
            if (c == 0) | (left <= 64):
                outer = (n.to(gl.int64) * H + h) * (K * V)
                through = _across_ends(
                    states + corner,
                    dstates + corner,
                    start,
                    dlast,
                    outer,
                    c == 0,
                    left <= 64,
                    K,
                    V,
                    HAS_START,
                    HAS_DLAST,
                )
        found += through * decay(gl.load(given + 63))
        if WITH_G:
            gl.store(dg + token + gate * H, found, mask=gate < left)
        if WITH_GAMMA:
            total = gl.sum(gl.where(gate < left, found, 0.0), 0)
            gl.store(parts + i.to(gl.int64) * H + h, total)
    # The last tile is named, or its place would be another's while the products read it.
    acc_q, acc_k, _ = warpgroup_mma_wait(0, deps=[acc_q, acc_k, dscores_s])
    gl.thread_barrier()
    q_s.store(acc_q.to(dtype))
    k_s.store(acc_k.to(dtype))
    gl.thread_barrier()
    write_tile(dq + token * K, q_s, left, H * K, 64, K, WARPS, again)
    write_tile(dk + token * K, k_s, left, H * K, 64, K, WARPS, again)
