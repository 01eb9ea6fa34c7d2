"""States in the slots of a pool: which slot each sequence reads and writes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.check import dtype_problem, kind_of, layout_of
from fla_core.contract import TensorSpec
from fla_core.dtypes import dtype_name
from fla_core.errors import ContractError, DtypeError, UnsupportedError
from fla_core.seqlens import capturing

SKIP = -1
"""The index of no slot."""

_CACHE_SIZE = 64
_cache: dict[int, _Entry] = {}


@dataclass(frozen=True, slots=True)
class Slots:
    """Where the states of a call lie; what an implementation's ``pooled`` gets beside the call.

    Sequence n starts from slot ``indices[n]``, or of ``[N, S]`` from
    ``indices[n, accepted[n] - 1]``, the first where ``accepted`` is None. It is skipped where that
    is -1: no slot is touched, and its rows of what is returned are zeros.

    Attributes:
        pool: ``[slots, HV, K, V]``, or ``[slots, HV, V, K]`` if ``v_first``, of a floating dtype
            of 16 bits or more; each slot is contiguous, the slots may lie apart.
        indices: ``[N]`` or ``[N, S]``, int32 or int64, on the device of the pool; contiguous where
            an implementation gets them.
        accepted: ``[N]``, int32 or int64, numbers in 1..S, contiguous likewise; None for ones.
        inplace: write the state after the last token to ``indices[n]``, or of ``[N, S]`` the one
            after token t to ``indices[n, t]`` where that is not -1. Else the pool is only read.
        v_first: the layout of the pool, and of a final state that is returned.
    """

    pool: Tensor
    indices: Tensor
    accepted: Tensor | None
    inplace: bool
    v_first: bool

    @property
    def each(self) -> bool:
        """Whether the state after each token has a slot of its own."""
        return self.indices.dim() == 2

    @property
    def span(self) -> int:
        """S: slots of one sequence."""
        return int(self.indices.shape[1]) if self.each else 1

    def contiguous(self) -> Slots:
        """The same with numbers that a kernel can walk; they are copied where they lie apart."""
        indices, accepted = self.indices, self.accepted
        if indices.is_contiguous() and (accepted is None or accepted.is_contiguous()):
            return self
        dense = None if accepted is None else accepted.contiguous()
        return replace(self, indices=indices.contiguous(), accepted=dense)


def check_pool(
    operator: str,
    tensors: Mapping[str, Tensor | None],
    slots: tuple[object, object, object],
    v_first: bool,
    inplace: bool,
    cu_seqlens: Tensor | None,
) -> None:
    """Check a pool of states and the tensors that say which slots are meant, by metadata.

    Args:
        operator: name for messages.
        tensors: the call's own, which have been checked.
        slots: ``initial_state``, ``ssm_state_indices`` and ``num_accepted_tokens``.
        v_first: whether states are ``[.., V, K]``.
        inplace: whether the pool is written to.
        cu_seqlens: boundaries of packed sequences.
    """
    pool, indices, accepted = slots
    q, v = tensors["q"], tensors["v"]
    assert q is not None
    assert v is not None
    state = (q.shape[3], v.shape[3])
    _check_pool(operator, pool, q, (v.shape[2], *(reversed(state) if v_first else state)), inplace)
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    wanted = f"[{count}] or [{count}, S]"
    _check_numbers(operator, "ssm_state_indices", indices, q, wanted)
    assert isinstance(indices, Tensor)
    got = f"shape {list(indices.shape)}"
    if indices.dim() not in (1, 2) or indices.shape[0] != count:
        raise ContractError(operator, "ssm_state_indices", wanted, got)
    if 0 in indices.shape[1:]:
        raise ContractError(operator, "ssm_state_indices", f"{wanted}, S at least 1", got)
    if accepted is None:
        return
    _check_numbers(operator, "num_accepted_tokens", accepted, q, f"[{count}]")
    assert isinstance(accepted, Tensor)
    if accepted.shape != (count,):
        got = f"shape {list(accepted.shape)}"
        raise ContractError(operator, "num_accepted_tokens", f"[{count}]", got)
    if indices.dim() == 1:
        expected = "None, or ssm_state_indices [N, S] with a slot for each token"
        got = f"ssm_state_indices of shape {list(indices.shape)}"
        raise ContractError(operator, "num_accepted_tokens", expected, got)


def _check_numbers(operator: str, name: str, value: object, q: Tensor, shape: str) -> None:
    expected = f"an int32 or int64 tensor {shape}"
    if not isinstance(value, Tensor):
        raise DtypeError(operator, name, expected, kind_of(value))
    if value.layout != torch.strided or value.is_nested:
        raise DtypeError(operator, name, "a dense (strided) tensor", layout_of(value))
    if value.dtype not in (torch.int32, torch.int64):
        raise DtypeError(operator, name, expected, dtype_name(value.dtype))
    if value.device != q.device:
        got = f"{name} on {value.device}"
        raise ContractError(operator, name, f"the device of q, {q.device}", got)


def _check_pool(
    operator: str, pool: object, q: Tensor, slot: tuple[int, ...], inplace: bool
) -> None:
    name, shape = "initial_state", f"[slots, {', '.join(map(str, slot))}]"
    if not isinstance(pool, Tensor):
        raise DtypeError(operator, name, f"a pool of states {shape}", kind_of(pool))
    if pool.layout != torch.strided or pool.is_nested:
        raise DtypeError(operator, name, "a dense (strided) tensor", layout_of(pool))
    expected = dtype_problem(TensorSpec(name, "", "", "state"), pool.dtype, q.dtype)
    if expected:
        raise DtypeError(operator, name, expected, dtype_name(pool.dtype))
    if pool.device != q.device:
        got = f"{name} on {pool.device}"
        raise ContractError(operator, name, f"the device of q, {q.device}", got)
    if pool.dim() != 4 or tuple(pool.shape[1:]) != slot:
        raise ContractError(operator, name, f"a pool {shape}", f"shape {list(pool.shape)}")
    size = math.prod(slot)
    if pool.shape[0] and not pool[0].is_contiguous():
        expected = "slots that are contiguous; only the slots themselves may lie apart"
        raise ContractError(operator, name, expected, f"strides {list(pool.stride())}")
    if inplace and pool.shape[0] > 1 and pool.stride(0) < size:
        expected = f"slots that do not overlap, {size} elements or more apart"
        raise ContractError(operator, name, expected, f"strides {list(pool.stride())}")


def starts_of(slots: Slots) -> list[int]:
    """The slot each sequence starts from, read on the host; -1 for those that are skipped."""
    table = rows_of(slots)
    columns = [1] * len(table) if slots.accepted is None else host_copy(slots.accepted).values
    return [
        row[column - 1] if 0 < column <= len(row) else SKIP
        for row, column in zip(table, columns, strict=True)
    ]


def rows_of(slots: Slots) -> list[list[int]]:
    """The slots of each sequence, read on the host."""
    values = host_copy(slots.indices).values
    return values if slots.each else [[slot] for slot in values]


def check_span(title: str, slots: Slots, call: Call) -> None:
    """Check that each token's state has a column; boundaries that are not known are trusted."""
    seqlens = call.seqlens
    if not (slots.each and slots.inplace) or not (seqlens is None or seqlens.known):
        return
    longest = call.q.shape[1] if seqlens is None else seqlens.longest
    if longest > slots.span:
        wanted = f"a column for each token of a sequence, at least {longest}"
        got = f"shape {list(slots.indices.shape)}"
        raise ContractError(title, "ssm_state_indices", wanted, got)


