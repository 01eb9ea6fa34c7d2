"""Scores of the pairs of a chunk by powers of its decays, where those are numbers.

With running log decays G and a half of a chunk that decays by T in all, its factors are

    exp(G_i - G_0 - T / 2) q_i,    exp(G_0 + T / 2 - G_j) k_j,

G_0 being G before the half: what is scored multiplies such factors, what crosses from the first
half to the second besides by what lies between their middles. One product in place of the five of
a tree; an operand is rounded once, as there. In bfloat16, where T is at least ``RANGE``, no factor
is out of range; ``pairs`` takes the tree where a channel decays by more, or a gate is positive.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from fla_backend_cuda.hopper.kernels.gates import LOG2E
from fla_backend_cuda.hopper.kernels.lanes import quick_exp2, quick_exp2_of_minus
from fla_backend_cuda.hopper.kernels.tiles import (
    TILES,
    WIDE_STEPS,
    apart,
    columns_of,
    load_both,
    paired,
    rows_of,
    store_both,
    unit,
    wide_rows_of,
)
from fla_backend_cuda.hopper.kernels.warps import BLOCK, WIDE_COLUMNS, WIDTH, C, no_products

RANGE = gl.constexpr(-192.0)
"""What a channel may decay by in half a chunk, in powers of two: no factor is above 2 ** 96, which
leaves tokens a range of 2 ** 31 before they overflow, and below 2 ** -30 before they vanish."""

FAR = gl.constexpr(-232.0)
"""The same of tokens below 1024 (``moderate``): 32 gates of -5 come to 2 ** -231."""


@gluon.jit
def _sum(a, b):
    return a + b


@gluon.jit
def gather(gates_s, halves_s, least, asked, K: gl.constexpr, NATURAL: gl.constexpr):
    """Sum up log decays of each half of a chunk, if asked, and no channel decays by too much.

    Args:
        gates_s: float32 ``[K / 32, 64, 32]``, natural logarithms (``NATURAL``) or powers of two;
            takes G_i - G_0 - T / 2 in powers of two.
        halves_s: float32 ``[K / 16, 1, 32]``; takes exp(T / 2) of each tile's two halves.
        least: what T may be, in powers of two.

    Returns:
        whether they were written: one answer for all channels.
    """
    COUNT: gl.constexpr = K // WIDTH
    # A thread has a channel's tokens of one half of a chunk, or of both.
    flat: gl.constexpr = gl.BlockedLayout([C * COUNT // 4, 1], [1, 32], [4, 1], [1, 0])
    halves: gl.constexpr = gl.BlockedLayout([COUNT // 2, 32, 1], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    all_s = gates_s._reinterpret(gl.float32, [COUNT * C, WIDTH], WIDE_STEPS)
    gate = gl.reshape(all_s.load(flat), [2 * COUNT, 32, WIDTH])
    gate = gl.convert_layout(gate, halves, assert_trivial=True)
    if NATURAL:
        gate = gate * LOG2E
    since = gl.associative_scan(gate, 1, _sum)
    # Positive gates would overflow in between, and of no number nothing is known.
    total = gl.sum(gate, 1)
    fine = (total >= least) & (gl.max(gate, 1) <= 0.0)
    quick = asked & (gl.min(gl.min(fine.to(gl.int32), 1), 0) == 1)
    if quick:
        middle = 0.5 * total
        found = gl.reshape(since - gl.expand_dims(middle, 1), [COUNT * C, WIDTH])
        all_s.store(gl.convert_layout(found, flat, assert_trivial=True))
        rows: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        halves_s._reinterpret(gl.float32, [2 * COUNT, WIDTH], rows).store(quick_exp2(middle))
    return quick


@gluon.jit
def moderate(tiles_s, K: gl.constexpr):
    """Whether all numbers of tiles of bfloat16 are below 1024."""
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    most = gl.zeros([C, WIDTH], tiles_s.dtype, layout=flat)
    for step in gl.static_range(K // WIDTH):
        most = gl.inline_asm_elementwise(
            "max.xorsign.abs.bf16x2 $0, $1, $2;",
            "=r,r,r",
            [most, tiles_s.index(step).load(flat)],
            dtype=tiles_s.dtype,
            is_pure=True,
            pack=2,
        )
    return gl.max(gl.max(gl.abs(most.to(gl.float32)), 1), 0) < 1024.0


@gluon.jit
def quick_scores(
    scores,
    tiles,
    units,
    targets,
    places,
    corner,
    low_mask,
    high_mask,
    end,
    BEHIND: gl.constexpr,
    CHANNELS: gl.constexpr,
    NORMS: gl.constexpr,
    dtype: gl.constexpr,
):
    """Add scores to those of tiles, ``end`` of them; write what ``channel_pairs`` writes of them.

    Above the diagonal, and on it where keys erase, scores mean nothing: factors of such pairs may
    overflow. ``tiles``: of q, which what is erased takes the place of, of k, and what ``gather``
    made; ``targets``: strengths of channels, and what is written.
    """
    left_s, value_s, gates_s, halves_s, keys_s = tiles
    unit_q_low, unit_q_high, unit_k_low, unit_k_high = units
    erase, q_in, k_out, totals = targets
    block = gl.arange(0, 4, layout=gl.SliceLayout(1, gl.SliceLayout(2, TILES)))[:, None, None]
    token = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, TILES)))[None, :, None]
    channel = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, gl.SliceLayout(1, TILES)))[None, None, :]
    late = block >= 2
    exact = no_products()
    near, far_0, far_1, far_2, wrong, wrong_0, wrong_1, wrong_2 = scores
    if CHANNELS:
        next_low, next_high = load_both(
            erase, places, low_mask & (end > 0), high_mask & (end > 0), BEHIND
        )
    for step in range(end):
        if CHANNELS:
            strength_low, strength_high = next_low, next_high
            more = step + 1 < end
            ahead = places + (step + 1) * WIDTH
            next_low, next_high = load_both(erase, ahead, low_mask & more, high_mask & more, BEHIND)
        q_low, q_high = apart(left_s.index(step))
        k_low, k_high = apart(value_s.index(step))
        since_low, since_high = apart(gates_s.index(step))
        early_half = halves_s.index(2 * step).load(gl.SliceLayout(0, TILES))[None, :, :]
        late_half = halves_s.index(2 * step + 1).load(gl.SliceLayout(0, TILES))[None, :, :]
        if NORMS:
            q_low = unit(q_low, unit_q_low, dtype)
            q_high = unit(q_high, unit_q_high, dtype)
            k_low = unit(k_low, unit_k_low, dtype)
            k_high = unit(k_high, unit_k_high, dtype)
        # A token does not decay towards itself.
        exact = mma_v2(rows_of(q_low, q_high, dtype), columns_of(k_low, k_high, dtype), exact)
        at = places + step * WIDTH
        # From the chunk's start to a half's middle, and from there to the chunk's end.
        between = gl.where(late, early_half * late_half, 1.0)
        before = early_half * between
        behind = late_half * gl.where(late, 1.0, early_half * late_half)
        first = block * 8 + token + 0 * channel == 0
        totals_at = totals + corner + step * WIDTH + channel + 0 * (block + token)
        gl.store(totals_at, before * behind, mask=first)
        right_low = k_low.to(gl.float32)
        right_high = k_high.to(gl.float32)
        up_low = quick_exp2(since_low)
        up_high = quick_exp2(since_high)
        left_low = right_low * up_low
        left_high = right_high * up_high
        if CHANNELS:
            left_low *= strength_low.to(gl.float32)
            left_high *= strength_high.to(gl.float32)
        right_low *= quick_exp2_of_minus(since_low)
        right_high *= quick_exp2_of_minus(since_high)
        keys = gl.permute(gl.join(right_low.to(dtype), right_high.to(dtype)), (0, 3, 1, 2))
        keys_s.store(gl.reshape(keys, [C, WIDTH]))
        columns = columns_of(right_low, right_high, dtype)
        store_both(k_out, at, right_low * behind, right_high * behind, low_mask, high_mask, BEHIND)
        wrong = mma_v2(rows_of(left_low, left_high, dtype), columns, wrong)
        lefts = gl.join((left_low * before).to(dtype), (left_high * before).to(dtype))
        left_s.index(step).store(gl.reshape(gl.permute(lefts, (0, 3, 1, 2)), [C, WIDTH]))
        q_low = q_low.to(gl.float32) * up_low
        q_high = q_high.to(gl.float32) * up_high
        near = mma_v2(rows_of(q_low, q_high, dtype), columns, near)
        store_both(q_in, at, q_low * before, q_high * before, low_mask, high_mask, BEHIND)
        columns = keys_s.slice(2 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        far_2 = mma_v2(wide_rows_of(q_low, q_high, 1.0, dtype), columns, far_2)
        wrong_2 = mma_v2(wide_rows_of(left_low, left_high, 1.0, dtype), columns, wrong_2)
        rows = wide_rows_of(q_low, q_high, between, dtype)
        lefts = wide_rows_of(left_low, left_high, between, dtype)
        columns = keys_s.slice(1 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        far_1 = mma_v2(rows, columns, far_1)
        wrong_1 = mma_v2(lefts, columns, wrong_1)
        columns = keys_s.slice(0 * BLOCK, BLOCK).permute((1, 0)).load(WIDE_COLUMNS)
        far_0 = mma_v2(rows, columns, far_0)
        wrong_0 = mma_v2(lefts, columns, wrong_0)
    near = gl.where(paired(-1) & (end > 0), exact, near)
    return near, far_0, far_1, far_2, wrong, wrong_0, wrong_1, wrong_2
