"""Implementations of gla that are wrong in one way each, made from the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fla_core.call import Call
from fla_core.reference.implementations import decay_chunk_backward as backward
from fla_core.reference.implementations import decay_chunk_forward as right


def scaled(call: Call, save: bool) -> Any:
    """The output is two per cent too large."""
    (o, *rest), residuals = right(call, save)
    return (o * 1.02, *rest), residuals


def not_finite(call: Call, save: bool) -> Any:
    """One value is not a number."""
    (o, *rest), residuals = right(call, save)
    o = o.clone()
    o[0, -1, 0, 0] = torch.nan
    return (o, *rest), residuals


def leaking(call: Call, save: bool) -> Any:
    """Packed sequences run into each other."""
    if call.seqlens is None:
        return right(call, save)
    first = call.initial_state[:1]
    dense = replace(call.but(initial_state=first), seqlens=None)
    (o, state), residuals = right(dense, save)
    return (o, state.expand(call.num_sequences, -1, -1, -1).contiguous()), residuals


def raising(call: Call, save: bool) -> Any:
    """The kernel does not start."""
    raise RuntimeError("launch failed")


def without_decay_gradient(call: Call, residuals: Any, grads: Any, needs: Any) -> Any:
    """The gradient of the gate is zero."""
    found = dict(backward(call, residuals, grads, needs))
    found["gk"] = torch.zeros_like(found["gk"])
    return found
