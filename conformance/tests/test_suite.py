"""Checks are listed by level, carried out one by one, and never get lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fla_conformance import suite
from fla_conformance.expect import Expectations
from fla_conformance.levels import LEVELS
from fla_conformance.result import Outcome, Result
from fla_conformance.run import Target
from fla_conformance.run import targets as targets_of
from fla_conformance.suite import Check, Climb, Settings, Task, checks, execute, matching, tasks
from fla_core.contracts import CONTRACTS
from rows import case


@dataclass
class Source:
    """A module that yields a check for each level, in no order."""

    made: list[Settings] = field(default_factory=list)

    def checks(self, contract: Any, implementation: Any, settings: Settings) -> Iterator[Check]:
        self.made.append(settings)
        for level in reversed(LEVELS):
            yield Check(f"{contract.name}/{level}", level, lambda target: broken())


def broken() -> Result:
    raise ZeroDivisionError("inside the check")


@pytest.fixture(scope="module")
def targets() -> list[Target]:
    return targets_of("reference", "cpu")


def test_checks_come_lowest_level_first_and_no_higher_than_asked(
    monkeypatch: pytest.MonkeyPatch, targets: list[Target]
) -> None:
    source = Source()
    monkeypatch.setattr(suite, "_sources", lambda levels: [source])
    contract = CONTRACTS["gla"]
    found = checks(contract, targets[0].declaration, Settings(level="L2"))
    assert [check.level for check in found] == ["L0", "L1", "L2"]


def test_only_keeps_an_id_or_a_glob(monkeypatch: pytest.MonkeyPatch, targets: list[Target]) -> None:
    monkeypatch.setattr(suite, "_sources", lambda levels: [Source()])
    assert len(tasks(targets, Settings(), "gla/L1")) == 2
    assert len(tasks(targets, Settings(), "gla/*")) == 8
    assert tasks(targets, Settings(), "gla/L9") == []


def test_every_implementation_of_every_contract_has_checks(targets: list[Target]) -> None:
    found = tasks(targets, Settings("L2", 2))
    assert {task.implementation for task in found} == {t.implementation for t in targets}
    assert len({task.key for task in found}) == len(found)


@pytest.mark.parametrize("budget", ["ci", 3])
def test_the_same_checks_each_time(targets: list[Target], budget: str | int) -> None:
    first, second = (tasks(targets[:2], Settings("L3", budget)) for _ in range(2))
    assert [task.key for task in first] == [task.key for task in second]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("gla", {"reference:gla#chunk", "reference:gla#recurrent"}),
        ("chunk_gla", {"reference:gla#chunk", "reference:gla#recurrent"}),
        ("reference:gla#chunk", {"reference:gla#chunk"}),
        ("*:gla#c*", {"reference:gla#chunk"}),
        ("nothing", set()),
    ],
)
def test_operators_by_contract_name_or_id(
    targets: list[Target], pattern: str, expected: set[str]
) -> None:
    assert {target.implementation for target in matching(targets, pattern)} == expected


def test_a_check_that_raises_is_a_crash_with_its_place(targets: list[Target]) -> None:
    found = execute(Task(targets[0], Check("x", "L1", lambda _: broken(), case())), Expectations())
    assert found.outcome is Outcome.CRASH
    assert "ZeroDivisionError: inside the check" in found.detail
    assert "in broken" in found.detail
    assert found.case == case().to_json()


def test_a_check_that_leaves_is_a_crash_and_an_interrupt_is_not(targets: list[Target]) -> None:
    def leave(target: Target) -> Result:
        raise SystemExit(3)

    def interrupt(target: Target) -> Result:
        raise KeyboardInterrupt

    found = execute(Task(targets[0], Check("x", "L1", leave)), Expectations())
    assert found.outcome is Outcome.CRASH
    assert "SystemExit: 3" in found.detail
    with pytest.raises(KeyboardInterrupt):
        execute(Task(targets[0], Check("x", "L1", interrupt)), Expectations())


def test_a_check_cannot_speak_for_another(targets: list[Target]) -> None:
    lie = Result("another", "someone:else#x", "L4", Outcome.FAIL_LAW)
    found = execute(Task(targets[0], Check("x", "L1", lambda _: lie)), Expectations())
    assert (found.id, found.implementation, found.level) == (
        "x",
        targets[0].implementation,
        "L1",
    )
    assert found.detail == "fail.law"


def test_climbing_leaves_out_what_is_above_a_failure(targets: list[Target]) -> None:
    def task(level: str, dtype: str) -> Task:
        return Task(targets[0], Check("x", level, lambda _: broken(), case(dtype=dtype)))

    climb = Climb(True)
    climb.saw(task("L2", "bfloat16").result(Outcome.PASS))
    assert not climb.passes_over(task("L3", "bfloat16"))
    climb.saw(task("L1", "bfloat16").result(Outcome.FAIL_NUMERIC))
    assert climb.passes_over(task("L2", "bfloat16"))
    assert not climb.passes_over(task("L1", "bfloat16"))
    assert not climb.passes_over(task("L2", "float16"))
    of_none = Task(targets[0], Check("x", "L3", lambda _: broken()))
    assert not climb.passes_over(of_none)
    for dtype in targets[0].declaration.domain.dtypes:
        climb.saw(task("L1", dtype).result(Outcome.FAIL_NUMERIC))
    assert climb.passes_over(of_none)
    off = Climb(False)
    off.saw(task("L1", "bfloat16").result(Outcome.FAIL_NUMERIC))
    assert not off.passes_over(task("L2", "bfloat16"))
