"""What kernels for Hopper ask of a call's tensors."""

from __future__ import annotations

from torch import Tensor

from fla_core.call import Call

COLUMNS = 64
"""Columns of V of a program: one warpgroup's rows of the transposed state."""

ALIGNMENT = 16
"""Bytes that one asynchronous copy moves, and that its address is a multiple of."""


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it does not lie as asynchronous copies need it."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def placed(call: Call) -> Call:
    """The call, or a copy where a tensor does not lie as asynchronous copies need it."""
    tensors = {n: None if t is None else aligned(t) for n, t in call.tensors.items()}
    moved = any(tensors[n] is not t for n, t in call.tensors.items())
    return call.holding(tensors) if moved else call
