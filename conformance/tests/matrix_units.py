"""Chunked kernels in torch as matrix units would run them: what a careful author may arrive at.

Every product takes factors of 16 bits, forward and backward, and adds up in float32; states and
decays are float32. It shares nothing with the reference but the equations::

    S_t = D_t S_{t-1} + k_t e_t^T,   o_t = scale S_t^T q_t
    (I + A) E = diag(beta) (V - K_in S),   A_ij = beta_i k_i^T (D_i ... D_{j+1}) k_j for j < i

with ``e = v`` where nothing is erased.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.differentiable import Backward, Forward, differentiable

SUB = 16
"""Pairs of tokens nearer than this get their decays one by one."""

Decays = Tensor | None


class _Product(torch.autograd.Function):
    """A product of rounded factors; the first may keep what rounding leaves of it."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, low: torch.dtype, twice: bool) -> Tensor:
        high = _rounded(a, low)
        a = high + _rounded(a - high, low) if twice else high
        b = _rounded(b, low)
        ctx.save_for_backward(a, b)
        ctx.low = low
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b = ctx.saved_tensors
        grad = _rounded(grad, ctx.low)
        return grad @ b.mT, a.mT @ grad, None, None


def _rounded(x: Tensor, low: torch.dtype) -> Tensor:
    return x.to(low).to(x.dtype)


def kernel(chunk: int, twice: bool = True) -> tuple[Forward, Backward]:
    """Forward and backward of decay and delta rule families in their base forms.

    Args:
        chunk: tokens a chunk.
        twice: keep the inverse of the triangular system as two numbers of 16 bits, not one.
    """
    return differentiable(lambda call: _outputs(call, chunk, twice))


def _outputs(call: Call, chunk: int, twice: bool) -> tuple[Tensor, ...]:
    q, k, v = (x.float().transpose(1, 2) for x in (call.q, call.k, call.v))
    q = q * call.scale  # before scores are rounded, which may be beyond float16 without it
    gates, beta = _gates(call), call.get("beta")
    strength = None if beta is None else beta.float().transpose(1, 2)[..., None]
    bounds = call.bounds
    spans = [(0, q.shape[2])] if bounds is None else list(pairwise(bounds))
    states = call.get("initial_state")
    if states is None:
        states = q.new_zeros(call.num_sequences, q.shape[1], q.shape[3], v.shape[3])
    rows = [states] if bounds is None else list(states.split(1))
    outputs, finals = [v[:, :, :0]], [states[:0]]
    for state, (begin, end) in zip(rows, spans, strict=True):
        for first in range(begin, end, chunk):
            part = slice(first, min(first + chunk, end))
            given = (None if x is None else x[:, :, part] for x in (gates, strength))
            o, state = _chunk(
                q[:, :, part], k[:, :, part], v[:, :, part], *given, state, call, twice
            )
            outputs.append(o)
        finals.append(state)
    o = torch.cat(outputs, 2).transpose(1, 2).to(call.q.dtype)
    return (o, torch.cat(finals)) if "final_state" in call.features else (o,)


def _gates(call: Call) -> Decays:
    """Log decays ``[B, H, T, 1 or K]``; in float64, as sums of parts would be exact."""
    g, gk = call.get("g"), call.get("gk")
    if g is None and gk is None:
        return None
    g = None if g is None else g.double() if g.dim() == 4 else g.double()[..., None]
    both = g if gk is None else gk.double() if g is None else g + gk.double()
    assert both is not None
    return both.transpose(1, 2)


def _chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Decays,
    strength: Decays,
    state: Tensor,
    call: Call,
    twice: bool,
) -> tuple[Tensor, Tensor]:
    def product(a: Tensor, b: Tensor, exact: bool = False) -> Tensor:
        found: Tensor = _Product.apply(a, b, call.q.dtype, exact)
        return found

    sums = None if gates is None else gates.cumsum(2)
    since = until = total = q.new_ones(1, 1, 1, 1)
    if sums is not None:
        since, until = sums.float().exp(), (sums[:, :, -1:] - sums).float().exp()
        total = sums[:, :, -1:].float().exp().mT
    errors = v
    if strength is not None:
        system = strength * _scores(k, k, sums, product).tril(-1)
        one = torch.eye(k.shape[2]).expand_as(system)
        inverse = torch.linalg.solve_triangular(one + system, one, upper=False, unitriangular=True)
        reading = product(inverse, strength * k * since, twice)
        errors = product(inverse, strength * v, twice) - product(reading, state)
    o = product(q * since, state) + product(_scores(q, k, sums, product).tril(), errors)
    return o, total * state + product((k * until).mT, errors)


def _scores(
    q: Tensor, k: Tensor, sums: Decays, product: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """``q_i^T D_i ... D_{j+1} k_j`` for all j <= i."""
    if sums is None or sums.shape[-1] == 1:
        found = product(q, k.mT)
        return found if sums is None else found * _between(sums, sums).squeeze(-1)
    rows = []
    for begin in range(0, q.shape[2], SUB):
        end = min(begin + SUB, q.shape[2])
        own, start = sums[:, :, begin:end], sums[:, :, begin : begin + 1]
        before = k[:, :, :begin] * (start - sums[:, :, :begin]).float().exp()
        far = product(q[:, :, begin:end] * (own - start).float().exp(), before.mT)
        pairs = q[:, :, begin:end, None] * k[:, :, None, begin:end]
        near = (pairs * _between(own, own)).sum(-1)
        later = q.new_zeros(*near.shape[:-1], q.shape[2] - end)
        rows.append(torch.cat([far, near, later], -1))
    return torch.cat(rows, 2)


def _between(ends: Tensor, starts: Tensor) -> Tensor:
    """Decays from each start to each end; none backwards."""
    forwards = torch.ones(ends.shape[2], starts.shape[2], dtype=torch.bool).tril()[..., None]
    apart = ends[:, :, :, None] - starts[:, :, None]
    return apart.float().masked_fill(~forwards, -math.inf).exp()
