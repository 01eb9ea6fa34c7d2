"""States and their gradients in one launch on Hopper: host code around the kernel."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fla_backend_cuda.hopper.chunks import CHUNK
from fla_backend_cuda.hopper.kernels.both_states import both_states
from fla_core.call import Call
from fla_triton.calls import Settled, boundaries
from fla_triton.channel_chunks import sizes
from fla_triton.launch import Settling
from fla_triton.plan import Launch, Plan, startable
from fla_triton.profiles import Profile


def run_both_states(
    call: Call,
    todo: Settled[Plan],
    operands: tuple[Tensor | None, ...],
    ends: tuple[Tensor | None, ...],
) -> tuple[Tensor, Tensor]:
    """States before each chunk and gradients of those after each, ``[slots, H, K, V]``.

    Args:
        call, todo: what is computed, and how.
        operands: q, k, v and do, decays of channels in them if any; those of chunks by channel,
            or sums of gates.
        ends: the state before each segment, the gradient behind each, and where that of the first
            state goes.
    """
    problem, planned = todo.problem, todo.plan
    shape = (problem.chunks(CHUNK), problem.heads, problem.K, problem.V)
    states, dstates = call.v.new_empty(shape), call.v.new_empty(shape)
    start, dlast, dstart = ends

    def settle() -> Settling:
        constants = {
            **sizes(problem),
            "CHANNEL": operands[4] is not None,
            "HAS_START": start is not None,
            "HAS_DLAST": dlast is not None,
            "HAS_DSTART": dstart is not None,
        }
        return both_states, planned.launches["both"], constants

    tensors = (*operands, start, dlast, states, dstates, dstart, boundaries(call))
    where = (call.q.shape[1], planned.span, planned.segments, call.scale)
    todo.launches.run("both", (*tensors, *where), settle)
    return states, dstates


def around_chunks(planned: Plan, grid: int, registers: int, warps: int, profile: Profile) -> Plan:
    """A plan with both states in one launch, and gradients of all chunks in another."""
    states = planned.launches["states"]
    launches = {
        **planned.launches,
        "both": replace(states, stage="both", grid=2 * states.grid),
        "gradients": Launch("gradients", grid, {}, warps, 1, 0, registers),
    }
    launches = {name: startable(one, profile) for name, one in launches.items()}
    return replace(planned, launches=launches)
