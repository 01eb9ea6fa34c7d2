"""What comes before the passes over time on Hopper: a program for each chunk and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fla_backend_cuda.hopper.kernels.pairs import channel_pairs
from fla_backend_cuda.hopper.kernels.prepare import chunk_prepare
from fla_triton.calls import boundaries, float32
from fla_triton.delta_channel import ChannelStages, ScoredErrors
from fla_triton.delta_stages import Errors, Stages
from fla_triton.launch import Launches, Settling
from fla_triton.plan import Launch, Problem, startable
from fla_triton.profiles import Profile
from fla_triton.prologue import NORM, activations, bound_of

CHUNK = 64
"""Tokens of a chunk: 16 of each of four warps."""

PAIRED = 168
"""Registers of a thread of ``channel_pairs``: three programs share a multiprocessor. At B2 T8192
H16 K = V = 128 the solved form took 327 us on an H200, and with 128, where it spills, 484."""

PREPARED = 128
"""Registers of a thread of ``chunk_prepare``: four programs share a multiprocessor, which take 87
us there; with all that it asks for and three, 89."""


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


@dataclass(frozen=True, slots=True)
class SolvableErrors(Errors):
    """What the passes over time read besides.

    Attributes:
        scores: causal scores of q with k, scale and decays in them, ``[B, T, H, C]``.
        low: what ``inverse`` lost when rounded, for a backward pass.
        strengths: beta in float32, ``[slots, H, C]``.
        asks: ``since`` for queries where q and k are raw; ``since`` and ``into`` are for keys then.
            All three have in them what makes vectors units.
        unit_q, unit_k: that alone, for a backward pass.
        erases: beta times ``since``, for a backward pass; None where that is beta.
    """

    scores: Tensor | None
    low: Tensor | None
    strengths: Tensor
    asks: Tensor | None
    unit_q: Tensor | None
    unit_k: Tensor | None
    erases: Tensor | None

    @property
    def units(self) -> tuple[Tensor | None, Tensor | None]:
        """What makes raw q and k units."""
        return self.unit_q, self.unit_k

    def after_reverse(self) -> Errors:
        """All but the scores, and of the inverse its rounded self."""
        return replace(self, scores=None, low=None)

    @property
    def made(self) -> tuple[Tensor | None, ...]:
        """What is written of every chunk before a pass over time."""
        decays = (self.since, self.into, self.totals)
        return (self.inverse, self.low, self.scores, *decays, self.strengths)

    def switches(self, stages: Stages) -> dict[str, Any]:
        """What kernels take as constants."""
        return {
            "GROUP": stages.problem.heads // self.k.shape[2],
            "HAS_G": stages.call.get("g") is not None,
        }

    def operands(self, v: Tensor) -> tuple[Tensor | None, ...]:
        """What a pass over time reads, between k and the ends of the state."""
        solved = (self.strengths, self.inverse, self.low, self.scores)
        asks = self.since if self.asks is None else self.asks
        return (None, v, *solved, self.since, self.into, self.totals, asks)

    def operands_back(self, do: Tensor) -> tuple[Tensor | None, ...]:
        """What the pass back over time reads, between k and the ends of the state."""
        erases = self.strengths if self.erases is None else self.erases
        asks = self.since if self.asks is None else self.asks
        solved = (erases, self.inverse, self.low, self.scores)
        return (None, do, *solved, asks, self.into, self.totals)


def room(stages: Stages, u: Tensor, with_low: bool) -> SolvableErrors:
    """Room for every chunk's inverse, scores and factors.

    Outputs bear an inverse of 16 bits where gradients do not: ``with_low``, see ``wide_product``.
    """
    call = stages.call
    inverse, scores = stages.of_pairs(), stages.of_pairs()
    low, strengths = stages.of_pairs() if with_low else None, stages.of_steps()
    g, problem, norms = call.get("g"), stages.problem, NORM in call.features
    since = into = totals = asks = unit_q = unit_k = erases = None
    if g is not None or norms:
        since, into = stages.of_steps(), stages.of_steps()
        totals = float32(call.k, problem.chunks(stages.todo.C), problem.heads)
        erases = stages.of_steps() if with_low else None
    if norms:
        asks = stages.of_steps()
    if norms and with_low:
        unit_q, unit_k = stages.of_steps(), stages.of_steps()
    factors = (strengths, asks, unit_q, unit_k, erases)
    known = (call.q, call.k, None, u, inverse, since, into, totals)
    return SolvableErrors(*known, scores, low, *factors)


def run_chunks(stages: Stages, errors: SolvableErrors) -> None:
    """Invert every chunk's triangular system, and score its pairs."""
    call, problem = stages.call, stages.problem
    raw = (errors.asks, *errors.units)
    where = (boundaries(call), stages.table, call.q.shape[1], call.scale)
    run_prepare(
        stages.launches,
        stages.todo.launches["prepare"],
        problem,
        chunk_prepare,
        (call.q, call.k, call.get("g"), call.beta, *errors.made, *raw, errors.erases, *where),
        stages.count * problem.heads,
        {
            **errors.switches(stages),
            "NORMS": errors.asks is not None,
            "WITH_LOW": errors.low is not None,
        },
    )


def run_pairs(stages: ChannelStages, errors: ScoredErrors, with_inverse: bool) -> None:
    """Score and solve the pairs of every chunk under channel decays; ``errors`` takes it."""
    call, problem = stages.call, stages.problem
    channels = call.get("b") is not None
    erase, write = stages.strengths
    operands = (call.q, call.k, call.v, call.g, erase, write if channels else None)
    raw = (call.get("A_log"), call.get("dt_bias"))
    made = (errors.q, errors.k, errors.w, errors.u, errors.scores, errors.inverse, errors.totals)
    where = (boundaries(call), stages.table, call.q.shape[1], call.scale, bound_of(call))
    switches = {"ERASE": True, "CHANNELS": channels, "WITH_INVERSE": with_inverse}
    run_prepare(
        stages.launches,
        stages.todo.launches["prepare"],
        problem,
        channel_pairs,
        (*operands, *raw, *made, *where),
        stages.count * problem.heads,
        {
            "V": problem.V,
            "GROUP": problem.heads // call.q.shape[2],
            **switches,
            **activations(call.features),
        },
    )
