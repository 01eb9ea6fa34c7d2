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
from fla_triton.calls import (
    Settled,
    boundaries,
    gradients_of_nothing,
    new_state,
    problem_of,
    settled,
    start_of,
)
from fla_triton.delta_plan import DeltaPlan, DeltaTiles, decode_plan, plan
from fla_triton.delta_stages import Stages
from fla_triton.kernels.delta_recurrent import delta_recurrent
from fla_triton.launch import Settling
from fla_triton.plan import DECODE_TOKENS, Launch, Problem
from fla_triton.profiles import Profile
from fla_triton.prologue import Prologue, needs_of_base
from fla_triton.tables import Choose, no_table

Outputs = tuple[Tensor, ...]


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
        todo = settled(call, "forward", self._decoding)
        problem, walk = todo.problem, todo.plan
        o, last = torch.empty_like(call.v), None
        if "final_state" in call.features:
            last = new_state(call, problem)
        wanted = (o,) if last is None else (o, last)
        if not problem.tokens or not problem.sequences:
            start = start_of(call)
            if last is not None:
                last.zero_() if start is None else last.copy_(start)
            return wanted, ()
        prologue = Prologue.of(call, self.profile)
        base = call if prologue is None else prologue.base()
        if walk is not None:
            decode(base, todo, o, last)
        else:
            self._chunks(base, problem, o, last)
        return wanted, ()

    def _decoding(self, problem: Problem) -> Launch | None:
        """How to walk token by token; None where chunks are faster."""
        return decode_plan(problem, self.profile) if problem.longest <= DECODE_TOKENS else None

    def _chunks(self, call: Call, problem: Problem, o: Tensor, last: Tensor | None) -> None:
        stages = self._stages(call, problem, "forward")
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
        problem = problem_of(call)
        do, dlast = grads[0], None if len(grads) < 2 else grads[1]
        if not problem.tokens or not problem.sequences:
            return gradients_of_nothing(call, dlast, needs)
        if do is None:
            do = torch.zeros_like(call.v)
        prologue = Prologue.of(call, self.profile)
        base = call if prologue is None else prologue.base()
        stages = self._stages(base, problem, "backward")
        found: Mapping[str, Any] = stages.gradients(do, dlast, needs_of_base(needs))
        if prologue is not None:
            found = prologue.gradients(found, needs)
        return {name: found[name] for name in needs}

    def _stages(self, call: Call, problem: Problem, direction: str) -> Stages:
        return Stages.of(call, problem, _planned(self, problem, direction), self.profile)


@lru_cache(maxsize=1024)
def _planned(kernels: Kernels, problem: Problem, direction: str) -> DeltaPlan:
    return plan(problem, direction, kernels.profile, kernels.choose(problem, direction))


def decode(call: Call, todo: Settled[Launch | None], o: Tensor, last: Tensor | None) -> None:
    """Walk token by token; gates may be those of heads (``g``) or of channels (``gk``, ``gv``)."""
    given: Any = call.tensors.get
    q, beta, b, w, start = (given(name) for name in ("q", "beta", "b", "w", "initial_state"))
    g, gk, gv = (given(name) for name in ("g", "gk", "gv"))
    if g is not None and g.ndim == 4:
        g, gk = None, g

    def settle() -> Settling:
        problem, planned = todo.problem, todo.plan
        assert planned is not None
        constants = {
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
            "HAS_START": start is not None,
            "HAS_LAST": last is not None,
            "VARLEN": problem.packed,
        }
        return delta_recurrent, planned, constants

    tensors = (q, given("k"), given("v"), g, gk, gv, beta, b, w, start, o, last, boundaries(call))
    todo.launches.run("decode", (*tensors, q.shape[1], call.scale), settle)
