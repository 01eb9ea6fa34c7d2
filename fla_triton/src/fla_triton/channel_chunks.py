"""Linear attention whose key channels decay separately: gradients of all chunks at once."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fla_core.call import Call
from fla_triton.calls import Settled, boundaries, chunk_table, qkv
from fla_triton.kernels.channel_gradients import channel_gradients, channel_pulls
from fla_triton.launch import Settling
from fla_triton.plan import Plan, Problem

Operands = tuple[Tensor | None, ...]


def sizes(problem: Problem) -> dict[str, Any]:
    """Constants that every kernel takes."""
    return {"H": problem.heads, "K": problem.K, "V": problem.V, "VARLEN": problem.packed}


def pairs_and_states(
    call: Call,
    todo: Settled[Plan],
    pulls: Tensor,
    known: Operands,
    found: tuple[Tensor, Tensor, Tensor | None],
    precision: str,
) -> None:
    """Gradients of queries, keys and gates from a chunk's pairs and the states around it.

    Args:
        call: what is computed.
        todo: how.
        pulls: room for the gradients of scores, ``[B, T, H, C]``.
        known: do; the state before each chunk and the gradient of that after it; the first state
            and the gradient of the last, as they are given.
        found: what is filled, the gradient of gates if it is wanted.
        precision: of products of float32.
    """
    problem, planned = todo.problem, todo.plan
    q, k, v = qkv(call)
    do, _, _, start, dlast = known
    table, count = chunk_table(call, problem, planned)
    where = (boundaries(call), table, q.shape[1], call.scale)

    def settle_pulls() -> Settling:
        constants = {**sizes(problem), "PRECISION": precision}
        del constants["K"]
        return channel_pulls, planned.launches["pulls"], constants

    todo.launches.run("pulls", (v, do, pulls, *where), settle_pulls, count * problem.heads)

    def settle() -> Settling:
        constants = {
            **sizes(problem),
            "HAS_START": start is not None,
            "HAS_DLAST": dlast is not None,
            "WITH_GATES": found[-1] is not None,
            "PRECISION": precision,
        }
        return channel_gradients, planned.launches["gradients"], constants

    tiles = -(-problem.K // planned.launches["gradients"].constants["BK"])
    tensors = (q, k, v, call.gk, do, pulls, *known[1:], *found)
    todo.launches.run("gradients", (*tensors, *where), settle, count * problem.heads * tiles)
