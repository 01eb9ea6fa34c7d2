"""Faults of too few bits: they show where inputs are more precise than that."""

from __future__ import annotations

import torch
from torch import Tensor

from fla_conformance.faults.fault import wrong
from fla_conformance.faults.gates import GATED, with_gates
from fla_conformance.faults.maths import inside, present, recurrence, spans
from fla_conformance.faults.states import chunked
from fla_core.call import Call
from fla_core.lowerings import Outputs


def narrow(x: Tensor) -> Tensor:
    """Rounded to bfloat16."""
    return x.to(torch.bfloat16).to(x.dtype)


def _narrow_products(call: Call) -> Outputs:
    def compute(base: Call) -> Outputs:
        factors = present(base, ("q", "k", "v"))
        return recurrence(base.but(**{name: narrow(x) for name, x in factors.items()}))

    return inside(call, compute)


def _difference_of_sums(x: Tensor, base: Call) -> Tensor:
    """The gates as float32 sums give them back: behind a reset, small ones are lost."""
    parts = []
    for _, begin, end in spans(base):
        sums = x[:, begin:end].float().cumsum(1)
        before = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], 1)
        parts.append((sums - before).to(x.dtype))
    return torch.cat(parts, 1) if parts else x


FAULTS = (
    wrong(
        "gates-narrow",
        "gates are rounded to bfloat16",
        with_gates(lambda x, base: narrow(x)),
        contracts=GATED,
    ),
    wrong("state-narrow", "states are rounded to bfloat16 between chunks", chunked(narrow)),
    wrong("products-narrow", "float32 factors are rounded to bfloat16", _narrow_products),
    wrong(
        "gates-from-sums",
        "decays are differences of float32 sums",
        with_gates(_difference_of_sums),
        contracts=GATED,
    ),
)
