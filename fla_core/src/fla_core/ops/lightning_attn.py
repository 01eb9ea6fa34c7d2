"""Lightning attention: simple GLA whose fixed decay depends on head and layer.

``gamma_h = -(8 / H) (1 - layer_idx / num_layers) h`` (Qin et al. 2024, Lightning Attention-2, and
the slopes of TransNormerLLM): head 0 does not decay, nor does any head of the last layer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fla_core.call import NO_HINTS
from fla_core.dtypes import wide
from fla_core.errors import ContractError, DtypeError
from fla_core.ops._keywords import chunk_hint, leftover
from fla_core.ops._shared import Result, kept_with
from fla_core.ops.simple_gla import decayed
from fla_core.prepare import operator

_CHUNK = operator("chunk_lightning_attn")
_RECURRENT = operator("fused_recurrent_lightning_attn")


def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> Result:
    """Chunked lightning attention, for training and prefill.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64.
        v: ``[B, T, H, V]``, the dtype of q.
        layer_idx: index of the layer, 0..num_layers.
        num_layers: number of layers.
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
    state_v_first = leftover(_CHUNK.title, chunk_lightning_attn, kwargs, False)
    return decayed(
        _CHUNK,
        (q, k, v, None, _gamma(_CHUNK.title, q, layer_idx, num_layers), initial_state),
        output_final_state,
        scale=scale,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        hints=NO_HINTS if chunk_size is None else chunk_hint(_CHUNK.title, chunk_size),
        backend=backend,
    )


def fused_recurrent_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """:func:`chunk_lightning_attn` token by token; ``reverse`` walks from last token to first."""
    return decayed(
        _RECURRENT,
        (q, k, v, None, _gamma(_RECURRENT.title, q, layer_idx, num_layers), initial_state),
        output_final_state,
        scale=scale,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def _gamma(title: str, q: Tensor, layer_idx: int, num_layers: int) -> Tensor | None:
    for name, value in (("layer_idx", layer_idx), ("num_layers", num_layers)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise DtypeError(title, name, "an int", repr(value))
    if num_layers < 1:
        raise ContractError(title, "num_layers", "at least 1", str(num_layers))
    if not 0 <= layer_idx <= num_layers:
        raise ContractError(title, "layer_idx", f"0..num_layers = {num_layers}", str(layer_idx))
    if not isinstance(q, Tensor) or q.dim() != 4:
        return None
    decay = kept_with(q, lightning_decay)
    return decay(q.shape[2], layer_idx, num_layers, wide(q), q.device)


@lru_cache(maxsize=256)
def lightning_decay(
    heads: int, layer_idx: int, num_layers: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """``-(8 / H) (1 - layer_idx / num_layers) h`` for h = 0..heads-1."""
    # Cached tensors outlive the call, so they must not be inference tensors.
    with torch.inference_mode(False):
        slope = -(8.0 / heads) * (1.0 - layer_idx / num_layers)
        return (slope * torch.arange(heads, dtype=torch.float64, device="cpu")).to(device, dtype)
