"""Copies into shared memory by a warpgroup of four warps, and tiles written by way of it.

Plain asynchronous copies, not the tensor memory accelerator: packed sequences end anywhere, and
what lies behind one belongs to the next. Rows beyond a sequence are filled with zeros, and not
written.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: SIM108

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier


@gluon.jit
def sequence_at(cu, n, T, VARLEN: gl.constexpr):
    """First row (int64) and length of sequence ``n``."""
    if VARLEN:
        first = gl.load(cu + n).to(gl.int64)
        length = (gl.load(cu + n + 1).to(gl.int64) - first).to(gl.int32)
    else:
        first = n.to(gl.int64) * T
        length = T
    return first, length


@gluon.jit
def chunk_at(table, i, T, C: gl.constexpr, VARLEN: gl.constexpr):
    """Sequence and chunk inside it of the i-th chunk of a call."""
    if VARLEN:
        n = gl.load(table + 2 * i).to(gl.int32)
        c = gl.load(table + 2 * i + 1).to(gl.int32)
    else:
        chunks = gl.cdiv(T, C)
        n = i // chunks
        c = i % chunks
    return n, c


@gluon.jit
def first_slot(first, n, T, C: gl.constexpr, VARLEN: gl.constexpr):
    """Where the chunks of a sequence begin, as the portable kernels count them."""
    if VARLEN:
        slot = first // C + n
    else:
        slot = n.to(gl.int64) * gl.cdiv(T, C)
    return slot


@gluon.jit
def _places(
    start,
    left,
    stride: gl.constexpr,
    ROWS: gl.constexpr,
    D: gl.constexpr,
    layout: gl.constexpr,
    again,
):
    """Addresses of ``[ROWS, D]`` elements, and which rows are there."""
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    if again is not None:
        rows += again
    columns = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    return start + rows[:, None] * stride + columns[None, :], (rows < left)[:, None]


@gluon.jit
def copy_tile(
    target,
    source,
    left,
    stride: gl.constexpr,
    ROWS: gl.constexpr,
    D: gl.constexpr,
    WARPS: gl.constexpr = 4,
    again=None,
):
    """Start copying ``[ROWS, D]`` elements of 16 bits, of which ``left`` rows are there.

    ``again``: a zero that the compiler does not know, by which addresses differ from earlier ones.
    """
    across: gl.constexpr = D // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // across, across], [WARPS, 1], [1, 0])
    places, there = _places(source, left, stride, ROWS, D, layout, again)
    async_copy.async_copy_global_to_shared(target, places, mask=there)


@gluon.jit
def write_tile(
    target,
    source_s,
    left,
    stride: gl.constexpr,
    ROWS: gl.constexpr,
    D: gl.constexpr,
    WARPS: gl.constexpr = 4,
    again=None,
):
    """Write ``[ROWS, D]`` elements of 16 bits of shared memory, as ``copy_tile`` copies them."""
    across: gl.constexpr = D // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // across, across], [WARPS, 1], [1, 0])
    # Before addresses are formed: behind them, gradients under gates of heads spill 16 bytes more.
    found = source_s.load(layout)
    places, there = _places(target, left, stride, ROWS, D, layout, again)
    gl.store(places, found, mask=there)


@gluon.jit
def store_tile(target, tile, tile_s, left, stride: gl.constexpr):
    """Write a tile ``[64, 64]`` by way of shared memory, whole rows at a time."""
    tile_s.store(tile.to(target.dtype.element_ty))
    write_tile(target, tile_s, left, stride, 64, 64)


@gluon.jit
def copy_steps(target, source, STEPS: gl.constexpr):
    """Start copying so many float32 that lie side by side."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    steps = gl.arange(0, STEPS, layout=layout)
    async_copy.async_copy_global_to_shared(target, source + steps)


@gluon.jit
def copy_gates(target, source, left, stride: gl.constexpr, STEPS: gl.constexpr):
    """Start copying so many float32, one of each row, of which ``left`` are there."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    steps = gl.arange(0, STEPS, layout=layout)
    async_copy.async_copy_global_to_shared(target, source + steps * stride, mask=steps < left)


@gluon.jit
def barriers_of(N: gl.constexpr, COUNT: gl.constexpr):
    """So many barriers, a phase of each of which ends after ``COUNT`` arrivals."""
    found = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(found.index(i), count=COUNT)
    return found
