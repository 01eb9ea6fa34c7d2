"""Whether the suite sees a fault: the cases that could tell, and those that did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice

import torch
from torch import Tensor

from fla_conformance.case import Case
from fla_conformance.faults.fault import Fault
from fla_conformance.faults.maths import right
from fla_conformance.faults.plant import planted
from fla_conformance.faults.table import FAULTS
from fla_conformance.grid import grid
from fla_conformance.inputs import make_inputs
from fla_conformance.laws import LAWS, checks_of, laws_for, run_law
from fla_conformance.laws.cases import cases_for
from fla_conformance.levels import LEVELS
from fla_conformance.numerics import gold, gradient_name, judge
from fla_conformance.result import Outcome
from fla_conformance.run import Target, run_case
from fla_conformance.suite import Settings, Task, execute
from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.differentiable import vjp

ENOUGH = 2
"""Discriminating checks for each fault and contract under the budget ``ci``."""

HIDDEN = 0.5
"""Which part of a limit an implementation may round away; a quarter is the most that was seen."""

CAUGHT = frozenset(
    {
        Outcome.FAIL_NUMERIC,
        Outcome.FAIL_SHAPE,
        Outcome.FAIL_DTYPE,
        Outcome.FAIL_LAW,
        Outcome.CRASH,
    }
)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A check that could tell the fault, and how it ended."""

    id: str
    level: str
    outcome: Outcome
    detail: str

    @property
    def caught(self) -> bool:
        """Whether the check failed, as it must."""
        return self.outcome in CAUGHT


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a fault in one contract.

    Attributes:
        fault: name of the fault.
        contract: where it was planted.
        sightings: every check that could tell it: cases whose mutated gold fails, and checks of
            the laws that the fault names.
        laws: laws that fail as well, where they were asked.
    """

    fault: str
    contract: str
    sightings: tuple[Sighting, ...]
    laws: tuple[str, ...] = ()

    @property
    def missed(self) -> tuple[Sighting, ...]:
        """Checks that could tell the fault and passed."""
        return tuple(sighting for sighting in self.sightings if not sighting.caught)

    @property
    def survives(self) -> bool:
        """True when no check can tell the fault, or one that can does not."""
        return not self.sightings or bool(self.missed)

    @property
    def level(self) -> str:
        """The lowest level at which it is caught; ``""`` for none."""
        levels = {sighting.level for sighting in self.sightings if sighting.caught}
        return next((level for level in LEVELS if level in levels), "")


def hunts(op: str = "*", name: str = "*") -> Iterator[tuple[Fault, Contract]]:
    """Every fault in every contract that can have it, contract by contract.

    Args:
        op: glob over contracts and public names.
        name: glob over faults.
    """
    for contract in CONTRACTS.values():
        names = (contract.name, *(public for public, _ in contract.public))
        if any(fnmatchcase(one, op) for one in names):
            for fault in FAULTS.values():
                if fault.concerns(contract) and fnmatchcase(fault.name, name):
                    yield fault, contract


def hunt(fault: Fault, contract: Contract, budget: str = "ci", every_law: bool = False) -> Finding:
    """Plant a fault, find the cases that discriminate it, and run each of them.

    Args:
        fault: what to plant.
        contract: where.
        budget: ``"ci"`` stops after a few discriminating cases, ``"full"`` runs all there are.
        every_law: ask every law, too, whether it sees the fault; costs a hundred times as much.
    """
    enough = ENOUGH if budget == "ci" else None
    with planted(fault, contract) as target:
        look = _by_gold if fault.unruly is None else _by_laws
        found = tuple(islice(look(fault, contract, target, budget), enough))
        laws = tuple(_failing_laws(contract, target)) if every_law else ()
    return Finding(fault.name, contract.name, found, laws)


def _by_gold(fault: Fault, contract: Contract, target: Target, budget: str) -> Iterator[Sighting]:
    for level in ("L2",) if fault.backward else ("L1", "L2"):
        # The cheapest first: what is enough under the budget ci should cost little.
        for case in sorted(grid(contract, target.declaration, level, budget), key=_cost):
            if fault.may_show(case) and discriminates(fault, case):
                result = run_case(case, target, level)
                if result.outcome is not Outcome.PASS or is_certain(fault, case):
                    yield Sighting(case.id, level, result.outcome, result.detail)


def _cost(case: Case) -> int:
    return case.sizes["T"] * (500 + case.sizes["K"] * case.sizes["V"])


def _by_laws(fault: Fault, contract: Contract, target: Target, budget: str) -> Iterator[Sighting]:
    laws = [LAWS[name] for name in fault.laws]
    settings = Settings("L3", budget)
    for check in checks_of(laws, contract, target.declaration, settings):
        if check.case is not None and not fault.may_show(check.case):
            continue
        result = execute(Task(target, check), settings.expectations)
        yield Sighting(check.id, check.level, result.outcome, result.detail)


def _failing_laws(contract: Contract, target: Target) -> Iterator[str]:
    for law in laws_for(contract):
        for case in cases_for(law, contract, target.declaration):
            if run_law(law, case, target).outcome in CAUGHT:
                yield law.name
                break


def discriminates(fault: Fault, case: Case) -> bool:
    """Whether the fault's own function, in float64, fails the case."""
    return not judge(case, mutated_gold(fault, case), gold(case)).passed


def is_certain(fault: Fault, case: Case) -> bool:
    """Whether the fault is so far beyond a limit that roundings cannot hide it.

    What exceeds a limit by 4 % may be within it when a quarter of that limit is rounded away, and
    a wrong function rounds otherwise than the right one: nobody could tell.
    """
    judged = judge(case, mutated_gold(fault, case), gold(case))
    unusable = judged.margins.keys() < gold(case).values.keys()
    return unusable or any(margin.worst > 1 + HIDDEN for margin in judged.margins.values())


def mutated_gold(fault: Fault, case: Case) -> dict[str, Tensor]:
    """What the fault makes of a case when nothing is rounded: outputs, and gradients as ``dq``."""
    inputs = make_inputs(case)
    leaves = {n: t.double().requires_grad_(bool(inputs.grads)) for n, t in inputs.present.items()}
    with torch.set_grad_enabled(bool(inputs.grads)):
        outputs = (fault.maths or right)(inputs.call_with({**inputs.tensors, **leaves}))
    values = {name: x.detach() for name, x in outputs.items()}
    if inputs.grads:
        roots = [name for name in outputs if name in inputs.grads]
        seeds = [inputs.grads[name].double() for name in roots]
        found = vjp([outputs[name] for name in roots], leaves, seeds)
        values.update({gradient_name(name): gradient for name, gradient in found.items()})
    return values
