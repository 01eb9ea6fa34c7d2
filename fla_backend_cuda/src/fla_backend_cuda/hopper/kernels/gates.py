"""Gates of a chunk's tokens: decays, and logarithms of decays from what a layer was given raw."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from fla_backend_cuda.hopper.kernels.tiles import tile_at
from fla_backend_cuda.hopper.kernels.warps import WIDTH, C

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


@gluon.jit
def activate(
    gates_s,
    g,
    dt_bias,
    rate,
    weight,
    h,
    left,
    H: gl.constexpr,
    K: gl.constexpr,
    BOUNDED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
):
    """Make a chunk's logits log decays, in powers of two, in tiles ``[K / 32, 64, 32]``."""
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    rows = gl.arange(0, C, layout=gl.SliceLayout(1, flat))[:, None]
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, flat))[None, :]
    raw = ()
    for step in gl.static_range(K // WIDTH):
        raw += (tile_at(g + step * WIDTH, left, H * K),)
    for step in gl.static_range(K // WIDTH):
        x = raw[step].to(gl.float32)
        if HAS_BIAS:
            x += gl.load(dt_bias + h * K + step * WIDTH + columns).to(gl.float32)
        gates_s.index(step).store(log_gated(x, rate, gl.where(rows < left, weight, 0.0), BOUNDED))
