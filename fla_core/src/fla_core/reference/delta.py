"""Delta rule with decay per head or per key channel: token recurrence and chunk form.

With decays ``D_t = diag(exp(gk_t)) exp(g_t)`` on the key side and ``diag(exp(gv_t))`` on the
value side::

    S~  = D_t S_{t-1} diag(exp(gv_t))
    e_t = beta_t (v_t - S~^T r_t)
    S_t = S~ + k_t e_t^T
    o_t = scale S_t^T q_t

where r is k unless another key is read than is written. Without gates this is DeltaNet, with ``g``
Gated DeltaNet, with ``gk`` Kimi Delta Attention.

Inside a chunk that starts from S, the errors of its tokens solve a unit lower triangular system::

    (I + A) E = diag(beta) (V - R_in S),    A_ij = beta_i r_i^T (D_i ... D_{j+1}) k_j for j < i

where row i of R_in is ``D_i ... D_1 r_i``. So ``E = U - W S`` with U and W free of S: all chunks
prepare them at once, and only ``S <- D S + K_out^T E`` is left to run along the sequence (the WY
form; Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
2024, and with decay "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024).
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
from fla_core.reference.scores import channel_scores, head_decay


def delta_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor | None = None,
    read: Tensor | None = None,
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
        beta: ``[B, T, H]``, or ``[B, T, H, V]`` for a step size per value channel; ones if None.
        read: ``[B, T, H, K]``, the keys whose values are erased; k if None.
        g, gk, gv: log decays ``[B, T, H]``, ``[B, T, H, K]``, ``[B, T, H, V]``, not positive.
        initial_state: ``[N, H, K, V]``; zeros if None.
        scale: factor of q.
        bounds: N + 1 offsets of sequences packed in one row (B = 1); None if N = B.

    Returns:
        o ``[B, T, H, V]`` in the dtype of q and the final state ``[N, H, K, V]`` in the dtype of
        the computation. Both are differentiable, in time linear in T.
    """
    dtype = compute_dtype(q)
    if beta is not None:
        beta = (beta[..., None] if beta.ndim == 3 else beta).to(dtype)
    rows, columns = merge_gates(g, gk, gv, dtype)
    operands = [
        q.to(dtype) * scale,
        k.to(dtype),
        v.to(dtype),
        beta,
        None if read is None else read.to(dtype),
        None if rows is None else rows.exp(),
        None if columns is None else columns.exp(),
    ]
    state = starting_state(q, v, initial_state, bounds)
    o, final = by_sequence(_recur, state, operands, bounds)
    return o.to(q.dtype), final


