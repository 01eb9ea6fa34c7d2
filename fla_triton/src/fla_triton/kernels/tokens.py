"""A chunk as its tokens: of every block of 16 tokens, token t lies in the t-th of 16 tiles.

A tile ``[C / 16, D]`` holds one token of each block, channels side by side, and a tuple of 16 tiles
the chunk. Which token of its block a number belongs to is then known when the kernel is compiled:
what differs between tokens needs no mask, and what one token hands to the next stays in a thread.
Only matrix products, which want tokens in one tile, exchange anything.
"""

import triton
import triton.language as tl

BLOCK = tl.constexpr(16)
"""Tokens of a block: as many as the smallest side of a matrix product."""


@triton.jit
def load_tokens(
    x, first, live, h, column, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr
):
    """16 tiles of ``x [rows, H, D]`` from a column and from row ``first`` on; zero outside.

    ``live``: how many of the chunk's tokens there are.
    """
    blocks = tl.arange(0, C // BLOCK) * BLOCK
    columns = column + tl.arange(0, BD)
    start = (tl.cast(first, tl.int64) * H + h) * D
    places = start + (blocks * (H * D))[:, None] + columns[None, :]
    inside = (columns < D)[None, :]
    found = ()
    for token in tl.static_range(BLOCK):
        mask = (blocks + token < live)[:, None] & inside
        found += (tl.load(x + places + token * H * D, mask=mask, other=0.0),)
    return found


@triton.jit
def side_by_side(tiles, dtype: tl.constexpr, C: tl.constexpr, BD: tl.constexpr):
    """The tiles as ``[C / 16, BD, 16]``, as a product of each block takes them."""
    parts = ()
    for token in tl.static_range(BLOCK):
        parts += (tiles[token].to(dtype),)
    # From 16 tiles to one, by pairs: the bits of a token become dimensions, highest first.
    for step in tl.static_range(4):
        joined = ()
        for token in tl.static_range(BLOCK >> (step + 1)):
            joined += (tl.join(parts[token], parts[token + (BLOCK >> (step + 1))]),)
        parts = joined
    return tl.reshape(parts[0], [C // BLOCK, BD, BLOCK])


@triton.jit
def as_rows(tiles, dtype: tl.constexpr, C: tl.constexpr, BD: tl.constexpr):
    """The tiles as ``[C, BD]``, tokens in order, as a product of the chunk takes them."""
    wide = side_by_side(tiles, dtype, C, BD)
    return tl.reshape(tl.permute(wide, (0, 2, 1)), [C, BD])
