"""One tiny kernel, compiled and run by the probe."""

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _increment(x: Any, size: Any, BLOCK: tl.constexpr) -> None:
    places = tl.arange(0, BLOCK)
    inside = places < size
    tl.store(x + places, tl.load(x + places, mask=inside) + 1.0, mask=inside)


def runs_on(index: int) -> bool:
    """Compile and run a kernel on a device; True when what it writes is right."""
    with torch.cuda.device(index):
        x = torch.zeros(32, device=f"cuda:{index}")
        _increment[(1,)](x, 31, BLOCK=32)
        return x.tolist() == [1.0] * 31 + [0.0]
