"""Delta rules on Hopper: host code around the kernels over time.

The passes over time are this package's own, and so is what comes before them; they take 16-bit
numbers, K of 64 or 128 and V in tiles of 64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from fla_backend_cuda.hopper import gradients
from fla_backend_cuda.hopper.chunks import (
    PAIRED,
    PREPARED,
    SolvableErrors,
    prepare_launch,
    room,
    run_chunks,
    run_pairs,
)
from fla_backend_cuda.hopper.kernels.forward import delta_over_time
from fla_backend_cuda.hopper.kernels.reverse import delta_back_over_time
from fla_backend_cuda.hopper.operands import COLUMNS, aligned, placed
from fla_backend_cuda.hopper.overlapped import (
    overlapping,
    run_overlapped,
)
from fla_core.call import Call
from fla_triton import delta, delta_channel, delta_channel_plan, delta_plan
from fla_triton.calls import Settled, boundaries, start_of
from fla_triton.delta_channel import ChannelStages, ScoredErrors
from fla_triton.delta_plan import DeltaPlan
from fla_triton.delta_stages import Errors, Operands, Stages
from fla_triton.launch import Launches
from fla_triton.pieces import SEGMENTS
from fla_triton.plan import Launch, Problem, startable
from fla_triton.profiles import Profile
from fla_triton.prologue import NORM, NOTHING, RAW, SHARED, Prologue

OVER_TIME = {
    "over_time": {"STAGES": 3, "BUFFERS": 2},
    "kept_over_time": {"STAGES": 4, "BUFFERS": 2},
    "back_over_time": {"STAGES": 3},
}
"""Chunks of operands in shared memory, and chunks of results on their way, as many as fit."""

KNOWN = frozenset({NORM, SHARED})
"""Features of raw arguments that kernels know where a decay is a head's."""

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

    def _left(self, call: Call, direction: str) -> frozenset[str]:
        """What heads share is shared by kernels, but its gradients are summed afterwards."""
        shares = direction == "backward" and SHARED in call.features
        return NOTHING if shares else _taken(call, direction)

    def _stages_back(self, call: Call, prologue: Prologue | None, todo: Settled[None]) -> Stages:
        making = Prologue.of(call, self.profile, _taken(call, "backward"))
        base = call if making is None else making.base()
        return self._stages(base, todo.problem, "backward", todo.launches)

    def _chunks(self, stages: Stages, o: Tensor, last: Tensor | None) -> None:
        stages.fused(o, last)

    def _stages(self, call: Call, problem: Problem, direction: str, launches: Launches) -> Stages:
        planned = _planned(problem, direction, self.profile)
        return HopperStages.of(placed(call), problem, planned, self.profile, launches)


def _taken(call: Call, direction: str) -> frozenset[str]:
    """Raw features that kernels take: norms as factors, for which float16 has too short a range."""
    portable = direction == "backward" and call.v.shape[3] > gradients.WIDEST
    return NOTHING if portable or call.q.dtype != torch.bfloat16 else KNOWN


@lru_cache(maxsize=1024)
def _planned(problem: Problem, direction: str, profile: Profile) -> DeltaPlan:
    planned = with_passes(delta_plan.plan(problem, direction, profile), problem)
    launches = {**planned.launches, "prepare": prepare_launch(problem, PREPARED, profile)}
    launches |= overlapping(launches, problem, profile)
    planned = replace(planned, launches=launches)
    if direction == "forward" or problem.V > gradients.WIDEST:
        return planned
    found = startable(gradients.gradients_launch(problem), profile)
    return replace(planned, launches={**planned.launches, "gradients": found})


@dataclass(frozen=True, slots=True)
class HopperStages(Stages):
    """The kernels of one call and direction, one decay a head."""

    def fused(self, o: Tensor, last: Tensor | None) -> None:
        """Outputs from one pass over time."""
        errors = room(self, self.call.v, with_low=False)
        if not run_overlapped(self, "over_time", errors, (o, None, None, last)):
            run_chunks(self, errors)
            over_time(self, errors, errors.operands(self.call.v), o, last)

    def prepare(self, with_inverse: bool) -> Errors:
        """Make room for every chunk's triangular system, inverted by the next stage."""
        return room(self, torch.empty_like(self.call.v), with_low=True)

    def states(self, errors: Errors, last: Tensor | None) -> Tensor:
        """Run over time: the state before each chunk; ``errors.u`` takes ``v_new``."""
        assert isinstance(errors, SolvableErrors)
        states = self.room_for_states(self.todo.every)
        made = (None, states, errors.u, last)
        if not run_overlapped(self, "kept_over_time", errors, made):
            run_chunks(self, errors)
            forward(self, "kept_over_time", errors, errors.operands(self.call.v), made)
        return states

    def _reverse(
        self, errors: Errors, do: Tensor, dv: Tensor, dlast: Tensor | None, dstart: Tensor | None
    ) -> Tensor:
        assert isinstance(errors, SolvableErrors)
        return back_over_time(self, errors, errors.operands_back(aligned(do)), dv, dlast, dstart)

    def _add_states(
        self, errors: Errors, known: Operands, around: Operands, made: Operands
    ) -> None:
        assert isinstance(errors, SolvableErrors)
        if self.problem.V > gradients.WIDEST:
            Stages._add_states(self, errors, known, around, made)
            return
        norms = (errors.asks, *errors.units)
        gradients.run_gradients(self, errors, norms, known, around, made)


