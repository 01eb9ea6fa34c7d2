"""Autograd, written once for every operator and backend.

Forward's choice of implementation binds backward: the plan travels in the autograd node, because
backward may run on a thread that does not see the caller's policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from fla_core.call import Call
from fla_core.errors import UnsupportedError
from fla_core.execute import run_backward, run_forward
from fla_core.outputs import Expected

if TYPE_CHECKING:
    from fla_core.dispatch.plan import Plan


def differentiable_call(
    plan: Plan,
    call: Call,
    expected: Expected | None,
    needs: frozenset[str],
    first: bool,
) -> tuple[Tensor, ...]:
    """Run a planned call and record its derivative for the inputs named in ``needs``."""
    bare = replace(call, tensors=dict.fromkeys(call.tensors))
    outputs: tuple[Tensor, ...] = _Node.apply(  # type: ignore[no-untyped-call]
        plan, bare, expected, needs, first, *call.tensors.values()
    )
    return outputs


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: Plan,
        bare: Call,
        expected: Expected | None,
        needs: frozenset[str],
        first: bool,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, ...]:
        call = _with_tensors(bare, tensors)
        outputs, residuals, base_outputs = run_forward(plan, call, expected, True, first)
        ctx.plan, ctx.bare, ctx.needs = plan, bare, needs
        ctx.counts = len(tensors), len(residuals)
        ctx.save_for_backward(*tensors, *residuals, *base_outputs, _boundaries(bare))
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        inputs, kept = ctx.counts
        saved = ctx.saved_tensors
        if all(grad is None for grad in grads):
            return (None,) * (5 + inputs)
        call = _with_tensors(ctx.bare, saved[:inputs])
        with torch.no_grad(), without_autocast(call.q.device.type):
            found = run_backward(
                ctx.plan,
                call,
                saved[inputs : inputs + kept],
                saved[inputs + kept : -1],
                grads,
                ctx.needs,
            )
        if torch.is_grad_enabled():
            found = _first_order_only(call, found, grads)
        return (None,) * 5 + tuple(found.get(name) for name in call.tensors)


def _with_tensors(bare: Call, tensors: Sequence[Tensor | None]) -> Call:
    return replace(bare, tensors=dict(zip(bare.tensors, tensors, strict=True)))


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


def without_autocast(device_type: str) -> torch.autocast:
    """Implementations see the dtypes they were given, whatever the caller's autocast says."""
    return torch.autocast(device_type, enabled=False)
