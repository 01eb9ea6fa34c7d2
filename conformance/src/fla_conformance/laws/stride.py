"""stride: values count, not how they lie in memory; incoming gradients included.

Not to the bit: a sum over a strided row may be vectorised otherwise than over a dense one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.inputs import Inputs
from fla_conformance.laws.compare import disagreement
from fla_conformance.laws.cut import mapped
from fla_conformance.laws.law import Law
from fla_conformance.laws.runner import Runner

View = Callable[[Tensor], Tensor]


def transposed(x: Tensor) -> Tensor:
    """Heads before tokens in memory (or the like): dimensions 1 and 2 are exchanged."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 2 else x


def sliced(x: Tensor) -> Tensor:
    """Part of rows that are wider: what lies between is NaN."""
    wide = x.new_full((*x.shape[:-1], x.shape[-1] + 5), math.nan)
    wide[..., 2:-3] = x
    return wide[..., 2:-3]


def stepped(x: Tensor) -> Tensor:
    """Every second element of each row."""
    wide = x.new_full((*x.shape, 2), math.nan)
    wide[..., 0] = x
    return wide[..., 0]


def batch_strided(x: Tensor) -> Tensor:
    """Every third member along the first dimension."""
    wide = x.new_full((3 * x.shape[0], *x.shape[1:]), math.nan)
    wide[::3] = x
    return wide[::3]


def expanded(x: Tensor) -> Tensor:
    """One row for all heads, with stride zero."""
    return x[:, :, :1].expand_as(x) if x.dim() > 2 else x


_VIEWS: tuple[View, ...] = (transposed, sliced, stepped, batch_strided)


def _check(case: Case, runner: Runner) -> str | None:
    inputs = runner.inputs(case)
    plain = runner.run(inputs).named
    for view in _VIEWS:
        seen = _through(view, inputs)
        if found := disagreement(runner.run(seen).named, plain, case.dtype):
            return f"through {view.__name__} views, {found}"
    one_row = _through(expanded, inputs)
    copies = _through(_copied, one_row)
    left, right = runner.run(one_row).named, runner.run(copies).named
    if found := disagreement(left, right, case.dtype):
        return f"through {expanded.__name__} views, {found}"
    return _tied(inputs, runner)


def _tied(inputs: Inputs, runner: Runner) -> str | None:
    """Arguments that are one tensor, as tied projections are: who writes to one writes to all.

    An argument that is changed for a while and put back again shows in nothing else.
    """
    if inputs.present["q"].shape != inputs.present["k"].shape:
        return None
    shared = dict.fromkeys(("q", "k"), inputs.present["k"])
    left = runner.run(inputs.but(**shared)).named
    right = runner.run(_through(_copied, inputs.but(**shared))).named
    found = disagreement(left, right, inputs.case.dtype)
    return found and f"with q and k in the same memory, {found}"


def _through(view: View, inputs: Inputs) -> Inputs:
    return mapped(inputs, lambda name, x: None if x is None else view(x))


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


STRIDE = Law("stride", "results depend on values, not on strides", _check)
