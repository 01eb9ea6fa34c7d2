"""Returns lists instead of tuples."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    outputs, residuals = honest_forward(call, save)
    return list(outputs), list(residuals)
