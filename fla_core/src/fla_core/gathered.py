"""States copied out of a pool, ordinary calls, and the new states copied back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.dtypes import wide
from fla_core.errors import UnsupportedError
from fla_core.invoke import invoke
from fla_core.prepare import Operator
from fla_core.seqlens import capturing
from fla_core.slots import SKIP, Slots, check_values, rows_of, starts_of


@dataclass(frozen=True, slots=True)
class _Part:
    """Some tokens of some sequences, as one call.

    Attributes:
        sequences: their numbers.
        rows: places of the tokens among all of the call.
        shape: batch and tokens of the part.
        lengths: tokens of each sequence, None where all have as many.
        slots: where each sequence's state goes; -1 for nowhere.
    """

    sequences: list[int]
    rows: list[int]
    shape: tuple[int, int]
    lengths: list[int] | None
    slots: list[int]


def copied(operator: Operator, call: Call, slots: Slots, backend: str | None) -> tuple[Tensor, ...]:
    """Serve a call whose implementation knows no pool.

    Sequences that are skipped take no part, and no slot but those named is read or written. Slots
    must be known on the host, and are checked there in any case.

    Args:
        operator, backend: as of the public call.
        call: its arguments, without an initial state.
        slots: where the states lie.

    Returns:
        what an implementation's ``pooled`` returns.
    """
    if capturing(call.q):
        raise UnsupportedError(
            operator.title,
            "copying states out of a pool and back while a CUDA graph is captured (the graph would"
            " keep the slots of the capture)",
            "an implementation that reads the slots on the device",
        )
    check_values(operator.title, slots)
    starts, pool, v = starts_of(slots), slots.pool, call.v
    live = [n for n, slot in enumerate(starts) if slot != SKIP]
    o = torch.zeros_like(v, memory_format=torch.contiguous_format)
    shape = (len(starts), *pool.shape[1:])
    states = torch.zeros(shape, dtype=wide(v), device=v.device)
    if live:
        states[live] = pool[[starts[n] for n in live]].to(states.dtype)
    for part in _parts(call, slots, live):
        values, state = _call(operator, call, part, states[part.sequences], slots, backend)
        o.flatten(0, 1)[part.rows] = values.flatten(0, 1)
        states[part.sequences] = state
        kept = [i for i, slot in enumerate(part.slots) if slot != SKIP]
        if kept:
            # Outside of its mode torch writes to an inference tensor, and raises then.
            with torch.inference_mode() if pool.is_inference() else nullcontext():
                pool[[part.slots[i] for i in kept]] = state[kept].to(pool.dtype)
    return (o, states) if "final_state" in call.features else (o,)


def _parts(call: Call, slots: Slots, live: list[int]) -> Iterator[_Part]:
    """All tokens at once, or one of each sequence after the other where each state is kept."""
    bounds, table = _bounds(call), rows_of(slots)
    lengths = {n: bounds[n + 1] - bounds[n] for n in live}
    if slots.each:
        for t in range(max(lengths.values(), default=0)):
            some = [n for n in live if t < lengths[n]]
            targets = [table[n][t] for n in some] if slots.inplace else [SKIP] * len(some)
            yield _Part(some, [bounds[n] + t for n in some], (len(some), 1), None, targets)
        return
    some = [n for n in live if lengths[n]]
    if not some:
        return
    rows = [row for n in some for row in range(bounds[n], bounds[n + 1])]
    targets = [table[n][0] if slots.inplace else SKIP for n in some]
    if call.seqlens is None:
        yield _Part(some, rows, (len(some), lengths[some[0]]), None, targets)
    else:
        yield _Part(some, rows, (1, len(rows)), [lengths[n] for n in some], targets)


def _bounds(call: Call) -> tuple[int, ...]:
    batch, tokens = call.q.shape[:2]
    return call.bounds or tuple(n * tokens for n in range(batch + 1))


def _call(
    operator: Operator, call: Call, part: _Part, state: Tensor, slots: Slots, backend: str | None
) -> tuple[Tensor, ...]:
    contract, tensors = call.contract, dict(call.tensors)
    for spec in contract.inputs:
        x = tensors[spec.name]
        if x is not None and spec.axes[:2] == ("B", "T"):
            tensors[spec.name] = x.flatten(0, 1)[part.rows].unflatten(0, part.shape)
    tensors["initial_state"] = state
    cu_seqlens = None
    if part.lengths is not None:
        bounds = list(accumulate(part.lengths, initial=0))
        cu_seqlens = torch.tensor(bounds, device=state.device)
    on = call.features | {"final_state"} | ({"state_v_first"} if slots.v_first else frozenset())
    return invoke(
        operator,
        tuple(tensors.values()),
        tuple(name in on for name in contract.flags),
        call.scale,
        cu_seqlens,
        None,
        backend,
        tuple(call.options.get(name) for name in contract.options),
    )
