"""Turn a function that torch can differentiate into the forward and backward of a plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fla_core.call import Call

Outputs = tuple[Tensor, ...]
Forward = Callable[[Call, bool], tuple[Outputs, Outputs]]
Backward = Callable[[Call, Outputs, Sequence[Tensor | None], frozenset[str]], Mapping[str, Tensor]]


def differentiable(function: Callable[[Call], Outputs]) -> tuple[Forward, Backward]:
    """Return ``(forward, backward)`` for a pure torch function of a call.

    Forward runs it without a graph and keeps nothing; backward runs it again with one. That costs
    one more forward than keeping the graph would, and holds no memory in between.

    Args:
        function: maps a call to the outputs its features ask for, in contract order.
    """

    def forward(call: Call, save: bool) -> tuple[Outputs, Outputs]:
        with torch.no_grad():
            return function(call), ()

    def backward(
        call: Call, residuals: Outputs, grads: Sequence[Tensor | None], needs: frozenset[str]
    ) -> Mapping[str, Tensor]:
        with torch.enable_grad():
            leaves = {
                name: tensor.detach().requires_grad_()
                for name in sorted(needs)
                if (tensor := call.get(name)) is not None
            }
            outputs = function(call.but(**leaves))
        return vjp(outputs, leaves, grads)

    return forward, backward


def vjp(
    outputs: Sequence[Tensor], leaves: Mapping[str, Tensor], grads: Sequence[Tensor | None]
) -> dict[str, Tensor]:
    """Pull gradients of outputs back to leaves; what no output depends on gets zeros."""
    pairs = [
        (output, grad)
        for output, grad in zip(outputs, grads, strict=True)
        if grad is not None and output.requires_grad
    ]
    if not pairs:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    roots, seeds = zip(*pairs, strict=True)
    found = torch.autograd.grad(roots, list(leaves.values()), seeds, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }
