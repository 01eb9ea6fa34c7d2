"""Delta rules on Hopper: host code around the kernels over time.

The passes over time are this package's own, and so is what comes before them; they take 16-bit
numbers, K of 64 or 128 and V in tiles of 64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fla_backend_cuda.hopper import gradients
from fla_backend_cuda.hopper.chunks import PAIRED, PREPARED, prepare_launch, run_prepare
from fla_backend_cuda.hopper.kernels.forward import delta_over_time
from fla_backend_cuda.hopper.kernels.pairs import channel_pairs
from fla_backend_cuda.hopper.kernels.prepare import chunk_prepare
from fla_backend_cuda.hopper.kernels.reverse import delta_back_over_time
from fla_backend_cuda.hopper.operands import COLUMNS, aligned, placed
from fla_core.call import Call
from fla_triton import delta, delta_channel, delta_channel_plan, delta_plan
from fla_triton.calls import boundaries, float32, start_of
from fla_triton.delta_channel import ChannelStages, ScoredErrors
from fla_triton.delta_plan import DeltaPlan
from fla_triton.delta_stages import Errors, Operands, Stages
from fla_triton.launch import Launches
from fla_triton.plan import Launch, Problem, startable
from fla_triton.profiles import Profile

OVER_TIME = {
    "over_time": {"STAGES": 3, "BUFFERS": 2},
    "kept_over_time": {"STAGES": 4, "BUFFERS": 2},
    "back_over_time": {"STAGES": 3},
}
"""Chunks of operands in shared memory, and chunks of results on their way, as many as fit."""

REGISTERS = 168
"""Of a thread, before three warpgroups share them out: 65536 hold no more."""


def with_passes(planned: DeltaPlan, problem: Problem) -> DeltaPlan:
    """The portable plan and the passes over time."""
    grid = problem.sequences * problem.heads * (problem.V // COLUMNS)
    launches = dict(planned.launches)
    for stage, ring in OVER_TIME.items():
        launches[stage] = Launch(
            stage, grid, {"BV": COLUMNS, "C": planned.C, **ring}, 4, 1, 0, REGISTERS
        )
    return replace(planned, launches=launches)


def run_roles(
    stages: Stages, stage: str, kernel: Any, operands: tuple[Any, ...], **constants: Any
) -> None:
    """Launch a pass over time."""
    call, problem, planned = stages.call, stages.problem, stages.todo.launches[stage]
    shared = {
        "H": problem.heads,
        "K": problem.K,
        "V": problem.V,
        "HAS_G": stages.shared.get("HAS_G", False),
        "CHANNEL": stages.CHANNEL,
        "VARLEN": problem.packed,
    }
    where = (boundaries(call), call.q.shape[1], call.scale)
    stages.launches.run(
        stage, (*operands, *where), lambda: (kernel, planned, {**shared, **constants})
    )


@dataclass(frozen=True, slots=True)
class Kernels(delta.Kernels):
    """Delta rules with one decay a head, or none."""

    def _chunks(self, stages: Stages, o: Tensor, last: Tensor | None) -> None:
        stages.fused(o, last)

    def _stages(self, call: Call, problem: Problem, direction: str, launches: Launches) -> Stages:
        planned = _planned(problem, direction, self.profile)
        return HopperStages.of(placed(call), problem, planned, self.profile, launches)


@lru_cache(maxsize=1024)
def _planned(problem: Problem, direction: str, profile: Profile) -> DeltaPlan:
    planned = with_passes(delta_plan.plan(problem, direction, profile), problem)
    launches = {**planned.launches, "prepare": prepare_launch(problem, PREPARED, profile)}
    planned = replace(planned, launches=launches)
    if direction == "forward" or problem.V > gradients.WIDEST:
        return planned
    found = startable(gradients.gradients_launch(problem), profile)
    return replace(planned, launches={**planned.launches, "gradients": found})


@dataclass(frozen=True, slots=True)
class SolvableErrors(Errors):
    """What the passes over time read besides.

    Attributes:
        scores: causal scores of q with k, scale and decays in them, ``[B, T, H, C]``.
        low: what ``inverse`` lost when rounded, for a backward pass.
        strengths: beta in float32, ``[slots, H, C]``.
    """

    scores: Tensor | None
    low: Tensor | None
    strengths: Tensor

    def after_reverse(self) -> Errors:
        """All but the scores, and of the inverse its rounded self."""
        return replace(self, scores=None, low=None)

    def operands(self, v: Tensor) -> tuple[Tensor | None, ...]:
        """What a pass over time reads, between k and the ends of the state."""
        solved = (self.strengths, self.inverse, self.low, self.scores)
        return (None, v, *solved, self.since, self.into, self.totals)


@dataclass(frozen=True, slots=True)
class HopperStages(Stages):
    """The kernels of one call and direction, one decay a head."""

    def fused(self, o: Tensor, last: Tensor | None) -> None:
        """Outputs from one pass over time."""
        errors = self._solvable(self.call.v, with_low=False)
        over_time(self, errors, errors.operands(self.call.v), o, last)

    def prepare(self, with_inverse: bool) -> Errors:
        """Invert every chunk's triangular system."""
        return self._solvable(torch.empty_like(self.call.v), with_low=True)

    def states(self, errors: Errors, last: Tensor | None) -> Tensor:
        """Run over time: the state before each chunk; ``errors.u`` takes ``v_new``."""
        assert isinstance(errors, SolvableErrors)
        return kept_over_time(self, errors, errors.operands(self.call.v), last)

    def _solvable(self, u: Tensor, with_low: bool) -> SolvableErrors:
        """Outputs bear an inverse of 16 bits where gradients do not: see ``wide_product``."""
        call = self.call
        inverse, scores = self._square(), self._square()
        low, strengths = self._square() if with_low else None, self.of_steps()
        g, problem = call.get("g"), self.problem
        since = into = totals = None
        if g is not None:
            since, into = self.of_steps(), self.of_steps()
            totals = float32(call.k, problem.chunks(self.todo.C), problem.heads)
        made = (inverse, low, scores, since, into, totals, strengths)
        where = (boundaries(call), self.table, call.q.shape[1], call.scale)
        run_prepare(
            self.launches,
            self.todo.launches["prepare"],
            problem,
            chunk_prepare,
            (call.q, call.k, g, call.beta, *made, *where),
            self.count * problem.heads,
            {"HAS_G": g is not None, "WITH_LOW": with_low},
        )
        decays = (since, into, totals)
        return SolvableErrors(call.q, call.k, None, u, inverse, *decays, scores, low, strengths)

    def _reverse(
        self, errors: Errors, do: Tensor, dv: Tensor, dlast: Tensor | None, dstart: Tensor | None
    ) -> Tensor:
        assert isinstance(errors, SolvableErrors)
        return back_over_time(self, errors, errors.operands(aligned(do)), dv, dlast, dstart)

    def _add_states(
        self, errors: Errors, known: Operands, around: Operands, made: Operands
    ) -> None:
        portable = self.problem.V > gradients.WIDEST
        run = Stages._add_states if portable else gradients.run_gradients
        run(self, errors, known, around, made)


