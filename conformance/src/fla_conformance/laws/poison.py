"""poison: nothing outside the arguments is read into a result, and nothing is written there."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import mapped
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Runner

_GUARD = 4096
"""Elements on either side of an argument; a multiple of every alignment a kernel may ask for."""


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    alone = runner.run(inputs).named
    for fill in (math.nan, 1e30):
        guards: dict[str, Tensor] = {}
        amid = runner.run(_amid(inputs, fill, guards)).named
        if found := disagreement(amid, alone, case.dtype, exact=runner.exact):
            return f"with {fill} around the arguments, {found}"
        for name, buffer in guards.items():
            if not _untouched(buffer, fill):
                return f"memory beside {name} was written to"
    return None


def _amid(inputs: Inputs, fill: float, guards: dict[str, Tensor]) -> Inputs:
    """The same arguments, each in the middle of a buffer full of ``fill``."""

    def embed(name: str, tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        buffer = tensor.new_full((tensor.numel() + 2 * _GUARD,), _representable(fill, tensor))
        middle = buffer[_GUARD:-_GUARD].view(tensor.shape)
        middle.copy_(tensor)
        guards[name] = buffer
        return middle

    return mapped(inputs, embed)


def _representable(fill: float, tensor: Tensor) -> float:
    return fill if math.isnan(fill) else min(fill, torch.finfo(tensor.dtype).max)


def _untouched(buffer: Tensor, fill: float) -> bool:
    guard = torch.cat([buffer[:_GUARD], buffer[-_GUARD:]])
    return bool((guard.isnan() if math.isnan(fill) else guard == guard[0]).all())


POISON = Law(
    "poison",
    "results do not depend on what lies beside the arguments in memory",
    _check,
)
