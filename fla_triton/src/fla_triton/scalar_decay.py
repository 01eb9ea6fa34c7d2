"""Linear attention with one decay a head, or none: host code around the kernels.

Serves the contracts ``simple_gla`` (and with it retention and lightning attention) and the base
form of ``linear_attn``. Nothing here is tuned at run time, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fla_core.call import Call
from fla_triton.calls import (
    boundaries,
    chunk_table,
    common,
    float32,
    gates,
    new_state,
    precision,
    problem_of,
    start_of,
)
from fla_triton.kernels.gradients import chunk_gradients, gate_gradients
from fla_triton.kernels.outputs import chunk_outputs
from fla_triton.kernels.recurrent import recurrent_outputs
from fla_triton.kernels.states import chain, chunk_states
from fla_triton.launch import launch
from fla_triton.plan import DECODE_TOKENS, Launch, Plan, Problem, Tiles, decode_plan, plan
from fla_triton.profiles import Profile

Outputs = tuple[Tensor, ...]
Choose = Callable[[Problem, str], Tiles | None]


def no_table(problem: Problem, direction: str) -> Tiles | None:
    """A table without entries: every plan takes the default tiles."""
    return None


@dataclass(frozen=True, slots=True)
class Kernels:
    """The implementation on one kind of chip.

    Attributes:
        profile: the chip.
        choose: tiles from a tuned table, None for the defaults.
    """

    profile: Profile
    choose: Choose = no_table

    def forward(self, call: Call, save: bool) -> tuple[Outputs, Outputs]:
        """Compute ``o`` and, if asked for, the final state; backward needs inputs alone."""
        problem = problem_of(call)
        v, last = call.v, None
        o = torch.empty_like(v)
        if "final_state" in call.features:
            last = new_state(call, problem)
        wanted = (o,) if last is None else (o, last)
        if not problem.tokens or not problem.sequences:
            start = start_of(call)
            if last is not None:
                last.zero_() if start is None else last.copy_(start)
        elif problem.longest <= DECODE_TOKENS:
            self._decode(call, problem, o, last)
        else:
            self._chunks(call, problem, o, last)
        return wanted, ()

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
            return _gradients_of_nothing(call, dlast, needs)
        if do is None:
            do = torch.zeros_like(call.v)
        return self._gradients(call, problem, do, dlast, needs)

    def _plan(self, problem: Problem, direction: str) -> Plan:
        return _planned(self, problem, direction)

    def _decode(self, call: Call, problem: Problem, o: Tensor, last: Tensor | None) -> None:
        start = start_of(call)
        _run(
            recurrent_outputs,
            decode_plan(problem, self.profile),
            (
                call.q,
                call.k,
                call.v,
                *gates(call),
                start,
                o,
                last,
                boundaries(call),
                call.q.shape[1],
                call.scale,
            ),
            {
                **common(call, problem),
                "HAS_START": start is not None,
                "HAS_LAST": last is not None,
            },
        )

    def _chunks(self, call: Call, problem: Problem, o: Tensor, last: Tensor | None) -> None:
        todo = self._plan(problem, "forward")
        states = self._states(call, problem, todo, (call.k, call.v), start_of(call), last)
        table, count = chunk_table(call, problem, todo)
        columns = -(-problem.V // todo.tiles.chunk.BV)
        _run(
            chunk_outputs,
            todo.launches["chunks"],
            (
                call.q,
                call.k,
                call.v,
                *gates(call),
                states,
                o,
                boundaries(call),
                table,
                call.q.shape[1],
                call.scale,
            ),
            {**common(call, problem), "PRECISION": precision(call.q, problem, self.profile)},
            count * todo.tiles.R * problem.heads * columns,
        )

    def _states(
        self,
        call: Call,
        problem: Problem,
        todo: Plan,
        operands: tuple[Tensor, Tensor],
        start: Tensor | None,
        last: Tensor | None,
        reverse: bool = False,
    ) -> Tensor:
        """States before each chunk; ``reverse``: gradients of the states after each."""
        q: Tensor = call.q
        size = todo.tiles.chunk_size
        states = q.new_empty((problem.chunks(size), problem.heads, problem.K, problem.V))
        shared = {
            **common(call, problem),
            "HAS_GK": False,
            "HAS_GV": False,
            "REVERSE": reverse,
            "PRECISION": precision(q, problem, self.profile),
        }

        def run(stage: str, start: Tensor | None, last: Tensor | None, logs: Tensor | None) -> None:
            totals = stage == "totals"
            _run(
                chunk_states,
                todo.launches[stage],
                (
                    *operands,
                    *gates(call),
                    None,
                    None,
                    start,
                    None if totals else states,
                    last,
                    logs,
                    boundaries(call),
                    q.shape[1],
                    todo.span,
                    todo.segments,
                    todo.segments - totals,
                    call.scale,
                ),
                {
                    **shared,
                    "TOTALS": totals,
                    "HAS_START": start is not None,
                    "HAS_LAST": last is not None,
                },
            )

        if todo.segments > 1:
            heads = problem.sequences * problem.heads
            joints = float32(q, heads, todo.segments, problem.K, problem.V)
            logs = float32(q, heads, todo.segments)
            run("totals", None, joints, logs)
            _run(
                chain,
                todo.launches["chain"],
                (joints, logs, start, todo.segments),
                {
                    "K": problem.K,
                    "V": problem.V,
                    "HAS_GK": False,
                    "HAS_START": start is not None,
                },
            )
            start = joints
        run("states", start, last, None)
        return states

    def _gradients(
        self,
        call: Call,
        problem: Problem,
        do: Tensor,
        dlast: Tensor | None,
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        todo = self._plan(problem, "backward")
        q, k, v, start = call.q, call.k, call.v, start_of(call)
        dstart = new_state(call, problem) if "initial_state" in needs else None
        states = self._states(call, problem, todo, (k, v), start, None)
        dstates = self._states(call, problem, todo, (q, do), dlast, dstart, reverse=True)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        found: dict[str, Any] = {"q": dq, "k": dk, "v": dv, "initial_state": dstart}
        gated = bool(needs & {"g", "g_gamma"})
        table, count = chunk_table(call, problem, todo)
        steps = float32(q, *q.shape[:3]) if gated else None
        spans = float32(q, count, todo.tiles.R + 1, problem.heads) if gated else None
        _run(
            chunk_gradients,
            todo.launches["chunks"],
            (
                q,
                k,
                v,
                *gates(call),
                do,
                states,
                dstates,
                start,
                dlast,
                dq,
                dk,
                dv,
                steps,
                spans,
                boundaries(call),
                table,
                q.shape[1],
                call.scale,
            ),
            {
                **common(call, problem),
                "HAS_START": start is not None,
                "HAS_DLAST": dlast is not None,
                "WITH_V": True,
                "WITH_GATES": gated,
                "PRECISION": precision(q, problem, self.profile),
            },
            count * todo.tiles.R * problem.heads,
        )
        if gated:
            dg = float32(q, *q.shape[:3]) if "g" in needs else None
            parts = float32(q, count, problem.heads) if "g_gamma" in needs else None
            launch(
                gate_gradients,
                count * problem.heads,
                (steps, spans, dg, parts, boundaries(call), table, q.shape[1]),
                {
                    "H": problem.heads,
                    "BT": todo.tiles.BT,
                    "R": todo.tiles.R,
                    "WITH_G": dg is not None,
                    "WITH_GAMMA": parts is not None,
                    "VARLEN": problem.packed,
                },
                warps=1,
                stages=1,
            )
            found["g"] = dg
            found["g_gamma"] = None if parts is None else parts.sum(0)
        return {name: found[name] for name in needs}


@lru_cache(maxsize=1024)
def _planned(kernels: Kernels, problem: Problem, direction: str) -> Plan:
    tiles = kernels.choose(problem, direction)
    return plan(problem, direction, kernels.profile, tiles)


def _run(
    kernel: Any,
    planned: Launch,
    arguments: tuple[Any, ...],
    constants: Mapping[str, Any],
    grid: int | None = None,
) -> None:
    """Launch a kernel as planned; ``grid`` where packed sequences decide how many programs."""
    programs = planned.grid if grid is None else grid
    merged = {**constants, **planned.constants}
    launch(kernel, programs, arguments, merged, planned.warps, planned.stages)


def _gradients_of_nothing(
    call: Call, dlast: Tensor | None, needs: frozenset[str]
) -> dict[str, Tensor]:
    found = {
        n: torch.zeros_like(t) for n, t in call.tensors.items() if t is not None and n in needs
    }
    if "initial_state" in needs and dlast is not None:
        found["initial_state"] = dlast.clone()
    return found
