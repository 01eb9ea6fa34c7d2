"""What calls of fake tensors return: host code runs on tensors without memory, nothing else does.

A kernel that was launched for a fake tensor would write to address zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fla_core.call import Call
from fla_triton.ahead import noting, without_memory

Outputs = tuple[Tensor, ...]


def fake_forward(kernels: Any, call: Call, save: bool) -> tuple[Outputs, Outputs]:
    """Fake outputs and residuals of host code's forward."""
    with unset_fake_temporarily(), noting():
        outputs, residuals = kernels.forward(_bare(call), save)
    return tuple(_like(call, x) for x in outputs), tuple(_like(call, x) for x in residuals)


def fake_backward(
    kernels: Any,
    call: Call,
    residuals: Outputs,
    grads: Sequence[Tensor | None],
    needs: frozenset[str],
) -> Mapping[str, Tensor]:
    """Fake gradients of host code's backward."""
    with unset_fake_temporarily(), noting():
        kept, given = (tuple(map(without_memory, some)) for some in (residuals, grads))
        found = kernels.backward(_bare(call), kept, given, needs)
    return {name: _like(call, x) for name, x in found.items()}


def _bare(call: Call) -> Call:
    return call.holding({name: without_memory(x) for name, x in call.tensors.items()})


def _like(call: Call, found: Tensor) -> Tensor:
    q: Tensor = call.q
    return q.new_empty(found.shape, dtype=found.dtype)
