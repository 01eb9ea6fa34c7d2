"""Scores of the pairs of a chunk under channel decays: the tree of ``tree``, token by token.

Tiles are those of ``tokens``. On the four lowest levels, those of a block of 16 tokens, which token
is the later one is settled when the kernel is compiled, and a level costs a multiplication a token
and channel: the later half takes on what the earlier one decays by, ``left`` then being decayed
since the start of its segment, and the other way round ``right`` until its segment's end. On the
levels above, whole blocks are later or earlier, and take on what whole blocks decay by.

Factors are products of ``exp(g)``. None is a quotient and no exponent a difference, so that a hard
gate hides nothing of mild ones behind it; there is one exponential a token and channel.

Scores lie in two parts: ``near [C / 16, 16, 16]`` of pairs in one block, whose products are taken
block by block, and ``far [C, C]`` of pairs in two. Both add up the pairs of all tiles of channels;
what they hold above the diagonal means nothing.
"""

import triton
import triton.language as tl

from fla_triton.kernels.tokens import BLOCK, as_rows, side_by_side
from fla_triton.kernels.triangular import block_diagonal

LEVELS = tl.constexpr(4)
"""Levels of a block."""


@triton.jit
def widened(tiles):
    """The tiles in float32."""
    found = ()
    for token in tl.static_range(BLOCK):
        found += (tiles[token].to(tl.float32),)
    return found


@triton.jit
def times(tiles, factors):
    """Tile by tile."""
    found = ()
    for token in tl.static_range(BLOCK):
        found += (tiles[token] * factors[token],)
    return found


@triton.jit
def scaled(tiles, factor):
    """All tiles times one."""
    found = ()
    for token in tl.static_range(BLOCK):
        found += (tiles[token] * factor,)
    return found


@triton.jit
def mixed(left, right, level: tl.constexpr):
    """Of later tokens left, of earlier ones right."""
    found = ()
    for token in tl.static_range(BLOCK):
        if (token >> level) & 1:
            found += (left[token],)
        else:
            found += (right[token],)
    return found


@triton.jit
def later_decayed(tiles, totals, level: tl.constexpr):
    """Later tokens times the decay of the segment before theirs; ``totals``: of each segment."""
    found = ()
    for token in tl.static_range(BLOCK):
        if (token >> level) & 1:
            found += (tiles[token] * totals[(token >> level) - 1],)
        else:
            found += (tiles[token],)
    return found


@triton.jit
def earlier_decayed(tiles, totals, level: tl.constexpr):
    """Earlier tokens times the decay of the segment behind theirs."""
    found = ()
    for token in tl.static_range(BLOCK):
        if (token >> level) & 1:
            found += (tiles[token],)
        else:
            found += (tiles[token] * totals[(token >> level) + 1],)
    return found


@triton.jit
def joined(totals, level: tl.constexpr):
    """Decays of the segments of the next level."""
    found = ()
    for segment in tl.static_range(BLOCK >> (level + 1)):
        found += (totals[2 * segment] * totals[2 * segment + 1],)
    return found


