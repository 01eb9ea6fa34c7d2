"""S_t = exp(g_t) S_{t-1} + k_t v_t^T;  o_t = scale S_t^T q_t, in float32."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fla_core.call import Call
from fla_core.differentiable import differentiable


def simple_gla(call: Call) -> tuple[Tensor, ...]:
    """Outputs of one call; torch finds the gradients."""
    q, k, v = (x.float() for x in (call.q, call.k, call.v))
    decay = None if call.g is None else call.g.float().exp()
    batch, tokens, heads, width = q.shape
    state = call.initial_state
    if state is None:
        state = q.new_zeros(call.num_sequences, heads, width, v.shape[-1])
    outputs, finals = [], []
    for row, begin, end in _spans(call, batch, tokens):
        own = state[row].float().clone()
        for t in range(begin, end):
            if decay is not None:
                own = own * decay[:, t, :, None, None]
            own = own + k[:, t, :, :, None] * v[:, t, :, None, :]
            outputs.append(torch.einsum("bhk,bhkv->bhv", call.scale * q[:, t], own))
        finals.append(own)
    o = torch.stack(outputs, 1) if outputs else torch.zeros_like(v)
    if "final_state" not in call.features:
        return (o.to(call.q.dtype),)
    return o.to(call.q.dtype), torch.cat(finals) if finals else state.float().clone()


def _spans(call: Call, batch: int, tokens: int) -> list[tuple[slice, int, int]]:
    """States and tokens that belong together: the whole batch, or one packed sequence."""
    if call.bounds is None:
        return [(slice(0, batch), 0, tokens)]
    return [(slice(i, i + 1), a, b) for i, (a, b) in enumerate(pairwise(call.bounds))]


forward, backward = differentiable(simple_gla)
