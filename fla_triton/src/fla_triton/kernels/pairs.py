"""Scores of the pairs of a block under channel decays: ``tree`` in the fewest instructions.

Rows of a tile hold the block's tokens in the reversed order of their bits (``tree_tokens``). Tokens
next to each other then lie in one thread: on the lowest levels nothing is exchanged, and which row
is the later one is settled when the kernel is compiled. Factors are products of ``exp(g)``, formed
by doubling: those of a level's segments become those of the next with the total of the segment
beside them. No factor is a quotient and no exponent a difference, so that a hard gate hides nothing
of mild ones behind it; and there is one exponential a token and channel for all levels.

From segments of 2^LOW tokens on (best those that one thread holds), left and right have been
multiplied by what their own segment takes of them, and every level adds the decay between segment
and middle, one number for all tokens of a segment.
"""

import triton
import triton.language as tl

MOST_LEVELS = tl.constexpr(8)
"""Levels of a block of 256 tokens."""


@triton.jit
def tree_tokens(BT: tl.constexpr):
    """Token of each row ``[BT]``: the row's bits, reversed."""
    row = tl.arange(0, BT)
    token = tl.zeros([BT], dtype=tl.int32)
    for bit in tl.static_range(MOST_LEVELS):
        if (1 << bit) < BT:
            token = token * 2 + ((row >> bit) & 1)
    return token


@triton.jit
def in_later_half(level: tl.constexpr, ROWS: tl.constexpr):
    """Rows ``[ROWS, 1]`` whose token, or segment, lies in the later half of its group."""
    return ((tl.arange(0, ROWS) // (ROWS >> (level + 1))) & 1)[:, None] == 1


@triton.jit
def doubled(since, until, total, level: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr):
    """Factors of the segments of the next level.

    Args:
        since, until: ``[ROWS, BK]`` from the segment's start to a row, and from behind it to the
            segment's end.
        total: of the segments, in reversed order, ``[ROWS / 2^level, BK]``.
    """
    pair = tl.reshape(total, [2, ROWS // (2 << level), BK])
    half = tl.arange(0, 2)[:, None, None]
    # Adding a negative zero is nothing to do even for a compiler that heeds signs.
    first = tl.sum(tl.where(half == 0, pair, -0.0), 0)
    second = tl.sum(tl.where(half == 1, pair, -0.0), 0)
    later = (tl.arange(0, 2) == 1)[None, :, None, None]
    since = tl.reshape(since, [1 << level, 2, ROWS // (2 << level), BK])
    until = tl.reshape(until, [1 << level, 2, ROWS // (2 << level), BK])
    since *= tl.where(later, first[None, None, :, :], 1.0)
    until *= tl.where(later, 1.0, second[None, None, :, :])
    return tl.reshape(since, [ROWS, BK]), tl.reshape(until, [ROWS, BK]), first * second


@triton.jit
def spread(x, factor, BT: tl.constexpr, BK: tl.constexpr, LOW: tl.constexpr):
    """``x [BT, BK]`` times the factor of each row's segment of 2^LOW tokens."""
    tall = tl.reshape(x, [1 << LOW, BT >> LOW, BK]) * factor[None, :, :]
    return tl.reshape(tall, [BT, BK])


@triton.jit
def pair_scores(
    left,
    right,
    decays,
    dtype: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    LOW: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores ``[BT, BT]`` of the pairs ``j <= i`` from a tile of channels.

    Args:
        left, right: ``[BT, BK]``, float32, rows in the order of ``tree_tokens``.
        decays: ``exp(g)``, float32; one where there is no token.
        dtype: of products.

    Returns:
        scores, of the same order, which mean nothing above the diagonal; left decayed since the
        block's start, right until its end; the decay of the block ``[1, BK]``.
    """
    token = tree_tokens(BT)
    apart = token[:, None] ^ token[None, :]
    since, until, total = decays, tl.full([BT, BK], 1.0, dtype=tl.float32), decays
    # Of this only the diagonal stays: a pair of a token with itself does not decay.
    scores = tl.dot(left.to(dtype), tl.trans(right.to(dtype)), input_precision=PRECISION)
    for level in tl.static_range(LOW):
        later = in_later_half(level, BT)
        mixed = (tl.where(later, left, right) * tl.where(later, since, until)).to(dtype)
        found = tl.dot(mixed, tl.trans(mixed), input_precision=PRECISION)
        # What is no pair of this level is one of a lower level, and known, or of a higher one.
        scores = tl.where(apart < (1 << level), scores, found)
        since, until, total = doubled(since, until, total, level, BT, BK)
    left *= since
    right *= until
    SEGMENTS: tl.constexpr = BT >> LOW
    before = tl.full([SEGMENTS, BK], 1.0, dtype=tl.float32)
    behind = tl.full([SEGMENTS, BK], 1.0, dtype=tl.float32)
    for level in tl.static_range(MOST_LEVELS):
        if (1 << level) < SEGMENTS:
            factor = tl.where(in_later_half(level, SEGMENTS), before, behind)
            both = tl.where(in_later_half(level + LOW, BT), left, right)
            mixed = spread(both, factor, BT, BK, LOW).to(dtype)
            found = tl.dot(mixed, tl.trans(mixed), input_precision=PRECISION)
            scores = tl.where(apart < (1 << (level + LOW)), scores, found)
            before, behind, total = doubled(before, behind, total, level, SEGMENTS, BK)
    return scores, spread(left, before, BT, BK, LOW), spread(right, behind, BT, BK, LOW), total
