"""The search: rounds of candidates, compiled and checked side by side, timed one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fla_core.cli.calls.tune.crew import Crew, Job
from fla_core.plugins.tuning import Measured, Task, Tuner


@dataclass(slots=True)
class Search:
    """What is known of one task.

    Attributes:
        task: what is tuned.
        found: all candidates that were tried.
        best: the fastest that is right in every comparison; None when there is none.
        complete: False when time ran out before the last round.
    """

    task: Task
    found: list[Measured] = field(default_factory=list)
    best: Measured | None = None
    complete: bool = True

    @property
    def default(self) -> Measured | None:
        """What was measured of the defaults, which are the first candidate."""
        return self.found[0] if self.found else None

    @property
    def speedup(self) -> float | None:
        """The defaults' time over the best's."""
        if self.best is None or self.default is None or not self.default.ms or not self.best.ms:
            return None
        return self.default.ms / self.best.ms


def search(
    tuner: Tuner,
    tasks: Sequence[Task],
    crew: Crew,
    tell: Callable[[str], object] = lambda text: None,
) -> list[Search]:
    """Tune every task.

    Args:
        tuner: proposes candidates.
        tasks: what to tune.
        crew: processes that compile and check, and of which one alone times.
        tell: is told how far the search has come.
    """
    searches = [Search(task) for task in tasks]
    number = 0
    while jobs := _proposed(tuner, searches, number):
        listed = [job for _, job in jobs]
        tell(f"round {number + 1}: checking {len(listed)} candidates")
        checked = crew.run(listed)
        right = [i for i, answer in enumerate(checked) if answer and not answer.failure]
        tell(f"round {number + 1}: timing {len(right)} candidates")
        timed = crew.run([replace(listed[i], mode="time") for i in right], alone=True)
        answers = dict(enumerate(checked)) | dict(zip(right, timed, strict=True))
        for index, (one, _) in enumerate(jobs):
            answer = answers[index]
            if answer is None:
                one.complete = False
            else:
                one.found.append(answer)
        number += 1
    tell("comparing the winners with the definition")
    _prove(searches, crew)
    return searches


def _proposed(tuner: Tuner, searches: Sequence[Search], number: int) -> list[tuple[Search, Job]]:
    return [
        (one, Job(one.task, tiles, "check"))
        for one in searches
        if one.complete
        for tiles in tuner.candidates(one.task, number, one.found)
    ]


def _prove(searches: Sequence[Search], crew: Crew) -> None:
    """Set each search's best: the fastest candidate whose timed call is right too."""
    ranked = {
        id(one): sorted((a.ms, i) for i, a in enumerate(one.found) if a.ms is not None)
        for one in searches
    }
    while doubtful := [one for one in searches if one.best is None and ranked[id(one)]]:
        first = [ranked[id(one)].pop(0)[1] for one in doubtful]
        jobs = [
            Job(o.task, o.found[i].tiles, "whole") for o, i in zip(doubtful, first, strict=True)
        ]
        # The deadline ends the search, not the proof of what it has found.
        answers = crew.run(jobs, patient=True)
        for one, index, answer in zip(doubtful, first, answers, strict=True):
            assert answer is not None
            if answer.failure:
                one.found[index] = answer
            else:
                one.best = one.found[index]
