"""What comes before the passes over time on Hopper, where key channels decay separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fla_backend_cuda.hopper.kernels.pairs import channel_pairs
from fla_triton.launch import Launches
from fla_triton.plan import Launch, Problem

CHUNK = 64
"""Tokens of a chunk: 16 of each of four warps."""

REGISTERS = 168
"""Of a thread: three programs share a multiprocessor. At B2 T8192 H16 K = V = 128 the solved form
takes 340 us on an H200; with all it asks for, and two programs, 354; with 128 and four, 484."""


def pairs_launch(problem: Problem) -> Launch:
    """A program for each chunk and head of a dense batch."""
    return Launch("prepare", problem.chunks(CHUNK) * problem.heads, {}, 4, 1, 0, REGISTERS)


def run_pairs(
    launches: Launches,
    planned: Launch,
    problem: Problem,
    arguments: tuple[Tensor | float | None, ...],
    grid: int,
    switches: Mapping[str, Any],
) -> None:
    """Launch the kernel; ``switches``: ``ERASE``, ``CHANNELS`` and ``WITH_INVERSE``."""

    def settle() -> tuple[Any, Launch, dict[str, Any]]:
        sizes = {"H": problem.heads, "K": problem.K, "V": problem.V, "VARLEN": problem.packed}
        return channel_pairs, planned, {**sizes, **switches}

    launches.run("prepare pairs", arguments, settle, grid)