@dataclass(frozen=True, slots=True)
class ChannelKernels(delta_channel.Kernels):
    """Delta rules with a decay for each key channel."""

    def _chunks(self, stages: Stages, o: Tensor, last: Tensor | None) -> None:
        errors = stages.prepare(with_inverse=False)
        assert isinstance(errors, ScoredErrors)
        over_time(stages, errors, _solved(errors, errors.u), o, last)

    def _stages(self, call: Call, problem: Problem, direction: str, launches: Launches) -> Stages:
        planned = _channel_planned(problem, direction, self.profile)
        return HopperChannelStages.of(placed(call), problem, planned, self.profile, launches)


@lru_cache(maxsize=1024)
def _channel_planned(problem: Problem, direction: str, profile: Profile) -> DeltaPlan:
    planned = with_passes(delta_channel_plan.plan(problem, direction, profile), problem)
    forward = planned.launches["over_time"]
    # Twice the keys in the ring leave room for one chunk of results.
    launches = {
        **planned.launches,
        "prepare": prepare_launch(problem, PAIRED, profile),
        "over_time": replace(forward, constants=_one_buffer(forward)),
    }
    if direction == "backward":
        launches["across"] = startable(gradients.across_launch(problem), profile)
    return replace(planned, launches=launches)


def _one_buffer(planned: Launch) -> dict[str, int]:
    return {**planned.constants, "BUFFERS": 1}


