"""Gradients of q, k, v and gates in every chunk on Hopper, where each token has a gate.

What ``fla_triton``'s ``chunk_gradients`` computes, whose notation this keeps, in chunks of one
block. Two warpgroups share the columns of every product, so that two programs fit the registers and
the shared memory of a multiprocessor: q and k lie there whole, V passes in tiles of 64.

Gradients of gates are written as they are: sums over pairs ``j < t <= i`` by a product with ones,
and with what queries read of the state before and keys leave behind, one sum over rows,

    dg_t = sum_{i >= t} (x_i + q_i . a_i) + sum_{j < t} k_j . b_j + exp(G_C) <S, dS>.

Bytes a token and head: q, k, v, do read and dq, dk, dv written, and K V / C of S and of dS read.
Flops: 6 K V + (6 K + 4 V) C. On an H200 0.324 ms at B2 T8192 H16 K = V = 128 in bfloat16, where the
portable kernel and its sums take 0.379: 54 % of the rate of copying. 0.09 of it are gradients of
gates.
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

from fla_backend_cuda.hopper.kernels.copies import chunk_at, copy_tile, first_slot, sequence_at
from fla_triton.kernels.common import decay

WARPS = gl.constexpr(8)
SQUARE = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16])
)
"""Products of 64 columns."""
MATRIX = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0]))


@gluon.jit
def _write(x, tile_s, left, stride: gl.constexpr, D: gl.constexpr):
    """Write rows of shared memory, of which ``left`` are there."""
    across: gl.constexpr = D // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // across, across], [8, 1], [1, 0])
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    places = x + rows[:, None] * stride + columns[None, :]
    gl.store(places, tile_s.load(layout), mask=(rows < left)[:, None])


@gluon.jit
def _pair_decays(sums):
    """``exp`` of the gates between tokens, later by row; zero above the diagonal."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, SQUARE))
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, SQUARE))
    causal = row[:, None] >= column[None, :]
    whole = gl.load(sums + 128 + row)[:, None] - gl.load(sums + 128 + column)[None, :]
    rest = gl.load(sums + 192 + row)[:, None] - gl.load(sums + 192 + column)[None, :]
    return gl.where(causal, decay(gl.where(causal, whole + rest, 0.0)), 0.0)


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
def _before():
    """Ones where ``j < t``."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, SQUARE))
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, SQUARE))
    return gl.where(row[:, None] < column[None, :], 1.0, 0.0).to(gl.bfloat16)


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

    q_s = gl.allocate_shared_memory(dtype, [64, K], MATRIX)
    k_s = gl.allocate_shared_memory(dtype, [64, K], MATRIX)
    do_s = gl.allocate_shared_memory(dtype, [BUFFERS, 64, 64], MATRIX)
    v_s = gl.allocate_shared_memory(dtype, [BUFFERS, 64, 64], MATRIX)
    state_s = gl.allocate_shared_memory(dtype, [K, 64], MATRIX)
    dstate_s = gl.allocate_shared_memory(dtype, [K, 64], MATRIX)
    scores_s = gl.allocate_shared_memory(dtype, [64, 64], MATRIX)
    vectors: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    across_s = gl.allocate_shared_memory(gl.float32, [NV, 32], vectors)

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
    until = decay(gl.load(given + 64 + square_row))

    async_copy.wait_group(BUFFERS)
    fence_async_shared()
    gl.thread_barrier()
    scores = gl.zeros([64, 64], gl.float32, layout=SQUARE)
    scores = warpgroup_mma(q_s, k_s.permute([1, 0]), scores, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    scores *= scale
    scores_s.store((scores * _pair_decays(given)).to(dtype))

    acc_p = gl.zeros([64, 64], gl.float32, layout=SQUARE)
    acc_q = gl.zeros([64, K], gl.float32, layout=wide)
    acc_k = gl.zeros([64, K], gl.float32, layout=wide)
    for tile in gl.static_range(NV):
        do_t = do_s.index(tile % 2)
        v_t = v_s.index(tile % 2)
        async_copy.wait_group(1 if tile + 1 < NV else 0)
        fence_async_shared()
        gl.thread_barrier()
        if WITH_GATES:
            products = gl.zeros([32, 64], gl.float32, layout=STORED)
            for part in gl.static_range(0, K, 32):
                state = state_s.slice(part, 32).load(STORED).to(gl.float32)
                products += state * dstate_s.slice(part, 32).load(STORED).to(gl.float32)
            # Not kept in registers: there, all factors stay until the sum is asked for.
            across_s.index(tile).store(gl.sum(products, 1))
        acc_v = gl.zeros([64, 64], gl.float32, layout=SQUARE)
        acc_v = warpgroup_mma(k_s, dstate_s, acc_v, use_acc=False, is_async=True)
        acc_p = warpgroup_mma(do_t, v_t.permute([1, 0]), acc_p, use_acc=tile > 0, is_async=True)
        acc_q = warpgroup_mma(do_t, state_s.permute([1, 0]), acc_q, use_acc=tile > 0, is_async=True)
        acc_k = warpgroup_mma(v_t, dstate_s.permute([1, 0]), acc_k, use_acc=tile > 0, is_async=True)
        acc_v, acc_p, acc_q, acc_k = warpgroup_mma_wait(0, deps=[acc_v, acc_p, acc_q, acc_k])
        gl.thread_barrier()
        if tile + 1 < NV:
            copy_tile(state_s, states + corner + (tile + 1) * 64, K, V, K, 64, WARPS)
            copy_tile(dstate_s, dstates + corner + (tile + 1) * 64, K, V, K, 64, WARPS)
            async_copy.commit_group()
        acc_v *= until[:, None]
        acc_v = warpgroup_mma(scores_s.permute([1, 0]), do_t, acc_v, is_async=True)
        acc_v = warpgroup_mma_wait(0, deps=[acc_v])
        v_t.store(acc_v.to(dtype))
        gl.thread_barrier()
        _write(dv + token * V + tile * 64, v_t, left, H * V, 64)
        if tile + 2 < NV:
            gl.thread_barrier()
            copy_tile(do_t, do + token * V + (tile + 2) * 64, left, H * V, 64, 64, WARPS)
            copy_tile(v_t, v + token * V + (tile + 2) * 64, left, H * V, 64, 64, WARPS)
            async_copy.commit_group()

    row = gl.arange(0, 64, layout=gl.SliceLayout(1, wide))
    acc_q *= (decay(gl.load(given + row)) * scale)[:, None]
    acc_k *= decay(gl.load(given + 64 + row))[:, None]
    # What was read of V and of states is of no use any more.
    dscores_s = state_s.slice(0, 64)
    if WITH_GATES:
        high_s = do_s.index(0)._reinterpret(gl.bfloat16, [64, 64], MATRIX)
        low_s = scores_s._reinterpret(gl.bfloat16, [64, 64], MATRIX)
        before_s = dstate_s.slice(0, 64)._reinterpret(gl.bfloat16, [64, 64], MATRIX)
        terms = acc_p * scores_s.load(SQUARE).to(gl.float32)
        high = terms.to(gl.bfloat16)
        high_s.store(high)
        if dtype == gl.float16:
            low_s.store((terms - high.to(gl.float32)).to(gl.bfloat16))
        before_s.store(_before())
    acc_p *= scale
    dscores_s.store((acc_p * _pair_decays(given)).to(dtype))
    if WITH_GATES:
        reads = gl.sum(acc_q * q_s.load(wide).to(gl.float32), 1)
        leaves = gl.sum(acc_k * k_s.load(wide).to(gl.float32), 1)
    fence_async_shared()
    gl.thread_barrier()
    acc_q = warpgroup_mma(dscores_s, k_s, acc_q, is_async=True)
    acc_k = warpgroup_mma(dscores_s.permute([1, 0]), q_s, acc_k, is_async=True)
    if WITH_GATES:
        counted = gl.zeros([64, 64], gl.float32, layout=SQUARE)
        counted = warpgroup_mma(high_s, before_s, counted, use_acc=False, is_async=True)
        if dtype == gl.float16:
            counted = warpgroup_mma(low_s, before_s, counted, is_async=True)
        acc_q, acc_k, counted = warpgroup_mma_wait(0, deps=[acc_q, acc_k, counted])
    else:
        acc_q, acc_k = warpgroup_mma_wait(0, deps=[acc_q, acc_k])
    gl.thread_barrier()
    q_s.store(acc_q.to(dtype))
    k_s.store(acc_k.to(dtype))
    gl.thread_barrier()
    _write(dq + token * K, q_s, left, H * K, K)
    _write(dk + token * K, k_s, left, H * K, K)
    if WITH_GATES:
        gate = gl.arange(0, 64, layout=gl.SliceLayout(0, SQUARE))
        later = square_row[:, None] >= gate[None, :]
        reads = gl.convert_layout(reads, gl.SliceLayout(1, SQUARE))[:, None]
        leaves = gl.convert_layout(leaves, gl.SliceLayout(1, SQUARE))[:, None]
        found = gl.sum(gl.where(later, counted + reads, leaves), 0)
        through = 0.0
        for tile in gl.static_range(NV):
            through += gl.sum(across_s.index(tile).load(gl.SliceLayout(1, STORED)), 0)
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
