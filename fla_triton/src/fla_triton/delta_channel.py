"""Delta rules whose key channels decay separately: host code around the kernels.

Serves the contracts ``kda`` and ``gdn2``, which differ in what a token erases and writes. The state
before each chunk is an output like others where it is asked for; its chunks are those of the
contract, of which one may hold several of the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from fla_core.call import Call
from fla_triton import delta
from fla_triton.calls import (
    boundaries,
    float32,
    new_state,
    pass_on,
    settled,
    start_of,
)
from fla_triton.delta_channel_plan import plan, tiles_in_stages
from fla_triton.delta_plan import DeltaPlan
from fla_triton.delta_stages import Errors, Operands, Stages
from fla_triton.kernels.delta_channel_gradients import (
    beta_gradients,
    delta_channel_across,
    delta_channel_errors,
)
from fla_triton.kernels.delta_channel_prepare import delta_channel_prepare
from fla_triton.kernels.delta_channel_segments import delta_channel_segments
from fla_triton.kernels.delta_channel_within import delta_channel_within
from fla_triton.kernels.delta_outputs import delta_outputs
from fla_triton.kernels.scored_outputs import scored_dv, scored_outputs
from fla_triton.launch import Launches, launch
from fla_triton.pieces import PIECES, SEGMENTS
from fla_triton.plan import Problem
from fla_triton.prologue import Prologue

DISTANCE = 64
"""Tokens from one state that is returned to the next, where the call does not say."""


@dataclass(frozen=True, slots=True)
class Kernels(delta.Kernels):
    """The implementation on one kind of chip."""

    def forward(self, call: Call, save: bool) -> tuple[delta.Outputs, delta.Outputs]:
        """Compute ``o`` and, if asked for, the final state and the state before each chunk."""
        if "states" in call.features:
            return self._with_states(call), ()
        return delta.Kernels.forward(self, call, save)

    def _with_states(self, call: Call) -> delta.Outputs:
        distance = call.hints.chunk_size or DISTANCE
        todo = settled(call, "states", lambda found: self._plan_states(found, distance))
        problem = todo.problem
        o, last = torch.empty_like(call.v), None
        if "final_state" in call.features:
            last = new_state(call, problem)
        if not problem.tokens or not problem.sequences:
            pass_on(call, last)
            states = call.k.new_empty(0, problem.heads, problem.K, problem.V)
        else:
            prologue = Prologue.of(call, self.profile)
            base = call if prologue is None else prologue.base()
            stages = ChannelStages.of(base, problem, todo.plan, self.profile, todo.launches)
            errors = stages.prepare(with_inverse=False)
            states = stages.states(errors, last)
            stages.outputs(errors, states, o)
        kept = before_chunks(call, states, distance, distance // todo.plan.C)
        return (o, kept) if last is None else (o, last, kept)

    def _plan_states(self, problem: Problem, distance: int) -> DeltaPlan:
        tiles = tiles_in_stages(problem, self.profile, distance)
        return plan(problem, "forward", self.profile, tiles)

    def _stages(self, call: Call, problem: Problem, direction: str, launches: Launches) -> Stages:
        planned = _planned(self, problem, direction)
        return ChannelStages.of(call, problem, planned, self.profile, launches)


@lru_cache(maxsize=1024)
def _planned(kernels: Kernels, problem: Problem, direction: str) -> DeltaPlan:
    return plan(problem, direction, kernels.profile, kernels.choose(problem, direction))


def before_chunks(call: Call, states: Tensor, size: int, every: int) -> Tensor:
    """The state before each chunk of the contract, ``[B, NT, H, K, V]``.

    Args:
        call: whose chunks they are.
        states: before each chunk of the plan, ``[slots, H, K, V]``.
        size: tokens of a chunk of the contract.
        every: how many of the plan one of them holds.
    """
    planned = size // every
    if call.seqlens is None:
        rows, tokens = call.q.shape[:2]
        found = states.view(rows, -(-tokens // planned), *states.shape[1:])
        return found[:, ::every].contiguous()
    sequence, chunk = call.seqlens.chunk_table(size).unbind(1)
    slots = call.seqlens.device[sequence] // planned + sequence + every * chunk
    return states.index_select(0, slots)[None]


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
    PIECES: ClassVar[int] = PIECES
    """Rows of what gradients leave of a chunk's segments: all of ``pieces``, or ``SEGMENTS``."""

    @property
    def strengths(self) -> tuple[Tensor, Tensor]:
        """With what strength each token erases and writes."""
        call = self.call
        b, w = call.get("b"), call.get("w")
        return (call.beta, call.beta) if b is None or w is None else (b, w)

    def prepare(self, with_inverse: bool) -> ScoredErrors:
        """Solve every chunk's triangular system, and score its pairs."""
        call, errors = self.call, self._room(with_inverse)
        made = (errors.w, errors.u, errors.q, errors.k, errors.scores, errors.inverse)
        self._over_chunks(
            "prepare",
            delta_channel_prepare,
            (call.q, call.k, call.v, call.g, *self.strengths, *made, errors.totals),
            (call.scale,),
            CHANNELS=call.get("b") is not None,
            WITH_INVERSE=with_inverse,
        )
        return errors

    def _room(self, with_inverse: bool) -> ScoredErrors:
        """Room for what is prepared."""
        k, v = self.call.k, self.call.v
        shape = (*v.shape[:3], k.shape[3])
        return ScoredErrors(
            q=k.new_empty(shape),
            k=k.new_empty(shape),
            w=k.new_empty(shape),
            u=torch.empty_like(v),
            inverse=self.of_pairs() if with_inverse else None,
            since=None,
            into=None,
            totals=float32(k, self.problem.chunks(self.todo.C), self.problem.heads, k.shape[-1]),
            scores=self.of_pairs(),
        )

    def fused(self, o: Tensor, last: Tensor | None) -> None:
        """Outputs from one pass over time, which forms each chunk's errors on its way."""
        call, start = self.call, start_of(self.call)
        errors = self.prepare(with_inverse=False)
        known = (errors.q, errors.k, errors.u, errors.w, None, errors.scores, None, None)
        self._run(
            "fused",
            delta_outputs,
            (*known, errors.totals, start, o, last, boundaries(call), call.q.shape[1], call.scale),
            HAS_G=False,
            CHANNEL=True,
            SOLVES=False,
            HAS_START=start is not None,
            HAS_LAST=last is not None,
        )

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

    def _local_dv(self, errors: Errors, do: Tensor, dv: Tensor) -> None:
        assert isinstance(errors, ScoredErrors)
        self._over_chunks("local", scored_dv, (errors.scores, do, dv), ())

    def gradients(
        self, do: Tensor, dlast: Tensor | None, needs: frozenset[str]
    ) -> Mapping[str, Tensor | None]:
        """Gradients of every input; what forward knew is computed anew."""
        errors = self.prepare(with_inverse=True)
        states = self.states(errors, None)
        assert isinstance(errors, ScoredErrors)
        call, channels = self.call, self.call.get("b") is not None
        q, k, v, g, start = call.q, call.k, call.v, call.g, start_of(call)
        erase, write = self.strengths
        dstart = new_state(call, self.problem) if "initial_state" in needs else None
        dv_new = torch.empty_like(v)
        dstates = self._reverse(errors, do, dv_new, dlast, dstart)

        # What nobody reads any more makes room for what is as large.
        y, over_q, over_left, over_k = dv_new, errors.w, errors.q, errors.k
        assert over_q is not None
        heads, size, keys = self.problem.heads, self.todo.C, self.problem.K
        reads, wrong, diagonal = errors.scores, torch.empty_like(errors.scores), self._of_tokens(1)
        near = self._of_tokens(size // SEGMENTS), self._of_tokens(size // SEGMENTS)
        dv, dwrite = torch.empty_like(v), torch.empty_like(write) if channels else None
        sums = None if channels else self._of_tokens(2)
        made = (y, dv, dwrite, sums, diagonal, reads, wrong, *near)
        self._errors((v, write, errors.u, errors.inverse, do, dv_new, *made))
        errors = replace(errors, inverse=None)
        pieces = float32(k, self.problem.chunks(size), heads, self.PIECES, keys)
        over = (over_q, over_left, over_k, pieces)
        known = (errors.u, do, y, reads, wrong, states, dstates, start, dlast)
        self._across((q, k, g, erase), known, over, "g" in needs)
        # Gradients of gates take as much memory as what is read no more.
        del errors, states, dstates, dv_new, y, reads, wrong, made, known
        dq, dk, dg = over_q, over_k, torch.empty_like(g) if "g" in needs else None
        tiles = self._tiles("within")
        derase = torch.empty_like(erase) if channels else self._of_tokens(tiles)
        self._over_chunks(
            "within",
            delta_channel_within,
            (q, k, g, erase, diagonal, *near, *over, dq, dk, dg, derase),
            (),
            columns=tiles * SEGMENTS,
            PIECES=self.PIECES,
            CHANNELS=channels,
            WITH_GATES=dg is not None,
        )
        found = {"q": dq, "k": dk, "v": dv, "g": dg, "initial_state": dstart}
        if channels:
            return {**found, "b": derase, "w": dwrite}
        dbeta = float32(q, *q.shape[:3])
        planned = self.todo.launches["beta"]
        launch(
            beta_gradients,
            -(-erase.numel() // planned.constants["BLOCK"]),
            (erase, sums, derase, dbeta, erase.numel()),
            {"NK": tiles, **planned.constants},
            planned.warps,
            planned.stages,
        )
        return {**found, "beta": dbeta}

    def _errors(self, operands: Operands) -> None:
        """Gradients of what tokens write, and of scores."""
        self._over_chunks(
            "errors",
            delta_channel_errors,
            operands,
            (self.call.scale,),
            CHANNELS=self.call.get("b") is not None,
        )

    def _across(self, given: Operands, known: Operands, over: Operands, with_gates: bool) -> None:
        """What tokens owe to pairs of segments, and to states."""
        self._over_chunks(
            "segments",
            delta_channel_segments,
            (*given, *over),
            (),
            columns=self._tiles("segments"),
            CHANNELS=self.call.get("b") is not None,
        )
        start, dlast = known[7:]
        self._over_chunks(
            "across",
            delta_channel_across,
            (*over[:3], *known, *over),
            (self.call.scale,),
            columns=self._tiles("across"),
            HAS_START=start is not None,
            HAS_DLAST=dlast is not None,
            WITH_GATES=with_gates,
        )

    def _tiles(self, stage: str) -> int:
        """How many programs share the key channels of a chunk, or of its segment."""
        return -(-self.problem.K // self.todo.launches[stage].constants["BK"])

    def _of_tokens(self, size: int) -> Tensor:
        """Room for so many float32 of each token and head."""
        return float32(self.call.q, *self.call.q.shape[:3], size)
