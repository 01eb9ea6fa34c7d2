"""Gated DeltaNet (GDN): the delta rule on a state that decays.

``S~_t = diag(exp(gk_t)) exp(g_t) S_{t-1} diag(exp(gv_t)),  e_t = beta_t (v_t - S~_t^T k_t),
S_t = S~_t + k_t e_t^T,  o_t = scale S_t^T q_t``
(Yang, Kautz, Hatamizadeh 2025, Gated Delta Networks, equation 10.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fla_core.call import NO_HINTS, Hints
from fla_core.dtypes import wide
from fla_core.errors import DtypeError
from fla_core.invoke import invoke
from fla_core.lowerings import log_decay
from fla_core.ops._keywords import (
    check_beta_mode,
    check_gate_mode,
    chunk_hint,
    leftover,
    no_context_parallel,
    unused_chunk_indices,
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
    check_beta_mode(op.title, flags)
    check_gate_mode(op.title, "gate" in flags, tensors["A_log"], tensors["dt_bias"])
    for name, flag in (("g", "gate"), ("beta", "beta_sigmoid")):
        needed = flag in flags or op.form == "chunk"
        if needed and tensors[name] is None:
            beside = f" (logits, under {flag})" if flag in flags else ""
            raise DtypeError(op.title, name, f"a tensor [B, T, HV]{beside}", "None")


_CHUNK = operator("chunk_gated_delta_rule", _check_modes)
_RECURRENT = operator("fused_recurrent_gated_delta_rule", _check_modes)
_CHUNK_SIZES = (16, 32, 64)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: None = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> Result:
    """Chunked Gated DeltaNet, for training and prefill. Also named ``chunk_gdn``.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64.
        v: ``[B, T, HV, V]``, the dtype of q; HV is a multiple of H, and value head j reads
            key head ``j // (HV // H)``.
        g: log decay ``[B, T, HV]``, any float dtype, not positive; logits under
            ``use_gate_in_kernel``.
        beta: writing strength ``[B, T, HV]`` in [0, 2]; logits under
            ``use_beta_sigmoid_in_kernel``.
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, HV, K, V]``, float32 (16-bit states are widened).
        output_final_state: return the state after the last token.
        use_qk_l2norm_in_kernel: replace q and k by ``x / sqrt(sum x^2 + 1e-6)``, of rows
            shorter than 1.8e19: where the sum overflows float32 nothing is said, and the row
            counts as zero, or kernels that normalise products return NaN.
        use_beta_sigmoid_in_kernel: beta becomes ``sigmoid(beta)``.
        allow_neg_eigval: doubles that sigmoid; needs it.
        state_v_first: states are ``[N, HV, V, K]``.
        cu_seqlens: ``[N + 1]`` boundaries of sequences packed in one row (B = 1), int32 or int64;
            empty sequences are legal.
        cu_seqlens_cpu: the same on the host, which saves a synchronisation.
        chunk_indices: ``[NT, 2]``; its shape is checked, and it is not read.
        cp_context: must be None.
        use_gate_in_kernel: g becomes ``-exp(A_log) softplus(g + dt_bias)``.
        A_log, dt_bias: ``[HV]``, parameters of that gate; dt_bias may be None.
        chunk_size: hint, 16, 32 or 64.
        backend: selection policy for this call, as in ``FLA_BACKEND``.

    Returns:
        o ``[B, T, HV, V]`` in the dtype of q, and the final state in float32 or None.

    Raises:
        ContractError: an argument breaks the contract; it names argument, expectation and value.
        UnsupportedError: ``cp_context`` is given.
        NoImplementationError: the policy leaves no implementation for the call.
    """
    if kwargs:
        state_v_first = leftover(_CHUNK.title, chunk_gated_delta_rule, kwargs, state_v_first)
    no_context_parallel(_CHUNK.title, cp_context)
    unused_chunk_indices(_CHUNK.title, chunk_indices)
    outputs = invoke(
        _CHUNK,
        (q, k, v, g, None, None, beta, A_log, dt_bias, initial_state),
        (
            output_final_state,
            use_qk_l2norm_in_kernel,
            use_gate_in_kernel,
            use_beta_sigmoid_in_kernel,
            allow_neg_eigval,
            state_v_first,
        ),
        scale,
        cu_seqlens,
        cu_seqlens_cpu,
        backend,
        (),
        NO_HINTS if chunk_size is None else chunk_hint(_CHUNK.title, chunk_size, _CHUNK_SIZES),
    )
    return outputs[0], outputs[1] if output_final_state else None


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    inplace_final_state: bool = False,
    check_state_indices: bool = True,
    backend: str | None = None,
    **kwargs: Any,
) -> Result:
    """Gated DeltaNet token by token. Also named ``fused_recurrent_gdn``. It has gradients.

    Args:
        g: log decay of value heads ``[B, T, HV]``.
        gk: log decay of key channels ``[B, T, HV, K]``.
        gv: log decay of value channels ``[B, T, HV, V]``.
        beta: ``[B, T, HV]``, ``[B, T, HV, V]`` (a strength for each value channel), or None (ones).

    Args, where states lie in a pool (forward only; ``state_v_first`` is the layout of its slots):
        initial_state: the pool ``[slots, HV, K, V]``, a floating dtype of 16 bits or more. Slots
            are contiguous and may lie apart.
        ssm_state_indices: the slot of each sequence ``[N]``, int32 or int64, or with one for each
            token ``[N, S]``. -1 skips the sequence: no slot is touched, its outputs are zeros.
        num_accepted_tokens: ``[N]`` beside ``[N, S]``, int32 or int64: sequence n starts from slot
            ``ssm_state_indices[n, num_accepted_tokens[n] - 1]``; ones when None.
        inplace_final_state: write into the pool, each sequence's last state to its slot, or with
            ``[N, S]`` the state after token t to ``ssm_state_indices[n, t]``, which is dropped
            where that is -1. No other slot is touched. ``output_final_state`` then returns the
            pool. When False the pool is only read, and the final state is ``[N, HV, K, V]``.
        check_state_indices: check the slots' numbers, which copies them to the host once for each
            new or changed tensor on an accelerator. When False, or under graph capture, kernels
            skip what is out of range, and what a slot holds that two sequences name is undefined.

    The other arguments, the result and the errors are those of :func:`chunk_gated_delta_rule`.
    """
    if kwargs:
        state_v_first = leftover(
            _RECURRENT.title, fused_recurrent_gated_delta_rule, kwargs, state_v_first
        )
    tensors = (q, k, v, g, gk, gv, beta, A_log, dt_bias, initial_state)
    flags = (
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
    )
    pooled = ssm_state_indices, num_accepted_tokens, inplace_final_state
    if asks_for_a_pool(_RECURRENT.title, *pooled):
        given = *pooled, check_state_indices
        asked = Asked(scale, cu_seqlens, backend, (), *given)
        return invoke_pooled(_RECURRENT, tensors, flags, asked)
    outputs = invoke(
        _RECURRENT,
        tensors,
        flags,
        scale,
        cu_seqlens,
        None,
        backend,
    )
    return outputs[0], outputs[1] if output_final_state else None


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule


def fused_gdn_gate(
    g: Tensor,
    A_log: Tensor,
    dt_bias: Tensor | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The gate alone: ``-exp(A_log) softplus(g + dt_bias)`` of logits ``[..., HV]``."""
    return log_decay(g, A_log, dt_bias, None, channels=False).to(output_dtype)


def naive_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> Result:
    """The recurrence in plain torch, float32 out (float64 for float64). Note beta before g."""
    return fused_recurrent_gated_delta_rule(
        q.to(wide(q)),
        k.to(wide(k)),
        v.to(wide(v)),
        g=g,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        backend="reference",
    )


def naive_chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> Result:
    """The chunked form in plain torch, float32 out (float64 for float64). Note g before beta."""
    return chunk_gated_delta_rule(
        q.to(wide(q)),
        k.to(wide(k)),
        v.to(wide(v)),
        g=g,
        beta=beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        chunk_size=chunk_size,
        backend="reference",
    )
