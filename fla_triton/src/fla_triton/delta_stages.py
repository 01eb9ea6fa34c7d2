"""The kernels of one call of the delta family, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fla_core.call import Call
from fla_triton.calls import boundaries, chunks_of, float32, new_state, precision, start_of
from fla_triton.delta_plan import DeltaPlan
from fla_triton.kernels.delta_errors import delta_errors
from fla_triton.kernels.delta_gradients import delta_gradients, local_dv
from fla_triton.kernels.delta_outputs import delta_outputs
from fla_triton.kernels.delta_prepare import delta_prepare
from fla_triton.kernels.delta_states import delta_state_gradients, delta_states
from fla_triton.kernels.outputs import chunk_outputs
from fla_triton.launch import Launches, Settling
from fla_triton.plan import Problem
from fla_triton.profiles import Profile

Operands = tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class Errors:
    """What ``delta_prepare`` leaves of a call, or makes room for.

    Attributes:
        q, k: as the passes over time read them, ``[B, T, H, K]``.
        w: what a chunk's errors read of its state, ``[B, T, H, K]``; None where they are solved for
            on the way.
        u: errors without a state, ``[B, T, H, V]``; the pass over time turns them into ``v_new``.
        inverse: of each chunk's triangular system, ``[B, T, H, C]``; None where nobody asks.
        since, into: decays from the chunk's start and to its end, ``[slots, H, C]``; None without.
        totals: decay of each chunk, ``[slots, H]``; None without.
    """

    q: Tensor
    k: Tensor
    w: Tensor | None
    u: Tensor
    inverse: Tensor | None
    since: Tensor | None
    into: Tensor | None
    totals: Tensor | None

    @property
    def units(self) -> tuple[Tensor | None, Tensor | None]:
        """What makes raw q and k units, ``[slots, H, C]``; None where they are read as they are."""
        return None, None

    def after_reverse(self) -> Errors:
        """What is read after the pass back over time; the rest's memory is free."""
        return self


