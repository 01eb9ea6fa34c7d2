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
    pass_on,
    precision,
    qkv,
    settled,
    start_of,
)
from fla_triton.channel_chunks import sizes
from fla_triton.gates import gradients_of, sums_of
from fla_triton.kernels.gradients import chunk_gradients
from fla_triton.kernels.outputs import chunk_outputs
from fla_triton.kernels.recurrent import recurrent_outputs
from fla_triton.kernels.states import chunk_states
from fla_triton.launch import Settling
from fla_triton.normaliser import CHUNK, Normaliser, sums_of_nothing
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
        normalised = "normalize" in call.features
        todo = settled(call, "forward", self._plan_chunks if normalised else self._plan_forward)
        start: Any = call.tensors["initial_state"]
        o, last = torch.empty_like(call.tensors["v"]), None  # type: ignore[arg-type]
        if "final_state" in call.features:
            # Told a dtype and a device, torch takes twice as long.
            last = new_state(call, todo.problem) if start is None else torch.empty_like(start)
        wanted = (o,) if last is None else (o, last)
        if not todo.problem.tokens or not todo.problem.sequences:
            pass_on(call, last)
            if normalised:
                wanted = (*wanted, sums_of_nothing(call, todo.problem))
        elif normalised:
            w, z_last = self._normaliser(call, todo, CHUNK).of_tokens()
            self._chunks(call, todo, o, last, w)
            # Outputs are the caller's to change.
            return (*wanted, z_last), (o.clone(), w) if save else ()
        elif isinstance(todo.plan, Plan):
            self._chunks(call, todo, o, last, None)
        else:
            self._decode(call, todo, o, last)
        return wanted, (o.clone(), float32(o, *o.shape[:3])) if normalised and save else ()

    def backward(
        self,
        call: Call,
        residuals: Outputs,
        grads: Sequence[Tensor | None],
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        """Gradients of the inputs in ``needs``; states are computed anew, none was kept."""
        do, dlast = grads[0], grads[1] if "final_state" in call.features else None
        dz_last = grads[-1] if "normalize" in call.features else None
        if do is None:
            do = torch.zeros_like(call.v)
        kinds = (None if x is None else x.dtype for x in (dlast, dz_last))
        todo = settled(call, ("backward", needs, do.dtype, *kinds), self._plan_backward)
        if not todo.problem.tokens or not todo.problem.sequences:
            found = gradients_of_nothing(call, dlast, needs)
            if "initial_z" in needs and dz_last is not None:
                found["initial_z"] = dz_last.clone()
            return found
        if "normalize" in call.features:
            return self._quotient_gradients(call, todo, residuals, (do, dlast, dz_last), needs)
        return self._gradients(call, todo, do, dlast, needs)

    def _plan_forward(self, problem: Problem) -> Plan | Launch:
        if problem.longest <= DECODE_TOKENS:
            return decode_plan(problem, self.profile)
        return self._plan_chunks(problem)

    def _plan_chunks(self, problem: Problem) -> Plan:
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

    def _chunks(
        self, call: Call, todo: Settled[Any], o: Tensor, last: Tensor | None, w: Tensor | None
    ) -> None:
        q, k, v = qkv(call)
        problem, planned = todo.problem, todo.plan
        states = self._states(call, todo, (k, v, sums_of(call, todo)), start_of(call), last)
        table, count = chunk_table(call, problem, planned)

        def settle() -> Settling:
            constants = {
                **common(call, problem),
                "HAS_W": w is not None,
                "PRECISION": self._precision(q, problem),
            }
            return chunk_outputs, planned.launches["chunks"], constants

        tensors = (q, k, v, *gates(call), states, w, o, boundaries(call), table)
        columns = -(-problem.V // planned.tiles.chunk.BV)
        grid = count * planned.tiles.R * problem.heads * columns
        todo.launches.run("chunks", (*tensors, q.shape[1], call.scale), settle, grid)

    def _precision(self, q: Tensor, problem: Problem) -> str:
        return precision(q, problem, self.profile)

    def _states(
        self,
        call: Call,
        todo: Settled[Any],
        operands: tuple[Tensor, Tensor, Tensor | None],
        start: Tensor | None,
        last: Tensor | None,
        reverse: bool = False,
    ) -> Tensor:
        """States before each chunk; ``reverse``: gradients of the states after each.

        Args:
            call, todo: what is computed, and how.
            operands: keys and values, or queries and gradients of outputs; sums of gates.
            start, last: the state or gradient at the ends.
            reverse: which of the two.
        """
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
        operands: tuple[Tensor, Tensor, Tensor | None],
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
        operands: tuple[Tensor, Tensor, Tensor | None],
        ends: tuple[Tensor | None, ...],
        reverse: bool,
    ) -> None:
        """Launch ``chunk_states`` with where it starts and what it fills."""
        planned, totals = todo.plan, stage == "totals"
        start, _, last, _ = ends

        def settle() -> Settling:
            constants = {
                **sizes(todo.problem),
                "HAS_SUMS": operands[2] is not None,
                "HAS_GK": False,
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
            (*operands, None, *ends, boundaries(call), *numbers),
            settle,
        )

    def _gradients(
        self,
        call: Call,
        todo: Settled[Plan],
        do: Tensor,
        dlast: Tensor | None,
        needs: frozenset[str],
        normaliser: tuple[Tensor | None, ...] = (None, None, None),
    ) -> dict[str, Tensor]:
        """Gradients; ``normaliser``: those of w, and z before and dz behind each block."""
        problem, planned = todo.problem, todo.plan
        q, k, v = qkv(call)
        start, cu = start_of(call), boundaries(call)
        dstart = new_state(call, problem) if "initial_state" in needs else None
        sums, (_, gamma) = sums_of(call, todo), gates(call)
        states = self._states(call, todo, (k, v, sums), start, None)
        dstates = self._states(call, todo, (q, do, sums), dlast, dstart, reverse=True)
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
                "HAS_W": normaliser[0] is not None,
                "WITH_GATES": gated,
                "PRECISION": self._precision(q, problem),
            }
            return chunk_gradients, planned.launches["chunks"], constants

        given = (q, k, v, sums, gamma, do, states, dstates, start, dlast)
        tensors = (*given, *normaliser, dq, dk, dv, steps, spans, cu, table)
        grid = count * planned.tiles.R * problem.heads
        todo.launches.run("chunks", (*tensors, q.shape[1], call.scale), settle, grid)
        if steps is not None and spans is not None:
            found |= gradients_of(call, todo, (steps, spans), needs)
        return {name: found[name] for name in needs}

    def _normaliser(self, call: Call, todo: Settled[Any], chunk: int) -> Normaliser:
        return Normaliser(call, todo, chunk, self._precision(call.q, todo.problem))

    def _quotient_gradients(
        self,
        call: Call,
        todo: Settled[Plan],
        residuals: Outputs,
        grads: tuple[Tensor, Tensor | None, Tensor | None],
        needs: frozenset[str],
    ) -> Mapping[str, Tensor]:
        (o, w), (do, dlast, dz_last) = residuals, grads
        divide = self._normaliser(call, todo, todo.plan.tiles.BT)
        z, _ = divide.sums()
        dx, dw, dz, dstart = divide.gradients(o, w, do, dz_last)
        found = self._gradients(call, todo, dx, dlast, needs - {"initial_z"} | {"q"}, (dw, z, dz))
        divide.balance(z, found["q"])
        found["initial_z"] = dstart
        return {name: found[name] for name in needs}


@lru_cache(maxsize=1024)
def _planned(kernels: Kernels, problem: Problem, direction: str) -> Plan:
    tiles = kernels.choose(problem, direction)
    return plan(problem, direction, kernels.profile, tiles)
