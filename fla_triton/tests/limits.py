"""What a chip cannot start at once: plans refuse it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from fla_core.errors import UnsupportedError
from fla_triton.plan import Problem
from fla_triton.profiles import AMD, Profile

VAST = 12 * 2**30
"""Bytes of one tensor from which on a launch on an AMD chip may need more threads than it has."""

Planned = TypeVar("Planned")


def plans(
    make: Callable[[Problem, str, Profile], Planned],
    problems: Iterable[Problem],
    direction: str,
    profile: Profile,
) -> dict[Problem, Planned]:
    """Plans of all problems but those that may be refused and are."""
    found = {}
    for problem in problems:
        try:
            found[problem] = make(problem, direction, profile)
        except UnsupportedError:
            if profile.arch not in AMD or largest_tensor(problem) < VAST:
                raise
    return found


def largest_tensor(problem: Problem) -> int:
    """Bytes of q, v or the states of all sequences, whichever is largest."""
    rows = problem.tokens * problem.heads * max(problem.K, problem.V) * problem.itemsize
    return max(rows, 4 * problem.sequences * problem.heads * problem.K * problem.V)
