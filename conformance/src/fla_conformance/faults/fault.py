"""A fault: one thing that a kernel gets wrong, planted into an implementation that is otherwise
right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.sense import features_of
from fla_core.call import Call
from fla_core.contract import Contract
from fla_core.differentiable import Backward, Forward
from fla_core.lowerings import Outputs
from fla_core.slots import Slots

Where = Callable[[Case], bool]

Maths = Callable[[Call], Outputs]
"""Outputs of a raw call by name, differentiable, in the precision of its tensors."""

Functions = tuple[Forward, Backward]

Pooled = Callable[[Call, Slots], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    A fault of *mathematics* is a wrong function of the call. The same function in float64 is the
    mutated gold: where that fails, so must the implementation, and where it passes nobody could
    tell. A fault of *manners* computes the right values but touches what it must not, or depends on
    what it must not: there is no gold for that, only laws.

    Attributes:
        name: ``"gates-shifted"``.
        what: the fault in one sentence.
        maths: the wrong function; None for a fault of manners.
        unruly: makes fresh functions with bad manners; None for a fault of mathematics.
        needs: features, arguments and options that a call must have for the fault to show.
        contracts: where it is planted; empty for every contract that has what it needs.
        backward: only gradients are wrong: the values of ``maths`` are right.
        laws: laws that must see it.
        claims: what the implementation claims nevertheless.
        strided: whether it takes strided tensors as they are.
        pooled: what serves states in a pool; None leaves them to core.
        where: calls in which it shows, by their sizes; None for all.
    """

    name: str
    what: str
    maths: Maths | None = None
    unruly: Callable[[], Functions] | None = None
    needs: frozenset[str] = frozenset()
    contracts: tuple[str, ...] = ()
    backward: bool = False
    laws: tuple[str, ...] = ()
    claims: frozenset[str] = frozenset()
    strided: bool = False
    pooled: Pooled | None = None
    where: Where | None = None

    def concerns(self, contract: Contract) -> bool:
        """Whether the contract can have this fault."""
        mine = not self.contracts or contract.name in self.contracts
        return mine and self.needs <= {*contract.features, *contract.input_names, "scale"}

    def may_show(self, case: Case) -> bool:
        """Whether a call has what the fault needs and looks at what it breaks."""
        required = (spec.name for spec in case.definition.inputs if not spec.optional)
        looked_at = not self.backward or case.direction == "bwd"
        if self.where is not None and not self.where(case):
            return False
        return looked_at and self.needs <= {*features_of(case), *required, *(case.options or ())}


def wrong(
    name: str,
    what: str,
    maths: Maths,
    *needs: str,
    contracts: tuple[str, ...] = (),
    backward: bool = False,
    where: Where | None = None,
) -> Fault:
    """A fault of mathematics."""
    return Fault(name, what, maths, None, frozenset(needs), contracts, backward, where=where)


def unruly(
    name: str,
    what: str,
    make: Callable[[], Functions],
    *laws: str,
    claims: frozenset[str] = frozenset(),
    strided: bool = False,
    needs: frozenset[str] = frozenset(),
) -> Fault:
    """A fault of manners."""
    return Fault(name, what, None, make, needs, laws=laws, claims=claims, strided=strided)
