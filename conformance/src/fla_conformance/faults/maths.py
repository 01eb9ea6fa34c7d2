"""The right function, taken apart so that a single step of it can be made wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.domain import Domain
from fla_core.lower import lift, load, lower
from fla_core.lowerings import Outputs
from fla_core.reference.oracle import oracle

right = oracle
"""The token recurrence behind every feature: float32 for an implementation, float64 for gold."""

GATES = ("g", "gk", "gv")
TIMED = ("q", "k", "v", *GATES, "beta", "b", "w")

_BASE = Domain(
    features={
        **dict.fromkeys(
            ("varlen", "initial_state", "final_state", "states", *GATES, "beta_v"), "optional"
        ),
        "beta": "required",
    }
)

Compute = Callable[[Call], Outputs]


def inside(call: Call, compute: Compute) -> Outputs:
    """Lower every feature, let ``compute`` do the base form, and lift what it returns."""
    lowerings, _ = call.contract.lowerings_for(call.features, _BASE)
    chain = lower(call, lowerings)
    outputs = lift(compute(chain[-1]), chain, lowerings)
    return {spec.name: outputs[spec.name] for spec in call.contract.outputs_for(call.features)}


def recurrence(base: Call) -> Outputs:
    """The base form, token by token."""
    outputs: Outputs = load(base.contract.reference)(base)
    return outputs


def without(call: Call, *features: str, **tensors: Tensor | None) -> Call:
    """The call without some features, and with some tensors replaced."""
    return replace(call.but(**tensors), features=call.features.difference(features))


def present(call: Call, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Those of the named tensors that are there."""
    return {name: tensor for name in names if (tensor := call.get(name)) is not None}


def regraded(x: Tensor, factor: float) -> Tensor:
    """The same values; what flows back is multiplied."""
    return x.detach() + (x - x.detach()) * factor


def spans(call: Call) -> Iterator[tuple[slice, int, int]]:
    """Rows, first token and end of everything that has one clock: the batch, or each sequence."""
    if call.bounds is None:
        yield slice(None), 0, call.q.shape[1]
        return
    for sequence, (begin, end) in enumerate(pairwise(call.bounds)):
        yield slice(sequence, sequence + 1), begin, end


def edge(call: Call, last: bool) -> Tensor:
    """True at the last (or first) token of each sequence, ``[T]``."""
    mask = torch.zeros(call.q.shape[1], dtype=torch.bool)
    for _, begin, end in spans(call):
        if begin < end:
            mask[end - 1 if last else begin] = True
    return mask


def _filled(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask.view(1, -1, *[1] * (x.dim() - 2)), 0)


def later(call: Call, x: Tensor) -> Tensor:
    """What belongs to token t, at t + 1; zero at the first token of a sequence."""
    return _filled(x.roll(1, 1), edge(call, last=False))


def sooner(call: Call, x: Tensor) -> Tensor:
    """What belongs to token t + 1, at t; zero at the last token of a sequence."""
    return _filled(x.roll(-1, 1), edge(call, last=True))


def at_last(call: Call, x: Tensor) -> Tensor:
    """The tensor with zeros at the last token of each sequence."""
    return _filled(x, edge(call, last=True))


def in_chunks(base: Call, carry: Callable[[Tensor], Tensor], size: int = 64) -> Outputs:
    """The recurrence chunk after chunk; ``carry`` is what becomes of a state in between."""
    tokens: list[Tensor] = []
    finals: list[Tensor] = []
    blank = recurrence(_cut(base, slice(None), 0, 0, None))["final_state"]
    for rows, begin, end in spans(base):
        given = base.get("initial_state")
        state = blank.new_zeros(1, *blank.shape[1:]).expand(_count(base, rows), -1, -1, -1)
        final = carried = state if given is None else given[rows].to(blank.dtype)
        for first in range(begin, end, size):
            outputs = recurrence(_cut(base, rows, first, min(first + size, end), carried))
            final = outputs["final_state"]
            carried = carry(final)
            tokens.append(outputs["o"])
        finals.append(final)
    o = torch.cat(tokens, 1) if tokens else torch.zeros_like(base.v)
    return {"o": o, "final_state": torch.cat(finals) if finals else blank[:0]}


def _count(base: Call, rows: slice) -> int:
    return int(base.q.shape[0]) if base.bounds is None else rows.stop - rows.start


def _cut(base: Call, rows: slice, begin: int, end: int, state: Tensor | None) -> Call:
    tokens = {name: x[:, begin:end] for name, x in present(base, TIMED).items()}
    dense = base.but(**tokens, initial_state=state)
    return replace(dense, seqlens=None, features=base.features - {"varlen", "states"})
