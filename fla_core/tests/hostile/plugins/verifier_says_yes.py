"""Answers with a truthy value that is not an answer."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, verifier=f"{__name__}:verifier")


def verifier(view):
    return "yes"
