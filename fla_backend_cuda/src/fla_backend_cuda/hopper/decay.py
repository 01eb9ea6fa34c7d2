"""Linear attention with decays on Hopper: host code around its kernels.

Outputs come from one pass over time, which takes 16-bit numbers, K of 64 or 128 and V in tiles of
64; what channels decay to, from a kernel that delta rules share. Where tokens have gates, the
states and the gradients of a backward pass are Hopper's own, but those of values under channel
decays; all else is the portable kernels' part. Without gates these are kept: states of every second
chunk are all they write, 388 MiB a call instead of 516 at B2 T8192 H16 D128, for 7 % of its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fla_backend_cuda.hopper.chunks import CHUNK, prepare_launch, run_prepare
from fla_backend_cuda.hopper.kernels.channels import channel_chunk_gradients
from fla_backend_cuda.hopper.kernels.decayed_gradients import decayed_chunk_gradients
from fla_backend_cuda.hopper.kernels.pairs import channel_pairs
from fla_backend_cuda.hopper.operands import COLUMNS, aligned, placed
from fla_backend_cuda.hopper.over_time import HalvedPlan, over_time, with_pass
from fla_backend_cuda.hopper.states import around_chunks, run_both_states
from fla_core.call import Call
from fla_triton import channel_decay, channel_plan, plan, scalar_decay
from fla_triton.calls import (
    Settled,
    boundaries,
    chunk_table,
    float32,
    gates,
    new_state,
    qkv,
    start_of,
)
from fla_triton.channel_chunks import Operands, sizes
from fla_triton.channel_decay import Prepared
from fla_triton.gates import sums_of
from fla_triton.launch import Settling
from fla_triton.plan import DECODE_TOKENS, Launch, Plan, Problem
from fla_triton.profiles import Profile
from fla_triton.prologue import NOTHING, activations

FINISHED = {
    "CHANNELS": False,
    "WITH_INVERSE": False,
    "GROUP": 1,
    **activations(NOTHING),
}
"""Switches of ``channel_pairs`` that are another's."""

SCORED = 128
"""Registers of a thread of ``channel_pairs`` where keys do not erase: four programs share a
multiprocessor. At B2 T8192 H16 K = V = 128 they take 152 us on an H200; three, with 168, take 177,
and five, with 96, of which much spills, 230."""

CROSSING = 168
"""Registers of a thread of ``channel_chunk_gradients``: three programs share a multiprocessor."""

