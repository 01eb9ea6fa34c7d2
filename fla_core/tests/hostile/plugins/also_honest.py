"""A second honest one, asked after all others."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, priority=200)
