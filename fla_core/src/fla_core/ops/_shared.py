"""What the operator modules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_compiling

from fla_core.check import switch
from fla_core.dtypes import wide
from fla_core.errors import ContractError

Result = tuple[Tensor, Tensor | None]


def pair(outputs: tuple[Tensor, ...]) -> Result:
    """``(o, final_state)`` with None for a state that was not asked for."""
    return outputs if len(outputs) == 2 else (outputs[0], None)


def kept_with(q: Tensor, cached: Any) -> Callable[..., Tensor]:
    """The function with its ``lru_cache``, or without while tracing and where q is fake.

    A fake tensor left in the cache would break every later call, and a real one the fake call.
    """
    bare = is_compiling() or isinstance(q, FakeTensor)
    function: Callable[..., Tensor] = cached.__wrapped__ if bare else cached
    return function


def refuse_packed_attentions(title: str, output_attentions: bool, cu_seqlens: object) -> None:
    """Check the switch: attention weights are those of one sequence a row."""
    if switch(title, "output_attentions", output_attentions) and cu_seqlens is not None:
        expected = "output_attentions=False with cu_seqlens: there is no one matrix to return"
        raise ContractError(title, "output_attentions", expected, "True")


def asks_for_a_pool(title: str, indices: object, accepted: object, inplace: object) -> bool:
    """Whether a recurrent call's states lie in a pool: any of its arguments for one is given."""
    if indices is not None or accepted is not None:
        return True
    return inplace is not False and switch(title, "inplace_final_state", inplace)


def attention_weights(q: Tensor, k: Tensor, g: Tensor | None, scale: float | None) -> Tensor:
    """Return ``A[b, h, t, s] = scale q_t.k_s exp(sum g over s+1..t)`` for s <= t, zero elsewhere.

    Quadratic in T, differentiable; ``g`` is ``[B, T, H]`` or broadcasts to it.
    """
    length, dtype = q.shape[1], wide(q)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    with torch.autocast(q.device.type, enabled=False):
        scores = torch.einsum("bthd,bshd->bhts", q.to(dtype) * factor, k.to(dtype))
    ones = torch.ones(length, length, dtype=torch.bool, device=q.device)
    if g is not None:
        # The difference of two running sums would lose a mild decay behind a strong one.
        gates = g.to(dtype).expand(q.shape[:3]).transpose(1, 2)[..., None]
        between = gates.masked_fill(~ones.tril(-1), 0.0).cumsum(-2)
        scores = scores * between.exp()
    return scores.masked_fill(~ones.tril(), 0.0).to(q.dtype)
