"""Implements a hook that does not exist."""

from hostile_base import hookimpl, hooks

fla_backend, fla_implementations = hooks(__name__)


@hookimpl
def fla_prove(device):
    raise AssertionError("never called")
