"""What the torch operators do: forward and backward, for real and for fakes, and autograd.

Fake and body resolve from the same facts. Where a gradient is wanted both ignore B, T and N, which
may be symbols while tracing: an implementation limited in them is not eligible there, and residual
shapes agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from fla_core.audit import announced_residuals
from fla_core.autograd import maker_mark, refuse_another_maker, without_autocast
from fla_core.call import Call
from fla_core.contract import Contract
from fla_core.errors import UnsupportedError
from fla_core.execute import run_backward, run_forward
from fla_core.lower import lower
from fla_core.outputs import expected_outputs
from fla_core.prepare import Prepared
from fla_core.torch_ops.request import prepared_once, request_of


def _saved_base_count(prepared: Prepared, contract: Contract) -> int:
    """How many of the implementation's own outputs travel to backward for the lifts."""
    plan = prepared.plan
    if not any(lowering.lift_reads_outputs for lowering in plan.lowerings):
        return 0
    return len(contract.outputs_for(plan.features))


def forward(contract: Contract, args: Sequence[Any]) -> list[Tensor]:
    """Outputs, then what backward needs: residuals, base outputs that a lift reads, and a mark."""
    request = request_of(contract, args)
    prepared = prepared_once(request, args)
    call = request.real_call(prepared)
    call.memo = prepared.memo
    with prepared.on_device(), torch.no_grad(), without_autocast(call.q.device.type):
        outputs, residuals, base = run_forward(
            prepared.plan, call, None, bool(request.needs), prepared.first
        )
    prepared.first = False
    mark = [maker_mark(prepared.plan, outputs[0])] if request.needs else []
    return [*outputs, *residuals, *base, *mark]


def fake_forward(contract: Contract, args: Sequence[Any]) -> list[Tensor]:
    """Shapes and dtypes of what :func:`forward` returns."""
    request = request_of(contract, args)
    prepared = request.prepared()
    call = request.fake_call(prepared)
    if not request.needs:
        return _empty(call)
    base_call = lower(call, prepared.plan.lowerings)[-1]
    announced = announced_residuals(prepared.plan, base_call)
    kept = [call.q.new_empty(shape, dtype=dtype) for shape, dtype in announced]
    base = _empty(base_call) if _saved_base_count(prepared, contract) else []
    return [*_empty(call), *kept, *base, maker_mark(prepared.plan, call.q)]


def _empty(call: Call) -> list[Tensor]:
    expected = expected_outputs(call)
    return [
        call.q.new_empty(shape, dtype=dtype)
        for shape, dtype in zip(expected.shapes, expected.dtypes, strict=True)
    ]


def backward(contract: Contract, args: Sequence[Any]) -> list[Tensor]:
    """Gradients of the inputs in ``needs``, by name."""
    *args, implementation, saved, grads = args
    request = request_of(contract, args)
    prepared = prepared_once(request, args, implementation)
    call = request.real_call(prepared)
    call.memo = prepared.memo
    *saved, mark = saved
    refuse_another_maker(prepared.plan, mark)
    kept = len(saved) - _saved_base_count(prepared, contract)
    with (
        prepared.on_device(),
        torch.no_grad(),
        without_autocast(call.q.device.type),
        _recording(),
    ):
        found = run_backward(
            prepared.plan, call, tuple(saved[:kept]), tuple(saved[kept:]), grads, request.needs
        )
    return [_own(found[name]) for name in sorted(request.needs)]


_AUTOGRAD_KEYS = (
    torch._C.DispatchKey.AutogradFunctionality,
    torch._C.DispatchKey.AutogradOther,
    torch._C.DispatchKey.AutogradNestedTensor,
    torch._C.DispatchKey.ADInplaceOrView,
)


@contextmanager
def _recording() -> Iterator[None]:
    """Let torch record graphs again inside an operator's body, which runs below autograd.

    Backward differentiates lowerings, and plugins may differentiate whole functions.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD_KEYS:
        excluded = excluded.remove(key)
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        yield


def _own(gradient: Tensor) -> Tensor:
    """A gradient that shares no memory with anything: functional operators return nothing else."""
    return gradient.contiguous() if gradient._base is None else gradient.clone()


def fake_backward(contract: Contract, args: Sequence[Any]) -> list[Tensor]:
    """Shapes and dtypes of what :func:`backward` returns."""
    request = request_of(contract, args[:-3])
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for name in sorted(request.needs)
        if (tensor := request.tensors[name]) is not None
    ]


def setup_context(contract: Contract, ctx: Any, args: Sequence[Any], outputs: Any) -> None:
    """Keep what backward needs, and which implementation forward runs."""
    request = request_of(contract, args)
    prepared = request.prepared()
    ctx.set_materialize_grads(False)
    ctx.others = [None if isinstance(arg, Tensor) else arg for arg in args]
    ctx.places = [index for index, arg in enumerate(args) if isinstance(arg, Tensor)]
    ctx.outputs = len(contract.outputs_for(prepared.features))
    ctx.implementation, ctx.needs = prepared.plan.id, sorted(request.needs)
    ctx.save_for_backward(*(args[place] for place in ctx.places), *outputs[ctx.outputs :])


def autograd(contract: Contract, ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Call the backward operator; a gradient for each argument of the forward one."""
    tensors, saved = ctx.saved_tensors[: len(ctx.places)], ctx.saved_tensors[len(ctx.places) :]
    args = list(ctx.others)
    for place, tensor in zip(ctx.places, tensors, strict=True):
        args[place] = tensor
    backward = getattr(torch.ops.fla_core, f"{contract.name}_backward").default
    found = backward(*args, ctx.implementation, list(saved), list(grads[: ctx.outputs]))
    gradients: list[Tensor | None] = [None] * len(args)
    for name, gradient in zip(ctx.needs, found, strict=True):
        gradients[contract.input_names.index(name)] = gradient
    return tuple(gradients)


def refuse_second_order(contract: Contract) -> NoReturn:
    """Raise: a second derivative would silently be zero."""
    raise UnsupportedError(contract.name, "differentiating a gradient again (second order)")