@triton.jit
def block_decays(total, C: tl.constexpr, BK: tl.constexpr):
    """Decays of whole blocks between each block and the middle of its group, level by level.

    Args:
        total: of each block, ``[C / 16, BK]``.

    Returns:
        two tiles a level, from the middle to a later block and from behind an earlier one to the
        middle, one for the other blocks; then two from the chunk's start and until its end; and the
        chunk's own decay.
    """
    before = tl.full([C // BLOCK, BK], 1.0, dtype=tl.float32)
    behind = tl.full([C // BLOCK, BK], 1.0, dtype=tl.float32)
    found = (before, behind)
    half = tl.arange(0, 2)[None, :, None, None]
    for level in tl.static_range(LEVELS):
        if (BLOCK << level) < C:
            pair = tl.reshape(total, [C // (2 * BLOCK << level), 2, 1 << level, BK])
            # Adding a negative zero is nothing to do even for a compiler that heeds signs.
            first = tl.sum(tl.where(half == 0, pair, -0.0), 1)[:, None, :, :]
            second = tl.sum(tl.where(half == 1, pair, -0.0), 1)[:, None, :, :]
            before *= tl.reshape(tl.where(half == 1, first, 1.0), [C // BLOCK, BK])
            behind *= tl.reshape(tl.where(half == 1, 1.0, second), [C // BLOCK, BK])
            found += (before, behind)
            both = tl.broadcast_to(first * second, [C // (2 * BLOCK << level), 2, 1 << level, BK])
            total = tl.reshape(both, [C // BLOCK, BK])
    return found, total


@triton.jit
def later_blocks(level: tl.constexpr, C: tl.constexpr):
    """Blocks ``[C / 16, 1]`` in the later half of their group."""
    return ((tl.arange(0, C // BLOCK) >> level) & 1)[:, None] == 1


@triton.jit
def mixed_blocks(left, right, factors, level: tl.constexpr, C: tl.constexpr):
    """Of later blocks left, of earlier ones right, decayed to the middle between."""
    later = later_blocks(level, C)
    factor = tl.where(later, factors[2 * level], factors[2 * level + 1])
    found = ()
    for token in tl.static_range(BLOCK):
        if level == 0:
            found += (tl.where(later, left[token], right[token]),)
        else:
            found += (tl.where(later, left[token], right[token]) * factor,)
    return found


@triton.jit
def no_scores(C: tl.constexpr):
    """``near`` and ``far`` of no channels."""
    near = tl.zeros([C // BLOCK, BLOCK, BLOCK], dtype=tl.float32)
    return near, tl.zeros([C, C], dtype=tl.float32)


@triton.jit
def at_level(level: tl.constexpr, C: tl.constexpr):
    """Pairs ``[C, C]`` of a level; of level -1 a token with itself."""
    token = tl.arange(0, C)
    if level < 0:
        found = token[:, None] == token[None, :]
    elif level < LEVELS:
        found = (token[:, None] ^ token[None, :]) >> level == 1
    else:
        # What is the same for neighbours lets loads that it masks take several at once.
        block = token // BLOCK
        found = (block[:, None] ^ block[None, :]) >> (level - LEVELS) == 1
    return found


@triton.jit
def with_near(
    near,
    far,
    rows,
    columns,
    level: tl.constexpr,
    dtype: tl.constexpr,
    BK: tl.constexpr,
    FLAT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the products of the pairs of a level inside blocks.

    ``rows``, ``columns``: tiles.
    """
    C: tl.constexpr = far.shape[0]
    if not FLAT:
        turned = side_by_side(columns, dtype, C, BK)
        straight = tl.permute(side_by_side(rows, dtype, C, BK), (0, 2, 1))
        found = tl.dot(straight, turned, input_precision=PRECISION)
        near += tl.where(at_level(level, BLOCK)[None, :, :], found, 0.0)
    else:
        far = with_far(far, rows, columns, level, dtype, BK, PRECISION)
    return near, far


@triton.jit
def with_far(
    far,
    rows,
    columns,
    level: tl.constexpr,
    dtype: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the products of the pairs of a level, by one product of the whole chunk."""
    C: tl.constexpr = far.shape[0]
    straight = as_rows(rows, dtype, C, BK)
    turned = tl.trans(as_rows(columns, dtype, C, BK))
    found = tl.dot(straight, turned, input_precision=PRECISION)
    return far + tl.where(at_level(level, C), found, 0.0)


@triton.jit
def pair_scores(
    near,
    far,
    other_near,
    other_far,
    left,
    other,
    right,
    decays,
    gain,
    dtype: tl.constexpr,
    BK: tl.constexpr,
    TWO: tl.constexpr,
    FLAT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add the pairs of a tile of channels: ``j <= i`` of left, ``j < i`` of other.

    Args:
        near, far: scores of ``left`` with ``right``.
        other_near, other_far: those of ``other`` with ``right``; nothing happens to them, and
            ``other`` is not read, if not ``TWO``.
        left, other, right: 16 tiles ``[C / 16, BK]``.
        decays: ``exp(g)``, float32; one where there is no token.
        gain: by which left is returned.
        dtype: of products.
        FLAT: multiply two matrices at a time; then all scores lie in ``far``.

    Returns:
        the four; left and other decayed since the chunk's start, right until its end; the decay of
        the chunk, in each block's row.
    """
    C: tl.constexpr = far.shape[0]
    # A token does not decay towards itself.
    near, far = with_near(near, far, left, right, -1, dtype, BK, FLAT, PRECISION)
    left = times(widened(left), decays)
    if TWO:
        other = times(widened(other), decays)
    right = widened(right)
    totals = decays
    for level in tl.static_range(LEVELS):
        both = mixed(left, right, level)
        near, far = with_near(near, far, both, both, level, dtype, BK, FLAT, PRECISION)
        left = later_decayed(left, totals, level)
        if TWO:
            rows = mixed(other, right, level)
            other_near, other_far = with_near(
                other_near, other_far, rows, both, level, dtype, BK, FLAT, PRECISION
            )
            other = later_decayed(other, totals, level)
        right = earlier_decayed(right, totals, level)
        totals = joined(totals, level)
    factors, total = block_decays(totals[0], C, BK)
    for level in tl.static_range(LEVELS):
        if (BLOCK << level) < C:
            both = mixed_blocks(left, right, factors, level, C)
            far = with_far(far, both, both, LEVELS + level, dtype, BK, PRECISION)
            if TWO:
                rows = mixed_blocks(other, right, factors, level, C)
                other_far = with_far(other_far, rows, both, LEVELS + level, dtype, BK, PRECISION)
    left = scaled(left, factors[len(factors) - 2] * gain)
    if TWO:
        other = scaled(other, factors[len(factors) - 2])
    right = scaled(right, factors[len(factors) - 1])
    return near, far, other_near, other_far, left, other, right, total


@triton.jit
def whole(near, far, FLAT: tl.constexpr):
    """Both parts of scores as one ``[C, C]``."""
    C: tl.constexpr = far.shape[0]
    block = tl.arange(0, C) // BLOCK
    if not FLAT:
        far = tl.where(block[:, None] == block[None, :], block_diagonal(near, C), far)
    return far


@triton.jit
def store_scores(
    scores, near, far, first, live, h, H: tl.constexpr, C: tl.constexpr, FLAT: tl.constexpr
):
    """Write scores to ``[rows, H, C]``, with zeros above the diagonal.

    ``first``: row of the chunk's first token; ``live``: how many of its tokens there are.
    """
    dtype: tl.constexpr = scores.dtype.element_ty
    start = (tl.cast(first, tl.int64) * H + h) * C
    inner = tl.arange(0, C)
    places = start + inner[:, None] * (H * C) + inner[None, :]
    mask = (inner < live)[:, None]
    if not FLAT:
        block = inner // BLOCK
        mask &= block[:, None] != block[None, :]
    below = tl.where(inner[:, None] >= inner[None, :], far, 0.0)
    tl.store(scores + places, below.to(dtype), mask=mask)
    if not FLAT:
        token = tl.arange(0, BLOCK)
        rows = tl.arange(0, C // BLOCK)[:, None] * BLOCK + token[None, :]
        places = start + rows[:, :, None] * (H * C) + rows[:, None, :]
        below = tl.where((token[:, None] >= token[None, :])[None, :, :], near, 0.0)
        tl.store(scores + places, below.to(dtype), mask=(rows < live)[:, :, None])
