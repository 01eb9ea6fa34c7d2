"""Kernels inside what the core computes around them, forwards and backwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fla_conformance.inputs import Inputs
from fla_core.call import Call
from fla_core.contract import Lowering
from fla_core.lower import lift, lower
from fla_triton.serve import Kernels


def differentiated(
    inputs: Inputs, kernels: Kernels, lowerings: tuple[Lowering, ...]
) -> dict[str, Tensor]:
    """Outputs of a call that has to be lowered, and the gradients that the case asks for."""
    leaves = {n: x.detach().requires_grad_(n in inputs.wanted) for n, x in inputs.present.items()}
    chain = lower(inputs.call().but(**leaves), lowerings)
    names = [spec.name for spec in chain[-1].contract.outputs_for(chain[-1].features)]
    tensors = [x for x in chain[-1].tensors.values() if x is not None]
    outputs = _Kernels.apply(kernels, chain[-1], *tensors)
    lifted = lift(dict(zip(names, outputs, strict=True)), chain, lowerings)
    found = {name: lifted[name] for name in inputs.output_names}
    if not inputs.grads:
        return found
    pairs = [(found[name], grad) for name, grad in inputs.grads.items()]
    roots, seeds = zip(*pairs, strict=True)
    derived = torch.autograd.grad(roots, [leaves[name] for name in inputs.wanted], seeds)
    gradients = {f"d{n}": x for n, x in zip(inputs.wanted, derived, strict=True)}
    return {**{n: x.detach() for n, x in found.items()}, **gradients}


class _Kernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        names = [name for name, x in call.tensors.items() if x is not None]
        ctx.kernels, ctx.names = kernels, names
        ctx.call = call.but(**{n: x.contiguous() for n, x in zip(names, tensors, strict=True)})
        outputs, ctx.residuals = kernels.forward(ctx.call, True)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        given = tuple(None if x is None else x.contiguous() for x in grads)
        needs = frozenset(n for n, x in zip(ctx.names, ctx.needs_input_grad[2:], strict=True) if x)
        found = ctx.kernels.backward(ctx.call, ctx.residuals, given, needs)
        return (None, None, *(found.get(name) for name in ctx.names))
