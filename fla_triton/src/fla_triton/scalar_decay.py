"""Linear attention with one decay a head, or none: host code around the kernels.

Serves the contracts ``simple_gla`` (and with it retention and lightning attention) and the base
form of ``linear_attn``. Nothing here is tuned at run time, and nothing waits for the device.
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
    chunk_table,
    common,
    float32,
    gates,
    gradients_of_nothing,
    new_state,
    precision,
    qkv,
    settled,
    start_of,
)
from fla_triton.kernels.gradients import chunk_gradients, gate_gradients
from fla_triton.kernels.outputs import chunk_outputs
from fla_triton.kernels.recurrent import recurrent_outputs
from fla_triton.kernels.states import chunk_states
from fla_triton.launch import Settling
from fla_triton.plan import DECODE_TOKENS, Launch, Plan, Problem, Tiles, decode_plan, plan
from fla_triton.profiles import Profile
from fla_triton.segments import starts_of
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
    choose: Choose[Tiles] = no_table

    def forward(self, call: Call, save: bool) -> tuple[Outputs, Outputs]:
        """Compute ``o`` and, if asked for, the final state; backward needs inputs alone."""
        todo = settled(call, "forward", self._plan_forward)
        start: Any = call.tensors["initial_state"]
        o, last = torch.empty_like(call.tensors["v"]), None  # type: ignore[arg-type]
        if "final_state" in call.features:
            # Told a dtype and a device, torch takes twice as long.
            last = new_state(call, todo.problem) if start is None else torch.empty_like(start)
        wanted = (o,) if last is None else (o, last)
        if not todo.problem.tokens or not todo.problem.sequences:
            if last is not None:
                last.zero_() if start is None else last.copy_(start)
        elif isinstance(todo.plan, Plan):
            self._chunks(call, todo, o, last)
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
            return decode_plan(problem, self.profile)
        return _planned(self, problem, "forward")

    def _plan_backward(self, problem: Problem) -> Plan:
        return _planned(self, problem, "backward")

    def _decode(self, call: Call, todo: Settled[Any], o: Tensor, last: Tensor | None) -> None:
        def settle() -> Settling:
            constants = {
                **common(call, todo.problem),
                "HAS_GK": False,
                "HAS_GV": False,
                "HAS_START": given["initial_state"] is not None,
                "HAS_LAST": last is not None,
            }
            return recurrent_outputs, todo.plan, constants

        given: Any = call.tensors
        q, seqlens = given["q"], call.seqlens
        arguments = (
            q,
            given["k"],
            given["v"],
            given.get("g"),
            given.get("g_gamma"),
            None,
            None,
            given["initial_state"],
            o,
            last,
            None if seqlens is None else seqlens.device,
            q.shape[1],
            call.scale,
        )
        todo.launches.run("decode", arguments, settle)

    def _chunks(self, call: Call, todo: Settled[Any], o: Tensor, last: Tensor | None) -> None:
        q, k, v = qkv(call)
        problem, planned = todo.problem, todo.plan
        states = self._states(call, todo, (k, v), start_of(call), last)
        table, count = chunk_table(call, problem, planned)

        def settle() -> Settling:
            constants = {**common(call, problem), "PRECISION": self._precision(q, problem)}
            return chunk_outputs, planned.launches["chunks"], constants

        tensors = (q, k, v, *gates(call), states, o, boundaries(call), table)
        columns = -(-problem.V // planned.tiles.chunk.BV)
        grid = count * planned.tiles.R * problem.heads * columns
        todo.launches.run("chunks", (*tensors, q.shape[1], call.scale), settle, grid)

    def _precision(self, q: Tensor, problem: Problem) -> str:
        return precision(q, problem, self.profile)

    def _states(
        self,
        call: Call,
        todo: Settled[Any],
        operands: tuple[Tensor, Tensor],
        start: Tensor | None,
        last: Tensor | None,
        reverse: bool = False,
    ) -> Tensor:
        """States before each chunk; ``reverse``: gradients of the states after each."""
        q, _, _ = qkv(call)
        problem, size = todo.problem, todo.plan.tiles.chunk_size
        states = q.new_empty((problem.chunks(size), problem.heads, problem.K, problem.V))
        start = self._starts(call, todo, operands, start, reverse)
        self._over_time(call, todo, "states", operands, (start, states, last, None), reverse)
        return states

    def _starts(
        self,
        call: Call,
        todo: Settled[Any],
        operands: tuple[Tensor, Tensor],
        start: Tensor | None,
        reverse: bool = False,
    ) -> Tensor | None:
        """The state before each segment, ``[N, H, segments, K, V]``; of one it is ``start``."""

        def add(joints: Tensor, logs: Tensor) -> None:
            self._over_time(call, todo, "totals", operands, (None, None, joints, logs), reverse)

        return starts_of(todo, operands[0], start, add, by_row=False, reverse=reverse)

    def _over_time(
        self,
        call: Call,
        todo: Settled[Any],
        stage: str,
        operands: tuple[Tensor, Tensor],
        ends: tuple[Tensor | None, ...],
        reverse: bool,
    ) -> None:
        """Launch ``chunk_states`` with where it starts and what it fills."""
        planned, totals = todo.plan, stage == "totals"
        start, _, last, _ = ends

        def settle() -> Settling:
            constants = {
                **common(call, todo.problem),
                "HAS_GK": False,
                "HAS_GV": False,
                "REVERSE": reverse,
                "PRECISION": self._precision(operands[0], todo.problem),
                "TOTALS": totals,
                "HAS_START": start is not None,
                "HAS_LAST": last is not None,
            }
            return chunk_states, planned.launches[stage], constants

        segments = planned.segments
        numbers = (operands[0].shape[1], planned.span, segments, segments - totals, call.scale)
        todo.launches.run(
            f"d{stage}" if reverse else stage,
            (*operands, *gates(call), None, None, *ends, boundaries(call), *numbers),
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
        problem, planned = todo.problem, todo.plan
        q, k, v = qkv(call)
        start, cu = start_of(call), boundaries(call)
        dstart = new_state(call, problem) if "initial_state" in needs else None
        states = self._states(call, todo, (k, v), start, None)
        dstates = self._states(call, todo, (q, do), dlast, dstart, reverse=True)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        found: dict[str, Any] = {"q": dq, "k": dk, "v": dv, "initial_state": dstart}
        gated = bool(needs & {"g", "g_gamma"})
        table, count = chunk_table(call, problem, planned)
        steps = float32(q, *q.shape[:3]) if gated else None
        spans = float32(q, count, planned.tiles.R + 1, problem.heads) if gated else None

        def settle() -> Settling:
            constants = {
                **common(call, problem),
                "HAS_START": start is not None,
                "HAS_DLAST": dlast is not None,
                "WITH_GATES": gated,
                "PRECISION": self._precision(q, problem),
            }
            return chunk_gradients, planned.launches["chunks"], constants

        given = (q, k, v, *gates(call), do, states, dstates, start, dlast)
        tensors = (*given, dq, dk, dv, steps, spans, cu, table)
        grid = count * planned.tiles.R * problem.heads
        todo.launches.run("chunks", (*tensors, q.shape[1], call.scale), settle, grid)
        if gated:
            dg = float32(q, *q.shape[:3]) if "g" in needs else None
            parts = float32(q, count, problem.heads) if "g_gamma" in needs else None

            def settle_gates() -> Settling:
                constants = {
                    "H": problem.heads,
                    "WITH_G": dg is not None,
                    "WITH_GAMMA": parts is not None,
                    "VARLEN": problem.packed,
                }
                tiles = {"BT": planned.tiles.BT, "R": planned.tiles.R}
                return gate_gradients, Launch("gates", 0, tiles, 1, 1, 0), constants

            arguments = (steps, spans, dg, parts, cu, table, q.shape[1])
            todo.launches.run("gates", arguments, settle_gates, count * problem.heads)
            found["g"] = dg
            found["g_gamma"] = None if parts is None else parts.sum(0)
        return {name: found[name] for name in needs}


@lru_cache(maxsize=1024)
def _planned(kernels: Kernels, problem: Problem, direction: str) -> Plan:
    tiles = kernels.choose(problem, direction)
    return plan(problem, direction, kernels.profile, tiles)
