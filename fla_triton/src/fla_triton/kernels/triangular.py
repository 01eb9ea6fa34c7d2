"""The inverse of I + A, A strictly lower triangular: what one chunk's writes make of each other.

Two neighbouring diagonal blocks of the inverse join into one of twice the size,

    [ X1   0  ]      [ I + A1    0    ]^-1
    [ X21  X2 ]  =   [  A21    I + A2 ]      with  X21 = -X2 A21 X1,

so that log2(C) steps lead from ones on the diagonal to the whole. Every number on the way is an
entry of the inverse of some block, or a product of two such: for keys of length one and strengths
up to two these are products of contractions and at most two in size. The powers of A that a sum of
a geometric series goes through are not: of equal keys at strength two those of 16 tokens reach 1e6.

Steps inside blocks of 16 are made on these blocks alone, side by side; later ones on the whole
matrix, masked. Flops: 4 C^3 log2(C / 16) and little more. Where a compiler cannot multiply matrices
side by side, blocks lie one below the other, and the left factor of a step has them on its diagonal
(``FLAT``): 192 C^2 flops more. On sm90 that takes 255 registers where the other form takes 207.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import remainder

SMALL = tl.constexpr(16)
"""Smallest side of a matrix product."""


@triton.jit
def diagonal_blocks(a, C: tl.constexpr):
    """Diagonal blocks ``[C / 16, 16, 16]`` of a matrix."""
    blocks: tl.constexpr = C // SMALL
    cut = tl.reshape(a, [blocks, SMALL, blocks, SMALL])
    own = tl.arange(0, blocks)[:, None, None, None] == tl.arange(0, blocks)[None, None, :, None]
    return tl.sum(tl.where(own, cut, 0.0), 2)


@triton.jit
def block_diagonal(x, C: tl.constexpr):
    """The matrix with these diagonal blocks and zeros elsewhere."""
    blocks: tl.constexpr = C // SMALL
    own = tl.arange(0, blocks)[:, None, None, None] == tl.arange(0, blocks)[None, None, :, None]
    return tl.reshape(tl.where(own, x[:, :, None, :], 0.0), [C, C])


@triton.jit
def joins(row, column, size):
    """Where a step joins blocks of ``size``: below the diagonal, in two halves of one block."""
    return (row // (2 * size) == column // (2 * size)) & (row // size > column // size)


@triton.jit
def inverse_of_blocks(a, C: tl.constexpr, PRECISION: tl.constexpr):
    """``(I + a)^-1`` of the diagonal blocks alone, zeros elsewhere."""
    inner = tl.arange(0, SMALL)
    row = inner[None, :, None]
    column = inner[None, None, :]
    small = diagonal_blocks(a, C)
    x = tl.where(row == column, 1.0, tl.where(joins(row, column, 1), -small, 0.0))
    for step in tl.static_range(1, 4):
        between = tl.where(joins(row, column, 1 << step), small, 0.0)
        between = tl.dot(x, between, input_precision=PRECISION)
        x -= tl.dot(between, x, input_precision=PRECISION)
    return block_diagonal(x, C)


@triton.jit
def one_below_the_other(a, C: tl.constexpr):
    """Diagonal blocks of a matrix as ``[C, 16]``."""
    blocks: tl.constexpr = C // SMALL
    cut = tl.reshape(a, [C, blocks, SMALL])
    own = tl.arange(0, C)[:, None, None] // SMALL == tl.arange(0, blocks)[None, :, None]
    return tl.sum(tl.where(own, cut, 0.0), 1)


@triton.jit
def on_diagonal(x, C: tl.constexpr):
    """The matrix of which ``one_below_the_other`` makes ``x``, and zeros elsewhere."""
    blocks: tl.constexpr = C // SMALL
    own = tl.arange(0, C)[:, None, None] // SMALL == tl.arange(0, blocks)[None, :, None]
    return tl.reshape(tl.where(own, x[:, None, :], 0.0), [C, C])


@triton.jit
def flat_inverse_of_blocks(a, C: tl.constexpr, PRECISION: tl.constexpr):
    """What ``inverse_of_blocks`` returns, from products of two matrices at a time."""
    row = (tl.arange(0, C) % SMALL)[:, None]
    column = tl.arange(0, SMALL)[None, :]
    small = one_below_the_other(a, C)
    x = tl.where(row == column, 1.0, tl.where(joins(row, column, 1), -small, 0.0))
    for step in tl.static_range(1, 4):
        between = tl.where(joins(row, column, 1 << step), small, 0.0)
        between = tl.dot(on_diagonal(x, C), between, input_precision=PRECISION)
        x -= tl.dot(on_diagonal(between, C), x, input_precision=PRECISION)
    return on_diagonal(x, C)


@triton.jit
def unit_lower_inverse(a, C: tl.constexpr, PRECISION: tl.constexpr, FLAT: tl.constexpr = False):
    """``(I + a)^-1`` in float32; ``a [C, C]`` is zero on and above its diagonal, C 16 or more."""
    whole = flat_inverse_of_blocks(a, C, PRECISION) if FLAT else inverse_of_blocks(a, C, PRECISION)
    inner = tl.arange(0, C)
    row = inner[:, None]
    column = inner[None, :]
    if C > SMALL:
        between = tl.where(joins(row, column, SMALL), a, 0.0)
        between = tl.dot(whole, between, input_precision=PRECISION)
        whole -= tl.dot(between, whole, input_precision=PRECISION)
    if C > 2 * SMALL:
        between = tl.where(joins(row, column, 2 * SMALL), a, 0.0)
        between = tl.dot(whole, between, input_precision=PRECISION)
        whole -= tl.dot(between, whole, input_precision=PRECISION)
    return whole


@triton.jit
def wide_product(x, factor, PRECISION: tl.constexpr):
    """``x @ factor`` in float32; of a 16-bit factor with x in two parts of its width.

    For inverses: of nearly parallel keys at strengths of nearly two all entries are about two, of
    either sign, and their products cancel. One part's rounding put errors of such a chunk at up to
    1.8 times (bfloat16) and 3.3 times (float16) the limit of their rows, two parts' at half of it.
    """
    high = x.to(factor.dtype)
    acc = tl.dot(high, factor, input_precision=PRECISION)
    if factor.dtype != tl.float32:
        low = remainder(x, high).to(factor.dtype)
        acc = tl.dot(low, factor, acc=acc, input_precision=PRECISION)
    return acc
