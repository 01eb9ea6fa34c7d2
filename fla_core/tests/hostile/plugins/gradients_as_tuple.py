"""Returns gradients in order instead of by name."""

from hostile_base import honest_backward, hooks

fla_backend, fla_implementations = hooks(__name__, backward=f"{__name__}:backward")


def backward(call, residuals, grads, needs):
    found = dict(honest_backward(call, residuals, grads, needs))
    return tuple(found.values())
