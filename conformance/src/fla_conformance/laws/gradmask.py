"""gradmask: whichever gradients are wanted and whichever come in, each is the same as ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import torch

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import with_grads
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Runner

_ALL_SUBSETS = 3
"""Up to so many inputs every subset is asked for; beyond, each alone and all but each."""


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    return _wanted(inputs, runner) or _incoming(inputs, runner)


def _wanted(inputs: Inputs, runner: Runner) -> str | None:
    everything = runner.run(inputs).named
    for needs in _subsets(sorted(inputs.wanted)):
        asked = runner.run(inputs, needs=needs).named
        if found := disagreement(asked, everything, inputs.case.dtype, names=list(asked)):
            return f"when only the gradients of {', '.join(needs)} are wanted, {found}"
    return None


def _incoming(inputs: Inputs, runner: Runner) -> str | None:
    names = list(inputs.grads)
    for given in _proper(names):
        absent = [name for name in names if name not in given]
        zeros = {name: torch.zeros_like(inputs.grads[name]) for name in absent}
        none = runner.run(inputs, grads={name: inputs.grads[name] for name in given}).named
        zero = runner.run(with_grads(inputs, **zeros)).named
        if found := disagreement(none, zero, inputs.case.dtype):
            return f"without a gradient of {', '.join(absent)} instead of zeros, {found}"
    return None


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    if len(names) <= _ALL_SUBSETS:
        yield from _proper(names)
        return
    for name in names:
        yield (name,)
        yield tuple(other for other in names if other != name)


def _proper(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(1, len(names)))


GRADMASK = Law(
    "gradmask",
    "a gradient does not depend on which others are wanted; None coming in means zeros",
    _check,
    avoids=frozenset({"states"}),
    outputs_too=False,
)
