"""Cannot say what its residuals are."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, residuals=f"{__name__}:residuals")


def residuals(call):
    raise ZeroDivisionError("division by zero")