def delta_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor | None = None,
    read: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float,
    bounds: tuple[int, ...] | None = None,
    chunk_size: int = 32,
    return_states: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Chunk by chunk: what `delta_recurrent` computes, with matrix products inside chunks.

    Args:
        beta: ``[B, T, H]``; ones if None.
        chunk_size: tokens per chunk, a power of two. 32 was the fastest or level with 64 on one
            CPU thread for K = V = 32, 64 and 128.
        return_states: whether to return the state before each chunk, ``[B, T / C, H, K, V]``
            rounded up, or ``[1, NT, H, K, V]`` over all packed sequences in order.

    Returns:
        o, final state, and the states or None. Other arguments are those of `delta_recurrent`.

    Raises:
        ValueError: if ``chunk_size`` is not a positive power of two.
    """
    layout = ChunkLayout.of(q, chunk_size, bounds)
    dtype = compute_dtype(q)

    def cut(x: Tensor) -> Tensor:
        return layout.pack(x.to(dtype)).transpose(1, 2).contiguous()

    beta, read, g, gk = (None if x is None else cut(x) for x in (beta, read, g, gk))
    keys = _key_side(cut(q) * scale, cut(k), read, g, gk)
    w, u = _solve(keys, cut(v), beta)
    per_chunk = [w, u, keys.k_out.mT]
    if keys.total is not None:
        per_chunk.append(keys.total)
    errors: list[Tensor] = []

    def advance(
        state: Tensor, w: Tensor, u: Tensor, k_out: Tensor, decay: Tensor | None = None
    ) -> Tensor:
        errors.append(torch.baddbmm(u, w, state, alpha=-1))
        kept = state if decay is None else state * decay
        return torch.baddbmm(kept, k_out, errors[-1])

    states, final = layout.scan(starting_state(q, v, initial_state, bounds), advance, *per_chunk)
    error = torch.cat(errors).view_as(u) if errors else u
    o = keys.q_in @ states + keys.attend @ error
    o = layout.unpack(o.transpose(1, 2)).to(q.dtype)
    return o, final, layout.unpack_chunks(states) if return_states else None


def _recur(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    read: Tensor | None,
    row_decay: Tensor | None,
    column_decay: Tensor | None,
) -> tuple[Tensor, Tensor]:
    batch, length, heads = q.shape[:3]
    if not length:
        return v.clone(), state.clone()
    keys = by_token(k)
    reads = keys if read is None else by_token(read)
    absent = [None] * length
    steps = absent if beta is None else by_token(beta).unbind()
    rows = absent if row_decay is None else by_token(row_decay).mT.unbind()
    columns = absent if column_decay is None else by_token(column_decay).unbind()
    products = (by_token(q), reads, keys.mT, by_token(v))
    state, outputs = state.flatten(0, 1), []
    for q, read, k_column, v, step, row, column in zip(
        *(x.unbind() for x in products), steps, rows, columns, strict=True
    ):
        if row is not None:
            state = state * row
        if column is not None:
            state = state * column
        error = v - torch.bmm(read, state)
        if step is not None:
            error = step * error
        state = torch.baddbmm(state, k_column, error)
        outputs.append(torch.bmm(q, state))
    o = torch.unflatten(torch.cat(outputs, 1), 0, (batch, heads)).transpose(1, 2)
    return o.contiguous(), torch.unflatten(state, 0, (batch, heads))


class _KeySide(NamedTuple):
    """What queries and keys of a chunk are to each other, and to the states around it."""

    attend: Tensor  # [..., C, C], q on k, lower triangular
    erase: Tensor  # [..., C, C], read keys on k, read strictly below the diagonal
    q_in: Tensor  # [..., C, K], decayed from the chunk's start
    read_in: Tensor  # [..., C, K], decayed from the chunk's start
    k_out: Tensor  # [..., C, K], decayed to the chunk's end
    total: Tensor | None  # [..., 1 or K, 1], decay of the whole chunk


def _key_side(
    q: Tensor, k: Tensor, read: Tensor | None, g: Tensor | None, gk: Tensor | None
) -> _KeySide:
    read = k if read is None else read
    if gk is not None:
        gates = gk if g is None else gk + g[..., None]
        (attend, erase), (q_in, read_in), k_out, total = channel_scores((q, read), k, gates)
        return _KeySide(attend, erase, q_in, read_in, k_out, total[..., None])
    attend, erase = q @ k.mT, read @ k.mT
    if g is None:
        return _KeySide(attend.tril(), erase, q, read, k, None)
    decay = head_decay(g)
    since_start = decay.since_start[..., None]
    return _KeySide(
        attend * decay.matrix,
        erase * decay.matrix,
        q * since_start,
        read * since_start,
        k * decay.until_end[..., None],
        decay.total[..., None, None],
    )


def _solve(keys: _KeySide, v: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor]:
    """W and U, the parts of a chunk's errors that do and do not multiply its first state.

    To invert the system takes two thirds of the time of solving it for W and U. Where keys are at
    most of length one and beta at most 2, entries of the inverse are at most 2, being products of
    contractions; X (I + A) = 1 finds them to rounding even for equal keys at beta = 2, where the
    errors of (I + A) X = 1 were 50 times larger, at 32 tokens a chunk.
    """
    system = (keys.erase if beta is None else keys.erase * beta[..., None]).tril(-1)
    identity = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device)
    inverse: Tensor = torch.linalg.solve_triangular(
        system, identity.expand_as(system), upper=False, left=False, unitriangular=True
    )
    if beta is not None:
        inverse = inverse * beta[..., None, :]
    return inverse @ keys.read_in, inverse @ v
