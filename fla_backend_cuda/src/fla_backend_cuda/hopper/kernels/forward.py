"""The delta rule over time on Hopper: the state never leaves the chip, and other warps do the rest.

Per chunk of C tokens and tile of V, with X the inverse of the chunk's triangular system, running
log decays G and their total G_C,

    x = beta (v - exp(G) k S),  e = X x,  o = scale exp(G) q S + P e,
    S <- exp(G_C) S + (exp(G_C - G) k)^T e

Only S -> x -> e -> S depends on the chunk before. One warpgroup, the chain, does that and nothing
else; a second multiplies out the outputs, or writes S and e for a backward pass; a third copies
operands into shared memory, ``STAGES`` chunks ahead. The chain holds S transposed, so that S, x and
e are left operands, which the tensor cores read from registers: from chunk to chunk nothing it
computes waits for shared memory.

Where every key channel has its own decay (``CHANNEL``) a chunk's system has been solved for it: x
and X give way to e = u - w S, q and k come weighted with their decays, and G_C is one of each row
of S.

Raw q and k (``NORMS``) differ in the factors of tokens alone, as ``prepare`` has it: exp(G) of q is
``asks``.

Bytes of a head and tile of 64 columns: q, k, v, X, P read and o written, a chunk at a time; for
channels w and u in place of X and v. Flops a token and head: 6 K V + 4 C V.

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16: 0.181 ms, 1.41 us a chunk, of which the
chain alone takes 1.15; the same loop in one role, states through shared memory, took 0.275 ms.
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
    copy_steps,
    copy_tile,
    first_slot,
    sequence_at,
)

TOGETHER = gl.constexpr(4)
"""Chunks of a sequence and head that are waited for at once: to acquire a number that another
multiprocessor counts up empties the first-level cache."""


@gluon.jit
def _wait_until(ready, missing):
    """Wait until ``TOGETHER`` chunks are ready, or those that are missing to the end."""
    wanted = gl.where(missing < TOGETHER, missing, TOGETHER)
    found = _acquired(ready)
    while found < wanted:
        found = _acquired(ready)


@gluon.jit
def _acquired(count):
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l", [count], gl.int32, is_pure=False, pack=1
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
    BUFFERS: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    NORMS: gl.constexpr,
    CHANNEL: gl.constexpr,
    KEEP: gl.constexpr,
    EVERY: gl.constexpr,
):
    """Fill the ring of operands."""
    q, k, w, v, beta, inverse, low, scores, since, into, totals, asks = operands[:12]
    ready, o, states, errors, scale = operands[12:]
    q_s, k_s, w_s, v_s, x_s, low_s, p_s, b_s, since_s, into_s, total_s, state_s, error_s = tiles
    full, empty, state_full, state_empty, error_full, error_empty = barriers
    first, length, h, column, slot, kept_slot = place
    chunks = gl.cdiv(length, C)
    for c in range(chunks):
        if ready is not None:
            if c % TOGETHER == 0:
                _wait_until(ready + (slot + c // TOGETHER) * H + h, chunks - c)
        i = c % STAGES
        mbarrier.wait(empty.index(i), ((c // STAGES) & 1) ^ 1)
        row = first + c * C
        left = length - c * C
        chunk = (slot + c) * H + h
        keys = (row * (H // GROUP) + h // GROUP) * K
        copy_tile(k_s.index(i), k + keys, left, H // GROUP * K, C, K)
        if CHANNEL:
            copy_tile(w_s.index(i), w + (row * H + h) * K, left, H * K, C, K)
            copy_steps(total_s.index(i), totals + chunk * K, K)
        else:
            copy_steps(b_s.index(i), beta + chunk * C, C)
            copy_tile(x_s.index(i), inverse + (row * H + h) * C, left, H * C, C, C)
            if KEEP:
                copy_tile(low_s.index(i), low + (row * H + h) * C, left, H * C, C, C)
        if HAS_G:
            copy_steps(since_s.index(i), since + chunk * C, C)
            copy_steps(into_s.index(i), into + chunk * C, C)
            copy_steps(total_s.index(i), totals + chunk, 1)
        copy_tile(v_s.index(i), v + (row * H + h) * V + column, left, H * V, C, BV)
        if not KEEP:
            copy_tile(q_s.index(i), q + keys, left, H // GROUP * K, C, K)
            copy_tile(p_s.index(i), scores + (row * H + h) * C, left, H * C, C, C)
        async_copy.mbarrier_arrive(full.index(i), increment_count=False)


@gluon.jit
def _outputs(
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
    BUFFERS: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    NORMS: gl.constexpr,
    CHANNEL: gl.constexpr,
    KEEP: gl.constexpr,
    EVERY: gl.constexpr,
):
    """Outputs of each chunk from its state and errors; under ``KEEP`` these two themselves."""
    q, k, w, v, beta, inverse, low, scores, since, into, totals, asks = operands[:12]
    ready, o, states, errors, scale = operands[12:]
    q_s, k_s, w_s, v_s, x_s, low_s, p_s, b_s, since_s, into_s, total_s, state_s, error_s = tiles
    full, empty, state_full, state_empty, error_full, error_empty = barriers
    first, length, h, column, slot, kept_slot = place
    product: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BV, 16]
    )
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    steps = gl.arange(0, C, layout=gl.SliceLayout(1, stored))
    columns = gl.arange(0, BV, layout=gl.SliceLayout(0, stored))
    keys = gl.arange(0, K, layout=gl.SliceLayout(1, stored))
    of_steps = gl.arange(0, C, layout=gl.SliceLayout(1, product))
    for c in range(gl.cdiv(length, C)):
        i = c % STAGES
        buffer = c % BUFFERS
        phase = (c // BUFFERS) & 1
        row = first + c * C
        if NORMS:
            # There is no room for one more vector in shared memory.
            arriving = gl.load(asks + ((slot + c) * H + h) * C + of_steps)
        mbarrier.wait(full.index(i), (c // STAGES) & 1)
        mbarrier.wait(state_full.index(buffer), phase)
        if KEEP:
            state = state_s.index(buffer).permute([1, 0]).load(product)
            mbarrier.arrive(state_empty.index(buffer), count=1)
            kept = states + ((kept_slot + c // EVERY) * H + h) * (K * V) + column
            state = gl.convert_layout(state, stored)
            asked = (keys < K)[:, None] & (c % EVERY == 0)
            gl.store(kept + keys[:, None] * V + columns[None, :], state, mask=asked)
            mbarrier.wait(error_full.index(buffer), phase)
            found = error_s.index(buffer).permute([1, 0]).load(product)
            mbarrier.arrive(error_empty.index(buffer), count=1)
            target = errors
        else:
            # For the stores of the chain too, which would wait for its own products to fence them.
            fence_async_shared()
            acc = warpgroup_mma(
                q_s.index(i),
                state_s.index(buffer).permute([1, 0]),
                gl.zeros([C, BV], gl.float32, layout=product),
                use_acc=False,
                is_async=True,
            )
            if HAS_G:
                if not NORMS:
                    arriving = since_s.index(i).load(gl.SliceLayout(1, product))
                arriving *= scale
                acc = warpgroup_mma_wait(0, deps=[acc])
                acc = acc * arriving[:, None]
            else:
                acc = warpgroup_mma_wait(0, deps=[acc]) * scale
            mbarrier.arrive(state_empty.index(buffer), count=1)
            mbarrier.wait(error_full.index(buffer), phase)
            fence_async_shared()
            acc = warpgroup_mma(
                p_s.index(i), error_s.index(buffer).permute([1, 0]), acc, is_async=True
            )
            found = warpgroup_mma_wait(0, deps=[acc]).to(o.dtype.element_ty)
            mbarrier.arrive(error_empty.index(buffer), count=1)
            target = o
        mbarrier.arrive(empty.index(i), count=1)
        places = target + (row * H + h) * V + column
        live = (steps < length - c * C)[:, None]
        found = gl.convert_layout(found, stored)
        gl.store(places + steps[:, None] * (H * V) + columns[None, :], found, mask=live)


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
    HAS_G: gl.constexpr,
    CHANNEL: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_LAST: gl.constexpr,
    KEEP: gl.constexpr,
):
    """States, one chunk after the other."""
    q, k, w, v, beta, inverse, low, scores, since, into, totals, asks = operands[:12]
    ready, o, states, errors, scale = operands[12:]
    q_s, k_s, w_s, v_s, x_s, low_s, p_s, b_s, since_s, into_s, total_s, state_s, error_s = tiles
    full, empty, state_full, state_empty, error_full, error_empty = barriers
    first, length, h, column, slot, kept_slot = place
    start, last, head = ends
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
    if HAS_START:
        state = gl.load(start + corner)
    else:
        state = gl.zeros([BV, K], gl.float32, layout=over_keys)

    chunks = gl.cdiv(length, C)
    if HAS_G:
        everywhere: gl.constexpr = gl.SliceLayout(0, over_keys)
    mbarrier.wait(full.index(0), 0, pred=chunks > 0)
    value = v_s.index(0).permute([1, 0]).load(over_steps)
    if CHANNEL:
        total = total_s.index(0).load(gl.SliceLayout(0, over_keys))
    else:
        strength = b_s.index(0).load(along)
    if HAS_G:
        arriving = since_s.index(0).load(along)
        leaving = into_s.index(0).load(along)
        total = total_s.index(0).load(everywhere)
    if CHANNEL:
        reads = w_s
    else:
        reads = k_s
    for c in range(chunks):
        i = c % STAGES
        buffer = c % BUFFERS
        phase = (c // BUFFERS) & 1
        more = c + 1 < chunks
        narrow = state.to(dtype)
        fence_async_shared()
        read = warpgroup_mma(
            gl.convert_layout(narrow, left_of_steps),
            reads.index(i).permute([1, 0]),
            gl.zeros([BV, C], gl.float32, layout=over_steps),
            use_acc=False,
            is_async=True,
        )
        if CHANNEL:
            state = state * total[None, :]
        else:
            wanted = value.to(gl.float32) * strength[None, :]
            reading = strength
        if HAS_G:
            state = state * total[None, :]
            reading = strength * arriving
        mbarrier.wait(state_empty.index(buffer), phase ^ 1)
        read = warpgroup_mma_wait(0, deps=[read])
        if CHANNEL:
            error = value.to(gl.float32) - read
        else:
            x = (wanted - read * reading[None, :]).to(dtype)
            x = gl.convert_layout(x, left_of_steps)
            error = warpgroup_mma(
                x,
                x_s.index(i).permute([1, 0]),
                gl.zeros([BV, C], gl.float32, layout=over_steps),
                use_acc=False,
                is_async=True,
            )
            if KEEP:
                error = warpgroup_mma(x, low_s.index(i).permute([1, 0]), error, is_async=True)
        if not CHANNEL:
            state_s.index(buffer).store(narrow)
            mbarrier.arrive(state_full.index(buffer), count=1)
            error = warpgroup_mma_wait(0, deps=[error])
        if HAS_G:
            written = (error * leaving[None, :]).to(dtype)
        else:
            written = error.to(dtype)
        state = warpgroup_mma(
            gl.convert_layout(written, left_of_keys), k_s.index(i), state, is_async=True
        )
        if CHANNEL:
            state_s.index(buffer).store(narrow)
            mbarrier.arrive(state_full.index(buffer), count=1)
        mbarrier.wait(error_empty.index(buffer), phase ^ 1)
        error_s.index(buffer).store(error.to(dtype))
        mbarrier.arrive(error_full.index(buffer), count=1)
        # What the next chunk needs of the vectors, while the last product runs.
        j = (c + 1) % STAGES
        mbarrier.wait(full.index(j), ((c + 1) // STAGES) & 1, pred=more)
        value = v_s.index(j).permute([1, 0]).load(over_steps)
        if CHANNEL:
            total = total_s.index(j).load(gl.SliceLayout(0, over_keys))
        else:
            strength = b_s.index(j).load(along)
        if HAS_G:
            arriving = since_s.index(j).load(along)
            leaving = into_s.index(j).load(along)
            total = total_s.index(j).load(everywhere)
        state = warpgroup_mma_wait(0, deps=[state])
        mbarrier.arrive(empty.index(i), count=1)
    if HAS_LAST:
        gl.store(last + corner, state)


@gluon.jit
def over_time(
    pid,
    ready,
    q,
    k,
    w,
    v,
    beta,
    inverse,
    low,
    scores,
    since,
    into,
    totals,
    asks,
    start,
    o,
    states,
    errors,
    last,
    cu,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    C: gl.constexpr,
    STAGES: gl.constexpr,
    BUFFERS: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    NORMS: gl.constexpr,
    CHANNEL: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_LAST: gl.constexpr,
    KEEP: gl.constexpr,
    EVERY: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: BV columns of one head's state over one sequence.

    ``KEEP`` writes the state before every ``EVERY``-th chunk ``[slots, H, K, V]`` and the errors in
    place of the outputs; q and scores are not read then, but ``low`` is, X less its rounded self.
    Where chunks are prepared meanwhile, ``ready`` counts them ``[slots, H]``, so many together.
    """
    NV: gl.constexpr = V // BV
    column = pid % NV * BV
    head = pid // NV
    h = head % H
    n = head // H
    first, length = sequence_at(cu, n, T, VARLEN)
    slot = first_slot(first, n, T, C, VARLEN)
    kept_slot = first_slot(first, n, T, C * EVERY, VARLEN)

    dtype: gl.constexpr = k.dtype.element_ty
    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    vector: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    k_s = gl.allocate_shared_memory(dtype, [STAGES, C, K], matrix)
    v_s = gl.allocate_shared_memory(dtype, [STAGES, C, BV], matrix)
    # A name that a form has no use for stands for something that is there.
    if KEEP:
        q_s, p_s = k_s, k_s
    else:
        q_s = gl.allocate_shared_memory(dtype, [STAGES, C, K], matrix)
        p_s = gl.allocate_shared_memory(dtype, [STAGES, C, C], matrix)
    if CHANNEL:
        w_s = gl.allocate_shared_memory(dtype, [STAGES, C, K], matrix)
        total_s = gl.allocate_shared_memory(gl.float32, [STAGES, K], vector)
        x_s, low_s, b_s = k_s, k_s, total_s
    else:
        x_s = gl.allocate_shared_memory(dtype, [STAGES, C, C], matrix)
        if KEEP:
            low_s = gl.allocate_shared_memory(dtype, [STAGES, C, C], matrix)
        else:
            low_s = x_s
        b_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
        w_s, total_s = k_s, b_s
    if HAS_G:
        since_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
        into_s = gl.allocate_shared_memory(gl.float32, [STAGES, C], vector)
    else:
        since_s, into_s = b_s, b_s
    if HAS_G and not CHANNEL:
        total_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1], vector)
    state_s = gl.allocate_shared_memory(dtype, [BUFFERS, BV, K], matrix)
    error_s = gl.allocate_shared_memory(dtype, [BUFFERS, BV, C], matrix)
    full = barriers_of(STAGES, 128)
    empty = barriers_of(STAGES, 2)
    state_full = barriers_of(BUFFERS, 1)
    state_empty = barriers_of(BUFFERS, 1)
    error_full = barriers_of(BUFFERS, 1)
    error_empty = barriers_of(BUFFERS, 1)

    operands = (
        q,
        k,
        w,
        v,
        beta,
        inverse,
        low,
        scores,
        since,
        into,
        totals,
        asks,
        ready,
        o,
        states,
        errors,
        scale,
    )
    tiles = (q_s, k_s, w_s, v_s, x_s, low_s, p_s, b_s, since_s, into_s, total_s, state_s, error_s)
    barriers = (full, empty, state_full, state_empty, error_full, error_empty)
    place = (first, length, h, column, slot, kept_slot)
    ends = (start, last, head)
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
                    BUFFERS,
                    HAS_G,
                    CHANNEL,
                    HAS_START,
                    HAS_LAST,
                    KEEP,
                ),
            ),
            (
                _outputs,
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
                    BUFFERS,
                    GROUP,
                    HAS_G,
                    NORMS,
                    CHANNEL,
                    KEEP,
                    EVERY,
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
                    BUFFERS,
                    GROUP,
                    HAS_G,
                    NORMS,
                    CHANNEL,
                    KEEP,
                    EVERY,
                ),
            ),
        ],
        [4, 4],
        [128, 80],
    )


@gluon.jit(do_not_specialize=["T", "scale"])
def delta_over_time(
    q,
    k,
    w,
    v,
    beta,
    inverse,
    low,
    scores,
    since,
    into,
    totals,
    asks,
    start,
    o,
    states,
    errors,
    last,
    cu,
    T,
    scale,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    C: gl.constexpr,
    STAGES: gl.constexpr,
    BUFFERS: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    NORMS: gl.constexpr,
    CHANNEL: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_LAST: gl.constexpr,
    KEEP: gl.constexpr,
    EVERY: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """The pass by itself: each program one of ``over_time``."""
    over_time(
        gl.program_id(0),
        None,
        q,
        k,
        w,
        v,
        beta,
        inverse,
        low,
        scores,
        since,
        into,
        totals,
        asks,
        start,
        o,
        states,
        errors,
        last,
        cu,
        T,
        scale,
        H,
        K,
        V,
        BV,
        C,
        STAGES,
        BUFFERS,
        GROUP,
        HAS_G,
        NORMS,
        CHANNEL,
        HAS_START,
        HAS_LAST,
        KEEP,
        EVERY,
        VARLEN,
    )
