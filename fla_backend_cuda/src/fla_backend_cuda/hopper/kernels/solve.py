"""The inverse of I + A for a chunk's 64 tokens, a block of 16 rows in each of four warps.

A is strictly lower triangular and lies in registers, as ``pairs`` leaves it. Blocks on the diagonal
are inverted as in ``fla_triton``'s ``triangular``, by halves. Below them, block row by block row,

    X_IJ = -X_II sum_(J <= M < I) A_IM X_MJ,

where a row that is solved is handed to the warps below it through shared memory. What multiplies
what is an inverse of some block, or a product of A with one, so that nothing grows on the way.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from fla_backend_cuda.hopper.kernels.warps import BLOCK, PRODUCTS, WIDE, C, no_products

ROWS = gl.constexpr(gl.DotOperandLayout(0, PRODUCTS, 2))
COLUMNS = gl.constexpr(gl.DotOperandLayout(1, PRODUCTS, 2))
WIDE_ROWS = gl.constexpr(gl.DotOperandLayout(0, WIDE, 2))
WIDE_COLUMNS = gl.constexpr(gl.DotOperandLayout(1, WIDE, 2))


@gluon.jit
def _own(x, y):
    """Products ``[4, 16, 16]`` of each block with its own."""
    left = gl.convert_layout(x, ROWS)
    return mma_v2(left, gl.convert_layout(y, COLUMNS), no_products(), input_precision="tf32")


@gluon.jit
def _inverse_of_blocks(a):
    """``(I + a)^-1`` of each block ``[4, 16, 16]``; what a holds above the diagonal is not read."""
    along: gl.constexpr = gl.SliceLayout(0, PRODUCTS)
    row = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, along))[:, None]
    column = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, along))[None, :]
    diagonal = (row == column)[None, :, :]
    # Where a step joins blocks: below the diagonal, in two halves of one block.
    first = (((row ^ column) == 1) & (row > column))[None, :, :]
    x = gl.where(diagonal, 1.0, gl.where(first, -a, 0.0))
    for step in gl.static_range(1, 4):
        joined = (((row ^ column) >> step == 1) & (row > column))[None, :, :]
        x -= _own(_own(x, gl.where(joined, a, 0.0)), x)
    return x


@gluon.jit
def _below(x, solved_s, block: gl.constexpr, acc):
    """Add ``x [64, 16]`` times a block of solved rows."""
    columns = solved_s.slice(block * BLOCK, BLOCK).load(WIDE_COLUMNS)
    return mma_v2(gl.convert_layout(x, WIDE_ROWS), columns, acc, input_precision="tf32")


@gluon.jit
def _finished(own, found):
    """``-X_II`` times a column of blocks ``[64, 16]``."""
    blocks = gl.convert_layout(gl.reshape(found, [4, BLOCK, BLOCK]), PRODUCTS)
    return gl.convert_layout(gl.reshape(-_own(own, blocks), [C, BLOCK]), WIDE)


@gluon.jit
def inverse(near, far_0, far_1, far_2):
    """The inverse as four columns of blocks ``[64, 16]``.

    Args:
        near: blocks on the diagonal ``[4, 16, 16]``.
        far_0, far_1, far_2: scores of later tokens with those of a block; what they hold for
            earlier tokens is not read.
    """
    shared: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [1, 0])
    own_s = gl.allocate_shared_memory(gl.float32, [C, BLOCK], shared)
    rows_0_s = gl.allocate_shared_memory(gl.float32, [C, BLOCK], shared)
    rows_1_s = gl.allocate_shared_memory(gl.float32, [C, BLOCK], shared)
    block = (gl.arange(0, C, layout=gl.SliceLayout(1, WIDE)) // BLOCK)[:, None]
    far_0 = gl.where(block > 0, far_0, 0.0)
    far_1 = gl.where(block > 1, far_1, 0.0)
    far_2 = gl.where(block > 2, far_2, 0.0)
    own = _inverse_of_blocks(near)
    diagonal = gl.convert_layout(gl.reshape(own, [C, BLOCK]), WIDE)
    none = gl.zeros([C, BLOCK], gl.float32, layout=WIDE)
    own_s.store(diagonal)
    sum_0 = _below(far_0, own_s, 0, none)
    rows_0_s.store(_finished(own, sum_0))
    sum_0 = _below(far_1, rows_0_s, 1, sum_0)
    sum_1 = _below(far_1, own_s, 1, none)
    rows_0_s.store(_finished(own, sum_0))
    rows_1_s.store(_finished(own, sum_1))
    sum_0 = _below(far_2, rows_0_s, 2, sum_0)
    sum_1 = _below(far_2, rows_1_s, 2, sum_1)
    sum_2 = _below(far_2, own_s, 2, none)
    return (
        _finished(own, sum_0) + gl.where(block == 0, diagonal, 0.0),
        _finished(own, sum_1) + gl.where(block == 1, diagonal, 0.0),
        _finished(own, sum_2) + gl.where(block == 2, diagonal, 0.0),
        gl.where(block == 3, diagonal, 0.0),
    )
