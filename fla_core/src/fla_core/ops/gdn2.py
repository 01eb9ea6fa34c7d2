"""GDN-2: a gated delta rule with gates of its own for what is erased and what is written.

``S~_t = diag(exp(g_t)) S_{t-1},  e_t = w_t*v_t - S~_t^T (b_t*k_t),  S_t = S~_t + k_t e_t^T,
o_t = scale S_t^T q_t``. With ``b = w = beta`` it is Kimi Delta Attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fla_core.call import NO_HINTS, Hints
from fla_core.dtypes import wide
from fla_core.invoke import invoke
from fla_core.ops._keywords import (
    check_gate_mode,
    check_lower_bound,
    chunk_hint,
    gate_hints,
    leftover,
    no_context_parallel,
)
from fla_core.ops._shared import Result, asks_for_a_pool
from fla_core.pooled import Asked, invoke_pooled
from fla_core.prepare import Operator, operator


def _check_modes(
    op: Operator,
    tensors: Mapping[str, Tensor | None],
    flags: frozenset[str],
    options: tuple[float | None, ...],
    hints: Hints,
) -> None:
    in_kernel, (bound,) = "gate" in flags, options
    check_gate_mode(op.title, in_kernel, tensors["A_log"], tensors["dt_bias"], options)
    check_lower_bound(op.title, bound, in_kernel, hints.safe_gate)


_CHUNK = operator("chunk_gdn2", _check_modes)
_RECURRENT = operator("fused_recurrent_gdn2", _check_modes)
_CHUNK_SIZES = (64,)


def chunk_gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cp_context: None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    """Chunked GDN-2, for training and prefill.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64.
        v: ``[B, T, HV, V]``, the dtype of q; HV is a multiple of H, and value head j reads
            key head ``j // (HV // H)``.
        g: log decay of key channels ``[B, T, HV, K]``, any float dtype, not positive; logits
            under ``use_gate_in_kernel``.
        b: erasing strength of key channels ``[B, T, HV, K]``, any float dtype, in [0, 2].
        w: writing strength of value channels ``[B, T, HV, V]``, any float dtype, in [0, 1].
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, HV, K, V]``, float32 (16-bit states are widened).
        output_final_state: return the state after the last token.
        use_qk_l2norm_in_kernel: replace q and k by ``x / sqrt(sum x^2 + 1e-6)``, of rows
            shorter than 1.8e19: where the sum overflows float32 nothing is said, and the row
            counts as zero, or kernels that normalise products return NaN.
        use_gate_in_kernel: g becomes ``-exp(A_log) softplus(g + dt_bias)``, or with
            ``lower_bound`` L ``L sigmoid(exp(A_log) (g + dt_bias))``.
        cu_seqlens: ``[N + 1]`` boundaries of sequences packed in one row (B = 1), int32 or int64;
            empty sequences are legal.
        cu_seqlens_cpu: the same on the host, which saves a synchronisation.
        safe_gate: the caller's promise that every log gate lies in [-5, 0). With
            ``use_gate_in_kernel`` it needs ``lower_bound`` in [-5, 0).
        lower_bound: negative and finite; selects the bounded gate under ``use_gate_in_kernel``.
        disable_recompute: keep intermediates for backward rather than recompute them (a hint).
        return_intermediate_states: also return the state before each chunk; inference only.
        state_v_first: states are ``[N, HV, V, K]``.
        cp_context: must be None.
        A_log: ``[HV]`` or any shape of HV elements, log of the gate's rate.
        dt_bias: ``[HV * K]``, added to the gate's logits.
        chunk_size: hint, 64; it also is the distance of intermediate states.
        backend: selection policy for this call, as in ``FLA_BACKEND``.

    Returns:
        o ``[B, T, HV, V]`` in the dtype of q, the final state in float32 or None, and with
        ``return_intermediate_states`` the states ``[B, NT, HV, K, V]`` in the dtype of k.

    Raises:
        ContractError: an argument breaks the contract; it names argument, expectation and value.
        UnsupportedError: ``cp_context`` is given.
        NoImplementationError: the policy leaves no implementation for the call.
    """
    if kwargs:
        state_v_first = leftover(_CHUNK.title, chunk_gdn2, kwargs, state_v_first)
    no_context_parallel(_CHUNK.title, cp_context)
    hints = NO_HINTS if chunk_size is None else chunk_hint(_CHUNK.title, chunk_size, _CHUNK_SIZES)
    if safe_gate is not False or disable_recompute is not False:
        keep, states = disable_recompute, return_intermediate_states
        hints = gate_hints(_CHUNK.title, hints, safe_gate, keep, states)
    outputs = invoke(
        _CHUNK,
        (q, k, v, g, b, w, A_log, dt_bias, initial_state),
        (
            output_final_state,
            use_qk_l2norm_in_kernel,
            use_gate_in_kernel,
            lower_bound is not None and use_gate_in_kernel,
            return_intermediate_states,
            state_v_first,
        ),
        scale,
        cu_seqlens,
        cu_seqlens_cpu,
        backend,
        (lower_bound,),
        hints,
    )
    final_state = outputs[1] if output_final_state else None
    if return_intermediate_states:
        return outputs[0], final_state, outputs[-1]
    return outputs[0], final_state


def fused_recurrent_gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    inplace_final_state: bool = False,
    check_state_indices: bool = True,
    backend: str | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """GDN-2 token by token, for decoding. It has gradients.

    Arguments, result and errors are those of :func:`chunk_gdn2`.

    ``ssm_state_indices`` and the arguments after it, for states in the slots of a pool, are those
    of :func:`fla_core.ops.fused_recurrent_gated_delta_rule`.
    """
    if kwargs:
        state_v_first = leftover(_RECURRENT.title, fused_recurrent_gdn2, kwargs, state_v_first)
    tensors = (q, k, v, g, b, w, A_log, dt_bias, initial_state)
    flags = (
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        lower_bound is not None and use_gate_in_kernel,
        False,
        state_v_first,
    )
    pooled = ssm_state_indices, num_accepted_tokens, inplace_final_state
    if asks_for_a_pool(_RECURRENT.title, *pooled):
        given = *pooled, check_state_indices
        asked = Asked(scale, cu_seqlens, backend, (lower_bound,), *given)
        return invoke_pooled(_RECURRENT, tensors, flags, asked)
    outputs = invoke(
        _RECURRENT,
        tensors,
        flags,
        scale,
        cu_seqlens,
        None,
        backend,
        (lower_bound,),
    )
    return outputs[0], outputs[1] if output_final_state else None


def naive_recurrent_gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> Result:
    """The recurrence in plain torch, float32 out (float64 for float64)."""
    return fused_recurrent_gdn2(
        q.to(wide(q)),
        k.to(wide(k)),
        v.to(wide(v)),
        g,
        b,
        w,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        backend="reference",
    )


def naive_chunk_gdn2(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    b: Tensor,
    w: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
) -> Result:
    """The chunked form in plain torch, float32 out (float64 for float64)."""
    o, state, *_ = chunk_gdn2(
        q.to(wide(q)),
        k.to(wide(k)),
        v.to(wide(v)),
        g,
        b,
        w,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        chunk_size=chunk_size,
        backend="reference",
    )
    return o, state
