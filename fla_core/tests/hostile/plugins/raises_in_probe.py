"""Raises when asked for a device."""

from hostile_base import hookimpl, hooks

fla_backend, fla_implementations = hooks(__name__)


@hookimpl
def fla_probe(device):
    raise OSError("driver and library do not match")
