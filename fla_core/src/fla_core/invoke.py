"""From a public operator to an implementation, eagerly, with as little Python as can be.

A call's *signature* (operator, flags, policy, and of each tensor shape, dtype, device, class and
gradient bit) is looked up in one dict. A hit has been checked and planned before; only otherwise is
there a walk through the contract and the candidates. The contents of ``cu_seqlens`` are no part of
it: they are checked once per tensor, by identity and version.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from fla_core.autograd import (
    any_autocast,
    autocasts,
    cast_for_autocast,
    device_type_of,
    differentiable_call,
    refuse_transforms,
    transform_stack,
    without_autocast,
)
from fla_core.call import NO_HINTS, Call, Hints
from fla_core.check import check_flags, check_memory, check_scale, check_sign
from fla_core.dispatch import policy_text
from fla_core.errors import DtypeError
from fla_core.execute import run_forward
from fla_core.prepare import Memo, Operator, Prepared, checked_call, packed_sequences, prepare
from fla_core.seqlens import has_data

Outputs = tuple[Tensor, ...]

_memo = Memo(4096)


def invoke(
    operator: Operator,
    tensors: tuple[Tensor | None, ...],
    flags: tuple[bool, ...],
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    backend: str | None = None,
    options: tuple[float | None, ...] = (),
    hints: Hints = NO_HINTS,
) -> Outputs:
    """Check, plan and run one call.

    Args:
        operator: the public name.
        tensors: tensor arguments in contract order.
        flags: switches in the order of the contract's flags.
        scale, cu_seqlens, cu_seqlens_cpu, backend: as the public operator got them.
        options: further float arguments in the order of the contract's options.
        hints: wishes.

    Returns:
        the outputs the flags ask for, in contract order.
    """
    if is_compiling():
        from fla_core.torch_ops import invoke_traced

        return invoke_traced(
            operator, tensors, flags, scale, cu_seqlens, cu_seqlens_cpu, backend, options, hints
        )
    if any_autocast() and autocasts(device := device_type_of(tensors)):
        tensors = cast_for_autocast(tensors, device)
        with without_autocast(device):
            return invoke(
                operator,
                tensors,
                flags,
                scale,
                cu_seqlens,
                cu_seqlens_cpu,
                backend,
                options,
                hints,
            )
    grad = torch.is_grad_enabled()
    policy = policy_text(backend)
    entries = _memo.entries
    key: tuple[Any, ...] | None
    try:
        key = (
            operator.name,
            flags,
            policy,
            options,
            None if hints is NO_HINTS else hints,
            None if cu_seqlens is None else (cu_seqlens.shape, cu_seqlens.dtype, cu_seqlens.device),
            # Of a class of its own may be one that wraps others: the checks refuse it.
            *[
                None
                if t is None
                else (t.shape, t.dtype, t.device, t.__class__, grad and t.requires_grad)
                for t in tensors
            ],
        )
        prepared = entries.get(key)
    # Something that is no tensor, or one without a shape: the checks will name it.
    except (AttributeError, RuntimeError, TypeError):
        key = prepared = None
    if prepared is None:
        if not isinstance(policy, str):
            raise DtypeError(operator.title, "backend", "a policy text or None", repr(policy))
        prepared = _prepare(operator, tensors, flags, options, hints, cu_seqlens, policy, grad)
        # A fake call has the key of a real one, for which the checks of a first call remain.
        if key is not None and has_data(tensors[0]):  # type: ignore[arg-type]
            _memo.keep(entries, key, prepared)
    if transform_stack() is not None or forward_ad._current_level >= 0:
        refuse_transforms(operator.title, tensors)
    seqlens = None
    if cu_seqlens is not None or cu_seqlens_cpu is not None:
        seqlens = packed_sequences(operator.title, cu_seqlens, cu_seqlens_cpu, tensors[0])
    call = Call(
        operator.contract,
        operator.form,
        dict(zip(operator.inputs, tensors, strict=False)),
        prepared.default_scale if scale is None else check_scale(operator.title, scale),
        prepared.features,
        seqlens,
        prepared.options,
        hints,
    )
    call.memo = prepared.memo
    where = prepared.device
    # The current device is the caller's to change between calls, so it is compared each time.
    if where is None or prepared.current_device() == where.index:  # type: ignore[misc]
        return _run(operator, prepared, call)
    with prepared.on_device():
        return _run(operator, prepared, call)


def _run(operator: Operator, prepared: Prepared, call: Call) -> Outputs:
    plan = prepared.plan
    try:
        if prepared.needs:
            outputs = differentiable_call(prepared, call)
        else:
            outputs, _, _ = run_forward(plan, call, prepared.expected, False, prepared.first)
    except Exception as error:
        # Layouts are no part of a signature: asking each time costs more than a second look here.
        if any(t is not None and t.layout != torch.strided for t in call.tensors.values()):
            checked_call(operator, call.tensors, call.features, None)
        plan.annotate(error)
        raise
    prepared.first = False
    return outputs


def _prepare(
    operator: Operator,
    tensors: tuple[Tensor | None, ...],
    flags: tuple[bool, ...],
    options: tuple[float | None, ...],
    hints: Hints,
    cu_seqlens: Tensor | None,
    policy: str,
    grad: bool,
) -> Prepared:
    named = dict(zip(operator.inputs, tensors, strict=True))
    check_flags(operator.title, operator.contract.flags, flags)
    on = frozenset(n for n, flag in zip(operator.contract.flags, flags, strict=True) if flag)
    needs = frozenset(
        name
        for name, tensor in named.items()
        if grad and isinstance(tensor, Tensor) and tensor.requires_grad
    )
    operator.check_modes(named, on, options, hints)
    for name, tensor in named.items():
        if isinstance(tensor, Tensor):
            shown = operator.aliases.get(name, name)
            check_memory(operator.title, shown, tensor)
            check_sign(operator.title, shown, tensor)
    prepared = prepare(operator, named, on, cu_seqlens, policy, needs)
    prepared.options = dict(zip(operator.contract.options, options, strict=True))
    if prepared.device is not None:
        prepared.current_device = torch.get_device_module(prepared.device.type).current_device
    return prepared
