"""Calls whose states lie in the slots of a pool.

An implementation with a ``pooled`` function reads and writes the slots itself; for any other, core
copies states out of the pool and back, see :mod:`fla_core.gathered`. Forward only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from fla_core import audit
from fla_core.autograd import (
    any_autocast,
    autocasts,
    cast_for_autocast,
    device_type_of,
    refuse_transforms,
    transform_stack,
    without_autocast,
)
from fla_core.call import NO_HINTS, Call
from fla_core.check import check_flags, check_memory, check_scale, check_sign
from fla_core.dispatch import policy_text
from fla_core.errors import ContractError, DtypeError, ImplementationError, UnsupportedError
from fla_core.execute import contiguous
from fla_core.gathered import copied
from fla_core.lower import lower
from fla_core.outputs import axis_sizes, outputs_of
from fla_core.prepare import Memo, Operator, Prepared, packed_sequences, prepare
from fla_core.seqlens import has_data
from fla_core.slots import Slots, check_pool, check_span, check_values

try:  # torch.compiler.disable, which is the same, loads torch._dynamo: half of this import
    from torch._compile import _disable_dynamo as _disable
except ImportError:
    _disable = torch.compiler.disable

Given = tuple[Tensor | None, ...]

_memo = Memo(1024)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a public operator got beside tensors and switches.

    Attributes:
        scale, cu_seqlens, backend: its arguments of these names.
        options: further float arguments in the order of the contract's options.
        indices: ``ssm_state_indices``.
        accepted: ``num_accepted_tokens``.
        inplace: ``inplace_final_state``.
        check: ``check_state_indices``.
    """

    scale: float | None
    cu_seqlens: Tensor | None
    backend: str | None
    options: tuple[float | None, ...]
    indices: Tensor | None
    accepted: Tensor | None
    inplace: bool
    check: bool


def invoke_pooled(
    operator: Operator, tensors: Given, flags: tuple[bool, ...], asked: Asked
) -> tuple[Tensor, Tensor | None]:
    """Check, plan and run one call.

    Args:
        operator: the public name.
        tensors: tensor arguments in contract order; ``initial_state`` is the pool.
        flags: switches in the order of the contract's flags.
        asked: the rest.

    Returns:
        o; and under ``final_state`` the pool itself where it was written to, otherwise the final
        state of each sequence; else None.
    """
    if is_compiling():
        return _untraced(operator, tensors, flags, asked)  # type: ignore[no-any-return]
    if any_autocast() and autocasts(device := device_type_of(tensors)):
        with without_autocast(device):
            return invoke_pooled(operator, cast_for_autocast(tensors, device), flags, asked)
    named = dict(zip(operator.inputs, tensors, strict=True))
    pool, named["initial_state"] = named["initial_state"], None
    prepared, wants_state, v_first = _prepared(operator, named, pool, flags, asked)
    assert pool is not None
    assert asked.indices is not None
    if transform_stack() is not None or forward_ad._current_level >= 0:
        refuse_transforms(operator.title, tensors)
    title, scale, seqlens = operator.title, asked.scale, None
    if asked.cu_seqlens is not None:
        seqlens = packed_sequences(title, asked.cu_seqlens, None, named["q"])
    # As they were given: of a copy nobody would know that its numbers are on the host already.
    slots = Slots(pool, asked.indices, asked.accepted, asked.inplace, v_first)
    call = Call(
        operator.contract,
        operator.form,
        named,
        prepared.default_scale if scale is None else check_scale(title, scale),
        prepared.features,
        seqlens,
        prepared.options,
    )
    call.memo = prepared.memo
    check_span(title, slots, call)
    if asked.check:
        check_values(title, slots)
    if torch.is_grad_enabled():
        with torch.no_grad():
            outputs = _on_device(operator, prepared, call, slots, asked.backend)
    else:
        outputs = _on_device(operator, prepared, call, slots, asked.backend)
    prepared.first = False
    if not wants_state:
        return outputs[0], None
    return outputs[0], pool if slots.inplace else outputs[1]


_untraced: Callable[..., Any] = _disable(invoke_pooled)
"""What it does to the pool is no functional operator: a graph breaks here."""


