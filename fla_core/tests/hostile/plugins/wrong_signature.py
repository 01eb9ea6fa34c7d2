"""Takes an argument that the hook does not have."""

from hostile_base import hookimpl, hooks

fla_backend, fla_implementations = hooks(__name__)


@hookimpl
def fla_probe(device, stream):
    raise AssertionError("never called")
