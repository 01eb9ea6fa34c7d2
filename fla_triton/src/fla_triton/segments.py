"""Sequences cut in time: where each segment starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fla_triton.calls import Settled, float32
from fla_triton.kernels.states import chain


def starts_of(
    todo: Settled[Any],
    q: Tensor,
    start: Tensor | None,
    add: Callable[[Tensor, Tensor], None],
    by_row: bool,
    reverse: bool,
) -> Tensor | None:
    """The state before each segment, ``[N, H, segments, K, V]``; of one it is ``start``.

    Args:
        todo: the call's sizes, plan and launches.
        q: lies where the result shall lie.
        start: the state before the first segment, None for zeros.
        add: fills what every segment but the last adds to a state of zero, shaped as the result,
            and how it decays: logarithms ``[N * H, segments]``, or factors of ``K`` rows each.
        by_row: whether rows decay apart.
        reverse: segments run back in time.
    """
    problem, segments = todo.problem, todo.plan.segments
    if segments == 1:
        return start
    heads = problem.sequences * problem.heads
    joints = float32(q, heads, segments, problem.K, problem.V)
    decays = float32(q, heads, segments, *((problem.K,) if by_row else ()))
    add(joints, decays)
    sizes = {"K": problem.K, "V": problem.V, "HAS_GK": by_row, "HAS_START": start is not None}
    todo.launches.run(
        "dchain" if reverse else "chain",
        (joints, decays, start, segments),
        lambda: (chain, todo.plan.launches["chain"], sizes),
    )
    return joints
