"""Scales v before it reads it."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    call.v.mul_(2)
    return honest_forward(call, save)
