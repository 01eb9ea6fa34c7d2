"""Linear attention with decays on Hopper: host code around its kernel over time.

Outputs come from one pass over time, which takes 16-bit numbers, K of 64 or 128 and V in tiles of
64; what channels decay to, from a kernel that delta rules share. Of a backward pass under channel
decays the states and the gradients but those of values are Hopper's own; all else is the portable
kernels' part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from fla_backend_cuda.hopper.chunks import CHUNK, PAIRED, prepare_launch, run_prepare
from fla_backend_cuda.hopper.kernels.both_states import both_states
from fla_backend_cuda.hopper.kernels.channels import channel_chunk_gradients
from fla_backend_cuda.hopper.kernels.decayed import decayed_over_time
from fla_backend_cuda.hopper.kernels.pairs import channel_pairs
from fla_backend_cuda.hopper.operands import COLUMNS, aligned, placed
from fla_core.call import Call
from fla_triton import channel_decay, channel_plan, plan, scalar_decay
from fla_triton.calls import Settled, boundaries, chunk_table, gates, qkv, start_of
from fla_triton.channel_chunks import Operands, sizes
from fla_triton.channel_decay import Prepared
from fla_triton.gates import sums_of
from fla_triton.launch import Settling
from fla_triton.plan import DECODE_TOKENS, Launch, Plan, Problem, joining, startable
from fla_triton.profiles import Profile
from fla_triton.prologue import NOTHING, activations

SHORTEST = 8
"""Chunks of a segment, below which it would spend its time starting."""

SHARE = 11
"""Of 16 chunks, those of the first half: the second walks them again, for their state alone."""

RINGS = {
    "scalar": {"STAGES": 4, "BUFFERS": 2, "WRITERS": 2},
    "channel": {"STAGES": 4, "BUFFERS": 1, "WRITERS": 1},
}
"""Chunks of operands in shared memory, states on their way, and warpgroups that write outputs."""

FINISHED = {
    "CHANNELS": False,
    "WITH_INVERSE": False,
    "GROUP": 1,
    **activations(NOTHING),
}
"""Switches of ``channel_pairs`` that are another's."""

REGISTERS = {1: 168, 2: 128}
"""Of a thread by the number of writers, before roles share them out: 65536 hold no more."""

CROSSING = 168
"""Registers of a thread of ``channel_chunk_gradients``: three programs share a multiprocessor."""


@dataclass(frozen=True, slots=True)
class HalvedPlan(Plan):
    """A plan whose segments may be cut once more.

    Attributes:
        halves: 2 if so, and 1 if not.
    """

    halves: int = 1


