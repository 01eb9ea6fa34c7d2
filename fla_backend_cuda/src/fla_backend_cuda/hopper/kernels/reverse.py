"""Gradients of the delta rule's states on Hopper: back over time, the gradient always on the chip.

Per chunk of C tokens and tile of V, from the last chunk on, with X, P, G and G_C as in
``forward``, dS the gradient of the state after the chunk and de that of the chunk's errors,

    de = P^T do + (exp(G_C - G) k) dS,  y = X^T de,
    dS <- exp(G_C) dS + (scale exp(G) q)^T do - (beta exp(G) k)^T y

Roles are those of ``forward``: a chain that holds dS transposed in registers, a warpgroup that
writes dS and de, one that copies. What does not depend on dS, the product of P and do and that of q
and do, runs beside the chain's own products.

Under ``CHANNEL`` q and k come weighted, (beta exp(G) k)^T y gives way to w^T de, and G_C is one of
each row of dS.

Bytes of a head and tile of 64 columns: q, k, do, X, P read and de written, a chunk at a time, and
dS of each chunk. Flops a token and head: 6 K V + 4 C V. On an H200 at B2 T8192 H16 K = V = 128 in
bfloat16 0.220 ms with gates, 0.184 without and 0.185 under ``CHANNEL``.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: SIM108

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
    copy_steps,
    copy_tile,
    first_slot,
    sequence_at,
)


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
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    CHANNEL: gl.constexpr,
):
    """Fill the ring of operands, last chunk first."""
    q, k, w, do, beta, inverse, low, scores, since, into, totals, dstates, derrors, scale = operands
    q_s, k_s, w_s, do_s, x_s, low_s, p_s, b_s, since_s, into_s, total_s, state_s, error_s = tiles
    full, empty, kept_full, kept_empty = barriers
    first, length, h, column, slot = place
    chunks = gl.cdiv(length, C)
    for step in range(chunks):
        c = chunks - 1 - step
        i = step % STAGES
        mbarrier.wait(empty.index(i), ((step // STAGES) & 1) ^ 1)
        row = first + c * C
        left = length - c * C
        chunk = (slot + c) * H + h
        copy_tile(do_s.index(i), do + (row * H + h) * V + column, left, H * V, C, BV)
        copy_tile(p_s.index(i), scores + (row * H + h) * C, left, H * C, C, C)
        keys = (row * (H // GROUP) + h // GROUP) * K
        copy_tile(k_s.index(i), k + keys, left, H // GROUP * K, C, K)
        if CHANNEL:
            copy_steps(total_s.index(i), totals + chunk * K, K)
            copy_tile(w_s.index(i), w + (row * H + h) * K, left, H * K, C, K)
        else:
            copy_steps(b_s.index(i), beta + chunk * C, C)
            copy_tile(x_s.index(i), inverse + (row * H + h) * C, left, H * C, C, C)
            copy_tile(low_s.index(i), low + (row * H + h) * C, left, H * C, C, C)
        if HAS_G:
            copy_steps(since_s.index(i), since + chunk * C, C)
            copy_steps(into_s.index(i), into + chunk * C, C)
        copy_tile(q_s.index(i), q + keys, left, H // GROUP * K, C, K)
        async_copy.mbarrier_arrive(full.index(i), increment_count=False)


@gluon.jit
def _keep(
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
    CHANNEL: gl.constexpr,
):
    """Write what the chain hands over: dS after each chunk, and de."""
    q, k, w, do, beta, inverse, low, scores, since, into, totals, dstates, derrors, scale = operands
    q_s, k_s, w_s, do_s, x_s, low_s, p_s, b_s, since_s, into_s, total_s, state_s, error_s = tiles
    full, empty, kept_full, kept_empty = barriers
    first, length, h, column, slot = place
    product: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BV, 16]
    )
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    steps = gl.arange(0, C, layout=gl.SliceLayout(1, stored))
    columns = gl.arange(0, BV, layout=gl.SliceLayout(0, stored))
    keys = gl.arange(0, K, layout=gl.SliceLayout(1, stored))
    chunks = gl.cdiv(length, C)
    for step in range(chunks):
        c = chunks - 1 - step
        row = first + c * C
        mbarrier.wait(kept_full, step & 1)
        dstate = state_s.permute([1, 0]).load(product)
        derror = error_s.permute([1, 0]).load(product)
        mbarrier.arrive(kept_empty, count=1)
        places = dstates + ((slot + c) * H + h) * (K * V) + column
        dstate = gl.convert_layout(dstate, stored)
        gl.store(places + keys[:, None] * V + columns[None, :], dstate)
        places = derrors + (row * H + h) * V + column
        derror = gl.convert_layout(derror, stored)
        live = (steps < length - c * C)[:, None]
        gl.store(places + steps[:, None] * (H * V) + columns[None, :], derror, mask=live)


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
    HAS_G: gl.constexpr,
    CHANNEL: gl.constexpr,
    HAS_DLAST: gl.constexpr,
    HAS_DSTART: gl.constexpr,
):
    """Gradients of states, one chunk before the other."""
    q, k, w, do, beta, inverse, low, scores, since, into, totals, dstates, derrors, scale = operands
    q_s, k_s, w_s, do_s, x_s, low_s, p_s, b_s, since_s, into_s, total_s, state_s, error_s = tiles
    full, empty, kept_full, kept_empty = barriers
    first, length, h, column, slot = place
    dlast, dstart, head = ends
    dtype: gl.constexpr = k.dtype.element_ty
    over_keys: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, K, 16]
    )
    over_steps: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C, 16]
    )
    left_of_steps: gl.constexpr = gl.DotOperandLayout(0, over_steps, 2)
    left_of_keys: gl.constexpr = gl.DotOperandLayout(0, over_keys, 2)
    along: gl.constexpr = gl.SliceLayout(0, over_steps)

    rows = column + gl.arange(0, BV, layout=gl.SliceLayout(1, over_keys))
    keys = gl.arange(0, K, layout=gl.SliceLayout(0, over_keys))
    corner = head.to(gl.int64) * (K * V) + keys[None, :] * V + rows[:, None]
    if HAS_DLAST:
        dstate = gl.load(dlast + corner)
    else:
        dstate = gl.zeros([BV, K], gl.float32, layout=over_keys)

    chunks = gl.cdiv(length, C)
    if HAS_G:
        total = gl.load(totals + (slot + chunks - 1) * H + h, mask=chunks > 0, other=0.0)
    mbarrier.wait(full.index(0), 0, pred=chunks > 0)
    fence_async_shared()
    for step in range(chunks):
        c = chunks - 1 - step
        i = step % STAGES
        narrow = dstate.to(dtype)
        asked = warpgroup_mma(
            do_s.index(i).permute([1, 0]),
            p_s.index(i),
            gl.zeros([BV, C], gl.float32, layout=over_steps),
            use_acc=False,
            is_async=True,
        )
        read = warpgroup_mma(
            gl.convert_layout(narrow, left_of_steps),
            k_s.index(i).permute([1, 0]),
            gl.zeros([BV, C], gl.float32, layout=over_steps),
            use_acc=False,
            is_async=True,
        )
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
        given = do_s.index(i).permute([1, 0]).load(over_steps).to(gl.float32)
        if CHANNEL:
            dstate = dstate * total_s.index(i).load(gl.SliceLayout(0, over_keys))[None, :]
        else:
            strength = b_s.index(i).load(along)
        if HAS_G:
            upcoming = gl.load(totals + (slot + c - 1) * H + h, mask=c > 0, other=0.0)
            arriving = since_s.index(i).load(along)
            leaving = into_s.index(i).load(along)
            given = given * (arriving * scale)[None, :]
            dstate = dstate * total
        else:
            given = given * scale
        asked, read = warpgroup_mma_wait(0, deps=[asked, read])
        if HAS_G:
            derror = (asked + read * leaving[None, :]).to(dtype)
        else:
            derror = (asked + read).to(dtype)
        if not CHANNEL:
            narrow_error = gl.convert_layout(derror, left_of_steps)
            y = warpgroup_mma(
                narrow_error,
                x_s.index(i),
                gl.zeros([BV, C], gl.float32, layout=over_steps),
                use_acc=False,
                is_async=True,
            )
            y = warpgroup_mma(narrow_error, low_s.index(i), y, is_async=True)
        given = gl.convert_layout(given.to(dtype), left_of_keys)
        dstate = warpgroup_mma(given, q_s.index(i), dstate, is_async=True)
        mbarrier.wait(kept_empty, (step & 1) ^ 1)
        state_s.store(narrow)
        error_s.store(derror)
        mbarrier.arrive(kept_full, count=1)
        if CHANNEL:
            erased = gl.convert_layout(-derror, left_of_keys)
            dstate = warpgroup_mma(erased, w_s.index(i), dstate, is_async=True)
        else:
            y = warpgroup_mma_wait(1, deps=[y])
            erased = gl.convert_layout((-(y * strength[None, :])).to(dtype), left_of_keys)
            dstate = warpgroup_mma(erased, k_s.index(i), dstate, is_async=True)
        # While the last products run: in front of the first it took 0.253 ms instead of 0.220.
        j = (step + 1) % STAGES
        mbarrier.wait(full.index(j), ((step + 1) // STAGES) & 1, pred=step + 1 < chunks)
        fence_async_shared()
        dstate = warpgroup_mma_wait(0, deps=[dstate])
        if HAS_G:
            total = upcoming
    if HAS_DSTART:
        gl.store(dstart + corner, dstate)


@gluon.jit(do_not_specialize=["T", "scale"])
def delta_back_over_time(
    q,
    k,
    w,
    do,
    beta,
    inverse,
    low,
    scores,
    since,
    into,
    totals,
    dlast,
    dstates,
    derrors,
    dstart,
    cu,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    C: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    CHANNEL: gl.constexpr,
    HAS_DLAST: gl.constexpr,
    HAS_DSTART: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: BV columns of the gradient of one head's state over one sequence.

    ``dstates [slots, H, K, V]`` takes the gradient of the state after each chunk, ``derrors`` that
    of the errors. ``beta`` is what erases, decays from the chunk's start and all; ``since`` is for
    queries alone.
    """
    pid = gl.program_id(0)
    NV: gl.constexpr = V // BV
    column = pid % NV * BV
    head = pid // NV
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)

    dtype: gl.constexpr = k.dtype.element_ty
    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_s = gl.allocate_shared_memory(dtype, [STAGES, C, K], matrix)
    k_s = gl.allocate_shared_memory(dtype, [STAGES, C, K], matrix)
    do_s = gl.allocate_shared_memory(dtype, [STAGES, C, BV], matrix)
    p_s = gl.allocate_shared_memory(dtype, [STAGES, C, C], matrix)
    # A name that a form has no use for stands for something that is there.
    if CHANNEL:
        w_s = gl.allocate_shared_memory(dtype, [STAGES, C, K], matrix)
        total_s = gl.allocate_shared_memory(gl.float32, [STAGES, K], vector)
        x_s, low_s, b_s = k_s, k_s, total_s
    else:
        x_s = gl.allocate_shared_memory(dtype, [STAGES, C, C], matrix)
        low_s = gl.allocate_shared_memory(dtype, [STAGES, C, C], matrix)
        b_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
        w_s, total_s = k_s, b_s
    if HAS_G:
        since_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
        into_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
    else:
        since_s, into_s = b_s, b_s
    state_s = gl.allocate_shared_memory(dtype, [BV, K], matrix)
    error_s = gl.allocate_shared_memory(dtype, [BV, C], matrix)
    full = barriers_of(STAGES, 128)
    empty = barriers_of(STAGES, 1)
    kept_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    kept_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(kept_full, count=1)
    mbarrier.init(kept_empty, count=1)

    operands = (
        q,
        k,
        w,
        do,
        beta,
        inverse,
        low,
        scores,
        since,
        into,
        totals,
        dstates,
        derrors,
        scale,
    )
    tiles = (q_s, k_s, w_s, do_s, x_s, low_s, p_s, b_s, since_s, into_s, total_s, state_s, error_s)
    barriers = (full, empty, kept_full, kept_empty)
    place = (first, length, h, column, slot)
    ends = (dlast, dstart, head)
    # The arguments are spelled out: constants do not survive in a tuple that has a name.
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
                    HAS_G,
                    CHANNEL,
                    HAS_DLAST,
                    HAS_DSTART,
                ),
            ),
            (_keep, (operands, tiles, barriers, place, H, K, V, BV, C, STAGES, HAS_G, CHANNEL)),
            (
                _copy,
                (operands, tiles, barriers, place, H, K, V, BV, C, STAGES, GROUP, HAS_G, CHANNEL),
            ),
        ],
        [4, 4],
        [120, 80],
    )
