"""between and refill: a call stands for itself, whatever happens between its parts and its likes.

``between``
    the backward of a call follows other forwards of the same shape, in another thread: what it
    needs is kept with the call, and not where the next one finds its own.
``refill``
    the same tensors hold other values the next time, boundaries of packed sequences included:
    nothing may be remembered by address, identity or shape. Replayed graphs and static buffers are
    such calls.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import mapped, sequence, together
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Runner


def _between(case: Case, runner: Runner) -> str | None:
    calls = [runner.inputs(case.but(seed=case.seed + more)) for more in (0, 1)]
    alone = [runner.run(inputs).named for inputs in calls]
    for inputs, ran, want in zip(calls, runner.interleaved(*calls), alone, strict=True):
        if found := disagreement(ran.named, want, inputs.case.dtype):
            return f"with another call between forward and backward, {found}"
    return None


def _refill(case: Case, runner: Runner) -> str | None:
    inputs = _owned(runner.inputs(case))
    other = _other_lengths(runner.inputs(case.but(seed=case.seed + 1)))
    for _ in range(2):  # some remember what they meet twice
        runner.run(inputs)
    for tensor, later in zip(_all(inputs), _all(other), strict=True):
        tensor.copy_(later)
    again = runner.run(inputs).named
    want = _apart(other, runner) or runner.run(other).named
    found = disagreement(again, want, case.dtype)
    return found and f"when the same tensors hold other values, {found}"


def _apart(inputs: Inputs, runner: Runner) -> dict[str, Tensor]:
    """Results of packed sequences, each run alone, so that no memory of packed ones helps.

    Empty where nothing is packed, or a sequence alone is not declared.
    """
    case = inputs.case
    lengths = case.lengths or ()
    dense = case.but(lengths=None, features=case.features - {"varlen"})
    ones = [dense.but(sizes={**case.sizes, "T": length}) for length in lengths]
    if not lengths or "states" in case.features or not all(map(runner.takes, ones)):
        return {}
    return together(inputs, [runner.run(sequence(inputs, n)) for n in range(len(lengths))])


def _owned(inputs: Inputs) -> Inputs:
    """Copies of everything, so that nobody else sees them change."""
    copies = mapped(inputs, lambda name, x: None if x is None else x.clone())
    packed, on_host = inputs.cu_seqlens, inputs.cu_seqlens_cpu
    return replace(
        copies,
        cu_seqlens=None if packed is None else packed.clone(),
        cu_seqlens_cpu=None if on_host is None else on_host.clone(),
    )


def _other_lengths(inputs: Inputs) -> Inputs:
    """As many sequences of other lengths in the same row: the last is the first."""
    packed, lengths = inputs.cu_seqlens, inputs.case.lengths
    if packed is None or lengths is None:
        return inputs
    others = lengths[::-1]
    bounds = torch.tensor([0, *accumulate(others)], dtype=packed.dtype)
    on_host = None if inputs.cu_seqlens_cpu is None else bounds
    return replace(
        inputs,
        case=inputs.case.but(lengths=others),
        cu_seqlens=bounds.to(packed.device),
        cu_seqlens_cpu=on_host,
    )


def _all(inputs: Inputs) -> list[Tensor]:
    bounds = (inputs.cu_seqlens, inputs.cu_seqlens_cpu)
    found = (*inputs.present.values(), *inputs.grads.values(), *bounds)
    return [tensor for tensor in found if tensor is not None]


BETWEEN = Law(
    "between",
    "a backward belongs to its own forward, whatever ran in between and in whatever thread",
    _between,
    avoids=frozenset({"states"}),
    outputs_too=False,
    under="repeat",
)
REFILL = Law(
    "refill",
    "results depend on the values that tensors hold now, not on those they held",
    _refill,
    under="repeat",
)
