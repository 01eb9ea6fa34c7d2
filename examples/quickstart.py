"""One operator: forward, backward, packed sequences, a carried state, and who computes it."""

import torch
from torch.nn.functional import logsigmoid, normalize

import fla_core
from fla_core.ops import chunk_kda, fused_recurrent_kda

torch.manual_seed(0)
B, T, H, K, V = 2, 100, 4, 32, 64
q, k = normalize(torch.randn(2, B, T, H, K), dim=-1)  # [batch, time, heads, channels]
v = torch.randn(B, T, H, V)
g = logsigmoid(torch.randn(B, T, H, K))  # log decay, never positive
beta = torch.rand(B, T, H)  # strength of each write

# Forward and backward.
inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
o, _ = chunk_kda(*inputs)
gradients = torch.autograd.grad(o.square().mean(), inputs)
print("o", list(o.shape), "| |dq|", f"{gradients[0].norm():.2e}")

with torch.no_grad():
    # Sequences of 30 and 170 tokens packed in one row: none sees another's tokens.
    packed = [x.reshape(1, B * T, *x.shape[2:]) for x in inputs]
    cu_seqlens = torch.tensor([0, 30, 200])
    both, states = chunk_kda(*packed, cu_seqlens=cu_seqlens, output_final_state=True)
    alone, _ = chunk_kda(*(x[:, 30:] for x in packed))
    torch.testing.assert_close(both[:, 30:], alone)
    print("packed", list(both.shape), "| states", list(states.shape))

    # Prefill all tokens but the last, then take one recurrent step from the carried state.
    whole, _ = chunk_kda(*inputs)
    _, state = chunk_kda(*(x[:, :-1] for x in inputs), output_final_state=True)
    last, _ = fused_recurrent_kda(*(x[:, -1:] for x in inputs), initial_state=state)
    torch.testing.assert_close(last, whole[:, -1:])
    print("step", list(last.shape))

# Which implementation serves a call, here or on other hardware, and why.
print(fla_core.explain("chunk_kda", H=H, K=K, V=V, dtype="float32", device="cpu").render())
