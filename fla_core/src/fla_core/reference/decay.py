"""Linear attention with decay: token recurrence and chunked form.

For one head, with gates in log space and any of them absent (Yang et al., "Gated Linear Attention
Transformers with Hardware-Efficient Training", 2024, equations 3 and 4; scalar decay: Sun et al.,
"Retentive Network", 2023):

    S_t = diag(exp(gk_t)) exp(g_t) S_{t-1} diag(exp(gv_t)) + k_t v_t^T
    o_t = scale * S_t^T q_t
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fla_core.reference.chunks import ChunkLayout
from fla_core.reference.operands import (
    by_sequence,
    by_token,
    compute_dtype,
    merge_gates,
    starting_state,
)
from fla_core.reference.scores import channel_scores, halves, head_decay


def decay_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float,
    bounds: tuple[int, ...] | None = None,
) -> tuple[Tensor, Tensor]:
    """Token by token; computes in float64 for float64 inputs, otherwise in float32.

    Args:
        q, k: ``[B, T, H, K]``.
        v: ``[B, T, H, V]``.
        g, gk, gv: log decays ``[B, T, H]``, ``[B, T, H, K]``, ``[B, T, H, V]``, not positive.
        initial_state: ``[N, H, K, V]``; zeros if None.
        scale: factor of q.
        bounds: N + 1 offsets of sequences packed in one row (B = 1); None if N = B.

    Returns:
        o ``[B, T, H, V]`` in the dtype of q and the final state ``[N, H, K, V]`` in the dtype of
        the computation. Both are differentiable, in time linear in T.
    """
    dtype = compute_dtype(q)
    state = starting_state(q, v, initial_state, bounds)
    rows, columns = merge_gates(g, gk, gv, dtype)
    operands = [
        q.to(dtype) * scale,
        k.to(dtype),
        v.to(dtype),
        None if rows is None else rows.exp(),
        None if columns is None else columns.exp(),
    ]
    o, final = by_sequence(_recur, state, operands, bounds)
    return o.to(q.dtype), final


def decay_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float,
    bounds: tuple[int, ...] | None = None,
    chunk_size: int = 64,
    return_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Chunk by chunk: what `decay_recurrent` computes, with matrix products inside chunks.

    Args:
        chunk_size: tokens per chunk, a power of two.
        return_states: whether to return the state before each chunk, ``[B, T / C, H, K, V]``
            rounded up, or ``[1, NT, H, K, V]`` over all packed sequences in order.

    Returns:
        o, final state, and the states or None. Other arguments are those of `decay_recurrent`.

    Raises:
        ValueError: if ``chunk_size`` is not a positive power of two.
    """
    layout = ChunkLayout.of(q, chunk_size, bounds)
    dtype = compute_dtype(q)

    def by_head(x: Tensor) -> Tensor:
        return layout.pack(x.to(dtype)).transpose(1, 2).contiguous()

    g, gk, gv = (None if x is None else by_head(x) for x in (g, gk, gv))
    keys = _key_side(by_head(q) * scale, by_head(k), g, gk)
    values = _value_side(keys.scores, by_head(v), gv)

    decay = keys.total
    if values.total is not None:
        decay = values.total if decay is None else decay * values.total
    update = keys.k.mT @ values.v
    initial = starting_state(q, v, initial_state, bounds)
    if decay is None:
        states, final = layout.scan(initial, torch.add, update)
    else:
        states, final = layout.scan(initial, _step, decay, update)

    if values.since_start is None:
        # One pass fewer over the outputs than a product and a sum.
        o = torch.baddbmm(*(x.flatten(0, 1) for x in (values.o, keys.q, states)))
        o = o.reshape(values.o.shape)
    else:
        o = torch.addcmul(values.o, keys.q @ states, values.since_start)
    o = layout.unpack(o.transpose(1, 2)).to(q.dtype)
    return o, final, layout.unpack_chunks(states) if return_states else None


