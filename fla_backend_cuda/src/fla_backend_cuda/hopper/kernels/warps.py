"""How a chunk of 64 tokens lies in the registers of four warps, a block of 16 tokens in each."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

C = gl.constexpr(64)
"""Tokens of a chunk."""

BLOCK = gl.constexpr(16)
"""Tokens of a warp."""

PRODUCTS = gl.constexpr(
    gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1, 1], instr_shape=[1, 16, 8])
)
"""``[4, 16, 16]``: scores of each block's tokens with those of the same block."""

WIDE = gl.constexpr(
    gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1], instr_shape=[16, 8])
)
"""``[64, 16]``: scores of all tokens with those of one block."""


@gluon.jit
def no_products():
    """Zeros ``[4, 16, 16]``."""
    return gl.zeros([4, BLOCK, BLOCK], gl.float32, layout=PRODUCTS)
