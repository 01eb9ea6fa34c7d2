"""Faults of those who serve states in the slots of a pool: the wrong slot, or one too many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fla_conformance.faults.fault import Fault, Pooled
from fla_conformance.faults.manners import functions
from fla_conformance.faults.maths import right
from fla_conformance.laws.slots import SLOTS
from fla_core.call import Call
from fla_core.gathered import copied
from fla_core.prepare import OPERATORS
from fla_core.slots import SKIP, Slots, starts_of

Outputs = tuple[Tensor, ...]


def served(call: Call, slots: Slots) -> Outputs:
    """The right function: states copied out of the pool and back."""
    name = next(name for name, form in call.contract.public if form == "recurrent")
    return copied(OPERATORS[name], call, slots, None)


def _reading(change: Callable[[Slots], Slots]) -> Pooled:
    """The right function of the wrong slots."""
    return lambda call, slots: served(call, change(slots))


def _after(change: Callable[[Outputs, Call, Slots], Outputs]) -> Pooled:
    """The right function, with something done to what it left."""
    return lambda call, slots: change(served(call, slots), call, slots)


def _wrapped(slots: Slots) -> Slots:
    """Of several sequences that are skipped, one: two would meet in one slot."""
    indices = slots.indices.clone()
    away = (indices == SKIP).nonzero()[:1]
    indices[tuple(away.T)] = len(slots.pool) - 1
    return replace(slots, indices=indices)


def _own_numbers(slots: Slots) -> Slots:
    return replace(slots, indices=torch.arange(slots.indices.numel()).view_as(slots.indices))


def _first_column(slots: Slots) -> Slots:
    return replace(slots, accepted=None)


def _always_written(slots: Slots) -> Slots:
    return replace(slots, inplace=True)


def _never_written(slots: Slots) -> Slots:
    return replace(slots, inplace=False)


def _transposed(slots: Slots) -> Slots:
    pool = slots.pool
    return (
        replace(slots, pool=pool.mT.contiguous().view(pool.shape)) if not slots.inplace else slots
    )


def _spilled(outputs: Outputs, call: Call, slots: Slots) -> Outputs:
    if slots.inplace:
        named = slots.indices.flatten().tolist()
        beside = next(slot for slot in range(len(slots.pool)) if slot not in named)
        slots.pool[beside, 0, 0, 0] = 0.0
    return outputs


def _skipped_left(outputs: Outputs, call: Call, slots: Slots) -> Outputs:
    """A kernel that returns early leaves what it did not write."""
    o = outputs[0].clone()
    for n, slot in enumerate(starts_of(slots)):
        if slot == SKIP and call.bounds is not None:
            o[:, call.bounds[n] : call.bounds[n + 1]] = float("nan")
        elif slot == SKIP:
            o[n] = float("nan")
    return (o, *outputs[1:])


def _last_in_each(outputs: Outputs, call: Call, slots: Slots) -> Outputs:
    """Every token's slot gets the state after the last one."""
    if slots.inplace and slots.each:
        bounds = call.bounds
        for n, row in enumerate(slots.indices.tolist()):
            count = call.q.shape[1] if bounds is None else bounds[n + 1] - bounds[n]
            if count:
                slots.pool[row[:count]] = slots.pool[row[count - 1]].clone()
    return outputs


def _fault(name: str, what: str, pooled: Pooled, *needs: str) -> Fault:
    return Fault(
        name,
        what,
        unruly=lambda: functions(right),
        needs=frozenset(needs),
        contracts=tuple(sorted(SLOTS.contracts)),
        laws=("slots",),
        pooled=pooled,
    )


FAULTS = (
    _fault("slot-wrapped", "slot -1 is the last one of the pool", _reading(_wrapped)),
    _fault("slot-ignored", "sequence n takes slot n", _reading(_own_numbers)),
    _fault("slot-first-column", "accepted tokens are not looked at", _reading(_first_column)),
    _fault("pool-always-written", "the pool is written unasked", _reading(_always_written)),
    _fault("pool-never-written", "the pool is never written", _reading(_never_written)),
    _fault("pool-transposed", "a pool that is read is taken as [V, K]", _reading(_transposed)),
    _fault("slot-spilled", "one number of a slot beside is written", _after(_spilled)),
    _fault("skipped-left", "outputs of a skipped sequence stay unwritten", _after(_skipped_left)),
    _fault("slot-last-in-each", "each token's slot gets the last state", _after(_last_in_each)),
)
