"""Returns a gradient that broadcasts to the right shape."""

from hostile_base import honest_backward, hooks

fla_backend, fla_implementations = hooks(__name__, backward=f"{__name__}:backward")


def backward(call, residuals, grads, needs):
    found = dict(honest_backward(call, residuals, grads, needs))
    found["v"] = found["v"].sum(1, keepdim=True)
    return found
