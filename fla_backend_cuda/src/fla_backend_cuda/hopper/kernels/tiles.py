"""A chunk's tokens in tiles of 32 channels, as the registers of four warps hold them for products.

A warp takes a block of 16 tokens, a lane eight channels of two of them: t in a tile ``low`` and
t + 8 in a tile ``high``.
"""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: SIM108

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from fla_backend_cuda.hopper.kernels.warps import BLOCK, PRODUCTS, WIDE_ROWS, WIDTH, C

TILES = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 8, 4], [4, 1, 1], [2, 1, 0]))
"""``[4, 8, 32]``: eight tokens of each block."""

BLOCKS = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 32],
    )
)
"""``[64, 32]`` as two of ``TILES``."""

ROWS = gl.constexpr(gl.DotOperandLayout(0, PRODUCTS, 8))
COLUMNS = gl.constexpr(gl.DotOperandLayout(1, PRODUCTS, 8))
"""Operands of products of each block with its own."""

STEPS = gl.constexpr(gl.NVMMASharedLayout(64, 16, 2))
"""Tiles ``[64, 32]`` in shared memory, which products of a warpgroup may read."""

WIDE_STEPS = gl.constexpr(gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
"""The same in float32."""


@gluon.jit
def apart(tile_s):
    """Tokens t and t + 8 of each block of a tile in shared memory."""
    x = gl.permute(gl.reshape(tile_s.load(BLOCKS), [4, 2, 8, WIDTH]), (0, 2, 3, 1))
    low, high = gl.split(x)
    return (
        gl.convert_layout(low, TILES, assert_trivial=True),
        gl.convert_layout(high, TILES, assert_trivial=True),
    )


@gluon.jit
def rows_of(low, high, dtype: gl.constexpr):
    """Two tiles as the left operand ``[4, 16, 32]``."""
    both = gl.permute(gl.join(low.to(dtype), high.to(dtype)), (0, 3, 1, 2))
    return gl.convert_layout(gl.reshape(both, [4, BLOCK, WIDTH]), ROWS)


@gluon.jit
def columns_of(low, high, dtype: gl.constexpr):
    """Two tiles as the right operand ``[4, 32, 16]``."""
    both = gl.permute(gl.join(low.to(dtype), high.to(dtype)), (0, 3, 1, 2))
    turned = gl.permute(gl.reshape(both, [4, BLOCK, WIDTH]), (0, 2, 1))
    return gl.convert_layout(turned, COLUMNS)


@gluon.jit
def wide_rows_of(low, high, factor, dtype: gl.constexpr):
    """Two tiles, times a factor, as the left operand ``[64, 32]``."""
    both = gl.join((low * factor).to(dtype), (high * factor).to(dtype))
    both = gl.reshape(gl.permute(both, (0, 3, 1, 2)), [C, WIDTH])
    return gl.convert_layout(both, WIDE_ROWS)


@gluon.jit
def paired(level: gl.constexpr):
    """Pairs ``[1, 16, 16]`` of a level; of level -1 a token with itself."""
    along: gl.constexpr = gl.SliceLayout(0, PRODUCTS)
    row = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, along))[:, None]
    column = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, along))[None, :]
    if level < 0:
        found = row == column
    else:
        found = ((row ^ column) >> level == 1) & (row > column)
    return found[None, :, :]


@gluon.jit
def load_both(x, places, low_mask, high_mask, behind):
    """Tokens t and t + 8 of each block."""
    return (
        gl.load(x + places, mask=low_mask, other=0.0),
        gl.load(x + places + behind, mask=high_mask, other=0.0),
    )


@gluon.jit
def store_both(x, places, low, high, low_mask, high_mask, behind):
    """Write what ``load_both`` reads."""
    dtype: gl.constexpr = x.dtype.element_ty
    gl.store(x + places, low.to(dtype), mask=low_mask)
    gl.store(x + places + behind, high.to(dtype), mask=high_mask)


@gluon.jit
def tile_at(x, left, stride: gl.constexpr):
    """Tile ``[64, 32]`` in memory, zero where there are no rows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    rows = gl.arange(0, C, layout=gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))[None, :]
    return gl.load(x + rows * stride + columns, mask=rows + 0 * columns < left, other=0.0)


@gluon.jit
def unit(x, factor, dtype: gl.constexpr):
    """Tokens times what makes them units."""
    return (x.to(gl.float32) * factor).to(dtype)
