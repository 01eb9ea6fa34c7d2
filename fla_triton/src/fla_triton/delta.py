"""The delta rule with one decay a head, or none: host code around the kernels.

Serves the contracts ``delta_rule`` and ``gated_delta_rule``. Nothing here is tuned at run time,
and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.slots import Slots
from fla_triton.calls import (
    Settled,
    boundaries,
    float32,
    gradients_of_nothing,
    new_state,
    pass_on,
    settled,
    start_of,
)
from fla_triton.declared import BY_STEPS
from fla_triton.delta_plan import DeltaPlan, DeltaTiles, decode_plan, plan
from fla_triton.delta_stages import Stages
from fla_triton.kernels.delta_recurrent import delta_pooled, delta_recurrent
from fla_triton.launch import Launches, Settling
from fla_triton.plan import DECODE_TOKENS, Launch, Problem
from fla_triton.profiles import Profile
from fla_triton.prologue import NOTHING, Prologue, activations, bound_of, needs_of_base
from fla_triton.tables import Choose, no_table

Outputs = tuple[Tensor, ...]

WALKED = frozenset(BY_STEPS)
"""Features of calls whose value channels, or all, have a triangular system each in a chunk."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The implementation on one kind of chip.

    Attributes:
        profile: the chip.
        choose: tiles from a tuned table, None for the defaults.
    """

    profile: Profile
    choose: Choose[DeltaTiles] = no_table

    def forward(self, call: Call, save: bool) -> tuple[Outputs, Outputs]:
        """Compute ``o`` and, if asked for, the final state; backward needs inputs alone."""
        walks = not WALKED.isdisjoint(call.features)
        todo = settled(call, "forward", self._walking if walks else self._decoding)
        problem, walk = todo.problem, todo.plan
        o, last = torch.empty_like(call.v), None
        if "final_state" in call.features:
            last = new_state(call, problem)
        wanted = (o,) if last is None else (o, last)
        if not problem.tokens or not problem.sequences:
            pass_on(call, last)
            return wanted, ()
        if walk is not None:
            decode(call, todo, o, last)
            return wanted, ()
        prologue = Prologue.of(call, self.profile, self._left(call, "forward"))
        base = call if prologue is None else prologue.base()
        self._chunks(self._stages(base, problem, "forward", todo.launches), o, last)
        return wanted, ()

    def pooled(self, call: Call, slots: Slots) -> Outputs:
        """Compute ``o`` token by token from states in a pool, and leave them there if asked to."""
        v_first = slots.v_first
        todo = settled(call, "pooled", lambda found: decode_plan(found, self.profile, v_first))
        o, last = torch.empty_like(call.v), None
        if "final_state" in call.features:
            last = float32(call.q, slots.indices.shape[0], *slots.pool.shape[1:])
        decode_pooled(call, slots, todo, o, last)
        return (o,) if last is None else (o, last)

    def _decoding(self, problem: Problem) -> Launch | None:
        """How to walk token by token; None where chunks are faster."""
        return self._walking(problem) if problem.longest <= DECODE_TOKENS else None

    def _walking(self, problem: Problem) -> Launch:
        return decode_plan(problem, self.profile)

    def _left(self, call: Call, direction: str) -> frozenset[str]:
        """Features of raw arguments that the kernels of chunks take care of."""
        return NOTHING

    def _chunks(self, stages: Stages, o: Tensor, last: Tensor | None) -> None:
        if stages.todo.fused:
            stages.fused(o, last)
            return
        errors = stages.prepare(with_inverse=False)
        states = stages.states(errors, last)
        stages.outputs(errors, states, o)

    def backward(
        self,
        call: Call,
        residuals: Outputs,
        grads: Sequence[Tensor | None],
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        """Gradients of the inputs in ``needs``; states are computed anew, none was kept."""
        do, dlast = grads[0], None if len(grads) < 2 else grads[1]
        dtypes = (None if one is None else one.dtype for one in (do, dlast))
        todo = settled(call, ("backward", needs, *dtypes), lambda _: None)
        problem = todo.problem
        if not problem.tokens or not problem.sequences:
            return gradients_of_nothing(call, dlast, needs)
        if do is None:
            do = torch.zeros_like(call.v)
        prologue = Prologue.of(call, self.profile, self._left(call, "backward"))
        stages = self._stages_back(call, prologue, todo)
        found: Mapping[str, Any] = stages.gradients(do, dlast, needs_of_base(needs))
        if prologue is not None:
            found = prologue.gradients(found, needs)
        return {name: found[name] for name in needs}

    def _stages_back(self, call: Call, prologue: Prologue | None, todo: Settled[None]) -> Stages:
        base = call if prologue is None else prologue.base()
        return self._stages(base, todo.problem, "backward", todo.launches)

    def _stages(self, call: Call, problem: Problem, direction: str, launches: Launches) -> Stages:
        planned = _planned(self, problem, direction)
        return Stages.of(call, problem, planned, self.profile, launches)


@lru_cache(maxsize=1024)
def _planned(kernels: Kernels, problem: Problem, direction: str) -> DeltaPlan:
    return plan(problem, direction, kernels.profile, kernels.choose(problem, direction))


def decode(call: Call, todo: Settled[Launch | None], o: Tensor, last: Tensor | None) -> None:
    """Walk token by token; gates may be those of heads (``g``) or of channels (``gk``, ``gv``)."""
    operands, start = _operands(call), start_of(call)

    def settle() -> Settling:
        assert todo.plan is not None
        constants = {"HAS_START": start is not None, "HAS_LAST": last is not None}
        return delta_recurrent, todo.plan, {**_step_constants(call, todo.problem), **constants}

    tensors = (*operands, start, o, last, boundaries(call))
    numbers = (call.q.shape[1], call.scale, bound_of(call))
    todo.launches.run("decode", (*tensors, *numbers), settle)


def decode_pooled(
    call: Call, slots: Slots, todo: Settled[Launch], o: Tensor, last: Tensor | None
) -> None:
    """:func:`decode` with states in the slots of a pool."""
    operands, pool = _operands(call), slots.pool
    apart = pool.stride(0)
    # Slots whole vectors apart are read and written in vectors.
    unit = 1 if apart % 16 else 16

    def settle() -> Settling:
        constants = {
            "SPAN": slots.span,
            "EACH": slots.each and slots.inplace,
            "HAS_ACCEPTED": slots.accepted is not None,
            "INPLACE": slots.inplace,
            "HAS_LAST": last is not None,
            "V_FIRST": slots.v_first,
            "UNIT": unit,
        }
        return delta_pooled, todo.plan, {**_step_constants(call, todo.problem), **constants}

    where = (pool, slots.indices, slots.accepted, o, last, boundaries(call))
    numbers = (call.q.shape[1], call.scale, bound_of(call), apart // unit, pool.shape[0])
    todo.launches.run("pooled", (*operands, *where, *numbers), settle)


Operands = tuple[Tensor | None, ...]


def _operands(call: Call) -> Operands:
    """What ``delta_step`` reads, in its order."""
    given: Any = call.tensors.get
    g, gk = given("g"), given("gk")
    if g is not None and g.ndim == 4:
        g, gk = None, g
    tokens = (given(name) for name in ("q", "k", "v"))
    others = (given(name) for name in ("gv", "beta", "b", "w", "A_log", "dt_bias"))
    return *tokens, g, gk, *others


def _step_constants(call: Call, problem: Problem) -> dict[str, Any]:
    q, _, _, g, gk, gv, beta, b, *_ = _operands(call)
    assert q is not None
    return {
        "H": problem.heads,
        "K": problem.K,
        "V": problem.V,
        "GROUP": problem.heads // q.shape[2],
        "HAS_G": g is not None,
        "HAS_GK": gk is not None,
        "HAS_GV": gv is not None,
        "HAS_BETA": beta is not None,
        "BETA_OF_CHANNELS": beta is not None and beta.ndim == 4,
        "HAS_STRENGTHS": b is not None,
        "SINGLE": problem.longest == 1 and not problem.packed,
        "VARLEN": problem.packed,
        **activations(call.features),
    }
