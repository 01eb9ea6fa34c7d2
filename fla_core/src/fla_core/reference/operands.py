"""What the token recurrences and the chunked forms do alike with their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor


def compute_dtype(q: Tensor) -> torch.dtype:
    """float64 for float64 inputs, otherwise float32."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def starting_state(
    q: Tensor, v: Tensor, initial_state: Tensor | None, bounds: tuple[int, ...] | None
) -> Tensor:
    """``initial_state`` in the dtype of the computation; zeros ``[N, H, K, V]`` for None."""
    if initial_state is not None:
        return initial_state.to(compute_dtype(q))
    sequences = q.shape[0] if bounds is None else len(bounds) - 1
    return q.new_zeros(sequences, *q.shape[2:], v.shape[-1], dtype=compute_dtype(q))


def merge_gates(
    g: Tensor | None, gk: Tensor | None, gv: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """One log decay of the rows of a state ``[B, T, H, 1 or K]`` and one of its columns."""
    g, gk, gv = (None if x is None else x.to(dtype) for x in (g, gk, gv))
    g = None if g is None else g[..., None]
    return (gk if g is None else g if gk is None else gk + g), gv


def by_token(x: Tensor) -> Tensor:
    """``[B, T, H, D]`` as ``[T, B * H, 1, D]``: at three dimensions products take half the time."""
    return x.transpose(0, 1).flatten(1, 2)[:, :, None]


def by_sequence(
    run: Callable[..., tuple[Tensor, Tensor]],
    state: Tensor,
    operands: Sequence[Tensor | None],
    bounds: tuple[int, ...] | None,
) -> tuple[Tensor, Tensor]:
    """Call ``run(state, *operands)`` on dense rows, or on every packed sequence by itself.

    Args:
        run: gives outputs ``[B, T, ...]`` and final states.
        state: initial states ``[N, ...]``.
        operands: ``[B, T, ...]`` or None.
        bounds: N + 1 token offsets of the packed sequences of one row, or None.
    """
    if bounds is None or len(bounds) <= 2:
        return run(state, *operands)
    lengths = [end - start for start, end in pairwise(bounds)]
    # Split, not sliced: the backward of a slice touches the whole row.
    spans = [
        [None] * len(lengths) if x is None else x.split_with_sizes(lengths, 1) for x in operands
    ]
    states = state.split_with_sizes([1] * len(lengths))
    runs = [run(start, *span) for start, *span in zip(states, *spans, strict=True)]
    return torch.cat([o for o, _ in runs], 1), torch.cat([final for _, final in runs])
