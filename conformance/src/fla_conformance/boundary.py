"""Boundary honesty, both ways: what is declared is taken and runs, what is not is refused.

Inside: seeded calls of the declared domain are accepted by dispatch and run, those at the ends of
its ranges are right as well, and where a verifier has a say every size of a range is shown to
dispatch. Outside: calls that
leave it in a single respect are refused, by the declared domain and by dispatch, with a reason.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

from fla_conformance.case import Case, Direction
from fla_conformance.edges import edges, sweep
from fla_conformance.inputs import make_inputs, operator_of
from fla_conformance.laws.judging import outcome_of
from fla_conformance.laws.runner import run_inputs
from fla_conformance.reach import fits, view_of
from fla_conformance.result import Outcome, Result
from fla_conformance.run import run_case
from fla_conformance.sense import sizes_of
from fla_conformance.strategy import sample
from fla_conformance.suite import Check, Settings
from fla_conformance.violations import Violation, outside
from fla_conformance.witness import only
from fla_core.contract import Contract
from fla_core.dispatch.plan import Plan, find_plan
from fla_core.domain import AXES
from fla_core.errors import NoImplementationError
from fla_core.plugins.api import Implementation
from fla_core.verify import Reason, Verdict

if TYPE_CHECKING:
    from fla_conformance.run import Target

LEVEL = "L3"
SAMPLES = {"ci": 4, "full": 40}
"""Calls inside the domain, for each direction."""

HONEST = frozenset({Reason.DTYPE, Reason.AXIS, Reason.FEATURE, Reason.GRAD, Reason.VERIFIER})
"""Reasons that speak of the call."""


def placed(case: Case, target: Target) -> Plan:
    """Have dispatch place a case from its metadata, nobody but the implementation standing by.

    Raises:
        NoImplementationError: it is refused.
    """
    with only(target.implementation):
        return _place(case, target)


def _place(case: Case, target: Target) -> Plan:
    view, contract = view_of(case), case.definition
    sizes = sizes_of(case)
    return find_plan(
        contract,
        operator_of(case).name,
        case.form,
        target.device.device,
        case.dtype,
        tuple(view.dtypes.get(name) for name in contract.input_names),
        tuple(sizes[axis] for axis in AXES),
        view.features,
        view.gradients,
        False,
        target.plugin,
    )


def check_inside(case: Case, target: Target) -> tuple[Outcome, str]:
    """A declared call is accepted, and runs."""
    try:
        with only(target.implementation) as witness:
            run_inputs(make_inputs(case, target.device.device))
            target.device.sync()
        if not witness.take():
            return Outcome.NOT_EXECUTED, f"{target.implementation} did not run"
    except Exception as error:
        return outcome_of(error)
    return Outcome.PASS, ""


def check_all_taken(cases: Iterable[Case], target: Target) -> tuple[Outcome, str]:
    """Dispatch places each of these declared calls, from metadata alone."""
    refused = []
    with only(target.implementation):
        for case in cases:
            try:
                _place(case, target)
            except NoImplementationError as error:
                refused.append(f"{case.id}: {error}")
    if not refused:
        return Outcome.PASS, ""
    return Outcome.REFUSED_UNDECLARED, f"{len(refused)} sizes, the first of {refused[0]}"


def check_outside(violation: Violation, target: Target) -> tuple[Outcome, str]:
    """An undeclared call is refused for a reason that speaks of the call."""
    case, subject = violation.case, violation.subject
    if fits(case, target.declaration).ok:
        return Outcome.ACCEPTED_UNDECLARED, f"{subject}: the declared domain does not refuse it"
    try:
        plan = placed(case, target)
    except NoImplementationError as error:
        verdict = _refusal(error, target.implementation)
        if verdict is None or verdict.code not in HONEST or not verdict.subject:
            return Outcome.FAIL_LAW, f"{subject}: refused for a reason of its own: {error}"
        return Outcome.PASS, ""
    except Exception as error:
        return outcome_of(error)
    return Outcome.ACCEPTED_UNDECLARED, f"{subject}: dispatch places it on {plan.decision.plan}"


def _refusal(error: NoImplementationError, identity: str) -> Verdict | None:
    verdicts = (v for name, _, v in error.decision.considered if name == identity)
    return next((verdict for verdict in verdicts if not verdict.ok), None)


def checks(
    contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """One check for each sample inside the domain and each violation of it.

    Samples are drawn when they are wanted: finding out which sizes a domain has takes a second.
    """
    budget = settings.budget
    count = budget if isinstance(budget, int) else SAMPLES[budget]
    directions: tuple[Direction, ...] = ("fwd", "bwd") if implementation.backward else ("fwd",)
    seed = zlib.crc32(f"{contract.name}#{implementation.variant}".encode()) + settings.seed
    for direction in directions:
        drawn = cache(partial(sample, implementation, direction, count, seed))
        for index in range(count):
            name = f"{contract.name}@{contract.revision}/{direction}/sample{index}"
            name += f"/s{settings.seed}:inside"
            yield Check(name, LEVEL, partial(_inside, drawn, index), law="inside")
        at_ends = list(edges(contract, implementation, direction))
        for subject, case in at_ends[: budget if isinstance(budget, int) else None]:
            name = f"{contract.name}@{contract.revision}/{direction}/{subject}:inside"
            yield Check(name, LEVEL, partial(_edge, case), case, "inside")
        if implementation.verifier is not None:
            name = f"{contract.name}@{contract.revision}/{direction}/sizes:inside"
            swept = partial(sweep, contract, implementation, direction)
            yield Check(name, LEVEL, partial(_swept, swept), law="inside")
    for violation in outside(contract, implementation):
        # Without a case: a result for a dtype that is not declared says nothing of that dtype.
        name = f"{contract.name}@{contract.revision}/{violation.subject}:outside"
        yield Check(name, LEVEL, partial(_outside, violation), None, "outside")


def _inside(drawn: Callable[[], list[Case]], index: int, target: Target) -> Result:
    start = time.perf_counter()
    case = drawn()[index]
    outcome, detail = check_inside(case, target)
    return _result(target, outcome, detail and f"{case.id}: {detail}", start, case)


def _edge(case: Case, target: Target) -> Result:
    return run_case(case, target, LEVEL)


def _swept(cases: Callable[[], Iterable[Case]], target: Target) -> Result:
    start = time.perf_counter()
    outcome, detail = check_all_taken(cases(), target)
    return _result(target, outcome, detail, start)


def _outside(violation: Violation, target: Target) -> Result:
    start = time.perf_counter()
    outcome, detail = check_outside(violation, target)
    return _result(target, outcome, detail, start)


def _result(
    target: Target, outcome: Outcome, detail: str, start: float, case: Case | None = None
) -> Result:
    data = {} if case is None else case.to_json()
    took = time.perf_counter() - start
    return Result("", target.implementation, LEVEL, outcome, data, detail, seconds=took)
