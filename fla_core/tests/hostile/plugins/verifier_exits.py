"""Ends the process in its verifier."""

import sys

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, verifier=f"{__name__}:verifier")


def verifier(view):
    sys.exit(1)
