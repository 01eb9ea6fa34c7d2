"""Returns two outputs in one buffer."""

from hostile_base import honest_forward, hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    (o, state), residuals = honest_forward(call, save)
    buffer = o.new_empty(o.numel() + state.numel())
    first, second = buffer.split([o.numel(), state.numel()])
    return (first.view_as(o).copy_(o), second.view_as(state).copy_(state)), residuals
