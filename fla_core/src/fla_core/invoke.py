"""From a public operator to an implementation, eagerly, with as little Python as can be.

A call's *signature* (operator, flags, policy, shape, dtype, device and gradient bit of each tensor)
is looked up in one dict. A hit has been checked and planned before; only then is there a walk
through the contract and the candidates. The contents of ``cu_seqlens`` are no part of it: they are
checked once per tensor, by identity and version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fla_core.autograd import differentiable_call, without_autocast
from fla_core.call import NO_HINTS, Call, Hints
from fla_core.check import (
    AXES,
    Checked,
    check_boundaries,
    check_call,
    check_cu_seqlens,
    check_scale,
    dtype_name,
)
from fla_core.contract import Contract
from fla_core.contracts import public_names
from fla_core.dispatch import find_plan, on_reset, policy_text
from fla_core.dispatch.plan import Plan
from fla_core.errors import ContractError, UnsupportedError
from fla_core.execute import Expected, expected_outputs, run_forward
from fla_core.seqlens import SeqLens, cached_seqlens

Outputs = tuple[Tensor, ...]

_MEMO_SIZE = 4096
_memo: dict[tuple[Any, ...], Prepared] = {}
on_reset(_memo.clear)


@dataclass(frozen=True, slots=True)
class Operator:
    """A public name: the contract it stands for, the form it asks for, its words for arguments."""

    name: str
    contract: Contract
    form: str
    title: str
    aliases: Mapping[str, str]


def operator(name: str, **aliases: str) -> Operator:
    """Look a public name up in the contracts.

    Args:
        name: ``"chunk_gla"``.
        **aliases: what this name calls an argument of the contract (``gk="g"``), for messages.
    """
    contract, form = public_names()[name]
    return Operator(name, contract, form, f"{contract.name}.{name}", aliases)


@dataclass(slots=True)
class Prepared:
    """What is known of a signature: the plan, and everything that follows from metadata."""

    plan: Plan
    names: tuple[str, ...]
    features: frozenset[str]
    needs: frozenset[str]
    default_scale: float
    expected: Expected | None
    device: torch.device | None
    first: bool = True


def invoke(
    operator: Operator,
    tensors: tuple[Tensor | None, ...],
    flags: tuple[bool, ...],
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    options: tuple[float | None, ...] = (),
    hints: Hints = NO_HINTS,
    backend: str | None = None,
) -> Outputs:
    """Check, plan and run one call.

    Args:
        operator: the public name.
        tensors: tensor arguments in contract order.
        flags: switches in the order of the contract's flags.
        options: further float arguments in the order of the contract's options.

    Returns:
        the outputs the flags ask for, in contract order.
    """
    if torch.compiler.is_compiling():
        from fla_core.torch_ops import invoke_traced

        return invoke_traced(
            operator, tensors, flags, scale, cu_seqlens, cu_seqlens_cpu, options, hints, backend
        )
    if torch._C._is_any_autocast_enabled():
        device = _device_type(tensors)
        tensors = cast_for_autocast(tensors, device)
        if torch.is_autocast_enabled(device):
            with without_autocast(device):
                return invoke(
                    operator,
                    tensors,
                    flags,
                    scale=scale,
                    cu_seqlens=cu_seqlens,
                    cu_seqlens_cpu=cu_seqlens_cpu,
                    options=options,
                    hints=hints,
                    backend=backend,
                )
    grad = torch.is_grad_enabled()
    policy = policy_text(backend)
    key: tuple[Any, ...] | None
    try:
        key = (
            operator.name,
            flags,
            policy,
            options,
            None if cu_seqlens is None else (cu_seqlens.shape, cu_seqlens.dtype, cu_seqlens.device),
            *[
                None if t is None else (t.shape, t.dtype, t.device, grad and t.requires_grad)
                for t in tensors
            ],
        )
        prepared = _memo.get(key)
    except (AttributeError, TypeError):
        key = prepared = None
    if prepared is None:
        prepared = _prepare(operator, tensors, flags, cu_seqlens, policy, grad)
        if len(_memo) >= _MEMO_SIZE:
            _memo.clear()
        if key is not None:
            _memo[key] = prepared
    _refuse_transforms(operator, tensors)
    seqlens = None
    if cu_seqlens is not None or cu_seqlens_cpu is not None:
        seqlens = packed_sequences(operator.title, cu_seqlens, cu_seqlens_cpu, tensors[0])
    call = Call(
        operator.contract,
        operator.form,
        dict(zip(prepared.names, tensors, strict=True)),
        prepared.default_scale if scale is None else check_scale(operator.title, scale),
        prepared.features,
        seqlens,
        dict(zip(operator.contract.options, options, strict=True)) if options else _NO_OPTIONS,
        hints,
    )
    if prepared.device is None:
        return _run(prepared, call)
    accelerator = torch.get_device_module(prepared.device.type)
    if accelerator.current_device() == prepared.device.index:
        return _run(prepared, call)
    with accelerator.device(prepared.device.index):
        return _run(prepared, call)


_NO_OPTIONS: dict[str, float | None] = {}


def _run(prepared: Prepared, call: Call) -> Outputs:
    plan, first = prepared.plan, prepared.first
    try:
        if prepared.needs:
            outputs = differentiable_call(plan, call, prepared.expected, prepared.needs, first)
        else:
            outputs, _, _ = run_forward(plan, call, prepared.expected, False, first)
    except Exception as error:
        plan.annotate(error)
        raise
    prepared.first = False
    return outputs


def _prepare(
    operator: Operator,
    tensors: tuple[Tensor | None, ...],
    flags: tuple[bool, ...],
    cu_seqlens: Tensor | None,
    policy: str,
    grad: bool,
) -> Prepared:
    contract = operator.contract
    named = dict(zip(contract.input_names, tensors, strict=True))
    switched = frozenset(name for name, on in zip(contract.flags, flags, strict=True) if on)
    if cu_seqlens is not None:
        check_cu_seqlens(operator.title, cu_seqlens)
    checked = checked_call(operator, named, switched, cu_seqlens)
    q = named["q"]
    assert q is not None
    needs = frozenset(n for n, t in named.items() if grad and t is not None and t.requires_grad)
    if needs and "states" in checked.features:
        expected = "a call without gradients (torch.no_grad or torch.inference_mode)"
        got = f"gradients of {', '.join(sorted(needs))}"
        raise ContractError(operator.title, "return_intermediate_states", expected, got)
    plan = find_plan(
        contract,
        operator.name,
        operator.form,
        q.device,
        dtype_name(q.dtype),
        tuple(None if t is None else dtype_name(t.dtype) for t in tensors),
        tuple(checked.sizes[axis] for axis in AXES),
        checked.features,
        needs,
        False,
        policy,
    )
    _refuse_unwarmed_capture(operator.title, q, plan)
    return Prepared(
        plan=plan,
        names=contract.input_names,
        features=checked.features,
        needs=needs,
        default_scale=float(checked.sizes["K"]) ** -0.5,
        expected=_known_outputs(operator, named, checked, plan),
        device=None if q.device.index is None else q.device,
    )


def checked_call(
    operator: Operator,
    named: Mapping[str, Tensor | None],
    switched: frozenset[str],
    cu_seqlens: Tensor | None,
) -> Checked:
    """Check a call, naming arguments as the public operator does."""
    try:
        return check_call(operator.title, operator.contract, named, switched, cu_seqlens)
    except ContractError as error:
        if error.argument not in operator.aliases:
            raise
        renamed = operator.aliases[error.argument]
        raise type(error)(error.operator, renamed, error.expected, error.got) from None


def _known_outputs(
    operator: Operator, named: Mapping[str, Tensor | None], checked: Checked, plan: Plan
) -> Expected | None:
    """Output shapes that follow from the signature alone; lowered calls derive theirs later."""
    if plan.lowerings or "states" in checked.features:
        return None
    stand_in = _Count(checked.sizes["N"]) if "varlen" in checked.features else None
    call = Call(operator.contract, operator.form, named, 1.0, checked.features, seqlens=stand_in)
    return expected_outputs(call)


@dataclass(frozen=True, slots=True)
class _Count:
    """As much of a SeqLens as output shapes need."""

    count: int


def packed_sequences(
    operator: str, cu_seqlens: Tensor | None, host_copy: Tensor | None, q: Tensor | None
) -> SeqLens:
    """Check boundaries by value, once per tensor, and return them with their host copy.

    Under graph capture boundaries that are not on the host are trusted: reading them would need a
    synchronisation, which a captured stream does not allow.
    """
    if cu_seqlens is None:
        expected, got = "cu_seqlens whenever cu_seqlens_cpu is given", "cu_seqlens = None"
        raise ContractError(operator, "cu_seqlens", expected, got)
    check_cu_seqlens(operator, cu_seqlens)
    if host_copy is not None:
        check_cu_seqlens(operator, host_copy, "cu_seqlens_cpu")
        if host_copy.device.type != "cpu" or host_copy.shape != cu_seqlens.shape:
            expected = f"a CPU tensor of shape {list(cu_seqlens.shape)}, as cu_seqlens"
            got = f"shape {list(host_copy.shape)} on {host_copy.device}"
            raise ContractError(operator, "cu_seqlens_cpu", expected, got)
    seqlens = cached_seqlens(cu_seqlens, host_copy)
    if not seqlens.known and _capturing(cu_seqlens):
        return seqlens
    length = q.shape[1] if q is not None else 0
    if seqlens.checked_length != length:
        argument = "cu_seqlens" if host_copy is None else "cu_seqlens_cpu"
        check_boundaries(operator, seqlens.bounds, length, argument)
        seqlens.checked_length = length
    return seqlens


def _capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _refuse_unwarmed_capture(operator: str, q: Tensor, plan: Plan) -> None:
    if _capturing(q):
        raise UnsupportedError(
            operator,
            f"capturing a call into a CUDA graph before it ran once ({plan.id} would compile and"
            " allocate under capture)",
            "call the operator once with the same shapes before the capture",
        )


def _device_type(tensors: tuple[Tensor | None, ...]) -> str:
    q = tensors[0]
    return q.device.type if isinstance(q, Tensor) else "cpu"


def cast_for_autocast(
    tensors: tuple[Tensor | None, ...], device_type: str
) -> tuple[Tensor | None, ...]:
    """Cast float32 members of q, k, v (the first three) to the autocast dtype, differentiably."""
    if not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    cast = [
        t.to(dtype) if isinstance(t, Tensor) and t.dtype == torch.float32 else t
        for t in tensors[:3]
    ]
    return (*cast, *tensors[3:])


def _refuse_transforms(operator: Operator, tensors: tuple[Tensor | None, ...]) -> None:
    """Refuse what would otherwise compute silently without derivative or batch rule."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UnsupportedError(
            operator.title,
            "a torch.func transform (vmap, grad, jvp, vjp)",
            "torch.autograd for gradients, the batch axis B for batching",
        )
    if forward_ad._current_level >= 0 and any(
        t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors
    ):
        raise UnsupportedError(operator.title, "forward-mode differentiation", "reverse mode")
