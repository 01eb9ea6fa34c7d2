"""Retention: simple GLA with the fixed decay ``gamma_h = ln(1 - 2^(-5-h))`` of head h.

(Sun et al. 2023, Retentive Network, equations 3 and 8.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fla_core.call import NO_HINTS
from fla_core.dtypes import wide
from fla_core.ops._keywords import chunk_hint, leftover
from fla_core.ops._shared import Result, attention_weights, kept_with, refuse_packed_attentions
from fla_core.ops.simple_gla import decayed
from fla_core.prepare import operator

_CHUNK = operator("chunk_retention")
_FUSED_CHUNK = operator("fused_chunk_retention")
_RECURRENT = operator("fused_recurrent_retention")
_PARALLEL = operator("parallel_retention")


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> Result:
    """Chunked retention, for training and prefill.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64.
        v: ``[B, T, H, V]``, the dtype of q.
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, H, K, V]``, float32.
        output_final_state: return the state after the last token.
        cu_seqlens: ``[N + 1]`` boundaries of packed sequences (B = 1), int32 or int64.
        chunk_size: hint, a power of two.
        backend: selection policy for this call, as in ``FLA_BACKEND``.

    Returns:
        o ``[B, T, H, V]`` in the dtype of q, and the final state in float32 or None.

    Raises:
        ContractError: an argument breaks the contract; it names argument, expectation and value.
        NoImplementationError: the policy leaves no implementation for the call.
    """
    state_v_first = leftover(_CHUNK.title, chunk_retention, kwargs, False)
    return decayed(
        _CHUNK,
        (q, k, v, None, _gamma(q), initial_state),
        output_final_state,
        scale=scale,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        hints=NO_HINTS if chunk_size is None else chunk_hint(_CHUNK.title, chunk_size),
        backend=backend,
    )


def fused_chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """:func:`chunk_retention` under the name of a fused form."""
    return decayed(
        _FUSED_CHUNK,
        (q, k, v, None, _gamma(q), initial_state),
        output_final_state,
        scale=scale,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def fused_recurrent_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    """:func:`chunk_retention` token by token; ``reverse`` walks from the last token to the first.

    With ``state_v_first`` states are ``[N, H, V, K]``.
    """
    state_v_first = leftover(_RECURRENT.title, fused_recurrent_retention, kwargs, state_v_first)
    return decayed(
        _RECURRENT,
        (q, k, v, None, _gamma(q), initial_state),
        output_final_state,
        scale=scale,
        reverse=reverse,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def parallel_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    output_attentions: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """Retention without states; returns ``(o, weights [B, H, T, T] or None)``."""
    refuse_packed_attentions(_PARALLEL.title, output_attentions, cu_seqlens)
    gamma = _gamma(q)
    o, _ = decayed(
        _PARALLEL,
        (q, k, v, None, gamma, None),
        False,
        scale=scale,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )
    if not output_attentions:
        return o, None
    return o, attention_weights(q, k, gamma, scale)


def _gamma(q: Tensor) -> Tensor | None:
    """Decay of each head on q's device; None for a q that has no heads, which is refused later."""
    if not isinstance(q, Tensor) or q.dim() != 4:
        return None
    return kept_with(q, retention_decay)(q.shape[2], wide(q), q.device)


@lru_cache(maxsize=64)
def retention_decay(heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``ln(1 - 2^(-5-h))`` for h = 0..heads-1."""
    # Cached tensors outlive the call, so they must not be inference tensors.
    with torch.inference_mode(False):
        head = torch.arange(heads, dtype=torch.float64, device="cpu")
        return torch.log1p(-torch.exp2(-5.0 - head)).to(device, dtype)
