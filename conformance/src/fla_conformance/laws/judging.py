"""Turn the check of a law into a result, whatever happens in it."""

from __future__ import annotations

import time

from fla_conformance.case import Case
from fla_conformance.laws.law import Law, NotExecutedError
from fla_conformance.laws.runner import Runner
from fla_conformance.result import Outcome, Result
from fla_conformance.run import Target
from fla_conformance.witness import NotWitnessedError
from fla_core.errors import ImplementationError, NoImplementationError

_OUTCOMES: tuple[tuple[type[Exception], Outcome], ...] = (
    (NotExecutedError, Outcome.NOT_EXECUTED),
    (NotWitnessedError, Outcome.NOT_EXECUTED),
    (NoImplementationError, Outcome.REFUSED_UNDECLARED),
    (ImplementationError, Outcome.FAIL_LAW),
)


def run_law(law: Law, case: Case, target: Target) -> Result:
    """Check one law on one case of one implementation."""
    start, plan, outcome = time.perf_counter(), "", Outcome.PASS
    try:
        with Runner(target) as runner:
            detail = law.check(case, runner)
            plan = runner.plan
        if detail:
            outcome = Outcome.FAIL_LAW
    except Exception as error:
        outcome, detail = outcome_of(error)
    return Result(
        id=law_id(law, case),
        implementation=target.implementation,
        level=law.level,
        outcome=outcome,
        case=case.to_json(),
        detail=detail or "",
        plan=plan,
        seconds=time.perf_counter() - start,
        law=law.name,
    )


def law_id(law: Law, case: Case) -> str:
    """``CASE:law``."""
    return f"{case.id}:{law.name}"


def outcome_of(error: Exception) -> tuple[Outcome, str]:
    """What an exception out of a call means, and its text."""
    for kind, outcome in _OUTCOMES:
        if isinstance(error, kind):
            return outcome, str(error)
    return Outcome.CRASH, f"{type(error).__name__}: {error}"