@dataclass(frozen=True, slots=True)
class ChannelKernels(delta_channel.Kernels):
    """Delta rules with a decay for each key channel."""

    def _left(self, call: Call, direction: str) -> frozenset[str]:
        """A backward pass reads arguments more than once, and has them made first.

        At B2 T8192 H16 K = V = 128, all of it raw, making them cost the kernel of its chunks 130 us
        on an H200 where the pass before takes 110.
        """
        return RAW if direction == "forward" else NOTHING

    def _chunks(self, stages: Stages, o: Tensor, last: Tensor | None) -> None:
        errors = stages.prepare(with_inverse=False)
        assert isinstance(errors, ScoredErrors)
        over_time(stages, errors, (*_solved(errors, errors.u), None), o, last)

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
        launches["chunk_errors"] = startable(gradients.errors_launch(problem), profile)
    return replace(planned, launches=launches)


def _one_buffer(planned: Launch) -> dict[str, int]:
    return {**planned.constants, "BUFFERS": 1}


@dataclass(frozen=True, slots=True)
class HopperChannelStages(ChannelStages):
    """The kernels of one call and direction, a decay for each key channel."""

    PIECES: ClassVar[int] = SEGMENTS

    def prepare(self, with_inverse: bool) -> ScoredErrors:
        """Solve every chunk's triangular system, and score its pairs."""
        errors = self._room(with_inverse)
        run_pairs(self, errors, with_inverse)
        return errors

    def states(self, errors: Errors, last: Tensor | None) -> Tensor:
        """Run over time: the state before each chunk; ``errors.u`` becomes ``v_new``."""
        assert isinstance(errors, ScoredErrors)
        return kept_over_time(self, errors, (*_solved(errors, errors.u), None), last)

    def _reverse(
        self, errors: Errors, do: Tensor, dv: Tensor, dlast: Tensor | None, dstart: Tensor | None
    ) -> Tensor:
        assert isinstance(errors, ScoredErrors)
        operands = _solved(errors, aligned(do))
        return back_over_time(self, errors, operands, dv, dlast, dstart)

    def _errors(self, operands: Operands) -> None:
        if self.call.get("b") is not None or self.problem.V > gradients.WIDEST:
            ChannelStages._errors(self, operands)
        else:
            gradients.run_errors(self, operands)

    def _across(self, given: Operands, known: Operands, over: Operands, with_gates: bool) -> None:
        gradients.run_across(self, given, known, over, with_gates)


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
    forward(stages, "over_time", errors, operands, (o, None, None, last))


def kept_over_time(
    stages: Stages, errors: Errors, operands: tuple[Tensor | None, ...], last: Tensor | None
) -> Tensor:
    """The state before every so many chunks; ``errors.u`` takes ``v_new``."""
    states = stages.room_for_states(stages.todo.every)
    forward(stages, "kept_over_time", errors, operands, (None, states, errors.u, last))
    return states


def forward(
    stages: Stages,
    stage: str,
    errors: Errors,
    operands: tuple[Tensor | None, ...],
    made: tuple[Tensor | None, ...],
) -> None:
    """Launch the pass over time of a stage; ``made``: outputs, states, errors, the last state."""
    start = start_of(stages.call)
    run_roles(
        stages,
        stage,
        delta_over_time,
        (errors.q, errors.k, *operands, start, *made),
        GROUP=stages.problem.heads // errors.k.shape[2],
        HAS_G=errors.since is not None,
        NORMS=isinstance(errors, SolvableErrors) and errors.asks is not None,
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
        GROUP=stages.problem.heads // errors.k.shape[2],
        HAS_G=errors.since is not None,
        HAS_DLAST=dlast is not None,
        HAS_DSTART=dstart is not None,
    )
    return dstates


FAMILIES = {"delta": Kernels, "delta_channel": ChannelKernels}
"""By the family of portable kernels whose place they take."""