def with_pass(planned: Plan, problem: Problem, profile: Profile, form: str) -> HalvedPlan:
    """The stages of a portable plan that come before outputs, and the pass over time."""
    programs = problem.sequences * problem.heads * (problem.V // COLUMNS)
    chunks = -(-problem.longest // CHUNK)
    segments, span, halves = cuts(programs, chunks, profile)
    states, ring = planned.launches["states"], RINGS[form]
    tiles = states.grid // planned.segments
    launches = joining(replace(states, grid=tiles * segments), segments, problem)
    if "prepare" in planned.launches:
        launches["prepare"] = planned.launches["prepare"]
    constants = {"BV": COLUMNS, "C": CHUNK, **ring}
    grid, registers = programs * segments * halves, REGISTERS[ring["WRITERS"]]
    launches["over_time"] = Launch("over_time", grid, constants, 4, 1, 0, registers)
    launches = {name: startable(one, profile) for name, one in launches.items()}
    return HalvedPlan(planned.tiles, segments, span, launches, halves)


def cuts(programs: int, chunks: int, profile: Profile) -> tuple[int, int, int]:
    """How many segments each sequence is cut into, of how many chunks each, and in which halves.

    A program fills a multiprocessor. Two halves take two thirds of the time of one whole, at no
    other cost; segments take their share of it, and a pass over keys and values before.
    """
    room = profile.multiprocessors // programs if programs else 0
    segments = min(room, chunks // SHORTEST)
    if segments < 3:
        return 1, chunks, 2 if room > 1 and chunks > 1 else 1
    span = -(-chunks // segments)
    return -(-chunks // span), span, 1


def over_time(
    call: Call,
    todo: Settled[Any],
    operands: tuple[Tensor | None, ...],
    start: Tensor | None,
    o: Tensor,
    last: Tensor | None,
    w: Tensor | None = None,
) -> None:
    """Outputs, and the final state.

    Args:
        call: what is computed.
        todo: how.
        operands: what the kernel reads of tokens and chunks, q to totals.
        start: the state before each segment, if any.
        o, last: where results go.
        w: what outputs are divided by, if anything.
    """
    problem, planned = todo.problem, todo.plan
    g, gamma, scores = operands[3:6]

    def settle() -> Settling:
        constants = {
            "H": problem.heads,
            "K": problem.K,
            "V": problem.V,
            "HAS_G": g is not None,
            "HAS_GAMMA": gamma is not None,
            "HAS_W": w is not None,
            "CHANNEL": scores is not None,
            "HAS_START": start is not None,
            "HAS_LAST": last is not None,
            "VARLEN": problem.packed,
        }
        return decayed_over_time, planned.launches["over_time"], constants

    cut = (planned.span, planned.segments, planned.halves, SHARE if planned.halves > 1 else 16)
    where = (boundaries(call), o.shape[1], *cut, call.scale)
    todo.launches.run("over_time", (*operands, w, start, o, last, *where), settle)


@dataclass(frozen=True, slots=True)
class Kernels(scalar_decay.Kernels):
    """One decay a head, or none."""

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
        problem, planned = todo.problem, todo.plan
        shape = (problem.chunks(CHUNK), problem.heads, problem.K, problem.V)
        states, dstates = call.v.new_empty(shape), call.v.new_empty(shape)
        start = self._starts(call, todo, made, (made.k_out, call.v), start_of(call))
        dlast = self._starts(call, todo, made, (made.q_in, do), dlast, reverse=True)

        def settle() -> Settling:
            constants = {
                **sizes(problem),
                "HAS_START": start is not None,
                "HAS_DLAST": dlast is not None,
                "HAS_DSTART": dstart is not None,
            }
            return both_states, planned.launches["both"], constants

        operands = (made.q_in, made.k_out, call.v, do, made.totals, start, dlast)
        where = (boundaries(call), call.q.shape[1], planned.span, planned.segments)
        todo.launches.run("both", (*operands, states, dstates, dstart, *where), settle)
        return states, dstates

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
    states = planned.launches["states"]
    launches = {
        **planned.launches,
        "both": replace(states, stage="both", grid=2 * states.grid),
        "gradients": Launch("gradients", grid, {}, 4, 1, 0, CROSSING),
    }
    launches = {name: startable(one, profile) for name, one in launches.items()}
    return replace(planned, launches=launches)


@lru_cache(maxsize=1024)
def _channel_planned(problem: Problem, profile: Profile) -> HalvedPlan:
    planned = _scored(problem, "forward", profile)
    return with_pass(planned, problem, profile, "channel")


@lru_cache(maxsize=1024)
def _scored(problem: Problem, direction: str, profile: Profile) -> Plan:
    """The portable plan, but for what comes first."""
    tiles = replace(channel_plan.default_tiles(problem, direction, profile), BT=CHUNK, R=1)
    planned = channel_plan.plan(problem, direction, profile, tiles)
    launches = {**planned.launches, "prepare": prepare_launch(problem, PAIRED, profile)}
    return replace(planned, launches=launches)


FAMILIES = {"scalar_decay": Kernels, "channel_decay": ChannelKernels}
"""By the family of portable kernels whose place they take."""
