"""Gates of a chunk's tokens: decays, and logarithms of decays from what a layer was given raw."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LOG2E = gl.constexpr(1.4426950408889634)
FLOOR = gl.constexpr(-110.0)
"""Gates below this are taken for it, as the portable kernels take them."""


@gluon.jit
def decays(gate):
    """``exp`` of log decays."""
    gate = gate.to(gl.float32)
    return gl.exp2(gl.where(gate < FLOOR, FLOOR, gate) * LOG2E)


@gluon.jit
def _reciprocal(x):
    return gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _log2(x):
    return gl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def log_gated(x, rate, weight, BOUNDED: gl.constexpr):
    """Log decays of logits, in powers of two: ``activations.log_decay`` in fewer steps.

    ``weight``: minus the rate, or the bound in powers of two; zero where no token is, so that
    nothing decays there.
    """
    if BOUNDED:
        found = _reciprocal(1.0 + gl.exp2(x * (rate * -LOG2E)))
    else:
        bits = x * LOG2E
        small = gl.exp2(-gl.abs(bits))
        # The logarithm's own error is absolute: 2 ** -22.
        series = small * (LOG2E + small * (-LOG2E / 2 + small * (LOG2E / 3)))
        found = gl.where(small < 0.015625, series, _log2(1.0 + small))
        found += gl.where(bits > 0.0, bits, 0.0)
    return found * weight


@gluon.jit
def powers(found):
    """Decays of logarithms in powers of two."""
    return gl.exp2(gl.where(found < FLOOR * LOG2E, FLOOR * LOG2E, found))
