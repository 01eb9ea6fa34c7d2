"""Normalised linear attention in bfloat16: dividing, and what the division asks of gradients.

A kernel computes numerator and normaliser as channels of one product, ``[x | w] = S_t^T q_t``, and
rounds both. For the output that is harmless. But the gradient of q is a difference,

    dq_t = sum_s k_s (v_s - o_t) . dx_t,    dx = do / w,

of which the kernel knows ``w o_t . dx_t`` only as rounded: the error is some multiple of
``z_t = sum_s k_s``, and where o_t is close to every v_s it is all there is. What is right follows
from o being homogeneous of degree zero in q: ``q_t . dq_t = 0``. So the multiple of z_t that breaks
this is taken out again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fla_core.seqlens import SeqLens

EPS = 1e-10
"""Added to the normaliser."""

CHANNELS = 16
"""Value channels it travels in, one of ones and then zeros: rows stay as aligned as they were."""

_CHUNK = 64
_DAMPING = 0.01
"""Of a squared cosine of q and z: below it, noise along q is not blown up to a multiple of z."""


def divided(o: Tensor, width: int) -> Tensor:
    """``o[..., :width] / (o[..., width] + 1e-10)``, computed in float32 and rounded once.

    With y the quotient and w the normaliser the gradients are dx = dy / w and dw = -dx . y. No wide
    copy of the operands is made.
    """
    quotient: Tensor = _Quotient.apply(o, width)  # type: ignore[no-untyped-call]
    return quotient


def balanced(q: Tensor, k: Tensor, z: Tensor | None, scale: float, lens: SeqLens | None) -> Tensor:
    """Return q itself; its gradient is freed of the multiple of z_t that breaks ``q . dq = 0``.

    Args:
        q, k: ``[B, T, H, K]`` of one dtype.
        z: normalisers before the first tokens, ``[N, H, K]``, zeros if None.
        scale: factor on q. Where the normaliser is not far above 1e-10, nothing is taken out.
        lens: packed sequences.
    """
    same: Tensor = _Balance.apply(q, k, z, scale, lens)  # type: ignore[no-untyped-call]
    return same


class _Quotient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, o: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(o)
        ctx.width = width
        return _over(o[..., :width], o, width, torch.empty_like(o[..., :width]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (o,), width = ctx.saved_tensors, ctx.width
        found = torch.empty_like(o)
        dx = _over(grad, o, width, found[..., :width])
        quotient = _over(o[..., :width], o, width, torch.empty_like(dx))
        found[..., width:] = 0
        found[..., width] = -_dot(dx, quotient).squeeze(-1)
        return found, None


class _Balance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, z: Tensor | None, scale: float, lens: SeqLens | None
    ) -> Tensor:
        ctx.save_for_backward(q, k, z)
        ctx.scale, ctx.lens = scale, lens
        return q.view_as(q)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, first = ctx.saved_tensors
        z = running_sums(k, first, ctx.lens)
        along = _dot(q, z)
        lengths = torch.linalg.vector_norm(q, dim=-1, keepdim=True, dtype=torch.float32)
        lengths = lengths * torch.linalg.vector_norm(z, dim=-1, keepdim=True, dtype=torch.float32)
        share = _dot(q, grad) * along / (along.square() + _DAMPING * lengths.square())
        share = torch.where((ctx.scale * along).abs() > 1e4 * EPS, share, 0.0)
        return torch.addcmul(grad, z, share.to(z.dtype), value=-1), None, None, None, None


def running_sums(k: Tensor, first: Tensor | None, lens: SeqLens | None) -> Tensor:
    """``first + sum_{s <= t} k_s`` of each sequence, ``[B, T, H, K]`` in the dtype of k.

    A product with a triangle of ones in each chunk of 64 tokens, then the sums of whole chunks.
    """
    batch, tokens, heads, size = k.shape
    rows = F.pad(k.reshape(batch, tokens, heads * size), (0, 0, 0, -tokens % _CHUNK))
    chunks = rows.view(batch, -1, _CHUNK, heads * size)
    if lens is not None:
        chunks = chunks.float()  # sums over earlier sequences cancel
    sums = chunks.new_ones(_CHUNK, _CHUNK).tril() @ chunks
    whole = sums[:, :, -1:].float()
    sums += whole.cumsum(1) - whole
    sums = sums.reshape(batch, -1, heads, size)[:, :tokens]
    if lens is None:
        return sums if first is None else sums + first.unsqueeze(1).to(sums.dtype)
    cu = lens.device.long()
    before = F.pad(sums[0], (0, 0, 0, 0, 1, 0)).index_select(0, cu[:-1])
    start = -before if first is None else first - before
    sequence = torch.searchsorted(cu[1:], torch.arange(tokens, device=cu.device), right=True)
    return (sums + start.index_select(0, sequence)).to(k.dtype)


def _over(x: Tensor, o: Tensor, width: int, out: Tensor) -> Tensor:
    """``x / (o[width] + 1e-10)``."""
    return torch.div(x, o[..., width : width + 1].float() + EPS, out=out)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True, dtype=torch.float32)
