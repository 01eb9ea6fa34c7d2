"""Gradients of all chunks at once on Hopper: host code around the kernels."""

from __future__ import annotations

from fla_backend_cuda.hopper.kernels.across import across_segments
from fla_backend_cuda.hopper.kernels.errors import chunk_errors
from fla_backend_cuda.hopper.kernels.gradients import delta_chunk_gradients
from fla_backend_cuda.hopper.operands import aligned
from fla_triton.calls import boundaries, chunks_of
from fla_triton.delta_stages import Errors, Operands, Stages
from fla_triton.plan import Launch, Problem

SIDE = 64
"""Rows and columns of a tile, tokens of a chunk."""

WIDEST = 128
"""Columns of V that lie in shared memory whole, in one of two programs of a multiprocessor; of more
the kernel of errors spills 792 bytes a thread."""


def across_launch(problem: Problem) -> Launch:
    """A program for each chunk and head of a dense batch and each tile of key channels."""
    grid = problem.chunks(SIDE) * problem.heads * (problem.K // SIDE)
    return Launch("across", grid, {}, 4, 1, 0)


def errors_launch(problem: Problem) -> Launch:
    """A program for each chunk and head of a dense batch; three share a multiprocessor."""
    return Launch("chunk_errors", problem.chunks(SIDE) * problem.heads, {}, 4, 1, 0, 168)


def gradients_launch(problem: Problem) -> Launch:
    """A program for each two chunks and each head of a dense batch."""
    return Launch("gradients", problem.chunks(2 * SIDE) * problem.heads, {}, 4, 1, 0)


def run_across(
    stages: Stages, given: Operands, known: Operands, over: Operands, with_gates: bool
) -> None:
    """Launch what ``delta_channel_segments`` and ``delta_channel_across`` do elsewhere."""
    call, problem, planned = stages.call, stages.problem, stages.todo.launches["across"]
    v_new, do, *others = known
    start, dlast = others[-2:]
    assert do is not None
    constants = {
        "H": problem.heads,
        "K": problem.K,
        "V": problem.V,
        "HAS_START": start is not None,
        "HAS_DLAST": dlast is not None,
        "CHANNELS": call.get("b") is not None,
        "WITH_GATES": with_gates,
        "VARLEN": problem.packed,
    }
    where = (boundaries(call), stages.table, call.q.shape[1], call.scale)
    stages.launches.run(
        "across",
        (*given, v_new, aligned(do), *others, *over, *where),
        lambda: (across_segments, planned, constants),
        stages.count * problem.heads * (problem.K // SIDE),
    )


def run_errors(stages: Stages, operands: Operands) -> None:
    """Launch what ``delta_channel_errors`` does elsewhere with strengths of heads."""
    call, problem, planned = stages.call, stages.problem, stages.todo.launches["chunk_errors"]
    v, beta, v_new, inverse, do, dv_new, y, dv, _, *others = operands
    assert do is not None
    constants = {"H": problem.heads, "V": problem.V, "VARLEN": problem.packed}
    where = (boundaries(call), stages.table, call.q.shape[1], call.scale)
    stages.launches.run(
        "errors",
        (v, beta, v_new, inverse, aligned(do), dv_new, y, dv, *others, *where),
        lambda: (chunk_errors, planned, constants),
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
