"""The property lane: random cases against gold, and the smallest failing one when there is one."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import HypothesisWarning
from hypothesis.strategies import SearchStrategy

from fla_conformance.case import Case, Direction
from fla_conformance.expect import Expectations
from fla_conformance.result import Outcome, Result
from fla_conformance.run import run_case
from fla_conformance.strategy import cases
from fla_conformance.suite import Check, Settings
from fla_core.contract import Contract
from fla_core.plugins.api import Implementation

if TYPE_CHECKING:
    from fla_conformance.run import Target

LEVEL = "L3"
EXAMPLES = {"ci": 8, "full": 150}
SECONDS = {"ci": 15.0, "full": 600.0}
_GRID_LEVEL = {"fwd": "L1", "bwd": "L2"}


class _Failed(Exception):
    pass


@dataclass(slots=True)
class Exploration:
    """What random cases of one implementation showed.

    Attributes:
        ran: how many different cases were run.
        skipped: how many lie in regions where failures are expected.
        failure: result of the smallest failing case.
        stopped: whether time ran out first.
    """

    ran: int = 0
    skipped: int = 0
    failure: Result | None = None
    stopped: bool = False


def explore(
    target: Target,
    direction: Direction,
    examples: int,
    seconds: float,
    number: int = 0,
    expectations: Expectations | None = None,
) -> Exploration:
    """Run random cases until one fails, the examples are used up or time is.

    Args:
        target: what is examined.
        direction: of the cases.
        examples: how many to draw.
        seconds: after which no further case is begun; a failing one is still made smaller, for as
            long again.
        number: seed.
        expectations: regions that random cases keep out of.
    """
    found, seen = Exploration(), {}
    start = time.monotonic()

    def examine(case: Case) -> None:
        if _expected(case, target, expectations):
            found.skipped += 1
            return
        if case.id not in seen:
            limit = seconds if found.failure is None else 2 * seconds
            if time.monotonic() - start > limit:
                found.stopped = found.stopped or found.failure is None
                return
            seen[case.id] = run_case(case, target, LEVEL)
            found.ran += 1
        result = seen[case.id]
        if result.outcome is not Outcome.PASS:
            found.failure = result
            raise _Failed(case.id)

    _drive(examine, cases(target.declaration, direction), examples, number)
    return found


def _drive(
    examine: Callable[[Case], None], strategy: SearchStrategy[Case], examples: int, number: int
) -> None:
    options = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    test = seed(number)(options(given(strategy)(examine)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)
        with suppress(_Failed):  # it is on record
            test()


def _expected(case: Case, target: Target, expectations: Expectations | None) -> bool:
    if expectations is None:
        return False
    levels = (_GRID_LEVEL[case.direction], LEVEL)
    data, name = case.to_json(), target.implementation
    return any(expectations.find(name, case.id, level, "", data) for level in levels)


def checks(
    contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """One check for each direction: all random cases together, or the smallest failing one."""
    directions: tuple[Direction, ...] = ("fwd", "bwd") if implementation.backward else ("fwd",)
    for direction in directions:
        name = f"{contract.name}@{contract.revision}/{direction}/random/s{settings.seed}"
        yield Check(name, LEVEL, _Lane(direction, settings), law="random")


@dataclass(frozen=True, slots=True)
class _Lane:
    direction: Direction
    settings: Settings

    def __call__(self, target: Target) -> Result:
        budget, start = self.settings.budget, time.perf_counter()
        examples = budget if isinstance(budget, int) else EXAMPLES[budget]
        seconds = SECONDS.get(str(budget), SECONDS["full"])
        found = explore(
            target,
            self.direction,
            examples,
            seconds,
            self.settings.seed,
            self.settings.expectations,
        )
        took = time.perf_counter() - start
        if found.failure is not None:
            detail = f"{found.failure.id}: {found.failure.detail}"
            return replace(found.failure, detail=detail, seconds=took, law="random")
        text = f"{found.ran} random cases, seed {self.settings.seed}"
        text += f", {found.skipped} where failures are expected" if found.skipped else ""
        text += f", stopped after {seconds:g} s" if found.stopped else ""
        outcome = Outcome.PASS if found.ran else Outcome.NOT_EXECUTED
        return Result("", target.implementation, LEVEL, outcome, {}, text, seconds=took)


def save_case(case: Case, folder: Path) -> Path:
    """Write a case to a file that ``fla-conformance promote`` takes.

    Returns:
        its path; the name tells the case apart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.contract}-{case.direction}-{case.key:08x}.json"
    path.write_text(json.dumps(case.to_json(), indent=2) + "\n", encoding="utf-8")
    return path
