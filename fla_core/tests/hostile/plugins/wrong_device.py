"""Returns its output on another device."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    (o, *rest), residuals = honest_forward(call, save)
    return (o.to("meta"), *rest), residuals
