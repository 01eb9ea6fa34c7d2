"""Linear attention whose key channels decay separately: host code around the kernels.

Serves the contract ``gla``, token by token where value channels decay too. Nothing here is tuned at
run time, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fla_core.call import Call
from fla_triton.calls import (
    Settled,
    boundaries,
    chunk_table,
    float32,
    gradients_of_nothing,
    new_state,
    pass_on,
    precision,
    qkv,
    settled,
    start_of,
)
from fla_triton.channel_chunks import Operands, pairs_and_states, sizes
from fla_triton.channel_plan import plan
from fla_triton.kernels.channel_prepare import channel_prepare
from fla_triton.kernels.recurrent import recurrent_outputs
from fla_triton.kernels.scored_outputs import scored_outputs
from fla_triton.kernels.states import chunk_states
from fla_triton.launch import Settling
from fla_triton.plan import DECODE_TOKENS, Launch, Plan, Problem, Tiles, decode_plan
from fla_triton.profiles import Profile
from fla_triton.segments import starts_of
from fla_triton.tables import Choose, no_table

Outputs = tuple[Tensor, ...]


class Prepared(NamedTuple):
    """What ``channel_prepare`` leaves of a call.

    Attributes:
        q_in: queries as the state before their chunk meets them, scale among their factors.
        k_out: keys as the state after their chunk keeps them.
        scores: of each chunk's pairs, scale among their factors, ``[B, T, H, C]``.
        totals: what each chunk leaves of the state's rows, ``[slots, H, K]``, float32.
    """

    q_in: Tensor
    k_out: Tensor
    scores: Tensor
    totals: Tensor


@dataclass(frozen=True, slots=True)
class Kernels:
    """The implementation on one kind of chip.

    Attributes:
        profile: the chip.
        choose: tiles from a tuned table, None for the defaults.
    """

    profile: Profile
    choose: Choose[Tiles] = no_table

    def forward(self, call: Call, save: bool) -> tuple[Outputs, Outputs]:
        """Compute ``o`` and, if asked for, the final state; backward needs inputs alone."""
        walks = "gv" in call.features
        todo = settled(call, "forward", self._plan_walk if walks else self._plan_forward)
        _, _, v = qkv(call)
        o, last = torch.empty_like(v), None
        if "final_state" in call.features:
            last = new_state(call, todo.problem)
        wanted = (o,) if last is None else (o, last)
        if not todo.problem.tokens or not todo.problem.sequences:
            pass_on(call, last)
        elif isinstance(todo.plan, Plan):
            self._chunks(call, todo, self._prepare(call, todo), o, last)
        else:
            self._decode(call, todo, o, last)
        return wanted, ()

    def backward(
        self,
        call: Call,
        residuals: Outputs,
        grads: Sequence[Tensor | None],
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        """Gradients of the inputs in ``needs``; states are computed anew, none was kept."""
        do, dlast = grads[0], None if len(grads) < 2 else grads[1]
        if do is None:
            do = torch.zeros_like(call.v)
        key = ("backward", needs, do.dtype, None if dlast is None else dlast.dtype)
        todo = settled(call, key, self._plan_backward)
        if not todo.problem.tokens or not todo.problem.sequences:
            return gradients_of_nothing(call, dlast, needs)
        return self._gradients(call, todo, do, dlast, needs)

    def _plan_forward(self, problem: Problem) -> Plan | Launch:
        if problem.longest <= DECODE_TOKENS:
            return self._plan_walk(problem)
        return _planned(self, problem, "forward")

    def _plan_walk(self, problem: Problem) -> Launch:
        return decode_plan(problem, self.profile)

    def _plan_backward(self, problem: Problem) -> Plan:
        return _planned(self, problem, "backward")

    def _decode(self, call: Call, todo: Settled[Any], o: Tensor, last: Tensor | None) -> None:
        q, k, v = qkv(call)
        start, gk, gv = start_of(call), call.get("gk"), call.get("gv")

        def settle() -> Settling:
            constants = {
                **sizes(todo.problem),
                "HAS_G": False,
                "HAS_GAMMA": False,
                "HAS_GK": gk is not None,
                "HAS_GV": gv is not None,
                "HAS_START": start is not None,
                "HAS_LAST": last is not None,
            }
            return recurrent_outputs, todo.plan, constants

        tensors = (q, k, v, None, None, gk, gv, start, o, last, boundaries(call))
        todo.launches.run("decode", (*tensors, q.shape[1], call.scale), settle)

    def _chunks(
        self, call: Call, todo: Settled[Any], made: Prepared, o: Tensor, last: Tensor | None
    ) -> None:
        states = self._states(call, todo, made, (made.k_out, call.v), start_of(call), last)
        self._outputs(call, todo, "outputs", (made.q_in, call.v, made.scores, states, o))

    def _prepare(self, call: Call, todo: Settled[Any]) -> Prepared:
        q, k, _ = qkv(call)
        problem, planned = todo.problem, todo.plan
        size = planned.tiles.chunk_size
        made = Prepared(
            torch.empty_like(q),
            torch.empty_like(k),
            k.new_empty((*k.shape[:3], size)),
            float32(k, problem.chunks(size), problem.heads, problem.K),
        )
        self._score(call, todo, made)
        return made

    def _score(self, call: Call, todo: Settled[Any], made: Prepared) -> None:
        """Fill what there is room for."""
        q, k, _ = qkv(call)
        problem, planned = todo.problem, todo.plan
        table, count = chunk_table(call, problem, planned)

        def settle() -> Settling:
            constants = {**sizes(problem), "PRECISION": self._precision(q, problem)}
            del constants["V"]
            return channel_prepare, planned.launches["prepare"], constants

        tensors = (q, k, call.gk, *made, boundaries(call), table)
        arguments = (*tensors, q.shape[1], call.scale)
        todo.launches.run("prepare", arguments, settle, count * problem.heads)

    def _outputs(
        self, call: Call, todo: Settled[Any], stage: str, tensors: tuple[Tensor, ...]
    ) -> None:
        """Outputs, or gradients of values, from scores and states."""
        problem, planned = todo.problem, todo.plan
        table, count = chunk_table(call, problem, planned)

        def settle() -> Settling:
            constants = {
                **sizes(problem),
                "TURNED": stage == "values",
                "PRECISION": self._precision(tensors[0], problem),
            }
            return scored_outputs, planned.launches[stage], constants

        columns = -(-problem.V // planned.launches[stage].constants["BV"])
        arguments = (*tensors, boundaries(call), table, call.q.shape[1], 1.0)
        todo.launches.run(stage, arguments, settle, count * problem.heads * columns)

    def _precision(self, q: Tensor, problem: Problem) -> str:
        return precision(q, problem, self.profile)

    def _states(
        self,
        call: Call,
        todo: Settled[Any],
        made: Prepared,
        operands: tuple[Tensor, Tensor],
        start: Tensor | None,
        last: Tensor | None,
        reverse: bool = False,
    ) -> Tensor:
        """States before each chunk; ``reverse``: gradients of the states after each."""
        q, _, _ = qkv(call)
        problem, size = todo.problem, todo.plan.tiles.chunk_size
        states = q.new_empty((problem.chunks(size), problem.heads, problem.K, problem.V))
        start = self._starts(call, todo, made, operands, start, reverse)
        ends = (start, states, last, None)
        self._over_time(call, todo, "states", made, operands, ends, reverse)
        return states

    def _both_states(
        self,
        call: Call,
        todo: Settled[Plan],
        made: Prepared,
        do: Tensor,
        dlast: Tensor | None,
        dstart: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The state before each chunk, and the gradient of that after it; dstart is filled."""
        states = self._states(call, todo, made, (made.k_out, call.v), start_of(call), None)
        dstates = self._states(call, todo, made, (made.q_in, do), dlast, dstart, reverse=True)
        return states, dstates

    def _starts(
        self,
        call: Call,
        todo: Settled[Any],
        made: Prepared,
        operands: tuple[Tensor, Tensor],
        start: Tensor | None,
        reverse: bool = False,
    ) -> Tensor | None:
        """The state before each segment, ``[N, H, segments, K, V]``; of one it is ``start``."""

        def add(joints: Tensor, factors: Tensor) -> None:
            ends = (None, None, joints, factors)
            self._over_time(call, todo, "totals", made, operands, ends, reverse)

        return starts_of(todo, operands[0], start, add, by_row=True, reverse=reverse)

    def _over_time(
        self,
        call: Call,
        todo: Settled[Any],
        stage: str,
        made: Prepared,
        operands: tuple[Tensor, Tensor],
        ends: tuple[Tensor | None, ...],
        reverse: bool,
    ) -> None:
        """Launch ``chunk_states`` with where it starts and what it fills."""
        planned, totals = todo.plan, stage == "totals"
        start, _, last, _ = ends

        def settle() -> Settling:
            constants = {
                **sizes(todo.problem),
                "HAS_SUMS": False,
                "HAS_GK": True,
                "REVERSE": reverse,
                "PRECISION": self._precision(operands[0], todo.problem),
                "TOTALS": totals,
                "HAS_START": start is not None,
                "HAS_LAST": last is not None,
            }
            return chunk_states, planned.launches[stage], constants

        segments = planned.segments
        numbers = (operands[0].shape[1], planned.span, segments, segments - totals, 1.0)
        gates = (None, made.totals)
        todo.launches.run(
            f"d{stage}" if reverse else stage,
            (*operands, *gates, *ends, boundaries(call), *numbers),
            settle,
        )

    def _gradients(
        self,
        call: Call,
        todo: Settled[Plan],
        do: Tensor,
        dlast: Tensor | None,
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        gk, v = call.gk, call.v
        dstart = new_state(call, todo.problem) if "initial_state" in needs else None
        made = self._prepare(call, todo)
        states, dstates = self._both_states(call, todo, made, do, dlast, dstart)
        dv = torch.empty_like(v)
        self._outputs(call, todo, "values", (made.k_out, do, made.scores, dstates, dv))
        # Nothing reads the decayed q and k any more: what is as large takes their places.
        dq, dk = made.q_in, made.k_out
        dgk = torch.empty_like(gk) if "gk" in needs else None
        known = (do, states, dstates, start_of(call), dlast)
        self._pairs_and_states(call, todo, made.scores, known, (dq, dk, dgk))
        found: dict[str, Any] = {"q": dq, "k": dk, "v": dv, "gk": dgk, "initial_state": dstart}
        return {name: found[name] for name in needs}

    def _pairs_and_states(
        self,
        call: Call,
        todo: Settled[Plan],
        pulls: Tensor,
        known: Operands,
        found: tuple[Tensor, Tensor, Tensor | None],
    ) -> None:
        """See ``channel_chunks``."""
        precision = self._precision(call.q, todo.problem)
        pairs_and_states(call, todo, pulls, known, found, precision)


@lru_cache(maxsize=1024)
def _planned(kernels: Kernels, problem: Problem, direction: str) -> Plan:
    return plan(problem, direction, kernels.profile, kernels.choose(problem, direction))
