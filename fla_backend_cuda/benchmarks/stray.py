"""A planted fault: writes one number behind a tensor, which a memory checker must see."""

import torch
import triton
import triton.language as tl


@triton.jit
def write(x, place):  # type: ignore[no-untyped-def]
    """``x[place] = 1``."""
    tl.store(x + place, 1.0)


def main() -> None:
    """Write where nothing was allocated."""
    x = torch.zeros(64, device="cuda")
    write[(1,)](x, x.numel())
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
