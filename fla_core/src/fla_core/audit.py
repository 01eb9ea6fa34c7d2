"""What core checks of an implementation, since plugins are not trusted.

On every call: that it returns at all, what shapes, dtypes and devices it returns, and, where
gradients are involved, that it left its arguments alone as far as torch can tell. The first time a
call signature is seen also: aliasing, residuals, changed inputs of inference, the state of torch.
A kernel that writes through a raw pointer, or returns wrong numbers, escapes all that: only the
conformance suite, which compares bytes and values, catches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fla_core.call import Call
from fla_core.dispatch.once import say_once
from fla_core.dispatch.runtime import RUNTIME
from fla_core.dtypes import dtype_name
from fla_core.errors import ImplementationError, ImplementationWarning
from fla_core.outputs import Expected
from fla_core.plugins.torch_state import TorchState

if TYPE_CHECKING:
    from fla_core.dispatch.plan import Plan
    from fla_core.outputs import Expected

Named = Iterable[tuple[str, Tensor | None]]


def run_plugin(plan: Plan, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of an implementation; an error says whose it is.

    Raises:
        ImplementationError: it tried to end the process, or raised another BaseException.
    """
    try:
        return function(*arguments)
    except Exception as error:
        plan.annotate(error)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"raised {type(error).__name__}({error}), which would have ended the process"
        raise ImplementationError(plan.id, problem) from error


def run_watched(plan: Plan, function: Callable[..., Any], *arguments: Any) -> Any:
    """:func:`run_plugin`, and a warning if the global state of torch is another afterwards.

    No more than that: the settings are those of the process, and while an innocent implementation
    runs another thread may change them, which must then stand.
    """
    before = TorchState.take()
    answer = run_plugin(plan, function, *arguments)
    if before is not None and (changed := before.changes()):
        names = ", ".join(changed)
        text = (
            f"torch changed while {plan.id} ran: {names}. Implementations must leave torch as it"
            f" is; unless another thread did this, report it to the author of {plan.plugin}"
        )
        say_once(RUNTIME.said, ("torch", plan.id, names), text, ImplementationWarning)
    return answer


def unpack(plan: Plan, answer: object) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Split what forward returned into outputs and residuals."""
    match answer:
        case (tuple() as outputs, tuple() as residuals):
            return outputs, residuals
    raise ImplementationError(
        plan.id,
        "forward did not return (outputs, residuals)",
        "two tuples of tensors",
        _kind(answer),
    )


def check_outputs(plan: Plan, outputs: tuple[object, ...], expected: Expected) -> None:
    """Compare outputs with what the contract promises."""
    count = len(expected.names)
    if len(outputs) != count:
        raise ImplementationError(
            plan.id,
            "wrong number of outputs",
            f"{count}: {', '.join(expected.names)}",
            str(len(outputs)),
        )
    shapes, dtypes, device = expected.shapes, expected.dtypes, expected.device
    for index, output in enumerate(outputs):
        if (
            not isinstance(output, Tensor)
            or output.shape != shapes[index]
            or output.dtype is not dtypes[index]
            or output.device != device
        ):
            problem = f"output {expected.names[index]!r} has the wrong shape, dtype or device"
            wanted = f"{dtype_name(dtypes[index])}{list(shapes[index])} on {device}"
            raise ImplementationError(plan.id, problem, wanted, _describe(output))


def versions(tensors: Iterable[Tensor | None]) -> list[int]:
    """How often each tensor was written to; -1 of what is absent or made in inference mode."""
    tensors = tuple(tensors)
    try:
        return [-1 if t is None else t._version for t in tensors]
    except RuntimeError:  # asking each first whether it can tell costs as much again
        return [-1 if t is None or t.is_inference() else t._version for t in tensors]


def check_unchanged(plan: Plan, before: list[int], tensors: Mapping[str, Tensor | None]) -> None:
    """Compare with the versions taken before the implementation ran."""
    after = versions(tensors.values())
    if after != before:
        changed = (n for n, old, new in zip(tensors, before, after, strict=True) if old != new)
        raise ImplementationError(
            plan.id, f"changed {next(changed)!r} in place", "arguments left as they are"
        )


def check_no_alias(
    plan: Plan, call: Call, returned: Iterable[tuple[str, Tensor]], exclusive: bool
) -> None:
    """Refuse what shares memory with an input; if ``exclusive``, also with each other."""
    owners = {_memory(t): name for name, t in call.tensors.items() if t is not None}
    for name, tensor in returned:
        pointer = _memory(tensor)
        if pointer and pointer in owners:
            problem = f"{name} shares memory with {owners[pointer]!r}"
            raise ImplementationError(plan.id, problem, "memory of its own")
        if exclusive:
            owners[pointer] = name


def _memory(tensor: Tensor) -> int:
    """Address of a tensor's storage; 0 where there is none to share."""
    if not tensor.numel() or tensor.is_meta or isinstance(tensor, FakeTensor):
        return 0
    return tensor.untyped_storage().data_ptr()