def check_values(title: str, slots: Slots) -> None:
    """Check indices and accepted tokens by value; those of a device once until they change.

    Under graph capture values that are not on the host are trusted: reading them would need a
    synchronisation, which a captured stream does not allow.

    Raises:
        ContractError: a slot is out of range, or is written twice; a number of tokens is not
            among the columns.
    """
    if not readable(slots.indices):
        return
    copy, what = host_copy(slots.indices), (slots.pool.shape[0], slots.inplace)
    if what not in copy.passed:
        _check_indices(title, slots)
        copy.passed.add(what)
    if slots.accepted is not None and readable(slots.accepted):
        _check_accepted(title, slots, host_copy(slots.accepted).values)


def _check_indices(title: str, slots: Slots) -> None:
    count, table = slots.pool.shape[0], rows_of(slots)
    named = [slot for row in table for slot in row if slot != SKIP]
    twice = slots.inplace and len(set(named)) < len(named)
    if not named or (min(named) >= 0 and max(named) < count and not twice):
        return
    seen: dict[int, str] = {}
    for n, row in enumerate(table):
        for t, slot in enumerate(row):
            if slot == SKIP:
                continue
            got = f"ssm_state_indices[{f'{n}, {t}' if slots.each else n}] = {slot}"
            if not 0 <= slot < count:
                within = f"slots in 0..{count - 1} of initial_state, or -1 to skip"
                wanted = within if count else "-1, since initial_state has no slots"
                raise ContractError(title, "ssm_state_indices", wanted, got)
            if slots.inplace and slot in seen:
                wanted = "each slot at most once under inplace_final_state=True"
                raise ContractError(title, "ssm_state_indices", wanted, f"{seen[slot]} and {got}")
            seen[slot] = got


