"""Gradients of the delta rule in every chunk on Hopper, with one decay a head, or none.

What ``fla_triton``'s ``delta_gradients`` computes, whose notation this keeps, from the same
operands and in the same places. Everything is tiles of 64 by 64: V lies in shared memory whole, K
passes tile by tile, so that three accumulators and one factor from registers are all that is held,
and two programs share a multiprocessor.

Raw q and k (``NORMS``) have what makes them units in ``pairs`` and in the factors of tokens, so
that accumulators hold E, the gradient at lengths that do not change; with r from x = q or k,

    dx = E - r^2 x (x . E).

Bytes a token and head: q, k, v_new, y, do and C elements of pairs read, dq, dk and dv written once,
dS of each chunk and S of every second; k and v_new of every second chunk again, the latter for each
tile of K. Flops: 7 K V + 8 K C. On an H200 0.41 ms at B2 T8192 H16 K = V = 128 with gates, where
the portable kernel takes 0.75; of raw q and k 0.43, where passes before and after took 0.16. Those
are of a form that spilled 328 bytes a thread and had 28 barriers with gates, 30 with raw q and k;
this one spills 8 and 32 and has 12 and 15, and whole calls take 0.10 ms less.
"""

# ruff: noqa: C901

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fla_backend_cuda.hopper.kernels.copies import chunk_at, copy_tile, first_slot, sequence_at

WEAK = gl.constexpr(0.0625)
"""As in ``fla_triton``'s ``delta_errors``."""

PRODUCT = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
)
LEFT = gl.constexpr(gl.DotOperandLayout(0, PRODUCT, 2))
ROWS = gl.constexpr(gl.SliceLayout(1, PRODUCT))
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
SUMMED = gl.constexpr(gl.BlockedLayout([1, 32], [16, 2], [4, 1], [1, 0]))


@gluon.jit
def _zeros():
    return gl.zeros([64, 64], gl.float32, layout=PRODUCT)


@gluon.jit
def _zero(left):
    """Zero, which the compiler does not know.

    What a phase indexes with its own multiple of it is addressed anew. Else addresses of memory and
    descriptors of tiles lie in registers from where they are first formed, and spill.
    """
    return left >> 31


