"""Ends the process in its kernel, with success."""

import sys

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, forward=f"{__name__}:forward")


def forward(call, save):
    sys.exit(0)
