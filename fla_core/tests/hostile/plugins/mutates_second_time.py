"""Behaves on the first call and scales q on the second."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


CALLS = []


def forward(call, save):
    outputs = honest_forward(call, save)
    CALLS.append(call)
    if len(CALLS) > 1:
        call.q.mul_(2)
    return outputs
