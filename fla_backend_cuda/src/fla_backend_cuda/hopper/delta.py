"""The delta rule and the gated delta rule on Hopper: host code around the kernels over time.

What happens to all chunks at once is the portable kernels' part; the passes over time are this
package's own, and take 16-bit numbers, K of 64 or 128 and V in tiles of 64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fla_backend_cuda.hopper.kernels.forward import delta_over_time
from fla_backend_cuda.hopper.kernels.reverse import delta_back_over_time
from fla_core.call import Call
from fla_triton import delta
from fla_triton.calls import boundaries, start_of
from fla_triton.delta_plan import DeltaPlan, plan
from fla_triton.delta_stages import Errors, Stages
from fla_triton.launch import launch
from fla_triton.plan import Launch, Problem
from fla_triton.profiles import Profile

COLUMNS = 64
"""Columns of V of a program: one warpgroup's rows of the transposed state."""

RING = {"over_time": 3, "kept_over_time": 4, "back_over_time": 3}
"""Chunks of operands in shared memory, as many as fit."""

REGISTERS = 168
"""Of a thread, before three warpgroups share them out: 65536 hold no more."""

ALIGNMENT = 16
"""Bytes that one asynchronous copy moves, and that its address is a multiple of."""


@dataclass(frozen=True, slots=True)
class Kernels(delta.Kernels):
    """The implementation on Hopper."""

    def _chunks(self, call: Call, problem: Problem, o: Tensor, last: Tensor | None) -> None:
        self._stages(call, problem, "forward").fused(o, last)

    def _stages(self, call: Call, problem: Problem, direction: str) -> Stages:
        placed = {n: None if t is None else aligned(t) for n, t in call.tensors.items()}
        planned = hopper_plan(problem, direction, self.profile)
        return HopperStages.of(replace(call, tensors=placed), problem, planned, self.profile)


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it does not lie as asynchronous copies need it."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


@lru_cache(maxsize=1024)
def hopper_plan(problem: Problem, direction: str, profile: Profile) -> DeltaPlan:
    """The portable plan with the passes over time added."""
    planned = plan(problem, direction, profile)
    grid = problem.sequences * problem.heads * (problem.V // COLUMNS)
    launches = dict(planned.launches)
    for stage, ring in RING.items():
        constants = {"BV": COLUMNS, "C": planned.C, "STAGES": ring}
        launches[stage] = Launch(stage, grid, constants, 4, 1, 0)
    return DeltaPlan(planned.C, launches)


@dataclass(frozen=True, slots=True)
class SolvedErrors(Errors):
    """What the passes over time read besides.

    Attributes:
        scores: causal scores of q with k, scale and decays in them, ``[B, T, H, C]``.
        strength: beta in float32, ``[B, T, H]``.
    """

    scores: Tensor
    strength: Tensor


@dataclass(frozen=True, slots=True)
class HopperStages(Stages):
    """The kernels of one call and direction."""

    def fused(self, o: Tensor, last: Tensor | None) -> None:
        """Outputs from one pass over time."""
        self._forward("over_time", self._solved(self.call.v), o, None, last)

    def prepare(self, with_inverse: bool) -> Errors:
        """Solve every chunk's triangular system."""
        return self._solved(torch.empty_like(self.call.v))

    def states(self, errors: Errors, last: Tensor | None) -> Tensor:
        """Run over time: the state before each chunk; ``errors.u`` takes ``v_new``."""
        states = self._room_for_states()
        self._forward("kept_over_time", errors, None, states, last)
        return states

    def _solved(self, u: Tensor) -> SolvedErrors:
        call = self.call
        inverse, scores = self._square(), self._square()
        decays = self._prepare(None, None, inverse, scores)
        strength = call.beta.float().contiguous()
        return SolvedErrors(call.q, call.k, None, u, inverse, *decays, scores, strength)

    def _forward(
        self,
        stage: str,
        errors: Errors,
        o: Tensor | None,
        states: Tensor | None,
        last: Tensor | None,
    ) -> None:
        assert isinstance(errors, SolvedErrors)
        call, start = self.call, start_of(self.call)
        keep = states is not None
        solved = (errors.strength, errors.inverse, errors.scores)
        decays = (errors.since, errors.into, errors.totals)
        made = (o, states, errors.u if keep else None, last)
        self._run_roles(
            stage,
            delta_over_time,
            (call.q, call.k, call.v, *solved, *decays, start, *made),
            HAS_START=start is not None,
            HAS_LAST=last is not None,
            KEEP=keep,
        )

    def _reverse(
        self, errors: Errors, do: Tensor, dv: Tensor, dlast: Tensor | None, dstart: Tensor | None
    ) -> Tensor:
        assert isinstance(errors, SolvedErrors)
        dstates = self._room_for_states()
        solved = (errors.strength, errors.inverse, errors.scores)
        decays = (errors.since, errors.into, errors.totals)
        self._run_roles(
            "back_over_time",
            delta_back_over_time,
            (errors.q, errors.k, aligned(do), *solved, *decays, dlast, dstates, dv, dstart),
            HAS_DLAST=dlast is not None,
            HAS_DSTART=dstart is not None,
        )
        return dstates

    def _run_roles(
        self, stage: str, kernel: Any, operands: tuple[Any, ...], **constants: Any
    ) -> None:
        planned = self.todo.launches[stage]
        shared = {n: v for n, v in self.shared.items() if n != "PRECISION"}
        where = (boundaries(self.call), self.call.q.shape[1], self.call.scale)
        launch(
            kernel,
            planned.grid,
            (*operands, *where),
            {**shared, **constants, **planned.constants},
            planned.warps,
            planned.stages,
            REGISTERS,
        )
