"""Decays between tokens of a block, channel by channel, as matrix products of the block's gates.

What lies between two tokens decays by the exponential of a sum of gates. A matrix of zeros and ones
names the gates of each sum, and a product with it forms the sums of all tokens and channels at
once: no running sum is taken apart again, so that a hard gate hides nothing of mild ones behind it,
and all terms have one sign, so that each sum keeps the digits of its terms.

Which sums are needed: from the block's start to a token, from behind it to the block's end, and for
pairs ``j < i`` the tree of ``tree``: every pair lies on exactly one of log2(BT) levels in the two
halves of one group of 2^(level + 1) tokens, and decays by the gates from j to the group's middle
and from there to i. On a level every token needs one sum, that between it and the middle.

16-bit inputs: gates are split into two bfloat16 numbers, which keep 16 bits of each.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import FLOOR, LOG2E, load_rows, remainder


@triton.jit
def load_gates(
    g,
    rows,
    live,
    h,
    column,
    H: tl.constexpr,
    K: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    dtype: tl.constexpr,
):
    """Two parts ``[BT, BK]`` of log decays, base 2; zero outside. Of float32, one part holds all.

    ``dtype`` is that of the inputs.
    """
    x = load_rows(g, rows, live, h, column, H, K, BT, BK).to(tl.float32)
    x = tl.where(x < FLOOR, FLOOR, x) * LOG2E
    if dtype == tl.float32:
        high = x
        low = x
    else:
        high = x.to(tl.bfloat16)
        low = remainder(x, high).to(tl.bfloat16)
    return high, low


@triton.jit
def ones(which, dtype: tl.constexpr):
    """A bool matrix as products take it, for inputs of ``dtype``: formed once for several."""
    found = tl.where(which, 1.0, 0.0)
    if dtype != tl.float32:
        found = found.to(tl.bfloat16)
    return found


@triton.jit
def decays(which, high, low, PRECISION: tl.constexpr):
    """``exp`` of sums of gates, those that ``which [BT, BT]``, bools or ``ones``, names by row."""
    which = which.to(high.dtype)
    if high.dtype == tl.float32:
        found = tl.dot(which, high, input_precision=PRECISION)
    else:
        found = tl.dot(which, low, acc=tl.dot(which, high))
    # Rounding may have left the sum a little above zero.
    return tl.exp2(tl.minimum(found, 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def up_to(BT: tl.constexpr):
    """Gates from the block's start to each token, its own among them."""
    return tl.arange(0, BT)[:, None] >= tl.arange(0, BT)[None, :]


@triton.jit
def behind(BT: tl.constexpr):
    """Gates from behind each token to the block's end."""
    return tl.arange(0, BT)[:, None] < tl.arange(0, BT)[None, :]


@triton.jit
def tokens_at(level, BT: tl.constexpr):
    """Numbers of the block's tokens, from a multiple of BT on that differs between levels.

    Masks that depend on the level are formed where they are used; all masks of all levels, kept in
    registers from before the loop over levels on, take more of these than the sums.
    """
    return level * BT + tl.arange(0, BT)


@triton.jit
def is_later(level, BT: tl.constexpr):
    """Tokens ``[BT, 1]`` in the later half of their group."""
    return ((tokens_at(level, BT) >> level) & 1)[:, None] == 1


@triton.jit
def are_paired(level, BT: tl.constexpr):
    """Pairs ``[BT, BT]`` in the two halves of one group, whichever comes first."""
    segment = tokens_at(level, BT) >> level
    return (segment[:, None] ^ segment[None, :]) == 1


@triton.jit
def to_middle(level, BT: tl.constexpr):
    """Gates between each token and its group's middle, a later token's own among them.

    Transposed: for each gate the tokens between which and their middle it lies.
    """
    gates = tokens_at(level, BT)
    begin = (gates >> level) << level
    later = ((gates >> level) & 1) == 1
    first = tl.where(later, gates, begin)
    count = tl.where(later, begin + (1 << level) - gates, gates - begin)
    # The tokens of a gate are neighbours: one comparison, in which those before them wrap.
    place = (tokens_at(level, BT)[:, None] - first[None, :]).to(tl.uint32)
    return place < count.to(tl.uint32)[None, :]
