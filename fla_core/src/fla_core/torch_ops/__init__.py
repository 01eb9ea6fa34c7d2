"""The entrance for ``torch.compile``: one functional torch operator per contract and direction.

Eager calls never come here. While tracing, the public operator puts one node into the graph; the
choice of an implementation is made inside its body from the policy text, so a policy that changes
outside the graph needs a new trace, and nothing else breaks it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fla_core.autograd import autocasts, cast_for_autocast, device_type_of
from fla_core.call import Hints
from fla_core.check import check_flags
from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.dispatch import policy_text
from fla_core.errors import UnsupportedError
from fla_core.prepare import Operator
from fla_core.torch_ops import bodies
from fla_core.torch_ops.request import SEPARATOR, arguments_of

NAMESPACE = "fla_core"
_library = torch.library.Library(NAMESPACE, "DEF")


def _define(contract: Contract) -> None:
    forward, backward = contract.name, f"{contract.name}_backward"
    arguments = arguments_of(contract)
    _library.define(f"{forward}({arguments}) -> Tensor[]")
    extra = "str implementation, Tensor[] saved, Tensor?[] grads"
    _library.define(f"{backward}({arguments}, {extra}) -> Tensor[]")
    for target, body, fake in (
        (forward, bodies.forward, bodies.fake_forward),
        (backward, bodies.backward, bodies.fake_backward),
    ):
        _library.impl(target, _bound(body, contract), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{target}", _bound(fake, contract), lib=_library)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        bodies.setup_context(contract, ctx, inputs, output)

    def derivative(ctx: Any, grads: Any) -> Any:
        return bodies.autograd(contract, ctx, grads)

    def second_derivative(ctx: Any, grads: Any) -> Any:
        return bodies.refuse_second_order(contract)

    torch.library.register_autograd(
        f"{NAMESPACE}::{forward}", derivative, setup_context=setup_context, lib=_library
    )
    torch.library.register_autograd(f"{NAMESPACE}::{backward}", second_derivative, lib=_library)


def _bound(body: Any, contract: Contract) -> Any:
    return lambda *args: body(contract, args)


for _contract in CONTRACTS.values():
    _define(_contract)

_OVERLOADS = {name: getattr(torch.ops.fla_core, name).default for name in CONTRACTS}


def invoke_traced(
    op: Operator,
    tensors: tuple[Tensor | None, ...],
    flags: tuple[bool, ...],
    scale: float | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    backend: str | None,
    options: tuple[float | None, ...],
    hints: Hints,
) -> tuple[Tensor, ...]:
    """Put one operator into the graph that is being traced; arguments as for eager calls."""
    contract = op.contract
    if autocasts(device := device_type_of(tensors)):
        tensors = cast_for_autocast(tensors, device)
    check_flags(op.title, contract.flags, flags)
    on = [name for name, flag in zip(contract.flags, flags, strict=True) if flag]
    # Read here, the level is guarded: a graph made outside of one does not serve inside.
    if forward_ad._current_level >= 0:
        raise UnsupportedError(op.title, "forward-mode differentiation", "reverse mode")
    if "states" in on:
        raise UnsupportedError(op.title, "return_intermediate_states under torch.compile")
    needs = [
        name
        for name, tensor in zip(op.inputs, tensors, strict=True)
        if tensor is not None and torch.is_grad_enabled() and tensor.requires_grad
    ]
    outputs = _OVERLOADS[contract.name](
        *tensors,
        cu_seqlens,
        cu_seqlens_cpu,
        op.name,
        scale,
        *options,
        SEPARATOR.join(on),
        SEPARATOR.join(needs),
        policy_text(backend),
        hints.chunk_size,
        hints.recompute,
        hints.safe_gate,
    )
    return tuple(outputs[: len(contract.outputs_for(frozenset(on)))])
