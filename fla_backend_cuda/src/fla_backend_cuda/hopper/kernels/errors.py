"""Gradients of what a chunk's tokens write, and of its scores, under channel decays on Hopper.

What ``fla_triton``'s ``delta_channel_errors`` computes, whose notation this keeps, from the same
operands and in the same places. Tiles of 64 by 64: those of the next 64 columns of V are copied
while these are multiplied, and y and dv leave by way of the memory of what they were made from.

Bytes a token and head: four times V and C of X read, twice V, 2 C and C / 4 float32 written. Flops:
6 V C. On an H200 0.163 ms at B2 T8192 H16 V = 128, where the portable kernel takes 0.187. A form of
it for strengths of channels took 0.29, where the portable kernel takes 0.23.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fla_backend_cuda.hopper.kernels.copies import chunk_at, copy_tile, sequence_at, store_tile

SEGMENT = gl.constexpr(8)
"""Tokens of a segment."""

PRODUCT = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
)
LEFT = gl.constexpr(gl.DotOperandLayout(0, PRODUCT, 2))
ROWS = gl.constexpr(gl.SliceLayout(1, PRODUCT))
COLUMNS = gl.constexpr(gl.SliceLayout(0, PRODUCT))


@gluon.jit
def _copy(step: gl.constexpr, tiles_s, sources, left, stride: gl.constexpr, NV: gl.constexpr):
    """Start copying the operands of 64 columns, if there are that many."""
    if step < NV:
        for one in gl.static_range(4):
            tile_s = tiles_s.index(step % 2 * 4 + one)
            copy_tile(tile_s, sources[one] + step * 64, left, stride, 64, 64)
    async_copy.commit_group()


@gluon.jit
def _store_scores(x, near, scores, first_s, second_s, left, H: gl.constexpr):
    """Write scores of pairs of one segment in float32, and all of them mirrored at the diagonal."""
    row = gl.arange(0, 64, layout=ROWS)[:, None]
    column = gl.arange(0, 64, layout=COLUMNS)[None, :]
    inside = column - row // SEGMENT * SEGMENT
    live = (inside >= 0) & (inside < SEGMENT) & (row < left)
    gl.store(near + row * (H * SEGMENT) + inside, scores, mask=live)
    first_s.store(scores.to(x.dtype.element_ty))
    later = gl.arange(0, 64, layout=gl.SliceLayout(1, LEFT))[:, None]
    earlier = gl.arange(0, 64, layout=gl.SliceLayout(0, LEFT))[None, :]
    below = first_s.load(LEFT)
    above = first_s.permute([1, 0]).load(LEFT)
    nothing = gl.zeros_like(below)
    both = gl.where(later > earlier, below, gl.where(later < earlier, above, nothing))
    store_tile(x, both, second_s, left, H * 64)


@gluon.jit(do_not_specialize=["T", "scale"])
def chunk_errors(
    v,
    beta,
    v_new,
    inverse,
    do,
    dv_new,
    y,
    dv,
    dbeta,
    diagonal,
    reads,
    errors,
    near_reads,
    near_errors,
    cu,
    table,
    T,
    scale,
    H: gl.constexpr,
    V: gl.constexpr,
    VARLEN: gl.constexpr,
):
    """One program: one chunk of one head, with strengths of heads; V is a multiple of 64.

    ``y`` may be ``dv_new``.
    """
    NV: gl.constexpr = V // 64
    pid = gl.program_id(0)
    h = pid % H
    n, c = chunk_at(table, pid // H, T, 64, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    left = length - c * 64
    token = (first + c * 64) * H + h
    values = token * V
    dtype: gl.constexpr = v.dtype.element_ty

    matrix: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    tiles_s = gl.allocate_shared_memory(dtype, [8, 64, 64], matrix)
    solved_s = gl.allocate_shared_memory(dtype, [64, 64], matrix)
    sources = (dv_new + values, v + values, v_new + values, do + values)
    copy_tile(solved_s, inverse + token * 64, left, H * 64, 64, 64)
    _copy(0, tiles_s, sources, left, H * V, NV)
    _copy(1, tiles_s, sources, left, H * V, NV)

    row = gl.arange(0, 64, layout=ROWS)
    column = gl.arange(0, 64, layout=COLUMNS)
    live = row < left
    zero = gl.zeros([64, 64], gl.float32, layout=PRODUCT)
    pulls = zero
    wrong = zero
    offered = gl.zeros([64], gl.float32, layout=ROWS)
    written = offered
    strength = gl.load(beta + token + row * H, mask=live, other=0.0).to(gl.float32)[:, None]
    for step in gl.static_range(NV):
        mine_s = tiles_s.index(step % 2 * 4)
        value_s = tiles_s.index(step % 2 * 4 + 1)
        async_copy.wait_group(1)
        fence_async_shared()
        errors_s = tiles_s.index(step % 2 * 4 + 2)
        turned = errors_s.permute([1, 0])
        found = warpgroup_mma(solved_s.permute([1, 0]), mine_s, zero, use_acc=False, is_async=True)
        pulls = warpgroup_mma(
            tiles_s.index(step % 2 * 4 + 3), turned, pulls, use_acc=step > 0, is_async=True
        )
        found, pulls = warpgroup_mma_wait(0, deps=[found, pulls])
        narrow = gl.convert_layout(found.to(dtype), LEFT, assert_trivial=True)
        wrong = warpgroup_mma(narrow, turned, wrong, use_acc=step > 0, is_async=True)
        value = value_s.load(PRODUCT).to(gl.float32)
        offered += gl.sum(found * value, 1)
        written += gl.sum(found * errors_s.load(PRODUCT).to(gl.float32), 1)
        wrong = warpgroup_mma_wait(0, deps=[wrong])
        there = values + step * 64
        store_tile(y + there, found, mine_s, left, H * V)
        store_tile(dv + there, found * strength, value_s, left, H * V)
        _copy(step + 2, tiles_s, sources, left, H * V, NV)
    async_copy.wait_group(0)
    gl.store(dbeta + 2 * token + row * (2 * H), offered, mask=live)
    gl.store(dbeta + 2 * token + row * (2 * H) + 1, written, mask=live)
    pulls *= scale
    own = gl.sum(gl.where(row[:, None] == column[None, :], pulls, 0.0), 1)
    gl.store(diagonal + token + row * H, own, mask=live)
    near = near_reads + token * SEGMENT
    _store_scores(reads + token * 64, near, pulls, tiles_s.index(0), tiles_s.index(1), left, H)
    near = near_errors + token * SEGMENT
    _store_scores(errors + token * 64, near, -wrong, tiles_s.index(4), tiles_s.index(5), left, H)
