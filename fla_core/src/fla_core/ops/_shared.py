"""What the operator modules share."""

from __future__ import annotations

import torch
from torch import Tensor

from fla_core.errors import ContractError

Result = tuple[Tensor, Tensor | None]


def pair(outputs: tuple[Tensor, ...]) -> Result:
    """``(o, final_state)`` with None for a state that was not asked for."""
    return outputs if len(outputs) == 2 else (outputs[0], None)


def refuse_packed_attentions(title: str, output_attentions: bool, cu_seqlens: object) -> None:
    """Attention weights are those of one sequence a row."""
    if output_attentions and cu_seqlens is not None:
        expected = "output_attentions=False with cu_seqlens: there is no one matrix to return"
        raise ContractError(title, "output_attentions", expected, "True")


def attention_weights(q: Tensor, k: Tensor, g: Tensor | None, scale: float | None) -> Tensor:
    """Return ``A[b, h, t, s] = scale q_t.k_s exp(sum g over s+1..t)`` for s <= t, zero elsewhere.

    Quadratic in T, differentiable; ``g`` is ``[B, T, H]`` or broadcasts to it.
    """
    length = q.shape[1]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bthd,bshd->bhts", q.to(dtype) * factor, k.to(dtype))
    if g is not None:
        total = g.to(dtype).expand(q.shape[:3]).cumsum(1).transpose(1, 2)
        later = total[..., :, None] - total[..., None, :]
        scores = scores * later.clamp(max=0.0).exp()
    causal = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~causal, 0.0).to(q.dtype)
