"""How a chunk of 64 tokens lies in the registers of four warps, a block of 16 tokens in each."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

C = gl.constexpr(64)
"""Tokens of a chunk."""

BLOCK = gl.constexpr(16)
"""Tokens of a warp."""

PRODUCTS = gl.constexpr(
    gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1, 1], instr_shape=[1, 16, 8])
)
"""``[4, 16, 16]``: scores of each block's tokens with those of the same block."""

WIDE = gl.constexpr(
    gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1], instr_shape=[16, 8])
)
"""``[64, 16]``: scores of all tokens with those of one block."""

WIDTH = gl.constexpr(32)
"""Channels of a step: eight of each of the four lanes that share a token."""

WIDE_ROWS = gl.constexpr(gl.DotOperandLayout(0, WIDE, 8))
WIDE_COLUMNS = gl.constexpr(gl.DotOperandLayout(1, WIDE, 8))
"""Operands with eight channels that lie side by side in a lane: a product does not care in which
order it adds up channels, as long as both have the same."""

SQUARE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
"""``[64, 64]`` for memory."""

PAIRS = gl.constexpr(gl.BlockedLayout([2, 8], [8, 4], [4, 1], [1, 0]))
"""``[64, 32]`` for memory, rows of a warp as in ``WIDE``."""


@gluon.jit
def no_products():
    """Zeros ``[4, 16, 16]``."""
    return gl.zeros([4, BLOCK, BLOCK], gl.float32, layout=PRODUCTS)


@gluon.jit
def as_column(found):
    """Blocks ``[4, 16, 16]`` as a column of blocks ``[64, 16]``."""
    return gl.convert_layout(gl.reshape(found, [C, BLOCK]), WIDE)


@gluon.jit
def store_square(x, columns, square_s, first, left, h, H: gl.constexpr):
    """Write ``[64, 64]`` to ``[rows, H, C]``, by way of shared memory, for whole rows.

    ``columns``: four columns of blocks ``[64, 16]``; zeros are written for blocks above the
    diagonal, whatever they hold.
    """
    dtype: gl.constexpr = x.dtype.element_ty
    block = gl.arange(0, C, layout=gl.SliceLayout(1, WIDE))[:, None] // BLOCK
    for column in gl.static_range(4):
        found = gl.where(block >= column, columns[column], 0.0).to(dtype)
        square_s.slice(column * BLOCK, BLOCK, dim=1).store(found)
    rows = gl.arange(0, C, layout=gl.SliceLayout(1, SQUARE))[:, None]
    inner = gl.arange(0, C, layout=gl.SliceLayout(0, SQUARE))[None, :]
    places = (first * H + h) * C + rows * (H * C) + inner
    gl.store(x + places, square_s.load(SQUARE), mask=rows + 0 * inner < left)
