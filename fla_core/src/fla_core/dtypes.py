"""Rules about dtypes that every layer shares."""

from __future__ import annotations

import torch
from torch import Tensor


def dtype_name(dtype: torch.dtype) -> str:
    """``"bfloat16"`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def wide(tensor: Tensor) -> torch.dtype:
    """The dtype of gates, states and accumulation beside this tensor: float32, or float64."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
