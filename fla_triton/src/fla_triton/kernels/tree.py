"""Scores of the pairs of tokens of a block where every key channel has its own decay, by a tree.

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

Factors are products of ``exp(g)``, formed by doubling: those of a level's segments become those of
the next with the total of the segment next to them. No factor is a quotient, and no exponent a
difference, so that a hard gate hides nothing of mild ones behind it.

All pairs of a level cross its group's middle, hence their part in the gradient of a gate is a sum
over one side alone: for a later token what its segment has from it on, for an earlier one what its
segment has before it, of ``mixed`` times its gradient. Nothing cancels.

Flops a block and channel: 2 BT^2 log2(BT) for scores and again for their gradients, 2 BT^2
(log2(BT) - 1) for gates (twice that in float16); one exponential a token and channel.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import LOG2E, load_rows

MOST_LEVELS = tl.constexpr(8)
"""Levels of a block of 256 tokens."""


@triton.jit
def load_decays(
    g, rows, live, h, column, H: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr
):
    """``exp(g)`` of a tile of log decays ``[rows, H, K]``, in float32; one outside."""
    return tl.exp2(load_rows(g, rows, live, h, column, H, K, BT, BK).to(tl.float32) * LOG2E)


@triton.jit
def is_later(level: tl.constexpr, BT: tl.constexpr):
    """Tokens ``[BT, 1]`` in the later half of their group."""
    return ((tl.arange(0, BT) >> level) & 1)[:, None] == 1


@triton.jit
def are_paired(level: tl.constexpr, BT: tl.constexpr):
    """Pairs ``[BT, BT]`` in the two halves of one group, whichever comes first."""
    segment = tl.arange(0, BT) >> level
    return (segment[:, None] ^ segment[None, :]) == 1


@triton.jit
def doubled(since, until, level: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    """Factors of the segments of the next level.

    Args:
        since: decays from the start of a token's segment of ``2^level`` tokens to the token, its
            own among them.
        until: decays behind a token to its segment's end.
    """
    HALF: tl.constexpr = 1 << level
    GROUPS: tl.constexpr = BT // (2 * HALF)
    place = tl.arange(0, 2 * HALF)[None, :, None]
    since = tl.reshape(since, [GROUPS, 2 * HALF, BK])
    until = tl.reshape(until, [GROUPS, 2 * HALF, BK])
    first = tl.sum(tl.where(place == HALF - 1, since, 0.0), 1)[:, None, :]
    second = tl.sum(tl.where(place == 2 * HALF - 1, since, 0.0), 1)[:, None, :]
    later = place >= HALF
    since *= tl.where(later, first, 1.0)
    until *= tl.where(later, 1.0, second)
    return tl.reshape(since, [BT, BK]), tl.reshape(until, [BT, BK])


@triton.jit
def pair_scores(
    scores,
    left,
    right,
    decays,
    BT: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the pairs ``j < i`` of a tile of channels to ``scores [BT, BT]``.

    Args:
        scores: float32; nothing is added on its diagonal and above.
        left, right: ``[BT, BK]``; products are taken in the dtype of ``right``.
        decays: of ``load_decays``.

    Returns:
        scores; decays from the block's start to each token, its own among them, and from behind
        it to the block's end.
    """
    since = decays
    until = tl.full([BT, BK], 1.0, dtype=tl.float32)
    inner = tl.arange(0, BT)
    below = inner[:, None] > inner[None, :]
    for level in tl.static_range(MOST_LEVELS):
        if (1 << level) < BT:
            later = is_later(level, BT)
            mixed = (tl.where(later, left, right) * tl.where(later, since, until)).to(right.dtype)
            found = tl.dot(mixed, tl.trans(mixed), input_precision=PRECISION)
            scores += tl.where(are_paired(level, BT) & below, found, 0.0)
            since, until = doubled(since, until, level, BT, BK)
    return scores, since, until


