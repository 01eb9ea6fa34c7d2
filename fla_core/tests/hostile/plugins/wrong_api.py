"""Is written for a plugin interface of the future."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, api=99)
