"""Run a planned call: lowerings, one implementation, lifts; and the same backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fla_core import audit
from fla_core.call import Call
from fla_core.differentiable import vjp
from fla_core.lower import lift, lower
from fla_core.outputs import Expected, expected_outputs

if TYPE_CHECKING:
    from fla_core.dispatch.plan import Plan


def run_forward(
    plan: Plan, call: Call, expected: Expected | None, save: bool, first: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Run forward.

    Args:
        plan: what to run.
        call: the raw call.
        expected: of the call as the implementation sees it, where it is known already.
        save: whether backward will follow.
        first: whether to make the checks of a first call.

    Returns:
        outputs of the raw call, residuals of the implementation, and the implementation's own
        outputs where a lift needs them in backward (else nothing).
    """
    if not plan.lowerings:
        base = call if plan.strided else contiguous(call)
        base.memo = call.memo
        outputs, residuals = _run(plan, base, expected, save, first)
        return outputs, residuals, ()
    with torch.no_grad():
        chain = lower(call, plan.lowerings)
        base = chain[-1] if plan.strided else contiguous(chain[-1])
        base.memo = call.memo
        outputs, residuals = _run(plan, base, expected, save, first)
        names = [spec.name for spec in call.contract.outputs_for(base.features)]
        lifted = lift(dict(zip(names, outputs, strict=True)), chain, plan.lowerings)
    wanted = tuple(lifted[spec.name] for spec in call.contract.outputs_for(call.features))
    reads = save and any(lowering.lift_reads_outputs for lowering in plan.lowerings)
    return wanted, residuals, outputs if reads else ()


def _run(
    plan: Plan, base: Call, expected: Expected | None, save: bool, first: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    # Versions cost 1 µs; the short calls of inference are spared it after the first.
    before = audit.versions(base.tensors.values()) if first or save else None
    run = audit.run_watched if first else audit.run_plugin
    outputs, residuals = audit.unpack(plan, run(plan, plan.forward, base, save))
    audit.check_outputs(plan, outputs, expected or expected_outputs(base))
    if before is not None:
        audit.check_unchanged(plan, before, base.tensors)
    if first:
        names = (f"output {spec.name!r}" for spec in base.contract.outputs_for(base.features))
        audit.check_no_alias(plan, base, zip(names, outputs, strict=True), exclusive=True)
        if save:
            audit.check_residuals(plan, base, residuals)
    return outputs, residuals


def contiguous(call: Call) -> Call:
    """The call with copies of those tensors that are strided."""
    for tensor in call.tensors.values():
        if tensor is not None and not tensor.is_contiguous():
            break
    else:
        return call
    return call.but(**{n: t.contiguous() for n, t in call.tensors.items() if t is not None})


def run_backward(
    plan: Plan,
    call: Call,
    residuals: tuple[Tensor, ...],
    base_outputs: tuple[Tensor, ...],
    grads: Sequence[Tensor | None],
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """Run backward of the implementation that ran forward.

    Args:
        plan, call, residuals, base_outputs: as forward left them.
        grads: gradient of each raw output in order, None where there is none.
        needs: raw inputs whose gradient is wanted.

    Returns:
        a gradient for each name in ``needs``, in the input's dtype.
    """
    if not plan.lowerings:
        base = call if plan.strided else contiguous(call)
        base.memo = call.memo
        return _derive(plan, base, residuals, grads, needs)
    with torch.enable_grad():
        leaves = {n: call.tensors[n].detach().requires_grad_() for n in sorted(needs)}  # type: ignore[union-attr]
        chain = lower(call.but(**leaves), plan.lowerings)
    inner = _grads_before_lift(plan, chain, base_outputs, grads)
    depends = {n: t for n, t in chain[-1].tensors.items() if t is not None and t.requires_grad}
    base = chain[-1].but(**{n: t.detach() for n, t in depends.items()})
    if not plan.strided:
        base = contiguous(base)
    base.memo = call.memo
    found = _derive(plan, base, residuals, inner, frozenset(depends))
    return vjp(list(depends.values()), leaves, [found[name] for name in depends])


def _grads_before_lift(
    plan: Plan,
    chain: Sequence[Call],
    base_outputs: tuple[Tensor, ...],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Pull gradients of raw outputs back to outputs of the implementation."""
    if not any(lowering.lift for lowering in plan.lowerings):
        return list(grads)
    call, base = chain[0], chain[-1]
    shapes = expected_outputs(base)
    if not base_outputs:
        base_outputs = tuple(
            torch.empty((), dtype=dtype, device=call.q.device).expand(shape)
            for shape, dtype in zip(shapes.shapes, shapes.dtypes, strict=True)
        )
    with torch.enable_grad():
        leaves = dict(
            zip(shapes.names, (o.detach().requires_grad_() for o in base_outputs), strict=True)
        )
        detached = [step.but(**_detached(step)) for step in chain]
        lifted = lift(leaves, detached, plan.lowerings)
    raw = [lifted[spec.name] for spec in call.contract.outputs_for(call.features)]
    pairs = [(o, g) for o, g in zip(raw, grads, strict=True) if g is not None]
    found = torch.autograd.grad(
        [o for o, _ in pairs], list(leaves.values()), [g for _, g in pairs], allow_unused=True
    )
    return list(found)


def _detached(call: Call) -> dict[str, Tensor]:
    return {n: t.detach() for n, t in call.tensors.items() if t is not None and t.requires_grad}


def _derive(
    plan: Plan,
    base: Call,
    residuals: tuple[Tensor, ...],
    grads: Sequence[Tensor | None],
    needs: frozenset[str],
) -> dict[str, Tensor]:
    if not plan.strided:
        grads = [None if g is None else g.contiguous() for g in grads]
    grads = tuple(grads)
    arguments = (*base.tensors.values(), *grads)
    before = audit.versions(arguments)
    assert plan.backward is not None  # a plan for a call with gradients has one
    found = audit.run_plugin(plan, plan.backward, base, residuals, grads, needs)
    if audit.versions(arguments) != before:
        outputs = (f"gradient of {out.name}" for out in base.contract.outputs_for(base.features))
        audit.check_unchanged(
            plan, before, {**base.tensors, **dict(zip(outputs, grads, strict=True))}
        )
    return audit.check_gradients(plan, base, found, needs)
