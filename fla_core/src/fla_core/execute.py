"""Run a planned call: lowerings, one implementation, lifts; and the same backwards.

Plugins are not trusted. What an implementation returns is compared with what the contract promises
on every call (shapes and dtypes) and, the first time a call signature is seen, for aliasing and
changed inputs as far as torch can tell. A kernel that writes through a raw pointer escapes that:
only the conformance suite, which compares bytes, catches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fla_core.call import Call
from fla_core.contract import TensorSpec
from fla_core.differentiable import vjp
from fla_core.dtypes import dtype_name, wide
from fla_core.errors import ImplementationError
from fla_core.lower import lift, lower

if TYPE_CHECKING:
    from fla_core.dispatch.plan import Plan

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """Shape and dtype of each output the implementation returns, in order."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]


def expected_outputs(call: Call, features: frozenset[str] | None = None) -> Expected:
    """Derive output shapes and dtypes of a call from its contract and its tensors."""
    specs = call.contract.outputs_for(call.features if features is None else features)
    sizes = axis_sizes(call)
    return Expected(
        tuple(spec.name for spec in specs),
        tuple(_output_shape(spec, sizes, call.features) for spec in specs),
        tuple(_output_dtype(spec, call) for spec in specs),
    )


def axis_sizes(call: Call) -> dict[str, int]:
    """Sizes of the axes by letter; NT is the number of chunks."""
    q, v = call.q, call.v
    sizes = {
        "B": q.shape[0],
        "T": q.shape[1],
        "H": q.shape[2],
        "HV": v.shape[2],
        "K": q.shape[3],
        "V": v.shape[3],
        "N": call.num_sequences,
        "1": 1,
    }
    if "states" in call.features:
        size = call.hints.chunk_size or 64
        bounds = call.bounds or (0, q.shape[1])
        sizes["NT"] = sum(-(-(end - begin) // size) for begin, end in pairwise(bounds))
    return sizes


def _output_shape(spec: TensorSpec, sizes: Mapping[str, int], features: frozenset[str]) -> Shape:
    letters = spec.axes
    if "state_v_first" in features and letters[-2:] == ("K", "V"):
        letters = (*letters[:-2], "V", "K")
    return tuple(sizes[letter] for letter in letters)


def _output_dtype(spec: TensorSpec, call: Call) -> torch.dtype:
    dtype: torch.dtype = call.q.dtype
    return wide(call.q) if spec.dtype == "state" else dtype


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
        base = call if plan.strided else _contiguous(call)
        outputs, residuals = _run(plan, base, expected, save, first)
        return outputs, residuals, ()
    with torch.no_grad():
        chain = lower(call, plan.lowerings)
        base = chain[-1] if plan.strided else _contiguous(chain[-1])
        outputs, residuals = _run(plan, base, expected, save, first)
        names = [spec.name for spec in call.contract.outputs_for(base.features)]
        lifted = lift(dict(zip(names, outputs, strict=True)), chain, plan.lowerings)
    wanted = tuple(lifted[spec.name] for spec in call.contract.outputs_for(call.features))
    reads = save and any(lowering.lift_reads_outputs for lowering in plan.lowerings)
    return wanted, residuals, outputs if reads else ()


def _run(
    plan: Plan, base: Call, expected: Expected | None, save: bool, first: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    if first:
        versions = _versions(base)
    answer = plan.forward(base, save)
    outputs, residuals = _unpack(plan, answer)
    _check_outputs(plan, outputs, expected or expected_outputs(base))
    if first:
        _check_inputs_unchanged(plan, base, versions)
        _check_no_alias(plan, base, outputs)
        if save:
            check_residuals(plan, base, residuals)
    return outputs, residuals


def _unpack(plan: Plan, answer: object) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    match answer:
        case (tuple() as outputs, tuple() as residuals):
            return outputs, residuals
    raise ImplementationError(
        plan.id,
        "forward did not return (outputs, residuals)",
        "two tuples of tensors",
        _kind(answer),
    )


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return type(value).__name__


def _check_outputs(plan: Plan, outputs: tuple[Tensor, ...], expected: Expected) -> None:
    if len(outputs) != len(expected.names):
        raise ImplementationError(
            plan.id,
            "wrong number of outputs",
            f"{len(expected.names)}: {', '.join(expected.names)}",
            str(len(outputs)),
        )
    for output, name, shape, dtype in zip(
        outputs, expected.names, expected.shapes, expected.dtypes, strict=True
    ):
        if not isinstance(output, Tensor) or output.shape != shape or output.dtype != dtype:
            raise ImplementationError(
                plan.id,
                f"output {name!r} has the wrong shape or dtype",
                f"{dtype_name(dtype)}{list(shape)}",
                _describe(output),
            )


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)}{list(value.shape)}"
    return type(value).__name__


def _tracked(tensor: Tensor | None) -> bool:
    return tensor is not None and not tensor.is_inference()


def _versions(call: Call) -> dict[str, int]:
    return {n: t._version for n, t in call.tensors.items() if t is not None and _tracked(t)}


def _check_inputs_unchanged(plan: Plan, call: Call, versions: Mapping[str, int]) -> None:
    changed = [name for name, version in versions.items() if call.tensors[name]._version != version]  # type: ignore[union-attr]
    if changed:
        raise ImplementationError(
            plan.id, f"changed its input {changed[0]!r} in place", "inputs left as they are"
        )


def _check_no_alias(plan: Plan, call: Call, outputs: Sequence[Tensor]) -> None:
    owners = {
        tensor.untyped_storage().data_ptr(): name
        for name, tensor in call.tensors.items()
        if tensor is not None and _has_memory(tensor)
    }
    for output in outputs:
        if not _has_memory(output):
            continue
        pointer = output.untyped_storage().data_ptr()
        if pointer in owners:
            raise ImplementationError(
                plan.id, f"an output shares memory with {owners[pointer]!r}", "memory of its own"
            )
        owners[pointer] = "another output"


def _has_memory(tensor: Tensor) -> bool:
    return (
        tensor.numel() > 0 and tensor.device.type != "meta" and not isinstance(tensor, FakeTensor)
    )


def check_residuals(plan: Plan, base: Call, residuals: Sequence[Tensor]) -> None:
    """Compare residuals with what the implementation announced."""
    announced = tuple(plan.residuals(base)) if plan.residuals is not None else ()
    got = tuple((tuple(r.shape), r.dtype) for r in residuals)
    wanted = tuple((tuple(shape), dtype) for shape, dtype in announced)
    if got != wanted:
        raise ImplementationError(
            plan.id, "residuals differ from those announced", str(wanted), str(got)
        )


def _contiguous(call: Call) -> Call:
    if all(t is None or t.is_contiguous() for t in call.tensors.values()):
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
        base = call if plan.strided else _contiguous(call)
        return _run_backward(plan, base, residuals, grads, needs)
    with torch.enable_grad():
        leaves = {n: call.tensors[n].detach().requires_grad_() for n in sorted(needs)}  # type: ignore[union-attr]
        chain = lower(call.but(**leaves), plan.lowerings)
    inner = _grads_before_lift(plan, chain, base_outputs, grads)
    depends = {n: t for n, t in chain[-1].tensors.items() if t is not None and t.requires_grad}
    base = chain[-1].but(**{n: t.detach() for n, t in depends.items()})
    if not plan.strided:
        base = _contiguous(base)
    found = _run_backward(plan, base, residuals, inner, frozenset(depends))
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


def _run_backward(
    plan: Plan,
    base: Call,
    residuals: tuple[Tensor, ...],
    grads: Sequence[Tensor | None],
    needs: frozenset[str],
) -> dict[str, Tensor]:
    if not plan.strided:
        grads = [None if g is None else g.contiguous() for g in grads]
    found = plan.backward(base, residuals, tuple(grads), needs)
    gradients = {}
    for name in sorted(needs):
        gradient = found.get(name)
        wanted: Tensor = base.tensors[name]  # type: ignore[assignment]
        if gradient is None:
            raise ImplementationError(
                plan.id, f"backward returned no gradient of {name!r}", f"all of {sorted(needs)}"
            )
        if gradient.shape != wanted.shape:
            raise ImplementationError(
                plan.id,
                f"the gradient of {name!r} has the wrong shape",
                str(list(wanted.shape)),
                str(list(gradient.shape)),
            )
        gradients[name] = gradient.to(wanted.dtype)
    return gradients
