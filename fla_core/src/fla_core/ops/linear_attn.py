"""Linear attention without decay, plain or normalised.

``S_t = S_{t-1} + k_t v_t^T,  o_t = scale S_t^T q_t``; with ``normalize`` also
``z_t = z_{t-1} + k_t`` and ``o_t := o_t / (scale q_t.z_t + 1e-10)``. No feature map is applied.
(Katharopoulos et al. 2020, Transformers are RNNs, equations 10 to 12 and 18 to 20.)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fla_core.check import switch
from fla_core.errors import ContractError
from fla_core.invoke import invoke
from fla_core.ops._shared import pair
from fla_core.prepare import Operator, operator

_Z = "initial_state[1]"
_CHUNK = operator("chunk_linear_attn", initial_z=_Z)
_FUSED_CHUNK = operator("fused_chunk_linear_attn", initial_z=_Z)
_RECURRENT = operator("fused_recurrent_linear_attn", initial_z=_Z)

State = Tensor | tuple[Tensor | None, Tensor | None] | None
Result = tuple[Tensor, Any]


def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: State = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """Chunked linear attention, for training and prefill; normalised by default.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64, after any feature map.
        v: ``[B, T, H, V]``, the dtype of q.
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, H, K, V]``, or with ``normalize`` a pair of it and z
            ``[N, 1, H, K]``, either of which may be None.
        output_final_state: return the state after the last token.
        normalize: divide by the normaliser.
        cu_seqlens: ``[N + 1]`` boundaries of packed sequences (B = 1), int32 or int64.
        backend: selection policy for this call, as in ``FLA_BACKEND``.

    Returns:
        o ``[B, T, H, V]`` and the final state or None; with ``normalize`` always
        ``(o, (final_state or None, final_z))``. States and z are float32.

    Raises:
        ContractError: an argument breaks the contract; it names argument, expectation and value.
        NoImplementationError: the policy leaves no implementation for the call.
    """
    return _linear(
        _CHUNK,
        (q, k, v),
        initial_state,
        (output_final_state, normalize, False),
        scale,
        cu_seqlens,
        backend,
    )


def fused_chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: State = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """:func:`chunk_linear_attn` under the name of a fused form."""
    return _linear(
        _FUSED_CHUNK,
        (q, k, v),
        initial_state,
        (output_final_state, normalize, False),
        scale,
        cu_seqlens,
        backend,
    )


def fused_recurrent_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: State = None,
    output_final_state: bool = False,
    reverse: bool = False,
    normalize: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Result:
    """:func:`chunk_linear_attn` token by token; **not** normalised by default.

    With ``reverse`` each sequence is walked from its last token to its first.
    """
    return _linear(
        _RECURRENT,
        (q, k, v),
        initial_state,
        (output_final_state, normalize, reverse),
        scale,
        cu_seqlens,
        backend,
    )


def _linear(
    op: Operator,
    qkv: tuple[Tensor, Tensor, Tensor],
    initial_state: State,
    flags: tuple[bool, bool, bool],
    scale: float | None,
    cu_seqlens: Tensor | None,
    backend: str | None,
) -> Result:
    output_final_state, normalize, _ = flags
    state, z = _split(op.title, initial_state, normalize)
    outputs = invoke(
        op, (*qkv, state, z), flags, scale=scale, cu_seqlens=cu_seqlens, backend=backend
    )
    if not normalize:
        return pair(outputs)
    final_state = outputs[1] if output_final_state else None
    return outputs[0], (final_state, outputs[-1])


def _split(
    title: str, initial_state: State, normalize: bool
) -> tuple[Tensor | None, Tensor | None]:
    if not isinstance(initial_state, (tuple, list)):
        return initial_state, None
    if not switch(title, "normalize", normalize):
        expected, got = "one tensor [N, H, K, V] with normalize=False", "a tuple"
        raise ContractError(title, "initial_state", expected, got)
    if len(initial_state) != 2:
        expected, got = "a pair (state, z)", f"{len(initial_state)} members"
        raise ContractError(title, "initial_state", expected, got)
    state, z = initial_state
    return state, z
