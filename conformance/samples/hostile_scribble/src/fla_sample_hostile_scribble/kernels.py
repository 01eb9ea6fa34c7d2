"""Leaves q scaled, by a write that torch does not count."""

from __future__ import annotations

from torch import Tensor

from fla_core.call import Call
from fla_core.reference.implementations import decay_chunk_forward

Tensors = tuple[Tensor, ...]


def forward(call: Call, save: bool) -> tuple[Tensors, Tensors]:
    outputs = decay_chunk_forward(call, save)
    call.q.data.mul_(call.scale)
    return outputs
