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

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fla_core.seqlens import SeqLens

EPS = 1e-10
"""Added to the normaliser."""

CHANNELS = 16
"""Value channels of ones it travels in, all alike: rows stay as well aligned as they were."""

_CHUNK = 64
DAMPING = 0.01
"""Of a squared cosine of q and z: below it, noise along q is not blown up to a multiple of z."""

CLEAR = 1e4 * EPS
"""A normaliser beside which 1e-10 is nothing; o is homogeneous only there."""


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
        x, w = _parts(o, width)
        return torch.div(x, w, out=torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (o,), width = ctx.saved_tensors, ctx.width
        x, w = _parts(o, width)
        found = torch.empty_like(o)
        dx = torch.div(grad, w, out=found[..., :width])
        dw = _dot(dx, x).div_(w)
        # The channels of ones share it: a power of two, so that nothing is rounded for it.
        found[..., width:] = dw.mul_(-1 / CHANNELS)
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
        size = _length(q).mul_(_length(z))
        # A share of z_t that is along / along^2 where q and z point the same way.
        square = torch.addcmul(along.square(), size, size, value=DAMPING)
        clear = CLEAR / ctx.scale if ctx.scale else math.inf
        square += clear * clear  # a power would refuse to overflow
        share = along.mul_(_dot(q, grad)).div_(square)
        return torch.addcmul(grad, z, share.to(z.dtype), value=-1), None, None, None, None


def running_sums(k: Tensor, first: Tensor | None, lens: SeqLens | None) -> Tensor:
    """``first + sum_{s <= t} k_s`` of each sequence, ``[B, T, H, K]`` in the dtype of k.

    A product with a triangle of ones in each chunk of 64 tokens, then the sums of whole chunks.
    """
    batch, tokens, heads, size = k.shape
    count = -(-tokens // _CHUNK)
    rows = k.reshape(batch, tokens, heads * size)
    if tokens % _CHUNK:
        rows = F.pad(rows, (0, 0, 0, -tokens % _CHUNK))
    chunks = rows.view(batch * count, _CHUNK, heads * size)
    if lens is not None:
        chunks = chunks.float()  # sums over earlier sequences cancel
    triangle = chunks.new_ones(_CHUNK, _CHUNK).tril_()
    sums = torch.bmm(triangle.expand(chunks.shape[0], -1, -1), chunks)
    sums = sums.view(batch, count, _CHUNK, heads * size)
    whole = sums[:, :, -1:].float()
    sums += whole.cumsum(1).sub_(whole)
    sums = sums.view(batch, count * _CHUNK, heads, size)[:, :tokens]
    if lens is None:
        return sums if first is None else sums + first.unsqueeze(1).to(sums.dtype)
    cu = lens.device.long()
    before = F.pad(sums[0], (0, 0, 0, 0, 1, 0)).index_select(0, cu[:-1])
    start = -before if first is None else first - before
    sequence = torch.searchsorted(cu[1:], torch.arange(tokens, device=cu.device), right=True)
    return (sums + start.index_select(0, sequence)).to(k.dtype)


def _parts(o: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Numerators, and what they are divided by in float32."""
    x, w = o[..., :width], o[..., width : width + 1]
    return x, w.float().add_(EPS)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True, dtype=torch.float32)


def _length(x: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return length