@triton.jit
def own_scores(left, right):
    """``sum_d left_id right_id`` of each token ``[BT]``: a pair with itself does not decay."""
    return tl.sum(left.to(tl.float32) * right.to(tl.float32), 1)


@triton.jit
def pair_outputs(pairs, right, decays, BT: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    """``sum_{j < i} pairs_ij exp(G_i - G_j) right_j`` in a tile of channels that decay.

    Args:
        pairs: ``[BT, BT]``, in the dtype of ``right``; zero on its diagonal and above.
        right: ``[BT, BK]``.
        decays: of ``load_decays``.

    Returns:
        the sums, and decays from the block's start to each token, its own among them.
    """
    since = decays
    until = tl.full([BT, BK], 1.0, dtype=tl.float32)
    out = tl.zeros([BT, BK], dtype=tl.float32)
    for level in tl.static_range(MOST_LEVELS):
        if (1 << level) < BT:
            chosen = tl.where(are_paired(level, BT), pairs, 0.0).to(right.dtype)
            decayed = (right * until).to(right.dtype)
            out += tl.dot(chosen, decayed, input_precision=PRECISION) * since
            since, until = doubled(since, until, level, BT, BK)
    return out, since


@triton.jit
def sums(which, x, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """Sums over tokens of ``x [BT, BK]``, those that the bool matrix ``which [BT, BT]`` names.

    Terms keep the digits of ``dtype``, the dtype of the inputs, and the range of float32.
    """
    if dtype == tl.float32:
        found = tl.dot(which.to(tl.float32), x, input_precision=PRECISION)
    else:
        ones = which.to(tl.bfloat16)
        high = x.to(tl.bfloat16)
        found = tl.dot(ones, high)
        if dtype == tl.float16:
            found = tl.dot(ones, (x - high.to(tl.float32)).to(tl.bfloat16), acc=found)
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
    scores,
    pairs,
    left,
    right,
    decays,
    BT: tl.constexpr,
    BK: tl.constexpr,
    WITH_SCORES: tl.constexpr,
    WITH_GATES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of a tile of channels from those of the pairs ``j < i``.

    Args:
        scores: as of ``pair_scores``; added to ``WITH_SCORES``, handed back as they are if not.
        pairs: gradients of scores, of ``both_ways``, in the dtype of ``right``.
        left, right, decays: as of ``pair_scores``.

    Returns:
        scores; gradients of left, right, and of log decays (zero if not ``WITH_GATES``), float32;
        decays since the block's start and until its end, as of ``pair_scores``.
    """
    since = decays
    until = tl.full([BT, BK], 1.0, dtype=tl.float32)
    dleft = tl.zeros([BT, BK], dtype=tl.float32)
    dright = tl.zeros([BT, BK], dtype=tl.float32)
    dg = tl.zeros([BT, BK], dtype=tl.float32)
    inner = tl.arange(0, BT)
    below = inner[:, None] > inner[None, :]
    for level in tl.static_range(MOST_LEVELS):
        if (1 << level) < BT:
            later = is_later(level, BT)
            paired = are_paired(level, BT)
            factor = tl.where(later, since, until)
            wide = tl.where(later, left, right) * factor
            mixed = wide.to(right.dtype)
            if WITH_SCORES:
                found = tl.dot(mixed, tl.trans(mixed), input_precision=PRECISION)
                scores += tl.where(paired & below, found, 0.0)
            chosen = tl.where(paired, pairs, 0.0).to(right.dtype)
            found = tl.dot(chosen, mixed, input_precision=PRECISION)
            dleft += tl.where(later, found * factor, 0.0)
            dright += tl.where(later, 0.0, found * factor)
            if WITH_GATES:
                if level == 0:
                    dg += tl.where(later, found * wide, 0.0)
                else:
                    segment = inner >> level
                    joint = segment[:, None] == segment[None, :]
                    reach = joint & (later ^ below)
                    dg += sums(reach, found * wide, right.dtype, PRECISION)
            since, until = doubled(since, until, level, BT, BK)
    return scores, dleft, dright, dg, since, until
