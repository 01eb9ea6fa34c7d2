"""Gradients of all chunks at once on Hopper: host code around the kernels."""

from __future__ import annotations

from fla_backend_cuda.hopper.kernels.channel import channel_gradients
from fla_backend_cuda.hopper.kernels.gradients import delta_chunk_gradients
from fla_backend_cuda.hopper.operands import aligned
from fla_triton.calls import boundaries, chunks_of
from fla_triton.delta_stages import Errors, Operands, Stages
from fla_triton.plan import Launch, Problem

SIDE = 64
"""Rows and columns of a tile, tokens of a chunk."""

WIDEST = 128
"""Columns of V that lie in shared memory whole, in one of two programs of a multiprocessor."""


def channels_launch(problem: Problem) -> Launch:
    """A program for each chunk and head of a dense batch."""
    return Launch("channels", problem.chunks(SIDE) * problem.heads, {}, 4, 1, 0)


def gradients_launch(problem: Problem) -> Launch:
    """A program for each two chunks and each head of a dense batch."""
    return Launch("gradients", problem.chunks(2 * SIDE) * problem.heads, {}, 4, 1, 0)


def run_channels(stages: Stages, operands: Operands, made: Operands) -> None:
    """Launch what takes the place of ``delta_channel_segments`` and the two kernels behind it."""
    call, problem, planned = stages.call, stages.problem, stages.todo.launches["channels"]
    start, dlast = operands[-2:]
    constants = {
        "H": problem.heads,
        "K": problem.K,
        "V": problem.V,
        "CHANNELS": call.get("b") is not None,
        "HAS_START": start is not None,
        "HAS_DLAST": dlast is not None,
        "WITH_GATES": made[2] is not None,
        "VARLEN": problem.packed,
    }
    where = (boundaries(call), stages.table, call.q.shape[1], call.scale)
    stages.launches.run(
        "channels",
        (*operands, *made, *where),
        lambda: (channel_gradients, planned, constants),
        stages.count * problem.heads,
    )


def run_gradients(
    stages: Stages,
    errors: Errors,
    norms: Operands,
    known: Operands,
    around: Operands,
    made: Operands,
) -> None:
    """Launch what ``delta_gradients`` does elsewhere; ``norms``: of raw q and k, else None."""
    call, problem, planned = stages.call, stages.problem, stages.todo.launches["gradients"]
    table, count = chunks_of(call, problem, 2 * SIDE)
    constants = {
        "H": problem.heads,
        "K": problem.K,
        "V": problem.V,
        "HAS_G": errors.since is not None,
        "GROUP": problem.heads // call.q.shape[2],
        "NORMS": norms[0] is not None,
        "HAS_START": around[2] is not None,
        "HAS_DLAST": around[3] is not None,
        "WITH_G": made[-1] is not None,
        "VARLEN": problem.packed,
    }
    v_new, y, do, pairs = known
    assert do is not None
    operands = (call.q, call.k, call.beta, v_new, y, aligned(do), pairs)
    decays = (errors.since, errors.into, errors.totals)
    where = (boundaries(call), table, call.q.shape[1], call.scale)
    stages.launches.run(
        "gradients",
        (*operands, *decays, *norms, *around, *made, *where),
        lambda: (delta_chunk_gradients, planned, constants),
        count * problem.heads,
    )
