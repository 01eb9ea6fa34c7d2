"""Outputs of linear attention with decays on Hopper: how its pass over time is cut and launched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fla_backend_cuda.hopper.chunks import CHUNK
from fla_backend_cuda.hopper.kernels.decayed import decayed_over_time
from fla_backend_cuda.hopper.operands import COLUMNS
from fla_core.call import Call
from fla_triton.calls import Settled, boundaries
from fla_triton.launch import Settling
from fla_triton.plan import Launch, Plan, Problem, joining, startable
from fla_triton.profiles import Profile

SHORTEST = 8
"""Chunks of a segment, below which it would spend its time starting."""

SHARE = 11
"""Of 16 chunks, those of the first half: the second walks them again, for their state alone."""

RINGS = {
    "scalar": {"STAGES": 4, "BUFFERS": 2, "WRITERS": 2},
    "channel": {"STAGES": 4, "BUFFERS": 1, "WRITERS": 1},
}
"""Chunks of operands in shared memory, states on their way, and warpgroups that write outputs."""

REGISTERS = {1: 168, 2: 128}
"""Of a thread by the number of writers, before roles share them out: 65536 hold no more."""


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
