"""Returns one output where two are asked for."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    (o, *_), residuals = honest_forward(call, save)
    return (o,), residuals