@gluon.jit
def _store_tile(x, found, left, again, stride: gl.constexpr):
    """Write a tile whose rows lie in threads side by side."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED)) + again
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))
    gl.store(
        x + row[:, None] * stride + column[None, :],
        found.to(x.dtype.element_ty),
        mask=(row < left)[:, None],
    )


@gluon.jit
def _less_along(dx, x, along, left, again, stride: gl.constexpr):
    """Take from a tile that was written what of it lies along its vectors."""
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))[:, None] + again
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))[None, :]
    places = row * stride + column
    live = row + 0 * column < left
    found = gl.load(dx + places, mask=live, other=0.0).to(gl.float32)
    found -= gl.load(x + places, mask=live, other=0.0).to(gl.float32) * along[:, None]
    gl.store(dx + places, found.to(dx.dtype.element_ty), mask=live)


@gluon.jit
def _tiles(N: gl.constexpr, dtype: gl.constexpr):
    """So many tiles of shared memory, each an allocation of its own.

    The compiler puts a barrier between a write and what follows in the same allocation, be it of
    another tile. The first axis is there to be indexed with a zero.
    """
    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    found = ()
    for _ in gl.static_range(N):
        found += (gl.allocate_shared_memory(dtype, [1, 64, 64], matrix),)
    return found


@gluon.jit
def _row_sums(acc, tile_s):
    """Sums over channels of an accumulator times a tile."""
    return gl.sum(acc * tile_s.load(PRODUCT).to(gl.float32), 1)


@gluon.jit
def _next_state(
    state_s, v_near_s, k_near_s, weight, kept, again, NV: gl.constexpr, dtype: gl.constexpr
):
    """Take tiles of S over the chunk before, in place."""
    keys = k_near_s.permute([1, 0]).load(LEFT)
    keys = (keys.to(gl.float32) * weight[None, :]).to(dtype)
    for tile in gl.static_range(NV):
        state = state_s[tile].index(again).load(PRODUCT).to(gl.float32) * kept
        state = warpgroup_mma(keys, v_near_s[tile].index(again), state, is_async=True)
        state = warpgroup_mma_wait(0, deps=[state])
        state_s[tile].index(again).store(state.to(dtype))


@gluon.jit(do_not_specialize=["T", "scale"])
def delta_chunk_gradients(
    q,
    k,
    beta,
    v_new,
    y,
    do,
    pairs,
    since,
    into,
    totals,
    asks,
    unit_q,
    unit_k,
    states,
    dstates,
    start,
    dlast,
    dq,
    dk,
    dv,
    dbeta,
    dg,
    cu,
    table,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    NORMS: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_DLAST: gl.constexpr,
    WITH_G: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: two neighbouring chunks of one head, the later one first.

    K is 64 or 128, and so is V. ``dv`` may be ``y`` and ``dk`` ``v_new``. Of ``GROUP`` heads that
    share a head of q and k each has gradients of its own, under ``NORMS`` those of units.
    """
    NV: gl.constexpr = V // 64
    pid = gl.program_id(0)
    h = pid % H
    i = pid // H
    n, pair = chunk_at(table, i, T, 128, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, 64, VARLEN)
    pair_slot = first_slot(first, n, T, 128, VARLEN)
    dtype: gl.constexpr = k.dtype.element_ty

    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    do_s = _tiles(NV, dtype)
    y_s = _tiles(NV, dtype)
    v_s = _tiles(NV, dtype)
    state_s = _tiles(NV, dtype)
    dstate_s = _tiles(NV, dtype)
    q_m, k_m, pairs_m = _tiles(3, dtype)
    arrives_s = gl.allocate_shared_memory(gl.float32, [64], vector)
    leaves_s = gl.allocate_shared_memory(gl.float32, [64], vector)

    inner = gl.arange(0, 64, layout=ROWS)
    chunks = gl.minimum(gl.cdiv(length, 64) - 2 * pair, 2)
    for step in range(chunks):
        back = chunks - 1 - step
        c = 2 * pair + back
        left = length - c * 64
        token = (first + c * 64) * H + h
        shared = (first + c * 64) * (H // GROUP) + h // GROUP
        place = (slot + c) * H + h
        live = inner < left
        again = _zero(left)
        for tile in gl.static_range(NV):
            along = token * V + tile * 64
            copy_tile(do_s[tile].index(again), do + along, left, H * V, 64, 64, 4, again)
            copy_tile(y_s[tile].index(again), y + along, left, H * V, 64, 64, 4, again)
            copy_tile(v_s[tile].index(again), v_new + along, left, H * V, 64, 64, 4, again)
        copy_tile(pairs_m.index(again), pairs + token * 64, left, H * 64, 64, 64, 4, again)
        strength = gl.load(beta + token + inner * H, mask=live, other=0.0).to(gl.float32)
        if HAS_G:
            arriving = gl.load(since + place * 64 + inner)
            leaving = gl.load(into + place * 64 + inner)
            total = gl.load(totals + place)
        if NORMS:
            asking = gl.load(asks + place * 64 + inner)
            longs_q = gl.zeros([64], gl.float32, layout=ROWS)
            longs_k = gl.zeros([64], gl.float32, layout=ROWS)
        elif HAS_G:
            asking = arriving
        erases = gl.zeros([64], gl.float32, layout=ROWS)
        arrives = gl.zeros([64], gl.float32, layout=ROWS)
        leaves = gl.zeros([64], gl.float32, layout=ROWS)
        both = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, STORED))
        # Unrolled, addresses of both tiles are held at once: 0.45 ms of raw q and k, not 0.43.
        for row in range(0, K, 64):
            zero = _zero(left + row)
            again = zero
            k_s = k_m.index(again)
            kept = states + ((pair_slot + pair) * H + h) * (K * V) + row * V
            after = dstates + place * (K * V) + row * V
            for tile in gl.static_range(NV):
                copy_tile(state_s[tile].index(again), kept + tile * 64, 64, V, 64, 64, 4, again)
            copy_tile(k_s, k + shared * K + row, left, H // GROUP * K, 64, 64, 4, again)
            if back == 1:
                again = zero * 2
                q_s = q_m.index(again)
                near = token - 64 * H
                # Its v_new lies where dS will, its k where q will.
                for tile in gl.static_range(NV):
                    near_v = v_new + near * V + tile * 64
                    copy_tile(dstate_s[tile].index(again), near_v, 64, H * V, 64, 64, 4, again)
                near_k = k + (shared - 64 * (H // GROUP)) * K + row
                copy_tile(q_s, near_k, 64, H // GROUP * K, 64, 64, 4, again)
                async_copy.commit_group()
                async_copy.wait_group(0)
                fence_async_shared()
                if HAS_G:
                    steps = gl.arange(0, 64, layout=gl.SliceLayout(0, LEFT))
                    weight = gl.load(into + (place - H) * 64 + steps)
                    through = gl.load(totals + place - H)
                else:
                    weight = gl.full([64], 1.0, gl.float32, layout=gl.SliceLayout(0, LEFT))
                    through = 1.0
                _next_state(state_s, dstate_s, q_s, weight, through, zero * 3, NV, dtype)
            again = zero * 4
            q_s = q_m.index(again)
            for tile in gl.static_range(NV):
                copy_tile(dstate_s[tile].index(again), after + tile * 64, 64, V, 64, 64, 4, again)
            copy_tile(q_s, q + shared * K + row, left, H // GROUP * K, 64, 64, 4, again)
            async_copy.commit_group()
            async_copy.wait_group(0)
            fence_async_shared()
            gl.thread_barrier()

            again = zero * 5
            acc_q = _zeros()
            read = _zeros()
            acc_k = _zeros()
            for tile in gl.static_range(NV):
                state_t = state_s[tile].index(again)
                dstate_t = dstate_s[tile].index(again)
                turned = state_t.permute([1, 0])
                acc_q = warpgroup_mma(
                    do_s[tile].index(again), turned, acc_q, use_acc=tile > 0, is_async=True
                )
                read = warpgroup_mma(
                    y_s[tile].index(again), turned, read, use_acc=tile > 0, is_async=True
                )
                acc_k = warpgroup_mma(
                    v_s[tile].index(again),
                    dstate_t.permute([1, 0]),
                    acc_k,
                    use_acc=tile > 0,
                    is_async=True,
                )
                if WITH_G:
                    # At the ends of a sequence the caller's own, which may be all there is of a
                    # gate.
                    exact = state_t.load(STORED).to(gl.float32)
                    wide = dstate_t.load(STORED).to(gl.float32)
                    if HAS_START or HAS_DLAST:
                        lines = gl.arange(0, 64, layout=gl.SliceLayout(1, STORED))[:, None] + again
                        columns = gl.arange(0, 64, layout=gl.SliceLayout(0, STORED))[None, :]
                        corner = (n.to(gl.int64) * H + h) * (K * V) + row * V + tile * 64
                        places = corner + lines * V + columns
                        if HAS_START:
                            given = gl.load(
                                start + places, mask=(places >= 0) & (c == 0), other=0.0
                            )
                            exact = gl.where(c == 0, given, exact)
                        if HAS_DLAST:
                            given = gl.load(
                                dlast + places, mask=(places >= 0) & (left <= 64), other=0.0
                            )
                            wide = gl.where(left <= 64, given, wide)
                    both += gl.sum(exact * wide, 1)
            acc_q, read, acc_k = warpgroup_mma_wait(0, deps=[acc_q, read, acc_k])
            if HAS_G:
                acc_q = acc_q * (asking * scale)[:, None]
                read = read * -arriving[:, None]
                acc_k = acc_k * leaving[:, None]
            else:
                acc_q = acc_q * scale
                read = -read
            again = zero * 6
            q_s, k_s = q_m.index(again), k_m.index(again)
            erases += _row_sums(read, k_s)
            if WITH_G:
                arrives += _row_sums(acc_q, q_s)
                leaves += _row_sums(acc_k, k_s)
            acc_k += read * strength[:, None]
            again = zero * 7
            q_s, k_s = q_m.index(again), k_m.index(again)
            pairs_s = pairs_m.index(again)
            down = gl.arange(0, 64, layout=gl.SliceLayout(1, LEFT))[:, None] + again
            right = gl.arange(0, 64, layout=gl.SliceLayout(0, LEFT))[None, :]
            scores = pairs_s.load(LEFT)
            turned_scores = pairs_s.permute([1, 0]).load(LEFT)
            nothing = gl.zeros_like(scores)
            attending = gl.where(down >= right, scores, nothing)
            acc_q = warpgroup_mma(attending, k_s, acc_q, is_async=True)
            attended = gl.where(down <= right, turned_scores, nothing)
            acc_k = warpgroup_mma(attended, q_s, acc_k, is_async=True)
            erasing = gl.where(down < right, scores, gl.where(down > right, turned_scores, nothing))
            acc_k = warpgroup_mma(erasing, k_s, acc_k, is_async=True)
            acc_q, acc_k = warpgroup_mma_wait(0, deps=[acc_q, acc_k])
            again = zero * 8
            q_s, k_s = q_m.index(again), k_m.index(again)
            if NORMS and GROUP > 1:
                # What others add to it is projected with it, as gradients of units.
                acc_q = acc_q / gl.load(unit_q + place * 64 + inner)[:, None]
                acc_k = acc_k / gl.load(unit_k + place * 64 + inner)[:, None]
            elif NORMS:
                longs_q += _row_sums(acc_q, q_s)
                longs_k += _row_sums(acc_k, k_s)
            # By way of the states' memory, which nobody reads any more.
            first_s, second_s = state_s[0].index(again), dstate_s[0].index(again)
            first_s.store(acc_q.to(dtype))
            second_s.store(acc_k.to(dtype))
            _store_tile(dq + token * K + row, first_s.load(STORED), left, again, H * K)
            _store_tile(dk + token * K + row, second_s.load(STORED), left, again, H * K)
        if NORMS and GROUP == 1:
            own_q = gl.load(unit_q + place * 64 + inner)
            own_k = gl.load(unit_k + place * 64 + inner)
            longs_q = gl.convert_layout(longs_q * own_q * own_q, gl.SliceLayout(1, STORED))
            longs_k = gl.convert_layout(longs_k * own_k * own_k, gl.SliceLayout(1, STORED))
            for row in range(0, K, 64):
                again, at = _zero(left + row), token * K + row
                _less_along(dq + at, q + at, longs_q, left, again, H * K)
                _less_along(dk + at, k + at, longs_k, left, again, H * K)
        weak = live & (gl.abs(strength) <= WEAK)
        found = gl.load(dbeta + token + inner * H, mask=weak, other=0.0)
        gl.store(dbeta + token + inner * H, found + erases, mask=weak)
        spread = gl.load(
            beta + token + gl.arange(0, 64, layout=gl.SliceLayout(1, STORED)) * H,
            mask=gl.arange(0, 64, layout=gl.SliceLayout(1, STORED)) < left,
            other=0.0,
        ).to(gl.float32)
        again = _zero(left) * 9
        for tile in gl.static_range(NV):
            value = y_s[tile].index(again).load(STORED).to(gl.float32) * spread[:, None]
            _store_tile(dv + token * V + tile * 64, value, left, again, H * V)
        if WITH_G:
            arrives_s.store(arrives + erases * strength)
            leaves_s.store(leaves)
            later = arrives_s.load(gl.SliceLayout(0, SUMMED))[None, :]
            earlier = leaves_s.load(gl.SliceLayout(0, SUMMED))[None, :]
            other = gl.arange(0, 64, layout=gl.SliceLayout(0, SUMMED))[None, :]
            gate = gl.arange(0, 64, layout=gl.SliceLayout(1, SUMMED))
            found = gl.sum(gl.where(other >= gate[:, None], later, earlier), 1)
            found += gl.sum(both, 0) * total
            places = dg + token + gate * H
            found += gl.load(places, mask=gate < left, other=0.0)
            gl.store(places, found, mask=gate < left)
