"""Changes a global setting of torch while it computes."""

import torch
from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    torch.set_default_dtype(torch.float64)
    return honest_forward(call, save)
