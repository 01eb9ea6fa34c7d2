"""Names a kernel that does not exist."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:no_such_function")
