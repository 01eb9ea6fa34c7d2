"""Errors of heads that share keys, in tiles of K: ``python -m interpreter.shared``.

No plan cuts K where heads share keys, so host code cannot be asked. Exits with status 1 where tiles
give other gradients than K whole.
"""

# ruff: noqa: T201

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from fla_triton.kernels.delta_errors import delta_errors

B, T, H, GROUP, K, V = 1, 16, 2, 2, 32, 16


def gradients(tile: int) -> tuple[Tensor, ...]:
    """Gradients of scores, strengths and gates with so many channels at once."""
    draw = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, B, T, H // GROUP, K, generator=draw)
    v, v_new, do, dv_new, inverse = torch.randn(5, B, T, H, V, generator=draw)
    g, beta = -torch.rand(B, T, H, generator=draw), torch.rand(B, T, H, generator=draw)
    y, pairs, dbeta, dg = torch.zeros(2, B, T, H, V).unbind() + torch.zeros(2, B, T, H).unbind()
    operands = (q, k, v, g, beta, inverse, v_new, do, dv_new, y, pairs, dbeta, dg, None, None)
    sizes = {"H": H, "K": K, "V": V, "BK": tile, "BV": V, "C": T, "GROUP": GROUP}
    switches = {"HAS_G": True, "NORMS": False, "WITH_G": True, "VARLEN": False}
    where = (None, None, T, 0.2)
    delta_errors[(H,)](*operands, *where, **sizes, **switches, PRECISION="ieee")
    return pairs, dbeta, dg


def main() -> int:
    """Compare the two."""
    worst = max(
        float(((x - y).abs().max() / y.abs().max()).nan_to_num(torch.inf))
        for x, y in zip(gradients(16), gradients(K), strict=True)
    )
    print(f"tiles differ from the whole by {worst:.1e}")
    return int(worst > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
