"""``simple_gla`` and ``linear_attn`` on NVIDIA GPUs: the portable kernels with a chip's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from fla_core.call import Call
from fla_triton.profiles import PROFILES
from fla_triton.scalar_decay import Kernels, Outputs, no_table
from fla_triton.tables import load


def forward(call: Call, save: bool) -> tuple[Outputs, Outputs]:
    """Outputs of a call; nothing is kept for backward."""
    return kernels(call.q.device.index).forward(call, save)


def backward(
    call: Call, residuals: Outputs, grads: Sequence[Tensor | None], needs: frozenset[str]
) -> Mapping[str, Tensor]:
    """Gradients of the inputs in ``needs``."""
    return kernels(call.q.device.index).backward(call, residuals, grads, needs)


@cache
def kernels(index: int) -> Kernels:
    """The kernels with the profile and the table of one device."""
    major, minor = torch.cuda.get_device_capability(index)
    arch = f"sm{major}{minor}"
    table = Path(str(files("fla_backend_cuda") / "tables" / f"{arch}.json"))
    return Kernels(PROFILES[arch], load(table) if table.exists() else no_table)
