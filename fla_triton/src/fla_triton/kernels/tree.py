"""Pairs of a block of tokens where every key channel has its own decay: a tree, and its gradients.

With log decays g and their sums G, a block of BT tokens needs

    P_ij = sum_d left_id right_jd exp(G_id - G_jd),   j < i,

(``left`` is q, or what a delta rule erases with; ``right`` is k) as matrix products, none of whose
factors may grow. Every pair lies, on exactly one of log2(BT) levels, in the two halves of one
group of 2^(level + 1) tokens. With the group's middle m between the halves

    exp(G_i - G_j) = exp(G_i - G_m) exp(G_m - G_j),

what the later token is decayed by since the middle times what the earlier one is until there: both
at most one. A token is later or earlier on a level, never both, so that one tile ``mixed`` (later
tokens: left, earlier ones: right, each times its factor) and one product ``mixed mixed^T`` hold all
pairs of a level, among others that are masked. The same tile gives both gradients of a level:

    (dP + dP^T, masked) mixed = dleft of later tokens and dright of earlier ones, less the factor.

All pairs of a level cross its group's middle, hence their part in the gradient of a gate is a sum
over one side alone: for a later token what its half has from it on, for an earlier one what its
half has before it, of ``mixed`` times its gradient. Nothing cancels.

For scores ``pairs`` does this in the fewest instructions. Of gradients the levels are a loop of the
kernel, not of the compiler: unrolled, they want more registers than there are and take minutes to
compile.

Flops a block and channel: 2 BT^2 log2(BT) for gradients of left and right, again for gates (twice
in float16), and twice that for the sums of gates (``spans``).
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import load_rows, remainder
from fla_triton.kernels.spans import are_paired, decays, is_later, ones, to_middle


@triton.jit
def sums(which, x, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """Sums over tokens of ``x [BT, BK]``, those that ``which [BT, BT]``, bools or ones, names.

    Terms keep the digits of ``dtype``, the dtype of the inputs, and the range of float32.
    """
    if dtype == tl.float32:
        found = tl.dot(which.to(tl.float32), x, input_precision=PRECISION)
    else:
        which = which.to(tl.bfloat16)
        high = x.to(tl.bfloat16)
        found = tl.dot(which, high)
        if dtype == tl.float16:
            found = tl.dot(which, remainder(x, high).to(tl.bfloat16), acc=found)
    return found


@triton.jit
def both_ways(dscores, dtype: tl.constexpr):
    """``dP + dP^T`` of the pairs ``j < i``, as ``pair_gradients`` reads it."""
    BT: tl.constexpr = dscores.shape[0]
    inner = tl.arange(0, BT)
    lower = tl.where(inner[:, None] > inner[None, :], dscores, 0.0).to(dtype)
    return lower + tl.trans(lower)


@triton.jit
def pair_gradients(
    dleft,
    dright,
    dg,
    pairs,
    left,
    right,
    high,
    low,
    rows,
    live,
    h,
    column,
    H: tl.constexpr,
    K: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    LEVELS: tl.constexpr,
    WITH_GATES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add what the pairs ``j < i`` of a tile of channels give to its gradients.

    Operands are read again on every level: all of them do not fit into registers.

    Args:
        dleft, dright, dg: ``[BT, BK]``, float32; dg is handed back as it is if not ``WITH_GATES``.
        pairs: gradients of scores in memory ``[rows, H, BT]``, mirrored at the diagonal.
        left, right: in memory, ``[rows, H, K]``; products are taken in the dtype of ``right``.
        high, low: of ``load_gates``.
    """
    dtype: tl.constexpr = right.dtype.element_ty
    for level in range(LEVELS):
        # Zero, which only the device knows: what does not depend on the level leaves the loop.
        here = rows + (level >> 8)
        later = is_later(level, BT)
        between = ones(to_middle(level, BT), dtype)
        factor = decays(between, high, low, PRECISION)
        wide = load_rows(left, here, live, h, column, H, K, BT, BK)
        wide = tl.where(later, wide, load_rows(right, here, live, h, column, H, K, BT, BK)) * factor
        chosen = load_rows(pairs, here, live, h, 0, H, BT, BT, BT)
        chosen = tl.where(are_paired(level, BT), chosen, 0.0).to(dtype)
        found = tl.dot(chosen, wide.to(dtype), input_precision=PRECISION)
        if WITH_GATES:
            dg += sums(tl.trans(between), wide * found, dtype, PRECISION)
        found *= factor
        dleft += tl.where(later, found, 0.0)
        dright += tl.where(later, 0.0, found)
    return dleft, dright, dg
