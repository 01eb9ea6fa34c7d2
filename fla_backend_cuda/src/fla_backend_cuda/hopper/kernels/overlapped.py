"""Chunks prepared and passed over in one launch, where a pass leaves multiprocessors idle.

A pass over time is a chain of chunks: sequences, heads and tiles of V may be fewer than the chip's
multiprocessors, but one chain cannot be cut. The first programs of this launch prepare chunks, the
earliest of all heads first, and the others pass over each as soon as it is there. Those that
prepare wait for nothing; since a chip starts programs in order, nobody waits for what cannot run.

Equations, bytes and flops are those of ``prepare`` and ``forward``, q and k as they are. A program
that prepares is three warpgroups, each with chunks of its own, and fetches the next while it solves
one. What it has written of a chunk it releases with a counter, which the pass acquires.

Measured on an H200 at B2 T8192 H16 K = V = 128 in bfloat16 with gates: 0.207 ms, of 68 programs
that prepare and 64 that pass; one launch after the other takes 0.28. Bytes take 0.1.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from fla_backend_cuda.hopper.kernels.forward import TOGETHER, over_time
from fla_backend_cuda.hopper.kernels.prepare import MATRIX, fetch, prepare_chunk
from fla_backend_cuda.hopper.kernels.warps import C


@gluon.jit
def _chunk_at(item, chunks, heads, H: gl.constexpr):
    """Sequence, chunk and head of an item: in order of time."""
    c = item // heads
    head = item - c * heads
    n = head // H
    return n, c, head - n * H


@gluon.jit
def _prepare(
    shared,
    lane,
    lanes,
    H: gl.constexpr,
    K: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    WITH_LOW: gl.constexpr,
):
    """Every ``lanes``-th chunk from ``lane`` on."""
    sources, made, ready, T, scale, heads = shared
    q, k, g, beta = sources
    dtype: gl.constexpr = k.dtype.element_ty
    keys_s = gl.allocate_shared_memory(dtype, [C, K], MATRIX)
    queries_s = gl.allocate_shared_memory(dtype, [C, K], MATRIX)
    chunks = gl.cdiv(T, C)
    n, c, h = _chunk_at(lane, chunks, heads, H)
    left = gl.where(c < chunks, T - c * C, 0)
    fetch(q, k, queries_s, keys_s, n.to(gl.int64) * T + c * C, left, h, H, K, GROUP)
    for item in range(lane, chunks * heads, lanes):
        n, c, h = _chunk_at(item, chunks, heads, H)
        next_n, next_c, next_h = _chunk_at(item + lanes, chunks, heads, H)
        slot = n.to(gl.int64) * chunks
        next_left = gl.where(next_c < chunks, T - next_c * C, 0)
        prepare_chunk(
            sources,
            made,
            queries_s,
            keys_s,
            (n.to(gl.int64) * T + c * C, T - c * C, h, (slot + c) * H + h),
            (next_n.to(gl.int64) * T + next_c * C, next_left, next_h),
            scale,
            H,
            K,
            GROUP,
            HAS_G,
            False,
            WITH_LOW,
            True,
        )
        gl.thread_barrier()
        gl.atomic_add(ready + (slot + c // TOGETHER) * H + h, 1, sem="release", scope="gpu")


@gluon.jit(do_not_specialize=["T", "scale", "heads", "preparing"])
def delta_overlapped(
    q,
    k,
    v,
    g,
    beta,
    inverse,
    low,
    scores,
    since,
    into,
    totals,
    strengths,
    erases,
    ready,
    start,
    o,
    states,
    errors,
    last,
    T,
    scale,
    heads,
    preparing,
    H: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    TOKENS: gl.constexpr,
    STAGES: gl.constexpr,
    BUFFERS: gl.constexpr,
    GROUP: gl.constexpr,
    HAS_G: gl.constexpr,
    HAS_START: gl.constexpr,
    HAS_LAST: gl.constexpr,
    KEEP: gl.constexpr,
    EVERY: gl.constexpr,
):
    """So many programs that are ``preparing``, then those of the pass.

    Sequences have one length, T, and ``heads`` altogether. ``ready`` is zero before.
    """
    pid = gl.program_id(0)
    if pid < preparing:
        sources = (q, k, g, beta)
        made = (inverse, low, scores, since, into, totals, strengths, None, None, None, erases)
        shared = (sources, made, ready, T, scale, heads)
        lane = 3 * pid
        lanes = 3 * preparing
        gl.warp_specialize(
            [
                (_prepare, (shared, lane, lanes, H, K, GROUP, HAS_G, KEEP)),
                (_prepare, (shared, lane + 1, lanes, H, K, GROUP, HAS_G, KEEP)),
                (_prepare, (shared, lane + 2, lanes, H, K, GROUP, HAS_G, KEEP)),
            ],
            [4, 4],
            [168, 168],
        )
    else:
        over_time(
            pid - preparing,
            ready,
            q,
            k,
            None,
            v,
            strengths,
            inverse,
            low,
            scores,
            since,
            into,
            totals,
            since,
            start,
            o,
            states,
            errors,
            last,
            None,
            T,
            scale,
            H,
            K,
            V,
            BV,
            TOKENS,
            STAGES,
            BUFFERS,
            GROUP,
            HAS_G,
            False,
            False,
            HAS_START,
            HAS_LAST,
            KEEP,
            EVERY,
            False,
        )
