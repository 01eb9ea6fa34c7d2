"""Delta rules whose key channels decay separately: host code around the kernels.

Serves the contracts ``kda`` and ``gdn2``, which differ in what a token erases and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from fla_core.call import Call
from fla_triton import delta
from fla_triton.calls import float32, new_state, start_of
from fla_triton.delta_channel_plan import plan
from fla_triton.delta_plan import DeltaPlan
from fla_triton.delta_stages import Errors, Stages
from fla_triton.kernels.delta_channel_gradients import delta_channel_gradients
from fla_triton.kernels.delta_channel_prepare import delta_channel_prepare
from fla_triton.kernels.scored_outputs import scored_dv, scored_outputs
from fla_triton.plan import Problem
from fla_triton.profiles import Profile


@dataclass(frozen=True, slots=True)
class Kernels(delta.Kernels):
    """The implementation on one kind of chip."""

    def _stages(self, call: Call, problem: Problem, direction: str) -> Stages:
        planned = _planned(self.profile, problem, direction)
        return ChannelStages.of(call, problem, planned, self.profile)


@lru_cache(maxsize=1024)
def _planned(profile: Profile, problem: Problem, direction: str) -> DeltaPlan:
    return plan(problem, direction, profile)


@dataclass(frozen=True, slots=True)
class ScoredErrors(Errors):
    """What ``delta_channel_prepare`` leaves of a call, or makes room for.

    Attributes:
        scores: causal scores of q with k, scale and decays in them, ``[B, T, H, C]``.
    """

    scores: Tensor


@dataclass(frozen=True, slots=True)
class ChannelStages(Stages):
    """The kernels of one call and direction."""

    CHANNEL: ClassVar[bool] = True

    @property
    def strengths(self) -> tuple[Tensor, Tensor]:
        """With what strength each token erases and writes."""
        call = self.call
        b, w = call.get("b"), call.get("w")
        return (call.beta, call.beta) if b is None or w is None else (b, w)

    def prepare(self, with_inverse: bool) -> ScoredErrors:
        """Solve every chunk's triangular system, and score its pairs."""
        call, size = self.call, self.todo.C
        q, k, v = call.q, call.k, call.v
        square = (*k.shape[:3], size)
        slots = self.problem.chunks(size)
        errors = ScoredErrors(
            q=torch.empty_like(q),
            k=torch.empty_like(k),
            w=torch.empty_like(k),
            u=torch.empty_like(v),
            inverse=k.new_empty(square) if with_inverse else None,
            since=None,
            into=None,
            totals=float32(k, slots, self.problem.heads, self.problem.K),
            scores=k.new_empty(square),
        )
        made = (errors.w, errors.u, errors.q, errors.k, errors.scores, errors.inverse)
        self._over_chunks(
            "prepare",
            delta_channel_prepare,
            (q, k, v, call.g, *self.strengths, *made, errors.totals),
            (call.scale,),
            CHANNELS=call.get("b") is not None,
            WITH_INVERSE=with_inverse,
        )
        return errors

    def outputs(self, errors: Errors, states: Tensor, o: Tensor) -> None:
        """Outputs of linear attention on the errors, whose scores are known."""
        assert isinstance(errors, ScoredErrors)
        self._over_chunks(
            "outputs",
            scored_outputs,
            (errors.q, errors.u, errors.scores, states, o),
            (self.call.scale,),
            columns=-(-self.problem.V // self.todo.launches["outputs"].constants["BV"]),
            TURNED=False,
        )

    def gradients(
        self,
        errors: Errors,
        states: Tensor,
        do: Tensor,
        dlast: Tensor | None,
        needs: frozenset[str],
    ) -> Mapping[str, Tensor | None]:
        """Gradients of every input, from what forward would have left."""
        assert isinstance(errors, ScoredErrors)
        call = self.call
        q, v, g, start = call.q, call.v, call.g, start_of(call)
        b, w = call.get("b"), call.get("w")
        dstart = new_state(call, self.problem) if "initial_state" in needs else None
        dv_new = torch.empty_like(v)
        dstates = self._reverse(errors, do, dv_new, dlast, dstart)
        # Nothing reads w and the decayed k any more: what is as large takes their places.
        dq, dk, dv = errors.w, errors.k, torch.empty_like(v)
        dg = torch.empty_like(g) if "g" in needs else None
        derase = float32(q, *q.shape[:3]) if b is None else torch.empty_like(b)
        dwrite = None if w is None else torch.empty_like(w)
        self._over_chunks(
            "gradients",
            delta_channel_gradients,
            (
                q,
                call.k,
                v,
                g,
                *self.strengths,
                errors.u,
                errors.inverse,
                do,
                dv_new,
                states,
                dstates,
                start,
                dlast,
                dq,
                dk,
                dv,
                dg,
                derase,
                dwrite,
            ),
            (call.scale,),
            CHANNELS=b is not None,
            HAS_START=start is not None,
            HAS_DLAST=dlast is not None,
            WITH_GATES=dg is not None,
        )
        found = {"q": dq, "k": dk, "v": dv, "g": dg, "initial_state": dstart}
        strengths = {"beta": derase} if b is None else {"b": derase, "w": dwrite}
        return {**found, **strengths}

    def _local_dv(self, errors: Errors, do: Tensor, dv: Tensor) -> None:
        """What a chunk's own outputs ask of its errors, from the scores."""
        assert isinstance(errors, ScoredErrors)
        self._over_chunks("local", scored_dv, (errors.scores, do, dv), ())
