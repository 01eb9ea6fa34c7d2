"""Simple GLA: linear attention with one decay a head.

``S_t = exp(g_t + g_gamma) S_{t-1} + k_t v_t^T,  o_t = scale S_t^T q_t``
(Yang et al. 2024, Gated Linear Attention, section 4; Dao and Gu 2024, Mamba-2.)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fla_core.call import NO_HINTS, Hints
from fla_core.errors import ContractError
from fla_core.invoke import invoke
from fla_core.ops._keywords import chunk_hint, leftover
from fla_core.ops._shared import Result, attention_weights, pair, refuse_packed_attentions
from fla_core.prepare import Operator, operator

_CHUNK = operator("chunk_simple_gla")
_FUSED_CHUNK = operator("fused_chunk_simple_gla")
_RECURRENT = operator("fused_recurrent_simple_gla")
_PARALLEL = operator("parallel_simple_gla")


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> Result:
    """Chunked simple GLA, for training and prefill.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64.
        v: ``[B, T, H, V]``, the dtype of q.
        g: log decay ``[B, T, H]``, any float dtype, not positive.
        g_gamma: log decay of each head ``[H]``; adds to g. Both have gradients.
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, H, K, V]``, float32 (16-bit states are widened).
        output_final_state: return the state after the last token.
        state_v_first: states are ``[N, H, V, K]``.
        cu_seqlens: ``[N + 1]`` boundaries of sequences packed in one row (B = 1), int32 or int64;
            empty sequences are legal.
        cu_seqlens_cpu: the same on the host, which saves a synchronisation.
        chunk_size: hint, a power of two.
        backend: selection policy for this call, as in ``FLA_BACKEND``.

    Returns:
        o ``[B, T, H, V]`` in the dtype of q, and the final state in float32 or None.

    Raises:
        ContractError: an argument breaks the contract; it names argument, expectation and value.
        NoImplementationError: the policy leaves no implementation for the call.
    """
    state_v_first = leftover(_CHUNK.title, chunk_simple_gla, kwargs, state_v_first)
    return decayed(
        _CHUNK,
        (q, k, v, g, g_gamma, initial_state),
        output_final_state,
        scale=scale,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        hints=NO_HINTS if chunk_size is None else chunk_hint(_CHUNK.title, chunk_size),
        backend=backend,
    )


def fused_chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """:func:`chunk_simple_gla` under the name of a fused form; takes g or g_gamma, not both."""
    if g is not None and g_gamma is not None:
        expected = "g or g_gamma, not both, in this form; chunk_simple_gla adds them"
        raise ContractError(_FUSED_CHUNK.title, "g_gamma", expected, "both")
    return decayed(
        _FUSED_CHUNK,
        (q, k, v, g, g_gamma, initial_state),
        output_final_state,
        scale=scale,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
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
    """:func:`chunk_simple_gla` token by token, for decoding.

    With ``reverse`` each sequence is walked from its last token to its first, and the final state
    is that after the first token.
    """
    state_v_first = leftover(_RECURRENT.title, fused_recurrent_simple_gla, kwargs, state_v_first)
    return decayed(
        _RECURRENT,
        (q, k, v, g, g_gamma, initial_state),
        output_final_state,
        scale=scale,
        reverse=reverse,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def parallel_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    scale: float | None = None,
    output_attentions: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """Simple GLA without states.

    Returns:
        o ``[B, T, H, V]``, and with ``output_attentions`` the weights ``[B, H, T, T]`` (quadratic
        in T, differentiable), else None.
    """
    refuse_packed_attentions(_PARALLEL.title, output_attentions, cu_seqlens)
    o, _ = decayed(
        _PARALLEL,
        (q, k, v, g, None, None),
        False,
        scale=scale,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        backend=backend,
    )
    if not output_attentions:
        return o, None
    return o, attention_weights(q, k, g, scale)


def decayed(
    op: Operator,
    tensors: tuple[Tensor | None, ...],
    output_final_state: bool,
    *,
    scale: float | None,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    hints: Hints = NO_HINTS,
    backend: str | None = None,
) -> Result:
    """Invoke an operator of the simple_gla contract; retention and lightning attention do too."""
    return pair(
        invoke(
            op,
            tensors,
            (output_final_state, reverse, state_v_first),
            scale=scale,
            cu_seqlens=cu_seqlens,
            cu_seqlens_cpu=cu_seqlens_cpu,
            hints=hints,
            backend=backend,
        )
    )
