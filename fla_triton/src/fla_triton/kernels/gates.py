"""Running sums of gates in every chunk, for kernels that would each form them again.

``sums [slots, H, 4, C]`` in float32 has, by row: the sums up to each token; what is left from it to
the chunk's end, both base 2 and never positive but for rounding; and the whole numbers and
remainders of which ``running_gates`` forms them, for decays of pairs.

Bytes a token and head: a gate read, 16 written. Measured on an H200 at B2 T8192 H16: 4.6 us.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import FLOOR, LOG2E, first_slot, program_at, running_gates


@triton.jit(do_not_specialize=["T"])
def gate_sums(
    sums,
    g,
    gamma,
    cu,
    table,
    T,
    H: tl.constexpr,
    C: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """One program: one chunk of one head."""
    n, h, c, first, length = program_at(cu, table, T, H, C, VARLEN)
    tokens = c * C + tl.arange(0, C)
    own, until, _, whole, rest, _ = running_gates(
        g, gamma, first + tokens, tokens < length, h, H, C, HAS_G, HAS_GAMMA
    )
    place = sums_at(sums, first_slot(first, n, T, C, VARLEN) + c, h, H, C) + tl.arange(0, C)
    tl.store(place, own)
    tl.store(place + C, until)
    tl.store(place + 2 * C, whole)
    tl.store(place + 3 * C, rest)


@triton.jit
def sums_at(sums, slot, h, H: tl.constexpr, C: tl.constexpr):
    """Where the sums of a chunk of a head begin."""
    return sums + (tl.cast(slot, tl.int64) * H + h) * (4 * C)


@triton.jit
def unit_of(gamma, h, HAS_G: tl.constexpr):
    """What whole numbers count: a decay that is the same for all tokens, or powers of two."""
    unit = 1.0
    if not HAS_G:
        unit = tl.load(gamma + h).to(tl.float32)
        unit = tl.where(unit < FLOOR, FLOOR, unit) * LOG2E
    return unit
