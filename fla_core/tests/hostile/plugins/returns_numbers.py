"""Returns a float as the output."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    (o, *rest), residuals = honest_forward(call, save)
    return (float(o.sum()), *rest), residuals
