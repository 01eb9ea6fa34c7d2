"""DeltaNet's delta rule: a write first erases what the key already holds.

``e_t = beta_t (v_t - S_{t-1}^T k_t),  S_t = S_{t-1} + k_t e_t^T,  o_t = scale S_t^T q_t``
(Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over Sequence Length.)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fla_core.call import NO_HINTS
from fla_core.errors import DtypeError, UnsupportedError
from fla_core.invoke import invoke
from fla_core.ops._keywords import chunk_hint, leftover
from fla_core.ops._shared import Result, asks_for_a_pool, pair
from fla_core.pooled import Asked, invoke_pooled
from fla_core.prepare import Operator, operator

_CHUNK = operator("chunk_delta_rule")
_FUSED_CHUNK = operator("fused_chunk_delta_rule")
_RECURRENT = operator("fused_recurrent_delta_rule")
_CHUNK_SIZES = (16, 32, 64)


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> Result:
    """Chunked delta rule, for training and prefill.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64. Keys should have unit norm
            (see ``use_qk_l2norm_in_kernel``): ``beta |k|^2 > 2`` makes the recurrence diverge.
        v: ``[B, T, H, V]``, the dtype of q.
        beta: writing strength ``[B, T, H]``, any float dtype, in [0, 2].
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, H, K, V]``, float32 (16-bit states are widened).
        output_final_state: return the state after the last token.
        use_qk_l2norm_in_kernel: replace q and k by ``x / sqrt(sum x^2 + 1e-6)``, of rows
            shorter than 1.8e19: where the sum overflows float32 nothing is said, and the row
            counts as zero, or kernels that normalise products return NaN.
        cu_seqlens: ``[N + 1]`` boundaries of sequences packed in one row (B = 1), int32 or int64;
            empty sequences are legal.
        cu_seqlens_cpu: the same on the host, which saves a synchronisation.
        chunk_size: hint, 16, 32 or 64.
        backend: selection policy for this call, as in ``FLA_BACKEND``.

    Returns:
        o ``[B, T, H, V]`` in the dtype of q, and the final state in float32 or None.

    Raises:
        ContractError: an argument breaks the contract; it names argument, expectation and value.
        NoImplementationError: the policy leaves no implementation for the call.
    """
    state_v_first = leftover(_CHUNK.title, chunk_delta_rule, kwargs, False)
    return _chunk(
        _CHUNK,
        (q, k, v, beta, initial_state),
        (output_final_state, use_qk_l2norm_in_kernel),
        state_v_first,
        scale,
        cu_seqlens,
        cu_seqlens_cpu,
        chunk_size,
        backend,
    )


def fused_chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> Result:
    """:func:`chunk_delta_rule` under the name of a fused form."""
    state_v_first = leftover(_FUSED_CHUNK.title, fused_chunk_delta_rule, kwargs, False)
    return _chunk(
        _FUSED_CHUNK,
        (q, k, v, beta, initial_state),
        (output_final_state, use_qk_l2norm_in_kernel),
        state_v_first,
        scale,
        cu_seqlens,
        cu_seqlens_cpu,
        chunk_size,
        backend,
    )


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    inplace_final_state: bool = False,
    check_state_indices: bool = True,
    backend: str | None = None,
) -> Result:
    """:func:`chunk_delta_rule` token by token, for decoding.

    ``beta`` is ``[B, T, H]``, ``[B, T, H, V]`` (a strength for each value channel) or None (ones).

    ``ssm_state_indices`` and the arguments after it, for states in the slots of a pool, are those
    of :func:`fla_core.ops.fused_recurrent_gated_delta_rule`.
    """
    tensors = (q, k, v, beta, initial_state)
    flags = (output_final_state, use_qk_l2norm_in_kernel)
    pooled = ssm_state_indices, num_accepted_tokens, inplace_final_state
    if asks_for_a_pool(_RECURRENT.title, *pooled):
        given = *pooled, check_state_indices
        asked = Asked(scale, cu_seqlens, backend, (), *given)
        return invoke_pooled(_RECURRENT, tensors, flags, asked)
    return pair(
        invoke(
            _RECURRENT,
            tensors,
            flags,
            scale=scale,
            cu_seqlens=cu_seqlens,
            backend=backend,
        )
    )


def _chunk(
    op: Operator,
    tensors: tuple[Tensor | None, ...],
    flags: tuple[bool, bool],
    state_v_first: bool,
    scale: float | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    chunk_size: int | None,
    backend: str | None,
) -> Result:
    if state_v_first:
        instead = "state.transpose(-1, -2), or chunk_gated_delta_rule"
        raise UnsupportedError(op.title, "transpose_state_layout=True", instead)
    if tensors[3] is None:
        raise DtypeError(op.title, "beta", "a tensor [B, T, H]", "None")
    return pair(
        invoke(
            op,
            tensors,
            flags,
            scale=scale,
            cu_seqlens=cu_seqlens,
            cu_seqlens_cpu=cu_seqlens_cpu,
            hints=NO_HINTS
            if chunk_size is None
            else chunk_hint(op.title, chunk_size, _CHUNK_SIZES),
            backend=backend,
        )
    )
