"""Wants to be the reference."""

from hostile_base import hooks

fla_backend, fla_implementations = hooks(__name__, name="reference", forward=f"{__name__}:forward")


def forward(call, save):
    raise AssertionError("the impostor ran")
