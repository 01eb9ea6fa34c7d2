"""Describes itself with a dict."""

from hostile_base import hookimpl, hooks

_, fla_implementations = hooks(__name__)


@hookimpl
def fla_backend():
    return {"name": "dict_card", "targets": ("cpu",)}
