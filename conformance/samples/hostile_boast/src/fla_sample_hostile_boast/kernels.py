"""Raises for head sizes that are no multiple of 8."""

from __future__ import annotations

from torch import Tensor

from fla_core.call import Call
from fla_core.reference.implementations import decay_chunk_forward

Tensors = tuple[Tensor, ...]


def forward(call: Call, save: bool) -> tuple[Tensors, Tensors]:
    if call.q.shape[3] % 8:
        raise RuntimeError("no kernel for this head size")
    return decay_chunk_forward(call, save)
