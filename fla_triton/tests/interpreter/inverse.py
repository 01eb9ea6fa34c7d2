"""Inverses in two parts of 16 bits, against float64: ``python -m interpreter.inverse``.

Prints a JSON line for every dtype: the largest error of both parts together and of the high part
alone, in units of half the last place of one.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.nn.functional import normalize

from fla_triton.kernels.delta_prepare import delta_prepare
from interpreter.shims import correct_bfloat16, watch_bounds

TOKENS, K, C = 50, 16, 64
STRENGTH = 1.9


def main() -> None:
    """Invert the system of nearly parallel keys."""
    torch.set_num_threads(1)
    correct_bfloat16()
    watch_bounds()
    for dtype in (torch.bfloat16, torch.float16):
        torch.manual_seed(0)
        k = normalize(torch.randn(1, K) + 0.02 * torch.randn(TOKENS, K), dim=-1)
        k = k.to(dtype).view(1, TOKENS, 1, K)
        beta = torch.full((1, TOKENS, 1), STRENGTH)
        high, low = (k.new_empty((1, TOKENS, 1, C)) for _ in range(2))
        made = (None, None, high, low, None, None, None, None, None)
        delta_prepare[(1,)](
            *(k, k, k, None, beta, *made, None, None, TOKENS, 1.0),
            H=1,
            K=K,
            V=K,
            BK=K,
            BV=K,
            C=C,
            HAS_G=False,
            FOLD=False,
            WITH_ERRORS=False,
            WITH_INVERSE=True,
            WITH_LOW=True,
            WITH_SCORES=False,
            WITH_STRENGTHS=False,
            FLAT=False,
            VARLEN=False,
            PRECISION="ieee",
        )
        keys = k[0, :, 0].double()
        system = torch.eye(TOKENS, dtype=torch.float64) + STRENGTH * (keys @ keys.T).tril(-1)
        right = torch.linalg.inv(system)
        found = {
            "both": (high.double() + low.double())[0, :, 0, :TOKENS] - right,
            "high": high.double()[0, :, 0, :TOKENS] - right,
        }
        half = torch.finfo(dtype).eps / 2
        errors = {name: float(error.abs().max()) / half for name, error in found.items()}
        print(json.dumps({"dtype": str(dtype), "errors": errors}))


if __name__ == "__main__":
    main()
