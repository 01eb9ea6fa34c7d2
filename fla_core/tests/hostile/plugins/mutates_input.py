"""Scales q in place."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    outputs = honest_forward(call, save)
    call.q.mul_(2)
    return outputs
