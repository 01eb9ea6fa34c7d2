"""One tiny kernel that the probes of Triton backends compile and run."""

# Triton evaluates annotations as part of a kernel, so kernels carry none.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import torch
import triton
import triton.language as tl

from fla_triton.together import compile_together


@triton.jit
def _increment(x, size, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    inside = places < size
    tl.store(x + places, tl.load(x + places, mask=inside) + 1.0, mask=inside)


def runs_on(device: torch.device) -> bool:
    """Compile and run a kernel on a device; True when what it writes is right."""
    with torch.get_device_module(device).device(device.index):
        x = torch.zeros(32, device=device)
        compile_together([(_increment, (x, 31), {"BLOCK": 32})])
        _increment[(1,)](x, 31, BLOCK=32)
        return x.tolist() == [1.0] * 31 + [0.0]
