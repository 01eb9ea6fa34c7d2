"""Autograd, written once for every operator and backend.

Forward's choice of implementation binds backward: the plan travels in the autograd node, because
backward may run on a thread that does not see the caller's policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from fla_core.call import Call
from fla_core.errors import UnsupportedError
from fla_core.execute import run_backward, run_forward
from fla_core.seqlens import has_data

if TYPE_CHECKING:
    from fla_core.dispatch.plan import Plan
    from fla_core.prepare import Prepared


def differentiable_call(prepared: Prepared, call: Call) -> tuple[Tensor, ...]:
    """Run a planned call and record its derivative for the inputs that need one."""
    tensors = call.tensors.values()
    apply: Callable[..., Any] = _apply
    for tensor in tensors:
        if tensor is not None and _is_wrapper(tensor):
            apply = _Node.apply
            break
    outputs: tuple[Tensor, ...] = apply(prepared, call, *tensors)
    return outputs


_is_wrapper = torch._C._functorch.is_functorch_wrapped_tensor
_is_batched = torch._C._functorch.is_batchedtensor
_was_batched = torch._C._functorch.is_legacy_batchedtensor  # those of torch.autograd.grad itself


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        prepared: Prepared,
        call: Call,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        plan = prepared.plan
        # apply has taken tensors out of wrappers that a transform left behind.
        call.tensors = dict(zip(prepared.inputs, tensors, strict=True))
        outputs, residuals, base_outputs = run_forward(
            plan, call, prepared.expected, True, prepared.first
        )
        ctx.prepared, ctx.bare = prepared, call.holding({})
        ctx.counts = len(tensors), len(tensors) + len(residuals)
        mark = prepared.mark
        if mark is None:
            mark = maker_mark(plan, outputs[0])
            # It holds no memory, but one that is fake or of inference is of a mode that ends.
            prepared.mark = mark if has_data(mark) and not mark.is_inference() else None
        ctx.save_for_backward(*tensors, *residuals, *base_outputs, _boundaries(call), mark)
        ctx.set_materialize_grads(False)
        return _writable(outputs, (*residuals, *base_outputs))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        inputs, end = ctx.counts
        saved = ctx.saved_tensors
        if grads[0] is None and all(grad is None for grad in grads):
            return (None,) * (2 + inputs)
        prepared = ctx.prepared
        plan = prepared.plan
        lazy = False
        for grad in grads:
            if grad is None:
                continue
            if _is_batched(grad) or _was_batched(grad):
                raise UnsupportedError(
                    plan.decision.operator,
                    "a batch of gradients (is_grads_batched, vectorize, vmap)",
                    "torch.autograd.grad once for each",
                )
            lazy = lazy or grad.is_neg()
        if lazy:
            # That of an imaginary part may be a minus which is in no memory that a kernel reads.
            grads = tuple(None if grad is None else grad.resolve_neg() for grad in grads)
        refuse_another_maker(plan, saved[-1])
        call = ctx.bare.holding(dict(zip(prepared.inputs, saved[:inputs], strict=True)))
        call.memo = prepared.memo
        kept = saved[inputs:end], saved[end:-2]
        # The contexts are entered only where they change something: together they take 15 us.
        if not (torch.is_grad_enabled() or any_autocast()):
            found = run_backward(plan, call, *kept, grads, prepared.needs)
            return (None, None, *map(found.get, prepared.inputs))
        with torch.no_grad(), without_autocast(call.q.device.type):
            found = run_backward(plan, call, *kept, grads, prepared.needs)
        if torch.is_grad_enabled():
            found = _first_order_only(call, found, grads)
        return (None, None, *map(found.get, prepared.inputs))


# torch's own apply looks for transforms, which are refused before, and at each argument, in Python:
# 10 us. This is what it calls then.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Node).apply

any_autocast = torch._C._is_any_autocast_enabled


def maker_mark(plan: Plan, like: Tensor) -> Tensor:
    """An empty tensor whose shape tells who made the residuals that it is saved with.

    Activation checkpointing swaps saved tensors for those of a second forward, which may run under
    another policy (``use`` ended, or another thread): residuals of somebody else, in right shapes.
    """
    return like.new_empty((0, plan.mark))


def refuse_another_maker(plan: Plan, mark: Tensor) -> None:
    """Raise UnsupportedError where the mark is not that of the plan which backward runs."""
    if mark.shape[1] != plan.mark:
        raise UnsupportedError(
            plan.decision.operator,
            f"recomputing with another implementation what {plan.decision.plan} has computed",
            "a policy that holds in backward too: backend= on the call, or FLA_BACKEND",
        )


def _writable(outputs: tuple[Tensor, ...], kept: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Outputs that the caller may change in place.

    Autograd refuses that for a view, though it be of memory that nobody else can reach; ``data`` is
    the same memory without the relation. Where it is kept for backward the relation stays, as the
    change must then be noticed.
    """
    for output in outputs:
        if output._is_view():
            break
    else:
        return outputs
    shared = {tensor.untyped_storage()._cdata for tensor in kept}
    return tuple(
        output.data
        if output._is_view() and output.untyped_storage()._cdata not in shared
        else output
        for output in outputs
    )


