"""Gates with one decay a head: their sums in every chunk, and their gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fla_core.call import Call
from fla_triton.calls import Settled, boundaries, chunk_table, float32, gates, qkv
from fla_triton.kernels.gates import gate_sums
from fla_triton.kernels.gradients import gate_gradients
from fla_triton.launch import Settling
from fla_triton.plan import Launch


def sums_of(call: Call, todo: Settled[Any]) -> Tensor | None:
    """Sums of the gates in every chunk of a plan, ``[slots, H, 4, C]``; None without gates."""
    g, gamma = gates(call)
    if g is None and gamma is None:
        return None
    q, _, _ = qkv(call)
    problem, size = todo.problem, todo.plan.tiles.chunk_size
    sums = float32(q, problem.chunks(size), problem.heads, 4, size)
    table, count = chunk_table(call, problem, todo.plan)

    def settle() -> Settling:
        constants = {
            "H": problem.heads,
            "HAS_G": g is not None,
            "HAS_GAMMA": gamma is not None,
            "VARLEN": problem.packed,
        }
        return gate_sums, Launch("sums", 0, {"C": size}, 1, 1, 0), constants

    # The first argument is a tensor.
    arguments = (sums, g, gamma, boundaries(call), table, q.shape[1])
    todo.launches.run("sums", arguments, settle, count * problem.heads)
    return sums


def gradients_of(
    call: Call, todo: Settled[Any], parts: tuple[Tensor, Tensor], needs: frozenset[str]
) -> dict[str, Tensor | None]:
    """Gradients of the gates from what ``chunk_gradients`` left of each block."""
    steps, spans = parts
    problem, planned = todo.problem, todo.plan
    q, _, _ = qkv(call)
    table, count = chunk_table(call, problem, planned)
    dg = float32(q, *q.shape[:3]) if "g" in needs else None
    sums = float32(q, count, problem.heads) if "g_gamma" in needs else None

    def settle() -> Settling:
        constants = {
            "H": problem.heads,
            "WITH_G": dg is not None,
            "WITH_GAMMA": sums is not None,
            "VARLEN": problem.packed,
        }
        tiles = {"BT": planned.tiles.BT, "R": planned.tiles.R}
        return gate_gradients, Launch("gates", 0, tiles, 1, 1, 0), constants

    arguments = (steps, spans, dg, sums, boundaries(call), table, q.shape[1])
    todo.launches.run("gates", arguments, settle, count * problem.heads)
    return {"g": dg, "g_gamma": None if sums is None else sums.sum(0)}
