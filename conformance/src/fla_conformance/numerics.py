"""How right an answer is: its error in units of what the inputs' own rounding does.

::

    pass iff   rms_S(answer - gold) <= c_S unit(S)   for every S, and finite wherever gold is

S is a *block*, all of one sequence (or batch row) and head, and a *row*, one token and head: the
first sees what is wrong everywhere, the second what is wrong in one place. The budgets c are the
contract's; :mod:`fla_conformance.gold` has the units. A *margin* is the error over its limit: at
most 1 passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.gains import gain
from fla_conformance.gold import Gold, Unit, gold, gold_of, gradient_name
from fla_conformance.result import Margin
from fla_core.contract import Numerics

__all__ = ["Gold", "Judgement", "Unit", "gold", "gold_of", "gradient_name", "judge"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a comparison with gold found.

    Attributes:
        margin: of the worst tensor, None where shapes or finiteness forbid one.
        failure: what is wrong, for people; ``""`` when nothing is.
        margins: of every tensor.
    """

    margin: Margin | None
    failure: str
    margins: Mapping[str, Margin]

    @property
    def passed(self) -> bool:
        """True when every tensor is within its limits."""
        return not self.failure


def judge(case: Case, got: Mapping[str, Tensor], right: Gold) -> Judgement:
    """Compare outputs, and gradients as ``dq``, with gold.

    Args:
        case: whose contract has the budgets.
        got: on any device; every tensor of gold must be there.
        right: from :func:`gold`.
    """
    budget = case.definition.numerics
    margins: dict[str, Margin] = {}
    failures = []
    for name, value in right.values.items():
        answer = got.get(name)
        if problem := _unusable(answer, value):
            failures.append(f"{name}: {problem}")
            continue
        assert answer is not None
        error = answer.detach().cpu().double() - value
        margins[name] = _margin(name, error, right, budget)
        failures += _too_large(margins[name])
    worst = max(margins.values(), key=lambda margin: margin.worst, default=None)
    return Judgement(worst, "; ".join(failures), margins)


def _unusable(answer: Tensor | None, value: Tensor) -> str:
    if answer is None:
        return "missing"
    if answer.shape != value.shape:
        return f"shape {list(answer.shape)}, expected {list(value.shape)}"
    wrong = value.isfinite() & ~answer.detach().cpu().isfinite()
    if wrong.any():
        first = wrong.nonzero()[0].tolist()
        return f"{int(wrong.sum())} of {wrong.numel()} not finite, the first at {first}"
    return ""


def _margin(name: str, error: Tensor, right: Gold, budget: Numerics) -> Margin:
    square = torch.where(error.isfinite(), error, 0.0).square()  # where gold is not finite either
    layout, unit = right.layouts[name], right.units[name]
    size = _overall(right.values[name].square())
    factor = gain(error.nan_to_num(0.0, 0.0, 0.0), right.values[name].nan_to_num(0.0, 0.0, 0.0))
    return Margin(
        block=_worst(layout.block_mean(square).sqrt() / (budget.block * unit.block)),
        token=_worst(layout.row_mean(square).sqrt() / (budget.token * unit.row)),
        name=name,
        ratio=_overall(square) / (size + 1e-8),
        gain=_worst(factor.abs() / (budget.block * unit.gain)),
    )


def _worst(margins: Tensor) -> float:
    return float(margins.max()) if margins.numel() else 0.0


def _overall(square: Tensor) -> float:
    return float(square.nan_to_num(0.0).mean().sqrt()) if square.numel() else 0.0


def _too_large(margin: Margin) -> list[str]:
    found = [
        (margin.block, "in its worst block"),
        (margin.token, "in its worst row"),
        (margin.gain, "as a factor of the whole"),
    ]
    return [
        f"{margin.name}: {size:.3g} times the limit {where}"
        for size, where in found
        if not size <= 1
    ]