def _boundaries(call: Call) -> Tensor | None:
    """What to save so that boundaries changed before backward are noticed as other inputs are."""
    if call.seqlens is None or call.seqlens.device.is_inference():
        return None
    return call.seqlens.device


def _first_order_only(
    call: Call, found: dict[str, Tensor], grads: Sequence[Tensor | None]
) -> dict[str, Tensor]:
    """Make gradients depend on everything they are a function of, through a node that refuses."""
    sources = [t for t in (*call.tensors.values(), *grads) if t is not None and t.requires_grad]
    barred = _FirstOrderOnly.apply(  # type: ignore[no-untyped-call]
        call.contract.name, len(found), *found.values(), *sources
    )
    return dict(zip(found, barred, strict=True))


class _FirstOrderOnly(torch.autograd.Function):
    """Passes gradients on and refuses to be differentiated: a second order would be zero.

    It takes the sources of the gradients too: without a path to them torch would not come by here.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name  # type: ignore[attr-defined]
        return tuple(grad.clone() for grad in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise UnsupportedError(ctx.name, "differentiating a gradient again (second order)")


transform_stack = torch._C._functorch.peek_interpreter_stack


def refuse_transforms(operator: str, tensors: Iterable[Tensor | None]) -> None:
    """Refuse what would otherwise compute silently without derivative or batch rule."""
    if transform_stack() is not None:
        raise UnsupportedError(
            operator,
            "a torch.func transform (vmap, grad, jvp, vjp)",
            "torch.autograd for gradients, the batch axis B for batching",
        )
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise UnsupportedError(operator, "forward-mode differentiation", "reverse mode")


def device_type_of(tensors: tuple[Tensor | None, ...]) -> str:
    """Device type of q; what is no tensor counts as on the host until the checks name it."""
    q = tensors[0]
    return q.device.type if isinstance(q, Tensor) else "cpu"


def autocasts(device_type: str) -> bool:
    """Whether the caller's autocast concerns this device; meta knows none."""
    # Traced too: torch 2.11 cannot trace is_autocast_available.
    return device_type != "meta" and torch.is_autocast_enabled(device_type)


def cast_for_autocast(
    tensors: tuple[Tensor | None, ...], device_type: str
) -> tuple[Tensor | None, ...]:
    """Cast float32 members of q, k, v (the first three) to the autocast dtype, differentiably."""
    dtype = torch.get_autocast_dtype(device_type)
    cast = [
        t.to(dtype) if isinstance(t, Tensor) and t.dtype == torch.float32 else t
        for t in tensors[:3]
    ]
    return (*cast, *tensors[3:])


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Implementations see the dtypes they were given, whatever the caller's autocast says."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