def announced_residuals(plan: Plan, call: Call) -> tuple[tuple[Sequence[int], Any], ...]:
    """Shape and dtype of each residual, as the implementation announces them."""
    if plan.residuals is None:
        return ()
    try:
        pairs = run_plugin(plan, plan.residuals, call)
        return tuple((tuple(shape), dtype) for shape, dtype in pairs)
    except ImplementationError:
        raise
    except Exception as error:
        # Renamed, because the tracer of torch.compile keeps the message only.
        problem = f"residuals(call) raised {type(error).__name__}: {error}"
        raise ImplementationError(plan.id, problem, "pairs of shape and dtype") from error


def check_residuals(plan: Plan, call: Call, residuals: Sequence[Tensor]) -> None:
    """Compare residuals with what the implementation announced."""
    device = call.q.device
    wanted = [
        f"{dtype_name(dtype)}{list(shape)} on {device}"
        for shape, dtype in announced_residuals(plan, call)
    ]
    got = [_describe(residual) for residual in residuals]
    if got != wanted:
        problem = "residuals differ from those announced"
        raise ImplementationError(
            plan.id, problem, ", ".join(wanted) or "none", ", ".join(got) or "none"
        )


def check_gradients(
    plan: Plan, call: Call, found: object, needs: frozenset[str]
) -> dict[str, Tensor]:
    """Return the wanted gradients, each checked, in the dtype of its input."""
    if not isinstance(found, (dict, Mapping)):  # dict first: the abstract class is slow to ask
        problem, wanted = "backward did not return gradients by name", "a mapping"
        raise ImplementationError(plan.id, problem, wanted, _kind(found))
    gradients, tensors = {}, call.tensors
    for name in sorted(needs):
        gradient, like = found.get(name), tensors[name]
        assert like is not None
        if gradient is None:
            problem = f"backward returned no gradient of {name!r}"
            raise ImplementationError(plan.id, problem, f"all of {sorted(needs)}")
        if not _fits(gradient, like):
            problem = f"the gradient of {name!r} has the wrong shape, device or kind of dtype"
            wanted = f"floating point, {list(like.shape)} on {like.device}"
            raise ImplementationError(plan.id, problem, wanted, _describe(gradient))
        gradients[name] = gradient if gradient.dtype is like.dtype else gradient.to(like.dtype)
    if isinstance(tensors["q"], FakeTensor) or _may_alias(gradients.values(), tensors.values()):
        named = ((f"the gradient of {name!r}", gradient) for name, gradient in gradients.items())
        # Two gradients may lie in one buffer: autograd copies what it does not own alone.
        check_no_alias(plan, call, named, exclusive=False)
    return gradients


def _may_alias(some: Iterable[Tensor], others: Iterable[Tensor | None]) -> bool:
    """Whether two addresses are equal; those of tensors without memory are."""
    known = {t.untyped_storage().data_ptr() for t in others if t is not None}
    return not known.isdisjoint([t.untyped_storage().data_ptr() for t in some])


def _fits(gradient: object, like: Tensor) -> bool:
    return (
        isinstance(gradient, Tensor)
        and gradient.shape == like.shape
        and gradient.device == like.device
        and gradient.is_floating_point()
    )


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return type(value).__name__


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)}{list(value.shape)} on {value.device}"
    return type(value).__name__
