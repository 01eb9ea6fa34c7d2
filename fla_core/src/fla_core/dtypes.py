"""Rules about dtypes that every layer shares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def dtype_name(dtype: torch.dtype) -> str:
    """``"bfloat16"`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def wide(tensor: Tensor) -> torch.dtype:
    """The dtype of gates, states and accumulation beside this tensor: float32, or float64."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def multiplies_exactly(device: torch.device) -> bool:
    """Whether torch is to multiply matrices of float32 on a device without rounding factors.

    ``torch.get_float32_matmul_precision`` raises where one backend was told otherwise than the
    rest (``torch.backends.cuda.matmul.fp32_precision``), so the backend itself is asked.
    """
    backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    try:
        return backend.matmul.fp32_precision not in ("tf32", "bf16")
    except AttributeError:  # before torch 2.9 all of them were told at once
        return torch.get_float32_matmul_precision() == "highest"
