"""Returns an output that broadcasts to the right shape."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    (o, *rest), residuals = honest_forward(call, save)
    return (o[:, :1].clone(), *rest), residuals
