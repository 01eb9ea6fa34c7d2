"""Gated linear attention: each key channel decays by itself.

``S_t = diag(exp(gk_t)) S_{t-1} diag(exp(gv_t)) + k_t v_t^T,  o_t = scale S_t^T q_t``
(Yang et al. 2024, Gated Linear Attention Transformers with Hardware-Efficient Training, eq. 3.)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fla_core.errors import DtypeError
from fla_core.invoke import invoke
from fla_core.ops._keywords import leftover
from fla_core.ops._shared import Result, pair
from fla_core.prepare import Operator, operator

_CHUNK = operator("chunk_gla", gk="g")
_FUSED_CHUNK = operator("fused_chunk_gla", gk="g")
_RECURRENT = operator("fused_recurrent_gla")


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """Chunked GLA, for training and prefill.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64.
        v: ``[B, T, H, V]``, the dtype of q.
        g: log decay of key channels ``[B, T, H, K]``, any float dtype, not positive.
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, H, K, V]``, float32 (16-bit states are widened).
        output_final_state: return the state after the last token.
        state_v_first: states are ``[N, H, V, K]``.
        cu_seqlens: ``[N + 1]`` boundaries of sequences packed in one row (B = 1), int32 or int64;
            empty sequences are legal.
        cu_seqlens_cpu: the same on the host, which saves a synchronisation.
        backend: selection policy for this call, as in ``FLA_BACKEND``.

    Returns:
        o ``[B, T, H, V]`` in the dtype of q, and the final state in float32 or None.

    Raises:
        ContractError: an argument breaks the contract; it names argument, expectation and value.
        NoImplementationError: the policy leaves no implementation for the call.
    """
    return _chunk(
        _CHUNK,
        (q, k, v, g, None, initial_state),
        (output_final_state, False, state_v_first),
        scale,
        cu_seqlens,
        cu_seqlens_cpu,
        backend,
    )


def fused_chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """:func:`chunk_gla` under the name of a fused form."""
    return _chunk(
        _FUSED_CHUNK,
        (q, k, v, g, None, initial_state),
        (output_final_state, False, state_v_first),
        scale,
        cu_seqlens,
        cu_seqlens_cpu,
        backend,
    )


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
    **kwargs: Any,
) -> Result:
    """GLA token by token, with decays on key channels, value channels, both or neither.

    Args:
        gk: log decay of key channels ``[B, T, H, K]``.
        gv: log decay of value channels ``[B, T, H, V]``.
        reverse: walk each sequence from its last token to its first.

    The other arguments, the result and the errors are those of :func:`chunk_gla`.
    """
    state_v_first = leftover(_RECURRENT.title, fused_recurrent_gla, kwargs, state_v_first)
    return pair(
        invoke(
            _RECURRENT,
            (q, k, v, gk, gv, initial_state),
            (output_final_state, reverse, state_v_first),
            scale=scale,
            cu_seqlens=cu_seqlens,
            backend=backend,
        )
    )


def _chunk(
    op: Operator,
    tensors: tuple[Tensor | None, ...],
    flags: tuple[bool, ...],
    scale: float | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    backend: str | None,
) -> Result:
    if tensors[3] is None:
        raise DtypeError(op.title, "g", "a tensor [B, T, H, K]", "None")
    return pair(
        invoke(
            op,
            tensors,
            flags,
            scale=scale,
            cu_seqlens=cu_seqlens,
            cu_seqlens_cpu=cu_seqlens_cpu,
            backend=backend,
        )
    )