def _prepared(
    operator: Operator,
    named: dict[str, Tensor | None],
    pool: Tensor | None,
    flags: tuple[bool, ...],
    asked: Asked,
) -> tuple[Prepared, bool, bool]:
    """What is known of the signature; whether a final state is wanted; whether it is [.., V, K]."""
    names, policy, entries = operator.contract.flags, policy_text(asked.backend), _memo.entries
    tensors = (*named.values(), asked.cu_seqlens, asked.indices, asked.accepted, pool)
    grad = torch.is_grad_enabled()
    key: tuple[Any, ...] | None
    try:
        key = (
            operator.name,
            flags,
            policy,
            asked.options,
            asked.inplace,
            asked.check,
            None if pool is None else pool.stride(),
            # A sparse tensor looks like one that has been checked otherwise, and so does a fake one
            # but for its class.
            asked.indices.layout,  # type: ignore[union-attr]
            None if asked.accepted is None else asked.accepted.layout,
            *[
                None
                if t is None
                else (t.shape, t.dtype, t.device, t.__class__, grad and t.requires_grad)
                for t in tensors
            ],
        )
        found = entries.get(key)
    # Something that is no tensor, or one without a shape: the checks will name it.
    except (AttributeError, RuntimeError, TypeError):
        key = found = None
    if found is None:
        if not isinstance(policy, str):
            raise DtypeError(operator.title, "backend", "a policy text or None", repr(policy))
        found = _prepare(operator, named, pool, flags, asked, policy)
        if key is not None:
            _memo.keep(entries, key, found)
    v_first = "state_v_first" in names and flags[names.index("state_v_first")]
    return found, flags[names.index("final_state")], v_first


def _prepare(
    operator: Operator,
    named: dict[str, Tensor | None],
    pool: Tensor | None,
    flags: tuple[bool, ...],
    asked: Asked,
    policy: str,
) -> Prepared:
    title, names, inplace = operator.title, operator.contract.flags, asked.inplace
    check_flags(title, names, flags)
    check_flags(title, ("inplace_final_state", "check_state_indices"), (inplace, asked.check))
    on = {name for name, flag in zip(names, flags, strict=True) if flag}
    base = frozenset(on - ({"state_v_first", "final_state"} if inplace else {"state_v_first"}))
    operator.check_modes(named, base, asked.options, NO_HINTS)
    prepared = prepare(operator, named, base, asked.cu_seqlens, policy, frozenset())
    slots = (pool, asked.indices, asked.accepted)
    check_pool(title, named, slots, "state_v_first" in on, inplace, asked.cu_seqlens)
    numbers = {"ssm_state_indices": asked.indices, "num_accepted_tokens": asked.accepted}
    _refuse(title, {**named, "initial_state": pool, **numbers})
    prepared.options = dict(zip(operator.contract.options, asked.options, strict=True))
    if prepared.device is not None:
        module = torch.get_device_module(prepared.device.type)
        prepared.current_device = module.current_device
    return prepared


def _refuse(title: str, tensors: Mapping[str, Tensor | None]) -> None:
    """Refuse gradients, and tensors whose slots nobody could read."""
    for name, tensor in tensors.items():
        if tensor is not None and not has_data(tensor):
            what = "a pool of states without data (a meta or fake tensor)"
            raise UnsupportedError(title, what, "tensors with data")
        if tensor is not None:
            check_memory(title, name, tensor)
            check_sign(title, name, tensor)
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            expected = "no gradients beside ssm_state_indices (torch.no_grad or inference_mode)"
            raise ContractError(title, name, expected, f"{name} requires gradients")


def _on_device(
    operator: Operator, prepared: Prepared, call: Call, slots: Slots, backend: str | None
) -> tuple[Tensor, ...]:
    plan = prepared.plan
    # What a lowering does to outputs it would have to do to states in their slots.
    if plan.pooled is None or any(lowering.lift for lowering in plan.lowerings):
        return copied(operator, call, slots, backend)
    where = prepared.device
    # The current device is the caller's to change between calls, so it is compared each time.
    if where is None or prepared.current_device() == where.index:  # type: ignore[misc]
        return _run(prepared, call, slots)
    with prepared.on_device():
        return _run(prepared, call, slots)


def _run(prepared: Prepared, call: Call, slots: Slots) -> tuple[Tensor, ...]:
    """Run the implementation's own function on the pool."""
    plan, first = prepared.plan, prepared.first
    base = lower(call, plan.lowerings)[-1] if plan.lowerings else call
    if not plan.strided:
        base = contiguous(base)
    base.memo = call.memo
    before = audit.versions(base.tensors.values()) if first else None
    run = audit.run_watched if first else audit.run_plugin
    assert plan.pooled is not None
    outputs = run(plan, plan.pooled, base, slots.contiguous())
    if not isinstance(outputs, tuple):
        got, problem = type(outputs).__name__, "pooled did not return its outputs"
        raise ImplementationError(plan.id, problem, "a tuple of tensors", got)
    if first:
        features = call.features | {"state_v_first"} if slots.v_first else call.features
        prepared.expected = outputs_of(call.contract, features, axis_sizes(call), call.q)
    expected = prepared.expected
    assert expected is not None
    audit.check_outputs(plan, outputs, expected)
    if before is not None:
        audit.check_unchanged(plan, before, base.tensors)
        held = base.but(initial_state=slots.pool)
        named = ((f"output {n!r}", o) for n, o in zip(expected.names, outputs, strict=True))
        audit.check_no_alias(plan, held, named, exclusive=True)
    if slots.inplace and not slots.pool.is_inference():
        increment_version(slots.pool)  # what kernels write, torch does not see
    return outputs
