"""Log decays of channels, summed over a block of tokens from memory.

All gates have one sign, so that a plain sum loses nothing that matters: where it is large the decay
is zero. What follows a token is summed without its own gate, not by taking that away again.
"""

import triton
import triton.language as tl

from fla_triton.kernels.common import LOG2E, decay, load_rows


@triton.jit
def since_start(
    g, rows, live, h, column, H: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr
):
    """Decays ``[BT, BK]`` from the block's start to each token, its own among them.

    Returns:
        decays, and the block's log decay ``[BK]``, base 2.
    """
    x = load_rows(g, rows, live, h, column, H, K, BT, BK).to(tl.float32) * LOG2E
    return decay(tl.cumsum(x, 0)), tl.sum(x, 0)


@triton.jit
def until_end(
    g, rows, live, h, column, H: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr
):
    """Decays ``[BT, BK]`` from behind each token to the block's end.

    Args:
        live: tokens that are there, from the block's first on without a gap; the others have no
            gate.

    Returns:
        decays, and the block's log decay ``[BK]``, base 2.
    """
    inner = tl.arange(0, BT)
    follows = (inner + 1 < BT) & (inner + 1 < tl.sum(live.to(tl.int32), 0))
    behind = load_rows(g, rows + 1, follows, h, column, H, K, BT, BK).to(tl.float32) * LOG2E
    columns = column + tl.arange(0, BK)
    first = tl.min(rows, 0) * H + h
    own = tl.load(g + first * K + columns, mask=columns < K, other=0.0).to(tl.float32) * LOG2E
    return decay(tl.cumsum(behind, 0, reverse=True)), tl.sum(behind, 0) + own
