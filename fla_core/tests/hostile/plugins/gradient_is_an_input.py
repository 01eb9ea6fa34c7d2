"""Returns a gradient in the memory of an input."""

from hostile_base import honest_backward, hooks

fla_backend, fla_implementations = hooks(__name__, backward=f"{__name__}:backward")


def backward(call, residuals, grads, needs):
    found = dict(honest_backward(call, residuals, grads, needs))
    gradient = call.v.detach()
    gradient.copy_(found["v"])
    found["v"] = gradient
    return found
