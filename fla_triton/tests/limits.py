"""What every plan must keep to on its chip, over one table of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Protocol, TypeVar

from fla_core.errors import UnsupportedError
from fla_triton.plan import Launch, Plan, Problem
from fla_triton.profiles import AMD, PROFILES, Profile

VAST = 12 * 2**30
"""Bytes of one tensor from which on a launch on an AMD chip may need more threads than it has."""

WIDTHS = ((1, 1), (16, 8), (60, 100), (64, 64), (100, 129), (128, 128), (256, 256), (256, 512))
PROBLEM = Problem(2, 2 * 8192, 8192, 16, 128, 128, 2, gated=True)
H200 = PROFILES["sm90"]
TINY = replace(H200, shared_memory=1024, grid_limit=10, dot_minimum=128, thread_limit=1000)
"""A chip on which nothing fits."""


class Launched(Protocol):
    """A plan of any family."""

    @property
    def launches(self) -> Mapping[str, Launch]:
        """Launches by stage."""


Planned = TypeVar("Planned", bound=Launched)
Make = Callable[[Problem, str, Profile], Planned]
Lint = Callable[[Problem, Planned, Profile], list[str]]


def problems(gated: Iterable[bool] = (False, True)) -> list[Problem]:
    """The table: few and many tokens, heads and channels, of each size of element."""
    return [
        Problem(n, n * t, t, h, k, v, itemsize, packed, gate)
        for (n, t), h, (k, v), itemsize, packed, gate in product(
            ((1, 17), (2, 8192), (1, 131072), (2000, 33)),
            (1, 16, 96),
            WIDTHS,
            (2, 4),
            (False, True),
            gated,
        )
    ]


def misfits(
    make: Make[Planned],
    lint: Lint[Planned],
    sizes: Sequence[Problem],
    direction: str,
    profile: Profile,
) -> dict[Problem, list[str]]:
    """What is wrong with plans of all problems but those that may be refused and are."""
    found: dict[Problem, list[str]] = {}
    for problem in sizes:
        try:
            planned = make(problem, direction, profile)
        except UnsupportedError:
            if profile.arch not in AMD or largest_tensor(problem) < VAST:
                raise
        else:
            found[problem] = lint(problem, planned, profile)
    assert len(found) > len(sizes) // 2
    return {problem: wrong for problem, wrong in found.items() if wrong}


def largest_tensor(problem: Problem) -> int:
    """Bytes of q, v or the states of all sequences, whichever is largest."""
    rows = problem.tokens * problem.heads * max(problem.K, problem.V) * problem.itemsize
    return max(rows, 4 * problem.sequences * problem.heads * problem.K * problem.V)


def launch_faults(launch: Launch, profile: Profile, most: int, smallest: bool = False) -> list[str]:
    """What a device would refuse of one launch, or its compiler get wrong.

    Args:
        launch: of any family.
        profile: the device.
        most: bytes of shared memory it may take.
        smallest: its tiles cannot be halved: what they take can only be said by the compiler.
    """
    wrong = []
    threads = launch.grid * launch.warps * profile.warp_width
    if not 0 < launch.grid <= profile.grid_limit:
        wrong.append(f"grid {launch.grid}")
    if threads >= profile.thread_limit:
        wrong.append(f"{threads} threads")
    if launch.shared > most and not smallest:
        wrong.append(f"{launch.shared} bytes of shared memory")
    if launch.warps not in (1, 2, 4, 8):
        wrong.append(f"{launch.warps} warps")
    sides = [launch.constants[n] for n in ("BK", "BV", "BT", "C") if n in launch.constants]
    if any(side < profile.dot_minimum or side & (side - 1) for side in sides):
        wrong.append(f"tile {sides}")
    return [f"{launch.stage}: {fault}" for fault in wrong]


def segment_faults(problem: Problem, found: Plan) -> list[str]:
    """Chunks that no segment holds, or segments that hold none."""
    chunks = -(-problem.longest // found.tiles.chunk_size)
    if (found.segments - 1) * found.span < chunks <= found.segments * found.span:
        return []
    return [f"{found.segments} segments of {found.span} for {chunks} chunks"]
