"""The numerical checks of L1 and L2: the grid, case by case, against the float64 recurrence."""

from __future__ import annotations

from collections.abc import Iterator

from fla_conformance.case import Case
from fla_conformance.grid import grid
from fla_conformance.levels import up_to
from fla_conformance.result import Result
from fla_conformance.run import Target, run_case
from fla_conformance.suite import Check, Settings
from fla_core.contract import Contract
from fla_core.plugins.api import Implementation


def checks(
    contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """One check for each case of the grid."""
    for level in ("L1", "L2"):
        if level in up_to(settings.level):
            for case in grid(contract, implementation, level, settings.budget):
                yield Check(case.id, level, _Run(case, level), case)


class _Run:
    __slots__ = ("case", "level")

    def __init__(self, case: Case, level: str) -> None:
        self.case, self.level = case, level

    def __call__(self, target: Target) -> Result:
        return run_case(self.case, target, self.level)
