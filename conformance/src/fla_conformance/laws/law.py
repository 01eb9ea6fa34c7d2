"""A law: a relation between runs of one implementation that needs no oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fla_conformance.case import Case, Direction

if TYPE_CHECKING:
    from fla_conformance.laws.runner import Runner

Check = Callable[[Case, "Runner"], "str | None"]


class NotExecutedError(Exception):
    """The check says nothing: the implementation did not run, or the host cannot run the check."""


@dataclass(frozen=True, slots=True)
class Law:
    """A relation, and the calls it speaks of.

    Attributes:
        name: ``"split"``.
        statement: what holds, in one sentence.
        check: ``check(case, runner)`` returns what is wrong, or None; raises
            :class:`NotExecutedError` where nothing could be learned.
        needs: features that the call must have; an implementation that refuses one of them is not
            concerned.
        avoids: features under which it does not hold as stated.
        direction: ``"bwd"`` when it speaks of gradients (of outputs too); where an implementation
            has no backward, ``outputs_too`` decides whether its outputs alone are checked.
        outputs_too: see above.
        under: name of the law in contracts that brings this one along; ``""`` for its own name.
        contracts: contracts it speaks of; empty for all that have it.
        level: where it counts.
        speaks_of: narrows the cases further.
        long: a long call is among the cases.
    """

    name: str
    statement: str
    check: Check
    needs: frozenset[str] = frozenset()
    avoids: frozenset[str] = frozenset()
    direction: Direction = "bwd"
    outputs_too: bool = True
    under: str = ""
    contracts: frozenset[str] = frozenset()
    level: str = "L3"
    speaks_of: Callable[[Case], bool] | None = None
    long: bool = False

    def concerns(self, contract: str, laws: tuple[str, ...]) -> bool:
        """Whether it is among the laws of a contract."""
        mine = (self.under or self.name) in laws
        return mine and (not self.contracts or contract in self.contracts)
