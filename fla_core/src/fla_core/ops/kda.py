"""Kimi Delta Attention (KDA): the delta rule on a state whose key channels decay separately.

``S~_t = diag(exp(g_t)) S_{t-1},  e_t = beta_t (v_t - S~_t^T k_t),  S_t = S~_t + k_t e_t^T,
o_t = scale S_t^T q_t``  (Kimi Team 2025, Kimi Linear, equation 1.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fla_core.call import NO_HINTS, Hints
from fla_core.check import check_cu_seqlens, switch
from fla_core.errors import ContractError, DtypeError
from fla_core.invoke import invoke
from fla_core.lowerings import log_decay
from fla_core.ops._keywords import (
    check_beta_mode,
    check_gate_mode,
    check_lower_bound,
    chunk_hint,
    gate_hints,
    leftover,
    no_context_parallel,
)
from fla_core.ops._shared import asks_for_a_pool
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
    check_beta_mode(op.title, flags)
    check_gate_mode(op.title, in_kernel, tensors["A_log"], tensors["dt_bias"], options)
    check_lower_bound(op.title, bound, in_kernel, hints.safe_gate)


_CHUNK = operator("chunk_kda", _check_modes)
_RECURRENT = operator("fused_recurrent_kda", _check_modes)
_CHUNK_SIZES = (32, 64)


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: None = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int | None = None,
    backend: str | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    """Chunked KDA, for training and prefill.

    Args:
        q, k: ``[B, T, H, K]``, float16, bfloat16, float32 or float64.
        v: ``[B, T, HV, V]``, the dtype of q; HV is a multiple of H, and value head j reads
            key head ``j // (HV // H)``.
        g: log decay of key channels ``[B, T, HV, K]``, any float dtype, not positive; logits
            under ``use_gate_in_kernel``.
        beta: writing strength ``[B, T, HV]`` in [0, 2]; logits under
            ``use_beta_sigmoid_in_kernel``.
        scale: factor on q; ``K ** -0.5`` when None.
        initial_state: ``[N, HV, K, V]``, float32 (16-bit states are widened).
        output_final_state: return the state after the last token.
        use_qk_l2norm_in_kernel: replace q and k by ``x / sqrt(sum x^2 + 1e-6)``, of rows
            shorter than 1.8e19: where the sum overflows float32 nothing is said, and the row
            counts as zero, or kernels that normalise products return NaN.
        use_gate_in_kernel: g becomes ``-exp(A_log) softplus(g + dt_bias)``, or with
            ``lower_bound`` L ``L sigmoid(exp(A_log) (g + dt_bias))``.
        use_beta_sigmoid_in_kernel: beta becomes ``sigmoid(beta)``.
        allow_neg_eigval: doubles that sigmoid; needs it.
        safe_gate: the caller's promise that every log gate lies in [-5, 0). With
            ``use_gate_in_kernel`` it needs ``lower_bound`` in [-5, 0).
        lower_bound: negative and finite; selects the bounded gate under ``use_gate_in_kernel``.
        disable_recompute: keep intermediates for backward rather than recompute them (a hint).
        return_intermediate_states: also return the state before each chunk; inference only.
        state_v_first: states are ``[N, HV, V, K]``.
        cu_seqlens: ``[N + 1]`` boundaries of sequences packed in one row (B = 1), int32 or int64;
            empty sequences are legal.
        cu_seqlens_cpu: the same on the host, which saves a synchronisation.
        cp_context: must be None.
        use_graph: the caller pads ``cu_seqlens`` with empty sequences to a fixed length for
            graph capture; needs ``cu_seqlens``.
        max_num_seqs: that length less one; checked.
        A_log: ``[HV]`` or any shape of HV elements, log of the gate's rate.
        dt_bias: ``[HV * K]``, added to the gate's logits.
        chunk_size: hint, 32 or 64; it also is the distance of intermediate states.
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
        state_v_first = leftover(_CHUNK.title, chunk_kda, kwargs, state_v_first)
    no_context_parallel(_CHUNK.title, cp_context)
    graph = use_graph is not False and switch(_CHUNK.title, "use_graph", use_graph)
    if graph or max_num_seqs is not None:
        _check_graph_mode(cu_seqlens, max_num_seqs, disable_recompute)
    hints = NO_HINTS if chunk_size is None else chunk_hint(_CHUNK.title, chunk_size, _CHUNK_SIZES)
    if safe_gate is not False or disable_recompute is not False:
        keep, states = disable_recompute, return_intermediate_states
        hints = gate_hints(_CHUNK.title, hints, safe_gate, keep, states)
    outputs = invoke(
        _CHUNK,
        (q, k, v, g, beta, A_log, dt_bias, initial_state),
        (
            output_final_state,
            use_qk_l2norm_in_kernel,
            use_gate_in_kernel,
            lower_bound is not None and use_gate_in_kernel,
            use_beta_sigmoid_in_kernel,
            allow_neg_eigval,
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


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
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
    """KDA token by token, for decoding. It has gradients.

    ``beta`` may also be ``[B, T, HV, V]``, a strength for each value channel. The other arguments,
    the result and the errors are those of :func:`chunk_kda`.

    ``ssm_state_indices`` and the arguments after it, for states in the slots of a pool, are those
    of :func:`fla_core.ops.fused_recurrent_gated_delta_rule`.
    """
    if kwargs:
        state_v_first = leftover(_RECURRENT.title, fused_recurrent_kda, kwargs, state_v_first)
    tensors = (q, k, v, g, beta, A_log, dt_bias, initial_state)
    flags = (
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        lower_bound is not None and use_gate_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
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


def _check_graph_mode(
    cu_seqlens: Tensor | None, max_num_seqs: int | None, disable_recompute: bool
) -> None:
    title = _CHUNK.title
    if cu_seqlens is None:
        expected = "packed boundaries [N+1] beside use_graph and max_num_seqs"
        raise ContractError(title, "cu_seqlens", expected, "None")
    check_cu_seqlens(title, cu_seqlens)
    if max_num_seqs is not None and (
        not isinstance(max_num_seqs, int) or isinstance(max_num_seqs, bool)
    ):
        raise DtypeError(title, "max_num_seqs", "an int or None", repr(max_num_seqs))
    if switch(title, "disable_recompute", disable_recompute):
        raise ContractError(title, "disable_recompute", "False under use_graph=True", "True")
    entries = cu_seqlens.shape[0]
    if max_num_seqs is not None and entries != max_num_seqs + 1:
        expected = f"max_num_seqs + 1 = {max_num_seqs + 1} entries, padded with empty sequences"
        raise ContractError(title, "cu_seqlens", expected, f"{entries} entries")


def fused_kda_gate(
    g: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The gate alone, of logits ``[..., HV, K]``; see :func:`chunk_kda`, ``use_gate_in_kernel``."""
    title = "kda.fused_kda_gate"
    if A_log is None and lower_bound is None:
        expected = "the log of the gate's rate, [HV], or lower_bound"
        raise ContractError(title, "A_log", expected, "None")
    check_lower_bound(title, lower_bound, True, False)
    return log_decay(g, A_log, dt_bias, lower_bound, channels=True).to(output_dtype)