@dataclass(frozen=True, slots=True)
class Stages:
    """The kernels of one call and direction.

    Attributes:
        call, problem, todo: what is computed and how.
        table, count: chunks of packed sequences, and how many chunks there are.
        shared: constants that every kernel takes.
        launches: what earlier calls of the signature launched in this direction.
    """

    CHANNEL: ClassVar[bool] = False
    """Whether every key channel has its own decay."""

    call: Call
    problem: Problem
    todo: DeltaPlan
    table: Tensor | None
    count: int
    shared: Mapping[str, Any]
    launches: Launches

    @classmethod
    def of(
        cls, call: Call, problem: Problem, todo: DeltaPlan, profile: Profile, launches: Launches
    ) -> Stages:
        """Prepare to launch what was planned."""
        table, count = chunks_of(call, problem, todo.C)
        shared = {
            "H": problem.heads,
            "K": problem.K,
            "V": problem.V,
            "VARLEN": problem.packed,
            "PRECISION": precision(call.q, problem, profile),
        }
        if not cls.CHANNEL:
            shared["HAS_G"] = call.get("g") is not None
        return cls(call, problem, todo, table, count, shared, launches)

    def prepare(self, with_inverse: bool) -> Errors:
        """Solve every chunk's triangular system."""
        k, v = self.call.k, self.call.v
        w, u = torch.empty_like(k), torch.empty_like(v)
        inverse = self.of_pairs() if with_inverse else None
        decays = self._prepare(w, u, inverse, None)
        return Errors(self.call.q, k, w, u, inverse, *decays)

    def fused(self, o: Tensor, last: Tensor | None) -> None:
        """Outputs from one pass over time, which forms each chunk's errors on its way."""
        call, start = self.call, start_of(self.call)
        inverse, scores = self.of_pairs(), self.of_pairs()
        decays = self._prepare(None, None, inverse, scores, fold=True)
        operands = (call.q, call.k, call.v, None, inverse, scores, *decays, start, o, last)
        self._run(
            "fused",
            delta_outputs,
            (*operands, boundaries(call), call.q.shape[1], call.scale),
            CHANNEL=False,
            SOLVES=True,
            HAS_START=start is not None,
            HAS_LAST=last is not None,
        )

    def _prepare(
        self,
        w: Tensor | None,
        u: Tensor | None,
        inverse: Tensor | None,
        scores: Tensor | None,
        fold: bool = False,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Fill what there is room for, ``fold`` with beta in the inverse; decays come with it."""
        call, heads = self.call, self.problem.heads
        q, k, v, g = call.q, call.k, call.v, call.get("g")
        since = into = totals = None
        if g is not None:
            since, into = self.of_steps(), self.of_steps()
            totals = float32(k, self.problem.chunks(self.todo.C), heads)
        made = (w, u, inverse, scores, since, into, totals)
        self._over_chunks(
            "prepare",
            delta_prepare,
            (q, k, v, g, call.beta, *made),
            (call.scale,),
            WITH_ERRORS=w is not None,
            WITH_INVERSE=inverse is not None,
            WITH_SCORES=scores is not None,
            FOLD=fold,
        )
        return since, into, totals

    def of_steps(self) -> Tensor:
        """Room for a float32 of each token, chunk by chunk, where a chunk's lie side by side."""
        return float32(
            self.call.k, self.problem.chunks(self.todo.C), self.problem.heads, self.todo.C
        )

    def of_pairs(self) -> Tensor:
        """Room for a number of each pair of a chunk's tokens, ``[B, T, H, C]``."""
        v: Tensor = self.call.v
        return v.new_empty((*v.shape[:3], self.todo.C))

    def states(self, errors: Errors, last: Tensor | None) -> Tensor:
        """Run over time: the state before each chunk; ``errors.u`` becomes ``v_new``."""
        call, start = self.call, start_of(self.call)
        states = self.room_for_states(self.todo.every)
        known = (errors.w, errors.u, errors.k, errors.into, errors.totals)
        self._run(
            "states",
            delta_states,
            (*known, start, states, errors.u, last, boundaries(call), call.q.shape[1]),
            HAS_G=self.shared.get("HAS_G", False),
            CHANNEL=self.CHANNEL,
            EVERY=self.todo.every,
            HAS_START=start is not None,
            HAS_LAST=last is not None,
        )
        return states

    def outputs(self, errors: Errors, states: Tensor, o: Tensor) -> None:
        """Outputs of linear attention on the errors."""
        call = self.call
        self._over_chunks(
            "outputs",
            chunk_outputs,
            (call.q, call.k, errors.u, call.get("g"), None, states, None, o),
            (call.scale,),
            columns=-(-self.problem.V // self.todo.launches["outputs"].constants["BV"]),
            HAS_GAMMA=False,
            HAS_W=False,
        )

    def gradients(
        self, do: Tensor, dlast: Tensor | None, needs: frozenset[str]
    ) -> Mapping[str, Tensor | None]:
        """Gradients of every input; what forward knew is computed anew."""
        errors = self.prepare(with_inverse=True)
        states = self.states(errors, None)
        call, v_new = self.call, errors.u
        q, k, v, g, start = call.q, call.k, call.v, call.get("g"), start_of(call)
        dstart = new_state(call, self.problem) if "initial_state" in needs else None
        dv = torch.empty_like(v)
        dstates = self._reverse(errors, do, dv, dlast, dstart)
        errors = errors.after_reverse()
        dbeta = float32(v, *v.shape[:3])
        dg = float32(v, *v.shape[:3]) if "g" in needs else None
        pairs = self.of_pairs()
        known = (q, k, v, g, call.beta, errors.inverse, v_new, do, dv)
        self._over_chunks(
            "errors",
            delta_errors,
            (*known, dv, pairs, dbeta, dg, *errors.units),
            (call.scale,),
            GROUP=self.problem.heads // q.shape[2],
            NORMS=errors.units[0] is not None,
            WITH_G=dg is not None,
        )
        errors = replace(errors, inverse=None)
        # Each program writes where only itself reads, or where nobody does any more.
        dq = v.new_empty((*v.shape[:3], q.shape[3])) if errors.w is None else errors.w
        dk = v_new if v_new.shape == dq.shape else torch.empty_like(dq)
        around = (states, dstates, start, dlast)
        self._add_states(errors, (v_new, dv, do, pairs), around, (dq, dk, dv, dbeta, dg))
        return {"q": dq, "k": dk, "v": dv, "g": dg, "beta": dbeta, "initial_state": dstart}

    def _add_states(
        self, errors: Errors, known: Operands, around: Operands, made: Operands
    ) -> None:
        """Gradients of every token's inputs, from those of its chunk's errors and scores."""
        call, every = self.call, self.todo.every
        table, count = chunks_of(call, self.problem, every * self.todo.C)
        operands = (call.q, call.k, call.get("g"), call.beta, *known, errors.into, errors.totals)
        self._run(
            "gradients",
            delta_gradients,
            (*operands, *around, *made, boundaries(call), table, call.q.shape[1], call.scale),
            count * self.problem.heads,
            EVERY=every,
            HAS_START=around[2] is not None,
            HAS_DLAST=around[3] is not None,
            WITH_G=made[-1] is not None,
        )

    def _reverse(
        self, errors: Errors, do: Tensor, dv: Tensor, dlast: Tensor | None, dstart: Tensor | None
    ) -> Tensor:
        """Run back over time: the gradient of the state after each chunk; dv takes ``dv_new``."""
        call = self.call
        dstates = self.room_for_states()
        self._local_dv(errors, do, dv)
        known = (errors.q, errors.k, errors.w, do, dv)
        decays = (errors.since, errors.into, errors.totals)
        where = (boundaries(call), call.q.shape[1], call.scale)
        self._run(
            "reverse",
            delta_state_gradients,
            (*known, *decays, dlast, dstates, dv, dstart, *where),
            HAS_G=self.shared.get("HAS_G", False),
            CHANNEL=self.CHANNEL,
            HAS_DLAST=dlast is not None,
            HAS_DSTART=dstart is not None,
        )
        return dstates

    def _local_dv(self, errors: Errors, do: Tensor, dv: Tensor) -> None:
        """What a chunk's own outputs ask of its errors."""
        call = self.call
        operands = (call.q, call.k, call.get("g"), do, dv)
        self._over_chunks("local", local_dv, operands, (call.scale,))

    def room_for_states(self, every: int = 1) -> Tensor:
        """Room for the state before each chunk, or of every so many."""
        problem = self.problem
        shape = (problem.chunks(every * self.todo.C), problem.heads, problem.K, problem.V)
        q: Tensor = self.call.q
        return q.new_empty(shape)

    def _over_chunks(
        self,
        stage: str,
        kernel: Any,
        arguments: tuple[Any, ...],
        numbers: tuple[float, ...],
        columns: int = 1,
        **constants: Any,
    ) -> None:
        """Launch a kernel with a program a chunk and head, which finds its chunk by the table."""
        where = (boundaries(self.call), self.table, self.call.q.shape[1])
        grid = self.count * self.problem.heads * columns
        self._run(stage, kernel, (*arguments, *where, *numbers), grid, **constants)

    def _run(
        self,
        stage: str,
        kernel: Any,
        arguments: tuple[Any, ...],
        grid: int | None = None,
        **constants: Any,
    ) -> None:
        planned = self.todo.launches[stage]

        def settle() -> Settling:
            return kernel, planned, {**self.shared, **constants}

        name = f"{stage} {kernel.__name__}"
        self.launches.run(name, arguments, settle, planned.grid if grid is None else grid)
