"""What is known of a call from its metadata: checks passed, plan chosen, outputs foreseen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fla_core.call import Hints
from fla_core.check import (
    Checked,
    check_boundaries,
    check_call,
    check_cu_seqlens,
    check_memory,
)
from fla_core.contract import Contract
from fla_core.contracts import public_names
from fla_core.dispatch import find_plan, on_reset
from fla_core.dispatch.plan import Plan, bound_plan
from fla_core.domain import AXES
from fla_core.dtypes import dtype_name
from fla_core.errors import ContractError, UnsupportedError
from fla_core.outputs import Expected, outputs_of
from fla_core.seqlens import SeqLens, cached_seqlens, capturing, has_data, is_fake


@dataclass(frozen=True, slots=True)
class Operator:
    """A public name: the contract it stands for, the form it asks for, its words for arguments."""

    name: str
    contract: Contract
    form: str
    title: str
    inputs: tuple[str, ...]
    aliases: Mapping[str, str]
    modes: Modes | None

    def check_modes(
        self,
        tensors: Mapping[str, Tensor | None],
        flags: frozenset[str],
        options: tuple[float | None, ...],
        hints: Hints,
    ) -> None:
        """Check what the public operator says of its own switches, before the contract."""
        if self.modes is not None:
            self.modes(self, tensors, flags, options, hints)


Modes = Callable[
    [Operator, Mapping[str, Tensor | None], frozenset[str], tuple[float | None, ...], Hints], None
]


OPERATORS: dict[str, Operator] = {}
"""By name: a compiled graph refers to its operator by a string."""


def operator(name: str, modes: Modes | None = None, **aliases: str) -> Operator:
    """Look a public name up in the contracts.

    Args:
        name: ``"chunk_gla"``.
        modes: checks combinations of switches, once a signature.
        **aliases: what this name calls an argument of the contract (``gk="g"``), for messages.
    """
    contract, form = public_names()[name]
    title = f"{contract.name}.{name}"
    made = Operator(name, contract, form, title, contract.input_names, aliases, modes)
    OPERATORS[name] = made
    return made


def device_guard(device: torch.device) -> AbstractContextManager[object]:
    """Make a device current while the block lasts; the CPU always is."""
    if device.type == "cpu":
        return nullcontext()
    guard: AbstractContextManager[object] = torch.get_device_module(device.type).device(device)
    return guard


@dataclass(slots=True)
class Prepared:
    """What is known of a signature: the plan, and everything that follows from metadata.

    Attributes:
        plan: what runs.
        inputs: names of the tensor arguments in contract order.
        features: features in use.
        needs: inputs whose gradient is wanted.
        default_scale: factor on q where the call gives none.
        expected: outputs of the implementation, None where each call has to derive them.
        device: an accelerator with an index; None for any other.
        options: further float arguments by name.
        first: no call of the signature has succeeded yet.
        memo: what the implementation keeps of the signature.
        mark: see :func:`fla_core.autograd.maker_mark`; None until one is needed.
        current_device: index of the accelerator's current device, None without a ``device``.
    """

    plan: Plan
    inputs: tuple[str, ...]
    features: frozenset[str]
    needs: frozenset[str]
    default_scale: float
    expected: Expected | None
    device: torch.device | None
    options: Mapping[str, float | None] = field(default_factory=dict)
    first: bool = True
    memo: dict[Any, Any] = field(default_factory=dict)
    mark: Tensor | None = None
    current_device: Callable[[], int] | None = None

    def on_device(self) -> AbstractContextManager[object]:
        """Make the device of the tensors current: kernels are launched where that is."""
        return nullcontext() if self.device is None else device_guard(self.device)


class Memo:
    """Prepared calls by signature, as long as the plans in them are good.

    Dropping replaces the dict: a call that is being prepared at that moment ends in the old one.
    """

    __slots__ = ("_size", "entries")

    def __init__(self, size: int) -> None:
        self.entries: dict[Any, Prepared] = {}
        self._size = size
        on_reset(self.drop)

    def drop(self) -> None:
        """Forget everything."""
        self.entries = {}

    def keep(self, entries: dict[Any, Prepared], key: Any, prepared: Prepared) -> None:
        """Store in ``entries``, which was read before the call was prepared."""
        if len(entries) >= self._size:
            entries.clear()
        entries[key] = prepared


def prepare(
    operator: Operator,
    named: Mapping[str, Tensor | None],
    switched: frozenset[str],
    cu_seqlens: Tensor | None,
    policy: str,
    needs: frozenset[str],
    traced: bool = False,
    bound: str = "",
) -> Prepared:
    """Check and plan a call.

    Args:
        operator: the public name.
        named: tensor arguments in contract order.
        switched: flags that are on.
        cu_seqlens: boundaries of packed sequences.
        policy: selection policy.
        needs: inputs whose gradient is wanted.
        traced: inside ``torch.compile``, where sizes may be symbols.
        bound: implementation that has been chosen before, for backward; nothing is resolved then.
    """
    contract = operator.contract
    if cu_seqlens is not None:
        check_cu_seqlens(operator.title, cu_seqlens)
    checked = checked_call(operator, named, switched, cu_seqlens)
    q = named["q"]
    assert q is not None
    if needs and "states" in checked.features:
        expected = "a call without gradients (torch.no_grad or torch.inference_mode)"
        got = f"gradients of {', '.join(sorted(needs))}"
        raise ContractError(operator.title, "return_intermediate_states", expected, got)
    # Before a plan is looked for: a probe that fails under capture would bar its backend for good.
    _refuse_unwarmed_capture(operator.title, q)
    dtype = dtype_name(q.dtype)
    if bound:
        plan = bound_plan(
            contract, operator.name, operator.form, q.device, dtype, checked.features, bound
        )
    else:
        plan = find_plan(
            contract,
            operator.name,
            operator.form,
            q.device,
            dtype,
            tuple(None if t is None else dtype_name(t.dtype) for t in named.values()),
            tuple(checked.sizes[axis] for axis in AXES),
            checked.features,
            needs,
            traced,
            policy,
            kept=traced or has_data(q),
        )
    # Lowered calls and counts of chunks derive theirs from the call, symbols from the fake one.
    later = traced or plan.lowerings or "states" in checked.features
    outputs = None if later else outputs_of(contract, checked.features, checked.sizes, q)
    return Prepared(
        plan=plan,
        inputs=operator.inputs,
        features=checked.features,
        needs=needs,
        default_scale=float(checked.sizes["K"]) ** -0.5,
        expected=outputs,
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
    check_memory(operator, "cu_seqlens", cu_seqlens)
    if host_copy is not None:
        check_cu_seqlens(operator, host_copy, "cu_seqlens_cpu")
        if host_copy.device.type != "cpu" or host_copy.shape != cu_seqlens.shape:
            expected = f"a CPU tensor of shape {list(cu_seqlens.shape)}, as cu_seqlens"
            got = f"shape {list(host_copy.shape)} on {host_copy.device}"
            raise ContractError(operator, "cu_seqlens_cpu", expected, got)
        readable = cu_seqlens.device.type == "cpu" and has_data(cu_seqlens)
        if readable and not torch.equal(cu_seqlens, host_copy.to(cu_seqlens)):
            expected = "the values of cu_seqlens"
            raise ContractError(operator, "cu_seqlens_cpu", expected, str(host_copy.tolist()))
    if not has_data(cu_seqlens if host_copy is None else host_copy) or is_fake(cu_seqlens):
        raise UnsupportedError(
            operator,
            "packing by boundaries without data (a meta or fake tensor)",
            "tensors on meta beside cu_seqlens_cpu with data, or torch.compile",
        )
    seqlens = cached_seqlens(cu_seqlens, host_copy)
    if not seqlens.known and capturing(cu_seqlens):
        return seqlens
    length = q.shape[1] if q is not None else 0
    if seqlens.checked_length != length:
        argument = "cu_seqlens" if host_copy is None else "cu_seqlens_cpu"
        check_boundaries(operator, seqlens.bounds, length, argument)
        seqlens.checked_length = length
    return seqlens


def _refuse_unwarmed_capture(operator: str, q: Tensor) -> None:
    if capturing(q):
        raise UnsupportedError(
            operator,
            "capturing a call into a CUDA graph before it ran once (a backend would be probed, and"
            " kernels compiled, under capture)",
            "call the operator once with the same shapes before the capture",
        )