def _check_accepted(title: str, slots: Slots, accepted: list[int]) -> None:
    for n, (number, row) in enumerate(zip(accepted, rows_of(slots), strict=True)):
        if not 0 < number <= slots.span and any(slot != SKIP for slot in row):
            wanted = f"numbers in 1..{slots.span}, the columns of ssm_state_indices"
            got = f"num_accepted_tokens[{n}] = {number}"
            raise ContractError(title, "num_accepted_tokens", wanted, got)


@dataclass(slots=True)
class HostCopy:
    """The values of an integer tensor, and what they were found good for.

    Attributes:
        values: as ``tolist`` gives them.
        passed: what has been checked of them.
    """

    values: list[Any]
    passed: set[tuple[int, bool]] = field(default_factory=set)


class _Entry(NamedTuple):
    tensor: weakref.ref[Tensor]
    version: int
    address: int
    copy: HostCopy

    def describes(self, tensor: Tensor) -> bool:
        return (
            self.tensor() is tensor
            and self.version == tensor._version
            and self.address == tensor.data_ptr()
        )


def readable(tensor: Tensor) -> bool:
    """Whether :func:`host_copy` can answer: not where a graph is captured before the first time."""
    return _cached(tensor) is not None or not capturing(tensor)


def host_copy(tensor: Tensor) -> HostCopy:
    """The values of an integer tensor.

    A tensor on an accelerator is copied once until it changes, recognised by identity, version and
    address. One made in inference mode has no version and is copied each time; one on the host is
    read each time, since numpy writes without a version.

    Raises:
        UnsupportedError: it would have to be copied while a graph is captured.
    """
    found = _cached(tensor)
    if found is None:
        if capturing(tensor):
            raise UnsupportedError(
                "ssm_state_indices",
                "reading slots from the device while a CUDA graph is captured",
                "an implementation that reads them on the device, or a call with the same tensors"
                " before the capture",
            )
        found = HostCopy(tensor.tolist())
        if not (tensor.is_cpu or tensor.is_inference()):
            if len(_cache) >= _CACHE_SIZE:
                _cache.clear()
            alive = weakref.ref(tensor)
            _cache[id(tensor)] = _Entry(alive, tensor._version, tensor.data_ptr(), found)
    return found


def _cached(tensor: Tensor) -> HostCopy | None:
    entry = None if tensor.is_inference() else _cache.get(id(tensor))
    return entry.copy if entry is not None and entry.describes(tensor) else None
