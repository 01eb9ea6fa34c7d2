"""Calls itself by another name than its entry point."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, name="somebody_else")
