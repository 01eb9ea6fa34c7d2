"""How a chunk of 64 tokens lies in the registers of four warps, channels by tokens.

A warp has 16 channels, a thread two of them and 16 tokens: bits 1 and 2 of a token tell lanes
apart, the others registers. An accumulator ``[channels, tokens]`` of a product is, taken four
tokens of a lane at a time, what the next product reads on its left, so that nothing is exchanged.
Sixteen tokens are a block, and a block is four tiles: those whose bits 3 and 0 are 00, 01, 10, 11.

Inside a block the tree of ``fla_triton``'s ``tree`` has four levels. On levels 0 and 3 whole tiles
are later or earlier than those they are paired with, on levels 1 and 2 lanes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from fla_backend_cuda.hopper.kernels.lanes import across_lanes

BLOCK = gl.constexpr(16)
"""Tokens of a block: four levels of the tree inside it, two above."""

PRODUCT = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
)
WIDE = gl.constexpr(
    gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1], instr_shape=[16, 8])
)
"""``[64, 16]``: channels of a block's tokens."""
ROWS = gl.constexpr(gl.DotOperandLayout(0, WIDE, 2))
COLUMNS = gl.constexpr(gl.DotOperandLayout(1, WIDE, 2))
SQUARES = gl.constexpr(
    gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1, 1], instr_shape=[1, 16, 8])
)
SQUARE_ROWS = gl.constexpr(gl.DotOperandLayout(0, SQUARES, 2))
SQUARE_COLUMNS = gl.constexpr(gl.DotOperandLayout(1, SQUARES, 2))
TILE = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1]],
        lane_bases=[[1, 0], [2, 0], [0, 2], [0, 4], [0, 8]],
        warp_bases=[[0, 16], [0, 32]],
        block_bases=[],
        shape=[4, 64],
    )
)
"""Tokens of a block whose bits 0 and 3 are the same, and channels. Of two that a thread has, an
accumulator has one eight rows below the other: rows are channels in another order."""
LOADED = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [1, 0], [8, 0]],
        lane_bases=[[2, 0], [4, 0], [0, 2], [0, 4], [0, 8]],
        warp_bases=[[0, 16], [0, 32]],
        block_bases=[],
        shape=[16, 64],
    )
)
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def channel_of(row):
    """Channel that lies in a row of an accumulator."""
    return (row & 48) + (row & 7) * 2 + ((row >> 3) & 1)


@gluon.jit
def _halves(x):
    """Four tiles of the last two dimensions."""
    even, odd = gl.split(x)
    a, c = gl.split(even)
    b, d = gl.split(odd)
    return a, b, c, d


@gluon.jit
def apart(x):
    """Tiles of a block ``[16, 64]``."""
    a, b, c, d = _halves(gl.permute(gl.reshape(x, [2, 4, 2, 64]), (1, 3, 0, 2)))
    return (
        gl.convert_layout(a, TILE),
        gl.convert_layout(b, TILE),
        gl.convert_layout(c, TILE),
        gl.convert_layout(d, TILE),
    )


@gluon.jit
def _turned(tiles, dtype: gl.constexpr):
    """Tiles as rows of channels ``[64, 16]``."""
    a, b, c, d = tiles
    both = gl.join(gl.join(a.to(dtype), b.to(dtype)), gl.join(c.to(dtype), d.to(dtype)))
    both = gl.reshape(gl.permute(both, (1, 3, 0, 2)), [4, 8, 2, 16])
    return gl.reshape(gl.permute(both, (0, 2, 1, 3)), [64, 16])


@gluon.jit
def as_rows(tiles, dtype: gl.constexpr):
    """Tiles as the left operand of a product."""
    return gl.convert_layout(_turned(tiles, dtype), ROWS)


@gluon.jit
def as_sums(tiles):
    """Tiles as the accumulator of a product."""
    return gl.convert_layout(_turned(tiles, gl.float32), WIDE)


@gluon.jit
def tiles_of(rows):
    """Tiles of rows of channels ``[64, 16]``."""
    x = gl.permute(gl.reshape(rows, [4, 2, 8, 16]), (0, 2, 1, 3))
    a, b, c, d = _halves(gl.permute(gl.reshape(x, [64, 2, 4, 2]), (2, 0, 1, 3)))
    return (
        gl.convert_layout(a, TILE),
        gl.convert_layout(b, TILE),
        gl.convert_layout(c, TILE),
        gl.convert_layout(d, TILE),
    )


