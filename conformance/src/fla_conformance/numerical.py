"""The numerical checks of L1 and L2: case by case against the float64 recurrence."""

from __future__ import annotations

from collections.abc import Iterator

from fla_conformance.case import Case
from fla_conformance.grid import grid, promoted
from fla_conformance.levels import up_to
from fla_conformance.result import Result
from fla_conformance.run import Target, run_case
from fla_conformance.suite import Check, Settings
from fla_core.contract import Contract
from fla_core.plugins.api import Implementation

LEVEL_OF = {"fwd": "L1", "bwd": "L2"}


def checks(
    contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """One check for each case of the grid and for each promoted one."""
    wanted = up_to(settings.level)
    cases: list[Case] = []
    for level in LEVEL_OF.values():
        if level in wanted:
            cases += grid(contract, implementation, level, settings.budget)
    if settings.folder is not None:
        cases += [case for case in promoted(settings.folder) if case.contract == contract.name]
    for case in {case.id: case for case in cases}.values():
        if LEVEL_OF[case.direction] in wanted:
            yield check_of(case)


def check_of(case: Case) -> Check:
    """The numerical check of a case, at the level of its direction."""
    level = LEVEL_OF[case.direction]

    def run(target: Target) -> Result:
        return run_case(case, target, level)

    return Check(case.id, level, run, case)
