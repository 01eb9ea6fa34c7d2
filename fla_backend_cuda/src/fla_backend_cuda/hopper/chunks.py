"""What comes before the passes over time on Hopper: a program for each chunk and head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fla_triton.launch import Launches, Settling
from fla_triton.plan import Launch, Problem, startable
from fla_triton.profiles import Profile

CHUNK = 64
"""Tokens of a chunk: 16 of each of four warps."""

PAIRED = 168
"""Registers of a thread of ``channel_pairs``: three programs share a multiprocessor. At B2 T8192
H16 K = V = 128 the solved form takes 327 us on an H200; with 128 it spills and took 484."""

PREPARED = 128
"""Registers of a thread of ``chunk_prepare``: four programs share a multiprocessor, which take 97
us there; with all that it asks for and three, 103."""


def prepare_launch(problem: Problem, registers: int, profile: Profile) -> Launch:
    """A program for each chunk and head of a dense batch."""
    grid = problem.chunks(CHUNK) * problem.heads
    return startable(Launch("prepare", grid, {}, 4, 1, 0, registers), profile)


def run_prepare(
    launches: Launches,
    planned: Launch,
    problem: Problem,
    kernel: Any,
    arguments: tuple[Tensor | float | None, ...],
    grid: int,
    switches: Mapping[str, Any],
) -> None:
    """Launch a kernel; ``switches``: its constants beside sizes."""

    def settle() -> Settling:
        sizes = {"H": problem.heads, "K": problem.K, "VARLEN": problem.packed}
        return kernel, planned, {**sizes, **switches}

    launches.run(f"prepare {kernel.__name__}", arguments, settle, grid)
