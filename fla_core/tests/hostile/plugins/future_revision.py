"""Is written for a revision of the contract that does not exist yet."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, revision=99)