@dataclass(frozen=True, slots=True)
class HopperChannelStages(ChannelStages):
    """The kernels of one call and direction, a decay for each key channel."""

    def prepare(self, with_inverse: bool) -> ScoredErrors:
        """Solve every chunk's triangular system, and score its pairs."""
        call, errors = self.call, self._room(with_inverse)
        erase, write = self.strengths
        channels = call.get("b") is not None
        operands = (call.q, call.k, call.v, call.g, erase, write if channels else None)
        made = (errors.q, errors.k, errors.w, errors.u, errors.scores, errors.inverse)
        where = (boundaries(call), self.table, call.q.shape[1], call.scale)
        switches = {"ERASE": True, "CHANNELS": channels, "WITH_INVERSE": with_inverse}
        run_prepare(
            self.launches,
            self.todo.launches["prepare"],
            self.problem,
            channel_pairs,
            (*operands, *made, errors.totals, *where),
            self.count * self.problem.heads,
            {"V": self.problem.V, **switches},
        )
        return errors

    def states(self, errors: Errors, last: Tensor | None) -> Tensor:
        """Run over time: the state before each chunk; ``errors.u`` becomes ``v_new``."""
        assert isinstance(errors, ScoredErrors)
        return kept_over_time(self, errors, _solved(errors, errors.u), last)

    def _reverse(
        self, errors: Errors, do: Tensor, dv: Tensor, dlast: Tensor | None, dstart: Tensor | None
    ) -> Tensor:
        assert isinstance(errors, ScoredErrors)
        operands = _solved(errors, aligned(do))
        return back_over_time(self, errors, operands, dv, dlast, dstart)

    def _across(self, operands: Operands, with_gates: bool) -> None:
        gradients.run_across(self, operands, with_gates)


def _solved(errors: ScoredErrors, v: Tensor) -> tuple[Tensor | None, ...]:
    """What a pass over time reads of solved errors, between k and the ends of the state."""
    return (errors.w, v, None, None, None, errors.scores, None, None, errors.totals)


def over_time(
    stages: Stages,
    errors: Errors,
    operands: tuple[Tensor | None, ...],
    o: Tensor,
    last: Tensor | None,
) -> None:
    """Outputs, and the final state."""
    _forward(stages, "over_time", errors, operands, (o, None, None, last))


def kept_over_time(
    stages: Stages, errors: Errors, operands: tuple[Tensor | None, ...], last: Tensor | None
) -> Tensor:
    """The state before every so many chunks; ``errors.u`` takes ``v_new``."""
    states = stages.room_for_states(stages.todo.every)
    _forward(stages, "kept_over_time", errors, operands, (None, states, errors.u, last))
    return states


def _forward(
    stages: Stages,
    stage: str,
    errors: Errors,
    operands: tuple[Tensor | None, ...],
    made: tuple[Tensor | None, ...],
) -> None:
    start = start_of(stages.call)
    run_roles(
        stages,
        stage,
        delta_over_time,
        (errors.q, errors.k, *operands, start, *made),
        HAS_START=start is not None,
        HAS_LAST=made[-1] is not None,
        KEEP=made[1] is not None,
        EVERY=stages.todo.every,
    )


def back_over_time(
    stages: Stages,
    errors: Errors,
    operands: tuple[Tensor | None, ...],
    dv: Tensor,
    dlast: Tensor | None,
    dstart: Tensor | None,
) -> Tensor:
    """The gradient of the state after each chunk; dv takes ``dv_new``."""
    dstates = stages.room_for_states()
    run_roles(
        stages,
        "back_over_time",
        delta_back_over_time,
        (errors.q, errors.k, *operands, dlast, dstates, dv, dstart),
        HAS_DLAST=dlast is not None,
        HAS_DSTART=dstart is not None,
    )
    return dstates


FAMILIES = {"delta": Kernels, "delta_channel": ChannelKernels}
"""By the family of portable kernels whose place they take."""
