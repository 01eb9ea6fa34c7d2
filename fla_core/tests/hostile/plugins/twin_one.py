"""Has the same name as another plugin."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, name="twin")
