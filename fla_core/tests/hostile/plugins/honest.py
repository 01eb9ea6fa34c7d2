"""Does what it says, and is asked after those that do not."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, priority=90)
