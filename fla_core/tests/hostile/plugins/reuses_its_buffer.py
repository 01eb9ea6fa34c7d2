"""Returns the same buffer from every call."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


BUFFERS = {}


def forward(call, save):
    (o, *rest), residuals = honest_forward(call, save)
    return (BUFFERS.setdefault(o.shape, o).copy_(o), *rest), residuals