SHARED = 128
"""Of ``decayed_chunk_gradients``, whose warps are eight: two programs share a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Kernels(scalar_decay.Kernels):
    """One decay a head, or none."""

    def _plan_backward(self, problem: Problem) -> Plan:
        if problem.gated:
            return _backward(problem, self.profile)
        return scalar_decay.Kernels._plan_backward(self, problem)

    def _gradients(
        self,
        call: Call,
        todo: Settled[Plan],
        do: Tensor,
        dlast: Tensor | None,
        needs: frozenset[str],
        normaliser: tuple[Tensor | None, ...] = (None, None, None),
    ) -> dict[str, Tensor]:
        if not todo.problem.gated:
            portable = scalar_decay.Kernels._gradients
            return portable(self, call, todo, do, dlast, needs, normaliser)
        call, do = placed(call), aligned(do)
        problem, planned = todo.problem, todo.plan
        q, k, v = qkv(call)
        start, sums = start_of(call), sums_of(call, todo)
        dstart = new_state(call, problem) if "initial_state" in needs else None
        table, count = chunk_table(call, problem, planned)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dg = float32(q, *q.shape[:3]) if "g" in needs else None
        parts = float32(q, count, problem.heads) if "g_gamma" in needs else None
        before = self._starts(call, todo, (k, v, sums), start)
        behind = self._starts(call, todo, (q, do, sums), dlast, reverse=True)
        operands = (q, k, v, do, None, sums)
        states = run_both_states(call, todo, operands, (before, behind, dstart))

        def settle() -> Settling:
            constants = {
                **sizes(problem),
                "HAS_START": start is not None,
                "HAS_DLAST": dlast is not None,
                "WITH_G": dg is not None,
                "WITH_GAMMA": parts is not None,
            }
            return decayed_chunk_gradients, planned.launches["gradients"], constants

        known = (q, k, v, sums, do, *states, start, dlast)
        found = (dq, dk, dv, dg, parts)
        where = (boundaries(call), table, q.shape[1], call.scale)
        todo.launches.run("gradients", (*known, *found, *where), settle, count * problem.heads)
        named: dict[str, Any] = {"q": dq, "k": dk, "v": dv, "initial_state": dstart, "g": dg}
        if parts is not None:
            named["g_gamma"] = parts.sum(0)
        return {name: named[name] for name in needs}

    def _plan_chunks(self, problem: Problem) -> HalvedPlan:
        return _planned(problem, self.profile)

    def _chunks(
        self, call: Call, todo: Settled[Any], o: Tensor, last: Tensor | None, w: Tensor | None
    ) -> None:
        call = placed(call)
        q, k, v = qkv(call)
        sums = sums_of(call, todo) if todo.plan.segments > 1 else None
        start = self._starts(call, todo, (k, v, sums), start_of(call))
        g, gamma = gates(call)
        if g is not None:
            g = g.float()  # the least that an asynchronous copy moves
        over_time(call, todo, (q, k, v, g, gamma, None, None), start, o, last, w)


@lru_cache(maxsize=1024)
def _planned(problem: Problem, profile: Profile) -> HalvedPlan:
    tiles = plan.default_tiles(problem, "forward", profile)
    # Segments are counted in chunks of the pass.
    tiles = replace(tiles, BT=CHUNK, R=1)
    return with_pass(plan.plan(problem, "forward", profile, tiles), problem, profile, "scalar")


@lru_cache(maxsize=1024)
def _backward(problem: Problem, profile: Profile) -> Plan:
    tiles = replace(plan.default_tiles(problem, "backward", profile), BT=CHUNK, R=1)
    planned = plan.plan(problem, "backward", profile, tiles)
    grid = problem.chunks(CHUNK) * problem.heads
    return around_chunks(planned, grid, SHARED, 8, profile)


@dataclass(frozen=True, slots=True)
class ChannelKernels(channel_decay.Kernels):
    """A decay for each key channel."""

    def _plan_forward(self, problem: Problem) -> HalvedPlan | Launch:
        if problem.longest <= DECODE_TOKENS:
            return plan.decode_plan(problem, self.profile)
        return _channel_planned(problem, self.profile)

    def _plan_backward(self, problem: Problem) -> Plan:
        return _channel_backward(problem, self.profile)

    def _score(self, call: Call, todo: Settled[Any], made: Prepared) -> None:
        q, k, _ = qkv(call)
        problem, planned = todo.problem, todo.plan
        table, count = chunk_table(call, problem, planned)
        operands = (q, k, None, call.gk, None, None, None, None)
        filled = (made.q_in, made.k_out, None, None, made.scores, None, made.totals)
        run_prepare(
            todo.launches,
            planned.launches["prepare"],
            problem,
            channel_pairs,
            (*operands, *filled, boundaries(call), table, q.shape[1], call.scale, 0.0),
            count * problem.heads,
            {"V": problem.V, "ERASE": False, **FINISHED},
        )

    def _chunks(
        self, call: Call, todo: Settled[Any], made: Prepared, o: Tensor, last: Tensor | None
    ) -> None:
        call = placed(call)
        q_in, k_out, scores, totals = made
        start = self._starts(call, todo, made, (k_out, call.v), start_of(call))
        operands = (q_in, k_out, call.v, None, None, scores, totals)
        over_time(call, todo, operands, start, o, last)

    def _gradients(
        self,
        call: Call,
        todo: Settled[Plan],
        do: Tensor,
        dlast: Tensor | None,
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        call, do = placed(call), aligned(do)
        return channel_decay.Kernels._gradients(self, call, todo, do, dlast, needs)

    def _both_states(
        self,
        call: Call,
        todo: Settled[Plan],
        made: Prepared,
        do: Tensor,
        dlast: Tensor | None,
        dstart: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        start = self._starts(call, todo, made, (made.k_out, call.v), start_of(call))
        dlast = self._starts(call, todo, made, (made.q_in, do), dlast, reverse=True)
        operands = (made.q_in, made.k_out, call.v, do, made.totals, None)
        return run_both_states(call, todo, operands, (start, dlast, dstart))

    def _pairs_and_states(
        self,
        call: Call,
        todo: Settled[Plan],
        pulls: Tensor,
        known: Operands,
        found: tuple[Tensor, Tensor, Tensor | None],
    ) -> None:
        problem, planned = todo.problem, todo.plan
        table, count = chunk_table(call, problem, planned)

        def settle() -> Settling:
            constants = {
                **sizes(problem),
                "HAS_START": known[3] is not None,
                "HAS_DLAST": known[4] is not None,
                "WITH_GATES": found[-1] is not None,
            }
            return channel_chunk_gradients, planned.launches["gradients"], constants

        where = (boundaries(call), table, call.q.shape[1], call.scale)
        todo.launches.run(
            "gradients",
            (*qkv(call), call.gk, *known, *found, *where),
            settle,
            count * problem.heads * (problem.K // COLUMNS),
        )


@lru_cache(maxsize=1024)
def _channel_backward(problem: Problem, profile: Profile) -> Plan:
    planned = _scored(problem, "backward", profile)
    grid = problem.chunks(CHUNK) * problem.heads * (problem.K // COLUMNS)
    return around_chunks(planned, grid, CROSSING, 4, profile)


@lru_cache(maxsize=1024)
def _channel_planned(problem: Problem, profile: Profile) -> HalvedPlan:
    planned = _scored(problem, "forward", profile)
    return with_pass(planned, problem, profile, "channel")


@lru_cache(maxsize=1024)
def _scored(problem: Problem, direction: str, profile: Profile) -> Plan:
    """The portable plan, but for what comes first."""
    tiles = replace(channel_plan.default_tiles(problem, direction, profile), BT=CHUNK, R=1)
    planned = channel_plan.plan(problem, direction, profile, tiles)
    launches = {**planned.launches, "prepare": prepare_launch(problem, SCORED, profile)}
    return replace(planned, launches=launches)


FAMILIES = {"scalar_decay": Kernels, "channel_decay": ChannelKernels}
"""By the family of portable kernels whose place they take."""
