"""Ends the process in its backward kernel."""

import sys

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, backward=f"{__name__}:backward")


def backward(call, residuals, grads, needs):
    sys.exit(0)