def _recur(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    row_decay: Tensor | None,
    column_decay: Tensor | None,
) -> tuple[Tensor, Tensor]:
    batch, length, heads = q.shape[:3]
    if not length:
        return v.clone(), state.clone()

    absent = [None] * length
    rows = absent if row_decay is None else by_token(row_decay).mT.unbind()
    columns = absent if column_decay is None else by_token(column_decay).unbind()
    products = (by_token(q).unbind(), by_token(k).mT.unbind(), by_token(v).unbind())
    state, outputs = state.flatten(0, 1), []
    for q, k, v, row, column in zip(*products, rows, columns, strict=True):
        if row is not None:
            state = state * row
        if column is not None:
            state = state * column
        state = torch.baddbmm(state, k, v)
        outputs.append(torch.bmm(q, state))
    o = torch.unflatten(torch.cat(outputs, 1), 0, (batch, heads)).transpose(1, 2)
    return o.contiguous(), torch.unflatten(state, 0, (batch, heads))


def _step(state: Tensor, decay: Tensor, update: Tensor) -> Tensor:
    return torch.addcmul(update, state, decay)


class _KeySide(NamedTuple):
    scores: Tensor  # [..., C, C], lower triangular
    q: Tensor  # decayed from the chunk's start
    k: Tensor  # decayed to the chunk's end
    total: Tensor | None  # [..., 1 or K, 1]


class _ValueSide(NamedTuple):
    o: Tensor  # [..., C, V], of the chunk's own tokens
    v: Tensor  # decayed to the chunk's end
    since_start: Tensor | None  # [..., C, V]
    total: Tensor | None  # [..., 1, V]


def _key_side(q: Tensor, k: Tensor, g: Tensor | None, gk: Tensor | None) -> _KeySide:
    if gk is not None:
        gates = gk if g is None else gk + g[..., None]
        (scores,), (rows,), columns, total = channel_scores((q,), k, gates)
        return _KeySide(scores, rows, columns, total[..., None])
    scores = q @ k.mT
    if g is None:
        return _KeySide(scores.tril(), q, k, None)
    decay = head_decay(g)
    return _KeySide(
        scores * decay.matrix,
        q * decay.since_start[..., None],
        k * decay.until_end[..., None],
        decay.total[..., None, None],
    )


def _value_side(scores: Tensor, v: Tensor, gv: Tensor | None) -> _ValueSide:
    """Outputs of a chunk's own tokens, ``o_i = sum_j scores_ij exp(gv_{j+1} + ... + gv_i) v_j``.

    Merges halves as `channel_scores` does, with the decay on the side of the values.
    """
    if gv is None:
        return _ValueSide(scores @ v, v, None, None)
    lead, shape = v.shape[:-2], v.shape[-2:]
    across = _off_diagonal(scores)
    total = gv.exp()
    since_start = total[..., None, :]
    weighted = v[..., None, :]
    o = weighted * scores.diagonal(dim1=-2, dim2=-1)[..., None, None]
    for block in reversed(across):
        (o_a, o_b), (v_a, v_b) = halves(o, -3), halves(weighted, -3)
        (p_a, p_b), (total_a, total_b) = halves(since_start, -3), halves(total, -2)
        o = torch.cat([o_a, torch.addcmul(o_b, p_b, block @ v_a)], -2)
        weighted = torch.cat([v_a * total_b[..., None, :], v_b], -2)
        since_start = torch.cat([p_a, p_b * total_a[..., None, :]], -2)
        total = total_a * total_b
    return _ValueSide(
        o.reshape(*lead, *shape),
        weighted.reshape(*lead, *shape),
        since_start.reshape(*lead, *shape),
        total,
    )


def _off_diagonal(scores: Tensor) -> list[Tensor]:
    """Lower left quarters ``[..., C / 2s, s, s]`` of the diagonal blocks, s = C / 2, ..., 2, 1."""
    blocks, quarters = scores[..., None, :, :], []
    while size := blocks.shape[-1] // 2:
        upper, lower = blocks.split_with_sizes((size, size), -2)
        lower_left, lower_right = lower.split_with_sizes((size, size), -1)
        quarters.append(lower_left)
        blocks = torch.stack(
            [upper.split_with_sizes((size, size), -1)[0], lower_right], -3
        ).flatten(-4, -3)
    return quarters
