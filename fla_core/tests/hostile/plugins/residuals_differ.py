"""Announces one residual and returns another."""

import torch
from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(
    __name__, forward=f"{__name__}:forward", residuals=f"{__name__}:residuals"
)


def residuals(call):
    return (((3,), torch.float32),)


def forward(call, save):
    outputs, _ = honest_forward(call, save)
    return outputs, (torch.zeros(4),)
