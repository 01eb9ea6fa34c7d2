"""Which checks there are, at which level, and how one is carried out.

A *source* is a module with a function ::

    checks(contract: Contract, implementation: Implementation, settings: Settings)
        -> Iterable[Check]

that yields every check it has for one implementation, each with its level. Sources are named in
``SOURCES`` and imported when their level is asked for. ``checks`` must be cheap and give the same
checks each time: they are also enumerated to see whether an expectation selects anything, and in a
child process to take up a run where a crash ended it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fla_conformance.case import Case
from fla_conformance.expect import Expectations
from fla_conformance.levels import LEVELS, TOLERATED, up_to
from fla_conformance.result import Outcome, Result
from fla_core.contract import Contract
from fla_core.contracts import CONTRACTS
from fla_core.plugins.api import Implementation

if TYPE_CHECKING:
    from fla_conformance.run import Target

SOURCES: dict[str, tuple[str, ...]] = {
    "fla_conformance.card": ("L0",),
    "fla_conformance.numerical": ("L1", "L2"),
    "fla_conformance.laws": ("L3",),
    "fla_conformance.boundary": ("L3",),
    "fla_conformance.lane": ("L3",),
    "fla_conformance.claims": ("L4",),
}
"""Modules that yield checks, with the levels they yield them for."""

BUDGETS = ("ci", "full")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is asked for.

    Attributes:
        level: the highest level.
        budget: ``"ci"``, ``"full"`` or the number of cases for each implementation and level.
        seed: of whatever is drawn at random.
        folder: the plugin's folder of expectations and promoted cases, None if it has none.
        expectations: entries in force; random cases keep out of the regions they name.
    """

    level: str = "L3"
    budget: str | int = "ci"
    seed: int = 0
    folder: Path | None = None
    expectations: Expectations = field(default_factory=Expectations)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to find out about an implementation.

    Attributes:
        id: the case's id, followed by ``:law`` for a law.
        level: ``"L1"``.
        run: finds it out; what it raises counts as a crash.
        case: the configuration, None where there is none.
        law: name of the law, ``""`` for a numerical check.
    """

    id: str
    level: str
    run: Callable[[Target], Result]
    case: Case | None = None
    law: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A check of one target."""

    target: Target
    check: Check

    @property
    def implementation(self) -> str:
        """Whom it concerns: ``plugin:contract#variant``."""
        return self.target.implementation

    @property
    def id(self) -> str:
        """The check's id."""
        return self.check.id

    @property
    def level(self) -> str:
        """The check's level."""
        return self.check.level

    @property
    def law(self) -> str:
        """The check's law."""
        return self.check.law

    @property
    def case(self) -> Case | None:
        """The check's case."""
        return self.check.case

    @property
    def key(self) -> tuple[str, str, str]:
        """Tells it apart from every other task of a run."""
        return self.implementation, self.level, self.id

    def result(self, outcome: Outcome, detail: str = "", seconds: float = 0.0) -> Result:
        """How it ended, where the check itself could not say."""
        case: Mapping[str, Any] = {} if self.case is None else self.case.to_json()
        return Result(
            self.id,
            self.implementation,
            self.level,
            outcome,
            case,
            detail,
            seconds=seconds,
            law=self.law,
        )


class Climb:
    """Passes over the levels above one that failed, for each implementation and dtype.

    What is passed over could not have raised the level: every level needs all those below.
    """

    def __init__(self, on: bool) -> None:
        self._on = on
        self._fell: dict[tuple[str, str], str] = {}

    def saw(self, result: Result) -> None:
        """Take note of a result."""
        if result.outcome not in TOLERATED:
            key = (result.implementation, result.case.get("dtype", ""))
            self._fell[key] = min(result.level, self._fell.get(key, result.level))

    def passes_over(self, task: Task) -> bool:
        """True when a level below the task's has failed, of every dtype if it is of none."""
        if not self._on:
            return False
        declared = task.target.declaration.domain.dtypes
        dtypes = declared if task.case is None else (task.case.dtype,)
        return self._failed_below(task, "") or all(self._failed_below(task, d) for d in dtypes)

    def _failed_below(self, task: Task, dtype: str) -> bool:
        fell = self._fell.get((task.implementation, dtype))
        return fell is not None and fell < task.level


def checks(
    contract: Contract, implementation: Implementation, settings: Settings
) -> Iterator[Check]:
    """Every check of one implementation up to the level asked for, lowest level first."""
    wanted = up_to(settings.level)
    found: dict[str, list[Check]] = {level: [] for level in LEVELS}
    for source in _sources(wanted):
        for check in source.checks(contract, implementation, settings):
            found[check.level].append(check)
    for level in wanted:
        yield from found[level]


def tasks(targets: Iterable[Target], settings: Settings, only: str = "") -> list[Task]:
    """All checks of all targets.

    Args:
        targets: what is examined; those of contracts that this core lacks have no checks.
        settings: level and budget.
        only: keep checks with this id, or whose id matches this glob.
    """
    found = [
        Task(target, check)
        for target in targets
        if (contract := CONTRACTS.get(target.declaration.contract)) is not None
        for check in checks(contract, target.declaration, settings)
    ]
    return [task for task in found if not only or _is(task.id, only)]


def matching(targets: Iterable[Target], pattern: str) -> list[Target]:
    """The targets whose contract, public name or implementation id matches a glob."""
    return [target for target in targets if _named(target, pattern)]


def execute(task: Task, expectations: Expectations) -> Result:
    """Carry out one check; whatever happens becomes its result."""
    started = time.perf_counter()
    try:
        found = task.check.run(task.target)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a kernel that calls sys.exit() ends its check, not the run
        last = traceback.format_exception(error)[-4:]
        text = f"the check raised {type(error).__name__}\n{''.join(last)}".rstrip()
        found = task.result(Outcome.CRASH, text, time.perf_counter() - started)
    # A check cannot speak for another, and a failure without words helps nobody.
    found = replace(
        found,
        id=task.id,
        implementation=task.implementation,
        level=task.level,
        law=task.law,
        detail=found.detail or ("" if found.outcome is Outcome.PASS else found.outcome.value),
    )
    return expectations.judge(found)


def _sources(levels: Iterable[str]) -> Iterator[Any]:
    wanted = set(levels)
    for name, serves in SOURCES.items():
        if wanted.intersection(serves):
            yield import_module(name)


def _is(text: str, pattern: str) -> bool:
    return text == pattern or fnmatchcase(text, pattern)


def _named(target: Target, pattern: str) -> bool:
    contract = CONTRACTS.get(target.declaration.contract)
    public = () if contract is None else (name for name, _ in contract.public)
    names = (target.implementation, target.declaration.contract, *public)
    return any(_is(name, pattern) for name in names)
