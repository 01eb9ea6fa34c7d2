"""Pieces that several kernels share: where a sequence lies, its gates, guarded tiles."""

# Branches on constants cannot be merged with branches on values: the former vanish.
# ruff: noqa: SIM108

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

FLOOR = tl.constexpr(-110.0)
"""Gates below this are taken for it: both decays are zero in float32, and sums stay small."""


@triton.jit
def remainder(x, rounded):
    """What of float32 ``x`` rounding to 16 bits has lost.

    By way of bits: without, Intel's compiler takes ``x`` for what it was rounded to, and zero is
    left (Triton 3.3). Others make nothing of that.
    """
    same = rounded.to(tl.int16, bitcast=True).to(rounded.dtype, bitcast=True)
    return x - same.to(tl.float32)


@triton.jit
def sequence_at(cu, n, T, VARLEN: tl.constexpr):
    """First row (int64) and length of sequence ``n``."""
    if VARLEN:
        first = tl.load(cu + n).to(tl.int64)
        length = (tl.load(cu + n + 1).to(tl.int64) - first).to(tl.int32)
    else:
        first = tl.cast(n, tl.int64) * T
        length = T
    return first, length


@triton.jit
def first_slot(first, n, T, C: tl.constexpr, VARLEN: tl.constexpr):
    """Where the chunk states of a sequence begin.

    Packed sequences take slot ``first // C + n``: it needs no table, and the slots of one sequence
    never reach those of the next, since ``(first + length) // C + 1 >= first // C + chunks``.
    """
    if VARLEN:
        slot = first // C + n
    else:
        slot = tl.cast(n, tl.int64) * tl.cdiv(T, C)
    return slot


@triton.jit
def chunk_at(table, i, T, C: tl.constexpr, VARLEN: tl.constexpr):
    """Sequence and chunk inside it of the i-th chunk of a call."""
    if VARLEN:
        n = tl.load(table + 2 * i).to(tl.int32)
        c = tl.load(table + 2 * i + 1).to(tl.int32)
    else:
        chunks = tl.cdiv(T, C)
        n = i // chunks
        c = i % chunks
    return n, c


@triton.jit
def program_at(cu, table, T, H: tl.constexpr, C: tl.constexpr, VARLEN: tl.constexpr):
    """Where one program a chunk and head is: sequence, head, chunk; as ``sequence_at``."""
    pid = tl.program_id(0)
    n, c = chunk_at(table, pid // H, T, C, VARLEN)
    first, length = sequence_at(cu, n, T, VARLEN)
    return n, pid % H, c, first, length


@triton.jit
def load_rows(
    x, rows, live, h, column, H: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
):
    """Tile ``[BT, BD]`` of ``x [rows, H, D]`` from a column on; zero outside."""
    columns = column + tl.arange(0, BD)
    places = (rows * H + h)[:, None] * D + columns[None, :]
    return tl.load(x + places, mask=live[:, None] & (columns < D)[None, :], other=0.0)


@triton.jit
def store_rows(
    x,
    tile,
    rows,
    live,
    h,
    column,
    H: tl.constexpr,
    D: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    """Write a tile where ``load_rows`` would read it."""
    columns = column + tl.arange(0, BD)
    places = (rows * H + h)[:, None] * D + columns[None, :]
    mask = live[:, None] & (columns < D)[None, :]
    tl.store(x + places, tile.to(x.dtype.element_ty), mask=mask)


@triton.jit
def state_places(
    index, row, column, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr
):
    """Offsets and mask of tile ``[BK, BV]`` of state ``index`` in ``[.., K, V]``."""
    rows = row + tl.arange(0, BK)
    columns = column + tl.arange(0, BV)
    places = tl.cast(index, tl.int64) * (K * V) + rows[:, None] * V + columns[None, :]
    return places, (rows < K)[:, None] & (columns < V)[None, :]


@triton.jit
def running_gates(
    g,
    gamma,
    rows,
    live,
    h,
    H: tl.constexpr,
    BT: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_GAMMA: tl.constexpr,
):
    """Sums of the block's log decays, base 2.

    A difference of two running sums must keep the digits of mild gates between hard ones. Hence
    gates are summed as whole numbers, which is exact, and remainders; and a decay that is the same
    for all tokens is counted, not summed. Sums of sums need no such care: all have one sign.

    Returns:
        running: inclusive sums; until: what remains to the block's end; total;
        whole, rest, unit: what ``pair_decays`` reads, ``running = whole * unit + rest``.
    """
    if HAS_G:
        x = tl.load(g + rows * H + h, mask=live, other=0.0).to(tl.float32)
        if HAS_GAMMA:
            x += tl.where(live, tl.load(gamma + h).to(tl.float32), 0.0)
        x = tl.where(x < FLOOR, FLOOR, x) * LOG2E
        one = tl.floor(x + 0.5)
        unit = 1.0
        rest = tl.cumsum(x - one, 0)
        left = tl.sum(x - one, 0)
    else:
        unit = tl.load(gamma + h).to(tl.float32)
        unit = tl.where(unit < FLOOR, FLOOR, unit) * LOG2E
        one = tl.where(live, 1.0, 0.0)
        rest = tl.zeros([BT], dtype=tl.float32)
        left = 0.0
    whole = tl.cumsum(one, 0)
    all_whole = tl.sum(one, 0)
    until = (all_whole - whole) * unit + (left - rest)
    return whole * unit + rest, until, all_whole * unit + left, whole, rest, unit


@triton.jit
def decay(exponent):
    """``2 ** exponent`` where rounding may have left the exponent a little above zero."""
    return tl.exp2(tl.where(exponent > 0.0, 0.0, exponent))


@triton.jit
def step_decay(gate):
    """``exp`` of one token's log decay, by which a state is multiplied."""
    return tl.exp2(tl.where(gate < FLOOR, FLOOR, gate) * LOG2E)


@triton.jit
def pair_decays(whole, rest, unit, BT: tl.constexpr):
    """``exp`` of the gates between two tokens of a block, later by row; zero above the diagonal."""
    inner = tl.arange(0, BT)
    causal = inner[:, None] >= inner[None, :]
    between = (whole[:, None] - whole[None, :]) * unit + (rest[:, None] - rest[None, :])
    return tl.where(causal, decay(tl.where(causal, between, 0.0)), 0.0)