@gluon.jit
def blocks_of(acc):
    """Four blocks of tokens ``[64, 16]`` of an accumulator ``[64, 64]``."""
    a, b, c, d = _halves(gl.permute(gl.reshape(acc, [64, 2, 2, 16]), (0, 3, 1, 2)))
    return (
        gl.convert_layout(a, WIDE),
        gl.convert_layout(b, WIDE),
        gl.convert_layout(c, WIDE),
        gl.convert_layout(d, WIDE),
    )


@gluon.jit
def widened(x):
    """Tiles in float32."""
    a, b, c, d = x
    return a.to(gl.float32), b.to(gl.float32), c.to(gl.float32), d.to(gl.float32)


@gluon.jit
def times(x, y):
    """Tile by tile."""
    a, b, c, d = x
    e, f, g, h = y
    return a * e, b * f, c * g, d * h


@gluon.jit
def plus(x, y):
    """Tile by tile."""
    a, b, c, d = x
    e, f, g, h = y
    return a + e, b + f, c + g, d + h


@gluon.jit
def scaled(x, factor):
    """All tiles times one."""
    a, b, c, d = x
    return a * factor, b * factor, c * factor, d * factor


@gluon.jit
def total_of(x):
    """The sum over a block's tokens, in place of each of a tile's."""
    a, b, c, d = x
    found = (a + b) + (c + d)
    found += across_lanes(found, 1)
    return found + across_lanes(found, 2)


@gluon.jit
def _is_later(level: gl.constexpr):
    """Tokens of a tile in the later half of their group: of levels 1 and 2."""
    token = gl.arange(0, 4, layout=gl.SliceLayout(1, TILE))
    return ((token >> (level - 1)) & 1 == 1)[:, None]


@gluon.jit
def masked(since, until, level: gl.constexpr):
    """Decays to the middle of a level of later tokens, and of earlier ones, zero for the other."""
    a, b, c, d = since
    e, f, g, h = until
    token = gl.arange(0, 4, layout=gl.SliceLayout(1, TILE))
    later = ((token >> (level - 1)) & 1).to(gl.float32)[:, None]
    earlier = 1.0 - later
    queries = (a * later, b * later, c * later, d * later)
    return queries, (e * earlier, f * earlier, g * earlier, h * earlier)


@gluon.jit
def mixed(q, k, since, until, level: gl.constexpr):
    """Queries of later tokens and keys of earlier ones, decayed to the middle between."""
    a, b, c, d = q
    e, f, g, h = k
    s, t, u, v = since
    w, x, y, z = until
    if level == 0:
        return e * w, b * t, g * y, d * v
    elif level == 3:
        return e * w, f * x, c * u, d * v
    else:
        return a * s + e * w, b * t + f * x, c * u + g * y, d * v + h * z


@gluon.jit
def added(dq, dk, found, since, until, level: gl.constexpr):
    """Gradients with those of ``_mixed`` added."""
    a, b, c, d = dq
    e, f, g, h = dk
    s, t, u, v = since
    w, x, y, z = until
    i, j, k, m = found
    if level == 0:
        return (a, b + j * t, c, d + m * v), (e + i * w, f, g + k * y, h)
    elif level == 3:
        return (a, b, c + k * u, d + m * v), (e + i * w, f + j * x, g, h)
    else:
        dq = (a + i * s, b + j * t, c + k * u, d + m * v)
        return dq, (e + i * w, f + j * x, g + k * y, h + m * z)


@gluon.jit
def joined(since, until, totals, level: gl.constexpr):
    """Decays since the start of the segments of the next level, until their end, and of them."""
    a, b, c, d = since
    e, f, g, h = until
    if level == 0:
        s, t, u, v = totals
        return (a, b * s, c, d * u), (e * t, f, g * v, h), (s * t, u * v)
    elif level == 3:
        s, t = totals
        return (a, b, c * s, d * s), (e * t, f * t, g, h), (s * t,)
    else:
        s, t = totals
        is_later = _is_later(level)
        other = across_lanes(s, level)
        near = gl.where(is_later, other, 1.0)
        far = gl.where(is_later, 1.0, other)
        more = across_lanes(t, level)
        near_more = gl.where(is_later, more, 1.0)
        far_more = gl.where(is_later, 1.0, more)
        since = (a * near, b * near, c * near_more, d * near_more)
        until = (e * far, f * far, g * far_more, h * far_more)
        return since, until, (s * other, t * more)


@gluon.jit
def ones():
    """Tiles of ones."""
    one = gl.full([4, 64], 1.0, gl.float32, layout=TILE)
    return one, one, one, one


@gluon.jit
def no_sums():
    """Zeros ``[64, 16]``."""
    return gl.zeros([64, 16], gl.float32, layout=WIDE)
