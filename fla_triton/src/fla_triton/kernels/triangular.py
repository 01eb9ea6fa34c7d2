"""The inverse of I + A, A strictly lower triangular: what one chunk's writes make of each other.

Two neighbouring diagonal blocks of the inverse join into one of twice the size,

    [ X1   0  ]      [ I + A1    0    ]^-1
    [ X21  X2 ]  =   [  A21    I + A2 ]      with  X21 = -X2 A21 X1,

so that log2(C) steps lead from ones on the diagonal to the whole. Every number on the way is an
entry of the inverse of some block, or a product of two such: for keys of length one and strengths
up to two these are products of contractions and at most two in size. The powers of A that a sum of
a geometric series goes through are not: of equal keys at strength two those of 16 tokens reach 1e6.

Steps inside blocks of 16 are made on these blocks alone, side by side; later ones on the whole
matrix, masked. Flops: 4 C^3 log2(C / 16) and little more.
"""

import triton
import triton.language as tl

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
def unit_lower_inverse(a, C: tl.constexpr, PRECISION: tl.constexpr):
    """``(I + a)^-1`` in float32; ``a [C, C]`` is zero on and above its diagonal, C 16 or more."""
    inner = tl.arange(0, SMALL)
    row = inner[None, :, None]
    column = inner[None, None, :]
    small = diagonal_blocks(a, C)
    x = tl.where(row == column, 1.0, tl.where(joins(row, column, 1), -small, 0.0))
    for step in tl.static_range(1, 4):
        between = tl.where(joins(row, column, 1 << step), small, 0.0)
        between = tl.dot(x, between, input_precision=PRECISION)
        x -= tl.dot(between, x, input_precision=PRECISION)

    inner = tl.arange(0, C)
    row = inner[:, None]
    column = inner[None, :]
    whole = block_diagonal(x, C)
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
        low = (x - high.to(tl.float32)).to(factor.dtype)
        acc = tl.dot(low, factor, acc=acc, input_precision=PRECISION)
    return acc
