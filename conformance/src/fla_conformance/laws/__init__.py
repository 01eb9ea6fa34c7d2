"""Laws: relations between runs of one implementation that hold without an oracle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from fla_conformance.case import Case
from fla_conformance.laws.between import BETWEEN, REFILL
from fla_conformance.laws.cases import cases_for
from fla_conformance.laws.gradmask import GRADMASK
from fla_conformance.laws.immut import IMMUT
from fla_conformance.laws.judging import law_id, run_law
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.nanfill import NANFILL
from fla_conformance.laws.oob_stride import OOB_STRIDE
from fla_conformance.laws.pack import PACK, PACK_GRAD
from fla_conformance.laws.poison import POISON
from fla_conformance.laws.prefix import PREFIX
from fla_conformance.laws.reduce import REDUCE
from fla_conformance.laws.repeat import BATCHREP, REPEAT
from fla_conformance.laws.runner import Ran, Runner
from fla_conformance.laws.slots import SLOTS
from fla_conformance.laws.split import SPLIT
from fla_conformance.laws.stride import STRIDE
from fla_conformance.suite import Check, Settings
from fla_core.contract import Contract
from fla_core.plugins.api import Implementation

if TYPE_CHECKING:
    from fla_conformance.result import Result

LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        *(POISON, NANFILL, PREFIX, SPLIT, SLOTS, PACK, PACK_GRAD, STRIDE, OOB_STRIDE),
        *(REPEAT, BATCHREP, BETWEEN, REFILL, GRADMASK, IMMUT, REDUCE),
    )
}
"""Every law by its name."""


def laws_for(contract: Contract) -> Iterator[Law]:
    """The laws of a contract."""
    return (law for law in LAWS.values() if law.concerns(contract.name, contract.laws))


def checks(
    contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """One check for each law and case."""
    return checks_of(laws_for(contract), contract, implementation, settings)


def checks_of(
    laws: Iterable[Law], contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """One check for each of these laws and each of its cases."""
    for law in laws:
        for case in cases_for(law, contract, implementation, settings.budget):
            yield Check(law_id(law, case), law.level, _runs(law, case), case, law.name)


def _runs(law: Law, case: Case) -> partial[Result]:
    return partial(run_law, law, case)


__all__ = [
    "LAWS",
    "Law",
    "NotExecutedError",
    "Ran",
    "Runner",
    "checks",
    "checks_of",
    "laws_for",
    "run_law",
]
