"""Single instructions of a thread and its warp that no operation of Gluon becomes."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def quick_exp2(exponent):
    """``2 ** exponent`` in one instruction: zero where it is no normal number."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def across_lanes(x, bit: gl.constexpr):
    """What the lane holds whose number differs in this bit: 1, 2, 4, 8 or 16."""
    return gl.inline_asm_elementwise(
        f"shfl.sync.bfly.b32 $0, $1, {bit}, 31, -1;",
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )
