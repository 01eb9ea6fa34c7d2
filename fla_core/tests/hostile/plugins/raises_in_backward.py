"""Raises in its backward kernel."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, backward=f"{__name__}:backward")


def backward(call, residuals, grads, needs):
    raise RuntimeError("CUDA error: misaligned address")
